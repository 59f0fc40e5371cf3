"""The network of [wan-*] in real namespaces. Where this machine cannot have one, each test sees that it says why."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import ROOT
from benchmarks.namespaces import NoNetwork
from benchmarks.wan.network import WideNetwork, missing
from benchmarks.wan.probe import lost, measured, round_trip
from benchmarks.wan.regions import Links

LINKS = Links((16e6, 8e6, 12e6), (0.005, 0.01, 0.03))
LIMIT = 180.0


@pytest.fixture(scope="module")
def network() -> Iterator[WideNetwork | None]:
    """Give the network, or None where it says why there is none."""
    if lacking := missing():
        with pytest.raises(NoNetwork, match=lacking[0].split(":")[0]), WideNetwork(LINKS):
            pass
        yield None
        return
    with WideNetwork(LINKS) as made:
        yield made


@pytest.mark.xdist_group("wide-area")
def test_no_round_trip_is_shorter_and_no_rate_higher_than_its_link_says(network: WideNetwork | None) -> None:
    """From 0 to 1 and back 5 + 10 ms each way. What a busy machine adds to that has no limit. Of two links the slower one counts."""
    if network is not None:
        found = measured(network, judged=False)
        assert {pair: seconds >= least for (pair, seconds), least in zip(found.round_trips.items(), (0.03, 0.07, 0.08), strict=True)} == {
            (0, 1): True, (0, 2): True, (1, 2): True,
        }  # fmt: skip
        assert {pair: 0 < bits < most for (pair, bits), most in zip(found.rates.items(), (8e6, 8e6, 12e6), strict=True)} == {
            (0, 1): True, (1, 2): True, (2, 0): True,
        }  # fmt: skip


@pytest.mark.xdist_group("wide-area")
def test_the_share_of_packets_that_is_lost_is_the_one_that_was_asked_for(network: WideNetwork | None) -> None:
    """150 of 3,000 packets are lost in the mean, with a standard deviation of 12: 6 of them to each side."""
    if network is not None:
        assert lost(network, 0, 2, 500) == 0
        network.set_loss(0.05)
        missing_ones = lost(network, 0, 2, 3000)
        network.set_loss(0.0)
        assert 80 <= missing_ones <= 220


@pytest.mark.xdist_group("wide-area")
def test_a_region_that_is_cut_off_hears_nothing_until_it_is_back(network: WideNetwork | None) -> None:
    if network is not None:
        network.cut([1])
        assert lost(network, 0, 1, 10) == 10
        assert lost(network, 0, 2, 10) == 0
        network.cut([])
        assert round_trip(network, 0, 1) >= 0.03


@pytest.mark.xdist_group("wide-area")
def test_the_network_has_nothing_of_this_machine_and_this_machine_nothing_of_it(network: WideNetwork | None) -> None:
    if network is not None:
        here = {name for _, name in socket.if_nameindex()}
        assert not here & {"wan", "c0", "t0"}
        with network.socket(0, socket.SOCK_STREAM) as region, pytest.raises(OSError, match="refused"):
            region.connect(("127.0.0.1", 9))


@pytest.mark.xdist_group("wide-area")
def test_all_of_it_ends_with_the_process_that_made_it_even_after_sigkill(network: WideNetwork | None, tmp_path: Path) -> None:
    """The router lives as long as its namespace is needed; nothing else of the network is a process."""
    if network is None:
        return
    program = (
        "import sys, time\n"
        "from benchmarks.wan.network import WideNetwork\n"
        "from benchmarks.wan.regions import Links\n"
        "with WideNetwork(Links((8e6, 8e6), (0.005, 0.005))) as network:\n"
        "    print(network.router_pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    maker = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    router = int(maker.stdout.readline())
    assert Path(f"/proc/{router}").exists()
    namespace = Path(f"/proc/{router}/ns/net").stat().st_ino
    maker.send_signal(signal.SIGKILL)
    maker.communicate()
    deadline = time.monotonic() + LIMIT
    while _processes_in(namespace) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _processes_in(namespace)


def _processes_in(namespace: int) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "ns" / "net").stat().st_ino == namespace:
                found.append(process.name)
        except OSError:  # it has ended
            continue
    return found
