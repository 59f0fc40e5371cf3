"""Why there are not more free slices of a shape: who has them, and what is wrong with the others."""

from __future__ import annotations

from builders.nodes import GPU, TPU, a_gpu_node, a_node, a_tpu_node, a_tpu_slice, an_inventory
from diloco_operator.fleet import Holder, PodUse, Resources, Shape, SliceCounts, project_node
from diloco_operator.fleet.slices import NearbySlices, SliceKind, UsedHosts

SINGLE = Shape("tpu-v5p", "2x2x1", 4, 1)
PAIR = Shape("tpu-v5p", "2x2x2", 4, 2)
H100 = "nvidia-h100-80gb"


def use(node: str, name: str, resource: str = TPU, count: int = 4) -> PodUse:
    return PodUse("team", name, node, Resources(0, 0, 1, ((resource, count),)))


def gpus(unit: str, **parts: int) -> dict[tuple[str, str], Resources]:
    """Node -> accelerators of it that the unit has reserved."""
    return {(node, unit): Resources(0, 0, 1, ((GPU, count),)) for node, count in parts.items()}


# --- slices -----------------------------------------------------------------------------------------------------------
def test_each_slice_is_in_one_count() -> None:
    inventory = an_inventory(*(a_tpu_node(f"n{index}") for index in range(11)))
    inventory.set_reservations("mine", {"n0", "n1", "n6"})
    inventory.set_reservations("a", {"n2", "n3", "n7"})
    inventory.set_reservations("b", {"n4"})
    for name in ("n5", "n6", "n7"):
        inventory.update_node(project_node(a_tpu_node(name, cordoned=True)))
    for pod in (use("n8", "p1"), use("n8", "p0"), use("n9", "o")):
        inventory.replace_use(None, pod)
    # n10 is free. Of those that are unusable, n6 was mine, and n7 counts for its job.
    expected = SliceCounts(
        total=11,
        of_job=1,  # n0
        ending=1,  # n1
        holders=(Holder("a", 3, leaving=0, surplus=None, priority=0), Holder("b", 1)),
        unusable=("node n5 is cordoned", "node n6 is cordoned"),
        unusable_count=2,
        used=2,
        used_by="team/p0",  # of the first slice
        used_by_count=3,
        hosts=0,
        scattered=(),
    )
    assert inventory.counts(SINGLE, "mine", {"n0": 4}) == expected
    assert inventory.copy().counts(SINGLE, "mine", {"n0": 4}) == expected
    # A slice that the job keeps is its own even if it is unusable; a node that is gone is nobody's.
    kept = inventory.counts(SINGLE, "mine", {"n0": 4, "n1": 4, "n6": 4, "gone": 4})
    assert (kept.of_job, kept.ending, kept.unusable_count, kept.unusable) == (3, 0, 1, ("node n5 is cordoned",))
    # To others, what it has reserved is held.
    assert inventory.counts(SINGLE).holders == (Holder("a", 3), Holder("mine", 3), Holder("b", 1))


def test_slice_of_which_jobs_have_hosts_counts_once_for_the_first_of_them() -> None:
    inventory = an_inventory(*a_tpu_slice("np-0", 2), *a_tpu_slice("np-1", 2))
    inventory.set_reservations("b", {"np-0-0"})
    inventory.set_reservations("a", {"np-0-1"})
    for fleet in (inventory, inventory.copy()):
        assert fleet.counts(PAIR).holders == (Holder("a", 1),)
        assert fleet.counts(PAIR, "a").holders == (Holder("b", 1),)


def test_at_most_three_unusable_slices_are_explained_each_by_its_first_host() -> None:
    nodes = [node for index in range(4) for node in a_tpu_slice(f"np-{index}", 2, cordoned=True)]
    counts = an_inventory(*nodes).counts(PAIR)
    assert counts.unusable_count == 4
    assert counts.unusable == tuple(f"node np-{index}-0 is cordoned" for index in range(3))


def test_hosts_without_a_count_of_accelerators_may_be_of_the_shape_and_are_unusable() -> None:
    inventory = an_inventory(a_gpu_node("g"), a_gpu_node("silent", gpus=0))
    counts = inventory.counts(Shape(H100, "", 8, 2))
    assert (counts.total, counts.unusable_count) == (2, 1)
    assert inventory.counting.kinds(Shape(H100, "", 8)) == (SliceKind(H100, "", 8), SliceKind(H100, "", 0))


def test_used_hosts_of_the_first_slice_of_several_are_named_and_at_most_three_of_them() -> None:
    inventory = an_inventory(*a_tpu_slice("np-0", 16, topology="4x4x4"), *a_tpu_slice("np-1", 16, topology="4x4x4"))
    for node in ("np-1-0", *(f"np-0-{index}" for index in (10, 9, 2, 3))):
        inventory.replace_use(None, use(node, f"on-{node}"))
    inventory.replace_use(None, PodUse("team", "another", "np-0-2", Resources(1000, 0, 1)))  # it uses no accelerator
    counts = inventory.counts(Shape("tpu-v5p", "4x4x4", 4, 16))
    users = tuple((f"np-0-{index}", f"team/on-np-0-{index}") for index in (2, 3, 9))
    assert counts.used_hosts == UsedHosts("np-0", 16, 4, users)
    assert (counts.used, counts.used_by, counts.used_by_count) == (2, "team/on-np-0-10", 5)


def test_hosts_with_other_devices_than_the_template_requests_are_counted_and_their_devices_named() -> None:
    npus = [a_node(f"npu-{index}", devices={"example.com/npu": "4"}) for index in range(2)]
    inventory = an_inventory(a_node("plain"), *npus, a_node("both", devices={"example.com/npu": "4", "example.com/fpga": "1"}))
    counts = inventory.counts(Shape("cpu"))
    assert (counts.total, counts.other_devices_count, counts.other_devices) == (1, 3, ("example.com/fpga", "example.com/npu"))


# --- accelerators of hosts that units share ---------------------------------------------------------------------------
def test_each_accelerator_of_a_shared_host_is_in_one_count() -> None:
    inventory = an_inventory(a_gpu_node("a", cordoned=True), *(a_gpu_node(name) for name in "bcdefg"), a_gpu_node("small", gpus=1))
    inventory.set_reservations("mine", {"b", "e"}, {**gpus("u", b=4), **gpus("v", e=8)})
    inventory.set_reservations("k", {"b", "d"}, gpus("u", b=2))  # all of d
    inventory.set_reservations("l", {"a"}, gpus("u", a=1))
    inventory.replace_use(None, use("c", "train", GPU, 3))
    inventory.replace_use(None, use("c", "other", GPU, 2))
    expected = SliceCounts(
        total=56,  # 7 hosts of 8
        of_job=4 + 4 + 6,  # of b, e and g, where nothing is reserved yet
        ending=4,  # of e: 8 are reserved, 4 are kept
        holders=(Holder("k", 2 + 8), Holder("l", 1)),
        unusable=("node a is cordoned",),
        unusable_count=7,  # all of a but what l has
        other_devices_count=0,
        used=5,
        used_by="team/other",
        used_by_count=2,
        hosts=7,
        scattered=(("c", 3), ("b", 2), ("g", 2)),  # 8 - 5, 8 - 4 - 2, 8 - 6
        nearby=(NearbySlices(SliceKind(H100, "", 1), 1, 0),),
    )  # and f is free: 56 - 14 - 4 - 11 - 7 - 5 = 8 + 3 + 2 + 2
    assert inventory.counts(Shape(H100, "", 4), "mine", {"b": 4, "e": 4, "g": 6}) == expected


def test_host_that_lost_accelerators_has_none_to_spare() -> None:
    inventory = an_inventory(a_gpu_node("a"), a_gpu_node("b"))
    inventory.set_reservations("k", {"a"}, gpus("u", a=8))
    lost = a_gpu_node("a", cordoned=True)
    lost["status"]["allocatable"][GPU] = "6"
    inventory.update_node(project_node(lost))
    counts = inventory.counts(Shape(H100, "", 4))
    assert (counts.total, counts.held, counts.unusable_count, counts.scattered) == (14, 8, 0, ())


def test_host_with_as_many_free_accelerators_as_a_unit_needs_is_not_scattered() -> None:
    inventory = an_inventory(a_gpu_node("a"), a_gpu_node("b"))
    inventory.set_reservations("k", {"a", "b"}, {**gpus("u", a=4), **gpus("v", b=8)})
    assert inventory.counts(Shape(H100, "", 4)).scattered == ()


def test_at_most_three_unusable_hosts_are_explained() -> None:
    counts = an_inventory(*(a_gpu_node(f"g{index}", cordoned=True) for index in range(4))).counts(Shape(H100, "", 2))
    assert (counts.unusable_count, counts.unusable) == (32, tuple(f"node g{index} is cordoned" for index in range(3)))


def test_accelerators_are_counted_only_where_a_unit_leaves_some_of_a_host() -> None:
    inventory = an_inventory(a_gpu_node("a"), a_gpu_node("b"))
    counted = {shape: inventory.counts(shape).total for shape in (Shape(H100, "", 8), Shape(H100, "", 7), Shape(H100, "", 7, 2))}
    assert list(counted.values()) == [2, 16, 2]
    assert [inventory.counting.divides(shape) for shape in counted] == [False, True, False]
