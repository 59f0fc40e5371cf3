"""Slices that other pods use, in whole or in part."""

from __future__ import annotations

from builders.nodes import a_gpu_node, a_node, a_tpu_node, a_tpu_slice, an_inventory
from diloco_operator.fleet import Inventory, PodUse, Resources, Shape, project_node
from diloco_operator.fleet.slices import SliceKind, SliceState

TPU = "google.com/tpu"
SINGLE = Shape("tpu-v5p", "2x2x1", 4, 1)
PAIR = Shape("tpu-v5p", "2x2x2", 4, 2)
H100 = Shape("nvidia-h100-80gb", "", 8, 1)
CPU = Shape("cpu", "", 0, 1)


def names(inventory: Inventory, shape: Shape) -> list[str]:
    return [slice_.name for slice_ in inventory.free(shape)]


def use(node: str, name: str = "train-0", *, cpu: int = 0, **devices: int) -> PodUse:
    named = {"tpu": TPU, "gpu": "nvidia.com/gpu"}
    return PodUse("team-a", name, node, Resources(cpu, 0, 1, tuple((named[key], amount) for key, amount in devices.items())))


def test_slice_is_not_free_while_another_pod_uses_its_accelerators() -> None:
    inventory = an_inventory(a_tpu_node("a"), a_tpu_node("b"))
    train = use("a", tpu=1)
    assert inventory.replace_use(None, train) is False
    assert names(inventory, SINGLE) == ["b"]
    counts = inventory.counts(SINGLE)
    assert (counts.total, counts.held, counts.unusable_count, counts.used, counts.used_by, counts.used_by_count) == (
        *(2, 0, 0, 1),
        *("team-a/train-0", 1),
    )
    assert inventory.replace_use(train, None) is True  # jobs may wait for it
    assert (names(inventory, SINGLE), inventory.counts(SINGLE).used) == (["a", "b"], 0)


def test_one_host_in_use_takes_the_whole_slice() -> None:
    inventory = an_inventory(*a_tpu_slice("np-0", 2), *a_tpu_slice("np-1", 2))
    inventory.replace_use(None, use("np-0-1", tpu=4))
    assert names(inventory, PAIR) == ["np-1"]


def test_pod_that_uses_no_accelerator_leaves_the_slice_free_with_less_room() -> None:
    inventory = an_inventory(a_gpu_node("a", resources={"cpu": "8"}))
    inventory.replace_use(None, use("a", cpu=3000))
    (slice_,) = inventory.free(H100)
    assert slice_.room.cpu == 5000
    assert inventory.usable(slice_)


def test_room_of_a_slice_is_that_of_its_fullest_host() -> None:
    inventory = an_inventory(*a_tpu_slice("np-0", 2, resources={"cpu": "8"}))
    assert [slice_.room.cpu for slice_ in inventory.free(PAIR)] == [8000]
    inventory.replace_use(None, use("np-0-0", "one", cpu=1000))
    inventory.replace_use(None, use("np-0-1", "two", cpu=3000))
    assert [slice_.room.cpu for slice_ in inventory.free(PAIR)] == [5000]


def test_use_may_be_known_before_the_node() -> None:
    inventory = an_inventory()
    inventory.replace_use(None, use("a", tpu=4))
    inventory.update_node(project_node(a_tpu_node("a")))
    assert names(inventory, SINGLE) == []


def test_use_of_a_slice_that_is_reserved_shows_when_it_is_released() -> None:
    inventory = an_inventory(a_tpu_node("a"))
    inventory.set_reservations("job", {"a"})
    inventory.replace_use(None, use("a", tpu=4))
    assert (inventory.counts(SINGLE).held, inventory.counts(SINGLE).used) == (1, 0)
    inventory.set_reservations("job", ())
    assert (inventory.counts(SINGLE).held, inventory.counts(SINGLE).used, names(inventory, SINGLE)) == (0, 1, [])


def test_slice_in_use_is_not_usable_for_a_unit_without_pods() -> None:
    inventory = an_inventory(a_tpu_node("a"))
    (slice_,) = inventory.free(SINGLE)
    inventory.replace_use(None, use("a", tpu=4))
    assert inventory.usable(slice_) is False


def test_pod_that_moves_leaves_its_first_node() -> None:
    inventory = an_inventory(a_tpu_node("a"), a_tpu_node("b"))
    first, second = use("a", tpu=4), use("b", tpu=4)
    inventory.replace_use(None, first)
    assert inventory.replace_use(first, second) is True
    assert names(inventory, SINGLE) == ["a"]


def test_pod_that_ends_on_a_slice_that_is_not_free_wakes_nobody() -> None:
    inventory = an_inventory(a_tpu_node("a", ready=False), a_tpu_node("b"))
    pods = [use("a", tpu=4), use("b", "one", tpu=2), use("b", "two", tpu=2), use("gone", tpu=4)]
    for pod in pods:
        inventory.replace_use(None, pod)
    assert [inventory.replace_use(pod, None) for pod in pods] == [False, False, True, False]


def test_released_slice_that_is_unusable_is_not_free() -> None:
    """Or the next unit goes to a dead node."""
    inventory = an_inventory(a_tpu_node("a"), *a_tpu_slice("np-0", 2))
    inventory.set_reservations("job", {"a", "np-0-0", "np-0-1"})
    inventory.update_node(project_node(a_tpu_node("a", ready=False)))
    inventory.update_node(project_node(a_tpu_node("np-0-1", topology="2x2x2", pool="np-0", cordoned=True)))
    inventory.set_reservations("job", ())
    assert (names(inventory, SINGLE), names(inventory, PAIR)) == ([], [])
    assert (inventory.counts(SINGLE).held, inventory.counts(PAIR).held) == (0, 0)
    inventory.update_node(project_node(a_tpu_node("a")))
    assert names(inventory, SINGLE) == ["a"]


def test_node_is_not_free_while_its_device_plugin_offers_nothing() -> None:
    silent = a_tpu_node("a")
    silent["status"]["allocatable"] = {TPU: "0"}
    inventory = an_inventory(silent)
    assert names(inventory, SINGLE) == []
    assert inventory.counts(SINGLE).unusable == (
        f"node a offers no {TPU} now: no device plugin has reported any, and what only DRA offers is no slice",
    )
    inventory.update_node(project_node(a_tpu_node("a")))
    assert names(inventory, SINGLE) == ["a"]


def test_gpu_node_without_a_count_is_unusable_until_its_plugin_reports() -> None:
    inventory = an_inventory(a_gpu_node("a", gpus=0))
    counts = inventory.counts(H100)
    assert (names(inventory, H100), counts.total, counts.unusable_count) == ([], 1, 1)
    inventory.update_node(project_node(a_gpu_node("a")))
    assert (names(inventory, H100), inventory.counts(H100).total) == (["a"], 1)
    inventory.update_node(project_node(a_gpu_node("a", gpus=0)))
    assert names(inventory, H100) == []


def test_states_of_all_slices_add_up() -> None:
    inventory = an_inventory(*(a_tpu_node(f"tpu-{index}") for index in range(5)), a_node("plain"))
    inventory.set_reservations("job", {"tpu-0", "tpu-1"})
    inventory.update_node(project_node(a_tpu_node("tpu-1", ready=False)))
    inventory.update_node(project_node(a_tpu_node("tpu-2", ready=False)))
    inventory.replace_use(None, use("tpu-3", tpu=4))
    tpu = SliceKind("tpu-v5p", "2x2x1", 4)
    states = inventory.counting.states()
    assert {state: states[tpu, state] for state in SliceState} == {
        SliceState.FREE: 1,
        SliceState.USED: 1,
        SliceState.RESERVED: 2,
        SliceState.UNUSABLE: 1,
    }
    assert states[SliceKind("cpu"), SliceState.FREE] == 1


def test_copy_keeps_what_others_used() -> None:
    inventory = an_inventory(a_tpu_node("a"), a_gpu_node("g", resources={"cpu": "8"}))
    train, web = use("a", tpu=4), use("g", "web-0", cpu=6000)
    for pod in (train, web):
        inventory.replace_use(None, pod)
    copy = inventory.copy()
    for pod in (train, web):
        inventory.replace_use(pod, None)
    assert (names(copy, SINGLE), names(inventory, SINGLE)) == ([], ["a"])
    (slice_,) = copy.free(H100)
    assert copy.shortage(slice_, Resources(4000, 0, 1)) == "needs 4 CPU, node g has 2 CPU left: team-a/web-0 uses the rest"
    assert inventory.shortage(slice_, Resources(4000, 0, 1)) == ""


def test_hosts_of_a_big_slice_change_one_by_one() -> None:
    """What the slice offers is right after each change, whatever the order."""
    shape = Shape("tpu-v5p", "4x4x4", 4, 16)
    hosts = a_tpu_slice("np-0", 16, topology="4x4x4")
    inventory = an_inventory(*hosts)
    for index in range(16):
        inventory.update_node(project_node(a_tpu_node(f"np-0-{index}", topology="4x4x4", pool="np-0", ready=False)))
        assert (names(inventory, shape), inventory.counts(shape).unusable_count) == ([], 1)
    for index in reversed(range(16)):
        assert names(inventory, shape) == []
        inventory.update_node(project_node(hosts[index]))
    (slice_,) = inventory.free(shape)
    assert [host.node for host in slice_.hosts] == [f"np-0-{index}" for index in range(16)]
    inventory.update_node(project_node(a_tpu_node("np-0-3", topology="4x4x4", pool="np-0", labels={"zone": "b"})))
    (slice_,) = inventory.free(shape)
    assert "zone" not in slice_.labels


def test_pool_that_mixes_kinds_of_hosts_is_one_slice_again_when_they_agree() -> None:
    inventory = an_inventory(*a_tpu_slice("np-0", 2))
    inventory.update_node(project_node(a_tpu_node("np-0-0", topology="2x2x4", pool="np-0")))
    assert names(inventory, PAIR) == []
    assert inventory.counts(PAIR).unusable == ("node pool np-0 mixes kinds of hosts",)
    inventory.update_node(project_node(a_tpu_node("np-0-0", topology="2x2x2", pool="np-0")))
    assert (names(inventory, PAIR), inventory.counts(Shape("tpu-v5p", "2x2x4", 4, 4)).total) == (["np-0"], 0)


def test_use_of_a_host_that_was_replaced_is_forgotten() -> None:
    inventory = an_inventory(*a_tpu_slice("np-0", 2))
    inventory.replace_use(None, use("np-0-1", tpu=4))
    inventory.remove_node("np-0-1")
    inventory.update_node(project_node(a_tpu_node("np-0-2", topology="2x2x2", pool="np-0")))
    assert names(inventory, PAIR) == ["np-0"]


def test_room_follows_what_is_allocatable() -> None:
    inventory = an_inventory(a_gpu_node("a", resources={"cpu": "8"}))
    assert [slice_.room.cpu for slice_ in inventory.free(H100)] == [8000]
    inventory.update_node(project_node(a_gpu_node("a", resources={"cpu": "6"})))
    assert [slice_.room.cpu for slice_ in inventory.free(H100)] == [6000]


def test_pod_of_a_unit_counts_once_from_its_grant_to_its_end() -> None:
    inventory = an_inventory(a_tpu_node("a", resources={"cpu": "8"}))
    pod = PodUse("ns", "lm-v5p-0-a1-0", "a", Resources(3000, 0, 1), unit=("job", "v5p-0"))
    inventory.set_reservations("job", ["a"])
    inventory.replace_use(None, pod)
    assert (inventory.uses("a"), names(inventory, SINGLE)) == ((), [])
    inventory.set_reservations("job", [])
    assert inventory.uses("a") == (pod,)  # it still runs: a slice that is free again has 8 - 3 CPU
    assert [slice_.room.cpu for slice_ in inventory.free(SINGLE)] == [5000]
    inventory.replace_use(pod, None)
    assert [slice_.room.cpu for slice_ in inventory.free(SINGLE)] == [8000]


def test_reservation_of_one_unit_covers_no_pod_of_another_on_a_host_that_units_share() -> None:
    inventory = an_inventory(a_gpu_node("a", resources={"cpu": "8"}))
    inventory.set_reservations("job", ["a"], {("a", "h100-0"): Resources(1000, 0, 1, (("nvidia.com/gpu", 4),))})
    mine, other = (PodUse("ns", unit, "a", Resources(2000, 0, 1), unit=("job", unit)) for unit in ("h100-0", "h100-1"))
    inventory.replace_use(None, mine)
    inventory.replace_use(None, other)
    assert inventory.uses("a") == (other,)


def test_reservation_that_a_copy_releases_changes_no_other_slice() -> None:
    inventory = an_inventory(a_tpu_node("a"), a_tpu_node("b"))
    inventory.set_reservations("job", ["a"])
    inventory.replace_use(None, PodUse("ns", "lm-0", "a", Resources(0, 0, 1, ((TPU, 4),)), unit=("job", "v5p-0")))
    copy, another = inventory.copy(), an_inventory(a_tpu_node("c")).copy()
    copy.set_reservations("job", [])
    (b,), (c,) = (slice_ for slice_ in copy.slices(SINGLE) if slice_.name == "b"), another.slices(SINGLE)
    assert (copy.counts(SINGLE).used, copy.usable(b), another.usable(c)) == (1, True, True)
