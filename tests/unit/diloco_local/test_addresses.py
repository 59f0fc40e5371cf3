"""Every pod has an address of its own in 127/8."""

import random
import socket
from pathlib import Path

import pytest
from diloco_local.addresses import Addresses, Network, NoAddressLeft, PortTaken


def test_addresses_are_distinct_and_in_their_network() -> None:
    addresses = Addresses(77)
    taken = [addresses.of_owner(f"pod-{i}") for i in range(1000)]
    assert len(set(taken)) == 1000
    assert all(address.startswith("127.77.") for address in taken)
    assert taken[:2] == ["127.77.0.2", "127.77.0.3"]


def test_owner_keeps_its_address_until_it_is_released_and_then_it_is_used_last() -> None:
    addresses = Addresses(77)
    first = addresses.of_owner("a")
    assert addresses.of_owner("a") == first
    addresses.release("a")
    assert addresses.of_owner("b") != first


@pytest.mark.slow
def test_released_addresses_come_round_again_when_the_network_is_used_up() -> None:
    addresses = Addresses(77)
    for number in range(0xFFFE - 2 + 1):
        addresses.of_owner(str(number))
    with pytest.raises(NoAddressLeft):
        addresses.of_owner("one too many")
    addresses.release("500")
    assert addresses.of_owner("again") == "127.77.1.246"  # the 501st from .0.2: 502 = 1 * 256 + 246


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("syncer.job.default.svc:7077", "127.3.0.2:7077"),
        ("syncer.job.default.svc.cluster.local:7077", "127.3.0.2:7077"),
        ("syncer.job.default.svc,syncer.job.other.svc", "127.3.0.2,127.3.0.3"),
        ("http://syncer.job.default.svc/path", "http://127.3.0.2/path"),
        ("job.default.svc", "job.default.svc"),  # a service, no pod
        ("syncer.job.default.svc.example.com", "syncer.job.default.svc.example.com"),
        ("syncer.job.default.svcs", "syncer.job.default.svcs"),
        ("a.syncer.job.default.svc", "a.syncer.job.default.svc"),
        ("diloco.trainers.byte_lm", "diloco.trainers.byte_lm"),
    ],
)
def test_names_of_pods_become_addresses_and_nothing_else_does(text: str, expected: str) -> None:
    assert Addresses(3).resolve(text) == expected


def test_a_syncers_name_leads_over_the_link_to_it_and_a_learners_does_not() -> None:
    addresses = Addresses(3)
    seen = addresses.resolve("job-syncer.job.default.svc:7077 job-v5p-0.job.default.svc", lambda own: f"to-{own}")
    assert seen == "to-127.3.0.2:7077 127.3.0.3"


def test_a_name_has_one_address_from_its_first_use() -> None:
    addresses = Addresses(3)
    mentioned = addresses.resolve("syncer.job.default.svc")
    assert addresses.of_name("syncer", "job", "default") == mentioned


def test_two_control_planes_get_different_networks_and_never_the_first(tmp_path: Path) -> None:
    rng = random.Random(1)
    networks = [Network.reserve(rng, tmp_path) for _ in range(254)]
    assert sorted(network.second for network in networks) == list(range(1, 255))
    with pytest.raises(NoAddressLeft, match="lock files"):
        Network.reserve(rng, tmp_path)
    networks[0].close()
    assert Network.reserve(rng, tmp_path).second == networks[0].second


def test_a_port_of_a_listener_that_shares_it_is_taken() -> None:
    """The syncer's server does not share a port, so it could not listen beside this one."""
    network = Network.reserve(random.Random())  # this machine's: no other test uses it meanwhile
    with socket.create_server((f"127.{network.second}.255.254", 0), reuse_port=True) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortTaken, match=f"port {port} is taken"):
            network.check_port(port, "the test")
    network.check_port(port, "the test")
    network.close()
