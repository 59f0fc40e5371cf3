"""What the hosts of a slice offer together, and what is left of a host that units share."""

from __future__ import annotations

from typing import Any

import pytest
from builders.nodes import GPU, a_gpu_node, a_tpu_node, an_inventory
from diloco_operator.fleet import Host, Inventory, PodUse, Resources, Shape, Slice, Taint, project_node
from diloco_operator.fleet.slices import SliceKind

H100 = "nvidia-h100-80gb"
PAIR = Shape("tpu-v5p", "2x2x2", 4, 2)


def gpus(count: int, cpu: int = 0) -> Resources:
    return Resources(cpu, 0, 1, ((GPU, count),))


def a_host(**fields: Any) -> Inventory:
    """A host with 8 accelerators, 8 CPUs and room for 10 pods."""
    return an_inventory(a_gpu_node("a", resources={"cpu": "8", "memory": "1Ki", "pods": "10"}, **fields))


def only(inventory: Inventory, shape: Shape) -> Slice:
    (slice_,) = inventory.slices(shape)
    return slice_


def test_slice_of_several_hosts_has_what_all_of_them_share_and_needs_a_toleration_for_each_taint_of_one() -> None:
    both, one = {"key": "team", "value": "v", "effect": "NoSchedule"}, {"key": "gone", "effect": "NoExecute"}
    ours = {"key": "google.com/tpu", "effect": "NoSchedule"}
    common = {"cloud.google.com/gke-spot": "true", "disk": "fast", "topology.kubernetes.io/zone": "z"}
    hosts = [
        a_tpu_node("np-10", topology="2x2x2", pool="np", labels={**common, "rack": "1"}, taints=[both, ours], resources={"cpu": "4"}),
        a_tpu_node("np-9", topology="2x2x2", pool="np", labels={**common, "rack": "2"}, taints=[both, one], resources={"cpu": "2"}),
    ]
    found = only(an_inventory(*hosts), PAIR)
    assert (found.name, found.node_pool, found.hosts) == ("np", "np", (Host("np-9"), Host("np-10")))
    assert (found.kind, found.capacity, found.locality) == (SliceKind("tpu-v5p", "2x2x2", 4), "Spot", ("z",))
    assert {key: found.labels.get(key) for key in (*common, "rack")} == {**common, "rack": None}
    assert found.taints == (Taint("team", "v", "NoSchedule"), Taint("gone", "", "NoExecute"))
    assert (found.room.cpu, found.room.devices, found.in_part) == (2000, (("google.com/tpu", 4),), False)


def test_host_is_offered_whole_or_what_pods_and_units_leave_of_it() -> None:
    inventory = a_host()
    (whole,) = inventory.free(Shape(H100, "", 1))
    assert (whole.kind.chips_per_host, whole.room, whole.in_part) == (8, Resources(8000, 1024, 10, ((GPU, 8),)), False)
    inventory.replace_use(None, PodUse("team", "train", "a", gpus(3, cpu=1000)))
    (left,) = inventory.free(Shape(H100, "", 5))
    assert (left.kind.chips_per_host, left.room, left.in_part) == (5, Resources(7000, 1024, 9, ((GPU, 5),)), True)
    inventory.set_reservations("job", ["a"], {("a", "u"): gpus(4, cpu=2000)})
    (left,) = inventory.free(Shape(H100, "", 1))
    assert (left.kind.chips_per_host, left.room, left.in_part) == (1, Resources(5000, 1024, 8, ((GPU, 1),)), True)
    assert list(inventory.free(Shape(H100, "", 2))) == []
    inventory.set_reservations("job", ["a"], {("a", "u"): gpus(5)})
    assert list(inventory.free(Shape(H100, "", 1))) == []


@pytest.mark.parametrize("shape", [Shape(H100, "", 4, 2), Shape(H100, "", 4, alone=True)])
def test_unit_that_takes_whole_hosts_gets_none_of_which_another_has_a_part(shape: Shape) -> None:
    inventory = a_host()
    assert len(list(inventory.free(shape))) == 1
    inventory.set_reservations("job", ["a"], {("a", "u"): gpus(1)})
    assert list(inventory.free(shape)) == []
    inventory.set_reservations("job", [])
    inventory.replace_use(None, PodUse("team", "train", "a", gpus(1)))
    assert list(inventory.free(shape)) == []


def test_nothing_is_left_of_a_host_that_a_job_has_as_a_whole() -> None:
    inventory = a_host()
    host = only(inventory, Shape(H100, "", 8))
    assert inventory.room_left(host) == Resources(8000, 1024, 10, ((GPU, 8),))
    inventory.set_reservations("one", ["a"], {("a", "u"): gpus(2)})
    assert inventory.room_left(host) == Resources(8000, 1024, 9, ((GPU, 6),))
    inventory.set_reservations("two", ["a"])
    assert inventory.room_left(host) == Resources(0, 0, 0)


@pytest.mark.parametrize(("there", "usable"), [("7", False), ("8", True)])
def test_host_that_has_fewer_accelerators_than_units_took_is_not_usable(there: str, usable: bool) -> None:
    inventory = a_host()
    inventory.set_reservations("job", ["a"], {("a", "u"): gpus(8)})
    host = a_gpu_node("a", resources={"cpu": "8"})
    host["status"]["allocatable"][GPU] = there
    inventory.update_node(project_node(host))
    assert inventory.usable(only(inventory, Shape(H100, "", int(there)))) is usable


def test_slice_is_free_as_long_as_what_was_offered_of_it_is_there() -> None:
    inventory = a_host()
    (whole,) = inventory.free(Shape(H100, "", 2))
    assert inventory.is_free(whole)
    inventory.set_reservations("job", ["a"], {("a", "u"): gpus(2)})
    (part,) = inventory.free(Shape(H100, "", 2))
    assert (inventory.is_free(whole), inventory.is_free(part)) == (False, True)
    inventory.replace_use(None, PodUse("team", "web", "a", Resources(1000, 0, 1)))  # less room than was offered
    assert (inventory.is_free(whole), inventory.is_free(part)) == (False, False)
    inventory.remove_node("a")
    assert not inventory.is_free(part)


def test_tpu_slice_is_free_until_it_is_reserved_unusable_or_made_anew_of_other_hosts() -> None:
    def host(name: str, **fields: Any) -> Any:
        return project_node(a_tpu_node(name, topology="2x2x2", pool="np", **fields))

    inventory = an_inventory(*(a_tpu_node(f"np-{index}", topology="2x2x2", pool="np") for index in range(2)))
    pair = only(inventory, PAIR)
    assert (inventory.is_free(pair), inventory.usable(pair)) == (True, True)
    inventory.set_reservations("job", ["np-1"])
    assert (inventory.is_free(pair), inventory.usable(pair)) == (False, True)
    inventory.set_reservations("job", [])
    inventory.update_node(host("np-1", cordoned=True))
    assert (inventory.is_free(pair), inventory.usable(pair)) == (False, False)
    inventory.remove_node("np-1")
    inventory.update_node(host("np-2"))
    assert [each.hosts for each in inventory.free(PAIR)] == [(Host("np-0"), Host("np-2"))]
    assert (inventory.is_free(pair), inventory.usable(pair)) == (False, False)
