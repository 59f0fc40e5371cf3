"""Nodes in, slices out."""

from __future__ import annotations

from typing import Any

import pytest
from builders.nodes import a_gpu_node, a_node, a_tpu_node, a_tpu_slice, an_inventory
from diloco_operator.fleet import CapacityType, Inventory, PodUse, Shape, project_node
from diloco_operator.fleet.resources import Resources

SINGLE = Shape("tpu-v5p", "2x2x1", 4, 1)
PAIR = Shape("tpu-v5p", "2x2x2", 4, 2)
H100 = Shape("nvidia-h100-80gb", "", 8, 1)
CPU = Shape("cpu", "", 0, 1)


def names(inventory: Inventory, shape: Shape) -> list[str]:
    return [slice_.name for slice_ in inventory.free(shape)]


def test_single_host_tpu_slices_are_their_nodes() -> None:
    assert names(an_inventory(a_tpu_node("b", pool="np"), a_tpu_node("a", pool="np")), SINGLE) == ["a", "b"]


def test_multi_host_slice_is_its_node_pool_with_hosts_in_order() -> None:
    inventory = an_inventory(*a_tpu_slice("np-0", 16, topology="4x4x4"))
    (slice_,) = inventory.free(Shape("tpu-v5p", "4x4x4", 4, 16))
    assert slice_.name == "np-0"
    assert [host.node for host in slice_.hosts] == [f"np-0-{i}" for i in range(16)]  # 2 before 10


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"ready": False}, "node np-0-1 is NotReady"),
        ({"cordoned": True}, "node np-0-1 is cordoned"),
        ({"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}, "the taint ToBeDeletedByClusterAutoscaler"),
        ({"labels": {"cloud.google.com/active-node-maintenance": "ONGOING"}}, "active-node-maintenance=ONGOING"),
    ],
)
def test_slice_is_unusable_as_a_whole_when_one_host_is(broken: dict[str, Any], why: str) -> None:
    first, _ = a_tpu_slice("np-0", 2)
    inventory = an_inventory(first, a_tpu_node("np-0-1", topology="2x2x2", pool="np-0", **broken))
    assert names(inventory, PAIR) == []
    counts = inventory.counts(PAIR)
    assert (counts.total, counts.held, counts.unusable_count) == (1, 0, 1)
    assert why in counts.unusable[0]


def test_slice_with_a_missing_host_says_so_until_it_is_there() -> None:
    first, second = a_tpu_slice("np-0", 2)
    inventory = an_inventory(first)
    assert inventory.counts(PAIR).unusable == ("node pool np-0 has 1 of 2 hosts",)
    inventory.update_node(project_node(second))
    assert names(inventory, PAIR) == ["np-0"]
    inventory.remove_node("np-0-0")
    assert names(inventory, PAIR) == []


def test_chips_per_host_distinguish_two_kinds_of_v6e_2x4() -> None:
    one_of_eight = a_tpu_node("big", kind="tpu-v6e-slice", topology="2x4", chips=8)
    two_of_four = [a_tpu_node(f"small-{i}", kind="tpu-v6e-slice", topology="2x4", chips=4, pool="small") for i in range(2)]
    inventory = an_inventory(one_of_eight, *two_of_four)
    assert names(inventory, Shape("tpu-v6e", "2x4", 8, 1)) == ["big"]
    assert names(inventory, Shape("tpu-v6e", "2x4", 4, 2)) == ["small"]


def test_gpu_hosts_are_offered_one_by_one_tightest_fit_first() -> None:
    inventory = an_inventory(a_gpu_node("eight"), a_gpu_node("four", gpus=4))
    assert names(inventory, H100) == ["eight"]
    assert names(inventory, Shape("nvidia-h100-80gb", "", 4, 1)) == ["four", "eight"]


def test_gpu_is_known_by_nvidias_feature_discovery_too() -> None:
    node = a_node("dgx", labels={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, devices={"nvidia.com/gpu": "8"})
    assert names(an_inventory(node), H100) == ["dgx"]


def test_plain_nodes_are_cpu_and_accelerators_are_not() -> None:
    assert names(an_inventory(a_node("plain"), a_gpu_node("gpu"), a_tpu_node("tpu")), CPU) == ["plain"]


def test_hardware_outside_the_catalogue_is_not_offered() -> None:
    odd = a_node("odd", labels={"cloud.google.com/gke-accelerator": "nvidia-x9000"}, devices={"nvidia.com/gpu": "8"})
    inventory = an_inventory(odd, a_gpu_node("no-driver-yet", gpus=0), a_tpu_node("odd-topology", topology="5x5x5"))
    assert names(inventory, CPU) == []
    assert inventory.counts(PAIR).total == 0
    assert inventory.counts(H100).unusable == (
        "node no-driver-yet offers no nvidia.com/gpu now: no device plugin has reported any, and no ResourceSlice offers any",
    )


def test_node_with_unknown_devices_is_a_cpu_slice_only_for_a_template_that_requests_them() -> None:
    npu = a_node("npu", devices={"cpu": "8", "example.com/npu": "4"})
    both = a_node("both", devices={"example.com/npu": "4", "example.com/fpga": "1"})
    inventory = an_inventory(a_node("plain"), npu, both)
    assert names(inventory, CPU) == ["plain"]
    assert names(inventory, Shape("cpu", devices=(("example.com/npu", 4),))) == ["npu"]
    assert names(inventory, Shape("cpu", devices=(("example.com/npu", 5),))) == []
    assert names(inventory, Shape("cpu", devices=(("example.com/fpga", 1), ("example.com/npu", 2)))) == ["both"]


@pytest.mark.parametrize("label", [{}, {"cloud.google.com/gke-accelerator": "nvidia-x9000"}])
def test_node_with_unknown_devices_is_no_cpu_slice_while_its_device_plugin_is_down(label: dict[str, str]) -> None:
    node = a_node("npu", labels=label)
    node["status"] |= {"capacity": {"example.com/npu": "4"}, "allocatable": {"cpu": "8"}}
    inventory = an_inventory(node)
    assert names(inventory, CPU) == []
    assert names(inventory, Shape("cpu", devices=(("example.com/npu", 1),))) == []


def test_labels_of_unknown_accelerators_keep_a_node_from_cpu_pools() -> None:
    aks = a_node("aks", labels={"kubernetes.azure.com/accelerator": "nvidia"})
    inferentia = a_node("inferentia", labels={"karpenter.k8s.aws/instance-accelerator-name": "inferentia2"})
    assert names(an_inventory(aks, inferentia), CPU) == []


def test_only_pods_of_an_accelerator_tolerate_its_taint_by_default() -> None:
    """A cpu node with the taint of a GPU node needs a toleration in the template."""
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    inventory = an_inventory(a_node("plain", taints=[taint]), a_gpu_node("gpu", taints=[taint]))
    (plain,) = inventory.free(CPU)
    (gpu,) = inventory.free(H100)
    assert [each.key for each in plain.taints] == ["nvidia.com/gpu"]
    assert gpu.taints == ()


def test_a_taint_that_only_prefers_other_pods_needs_no_toleration() -> None:
    taints = [{"key": "busy", "value": "", "effect": effect} for effect in ("PreferNoSchedule", "NoSchedule")]
    (plain,) = an_inventory(a_node("plain", taints=taints)).free(CPU)
    assert [(each.key, each.effect) for each in plain.taints] == [("busy", "NoSchedule")]


def test_an_update_says_whether_the_node_changed_even_if_it_offers_no_slice() -> None:
    inventory = an_inventory()
    for node in (a_node("plain"), a_tpu_node("unknown", topology="9x9x9")):
        assert [inventory.update_node(project_node(node)) for _ in range(2)] == [True, False]
    assert names(inventory, CPU) == ["plain"]


def test_capacity_follows_the_labels() -> None:
    inventory = an_inventory(
        a_tpu_node("a"),
        a_tpu_node("b", labels={"cloud.google.com/gke-spot": "true"}),
        a_tpu_node("c", labels={"cloud.google.com/reservation-name": "mine"}),
    )
    assert {slice_.name: slice_.capacity for slice_ in inventory.free(SINGLE)} == {
        "a": CapacityType.ON_DEMAND,
        "b": CapacityType.SPOT,
        "c": CapacityType.RESERVED,
    }


def test_reserved_slices_are_not_free_until_they_are_released() -> None:
    inventory = an_inventory(a_tpu_node("a"), a_tpu_node("b"))
    assert inventory.set_reservations("job", {"a"}) is False
    assert names(inventory, SINGLE) == ["b"]
    assert inventory.counts(SINGLE).held == 1
    assert inventory.reserved_by("a") == {"job"}
    assert inventory.set_reservations("job", ()) is True  # a node came free: other jobs may need it
    assert names(inventory, SINGLE) == ["a", "b"]


def test_slice_is_reserved_as_a_whole_when_one_host_is() -> None:
    inventory = an_inventory(*a_tpu_slice("np-0", 2))
    inventory.set_reservations("job", {"np-0-1"})
    assert names(inventory, PAIR) == []


def test_reservation_outlives_the_node() -> None:
    inventory = an_inventory(a_tpu_node("a"))
    inventory.set_reservations("job", {"a"})
    inventory.remove_node("a")
    inventory.update_node(project_node(a_tpu_node("a")))
    assert names(inventory, SINGLE) == []


def test_node_reserved_by_two_jobs_is_free_when_both_released_it() -> None:
    inventory = an_inventory(a_tpu_node("a"))
    inventory.set_reservations("one", {"a"})
    inventory.set_reservations("two", {"a"})
    inventory.set_reservations("one", ())
    assert names(inventory, SINGLE) == []
    inventory.set_reservations("two", ())
    assert names(inventory, SINGLE) == ["a"]


def test_heartbeat_changes_nothing() -> None:
    node = a_tpu_node("a")
    inventory = an_inventory(node)
    node["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-11-20T12:00:09Z"
    assert inventory.update_node(project_node(node)) is False


def test_node_that_becomes_another_kind_moves_to_another_index() -> None:
    inventory = an_inventory(a_tpu_node("a"))
    inventory.update_node(project_node(a_gpu_node("a")))
    assert names(inventory, SINGLE) == []
    assert names(inventory, H100) == ["a"]


def test_resolve_finds_slices_whatever_their_state() -> None:
    inventory = an_inventory(*a_tpu_slice("np-0", 2), a_gpu_node("g-0"), a_gpu_node("g-1", cordoned=True))
    inventory.set_reservations("job", {"np-0-0", "np-0-1"})
    (pair,) = inventory.resolve(PAIR, "np-0") or ()
    assert [host.node for host in pair.hosts] == ["np-0-0", "np-0-1"]
    group = inventory.resolve(Shape("nvidia-h100-80gb", "", 8, 2), "g-0+g-1") or ()
    assert [slice_.name for slice_ in group] == ["g-0", "g-1"]
    assert [inventory.usable(slice_) for slice_ in group] == [True, False]
    assert inventory.resolve(PAIR, "np-9") is None


def test_slice_that_lost_a_host_is_not_usable() -> None:
    inventory = an_inventory(*a_tpu_slice("np-0", 2))
    (before,) = inventory.free(PAIR)
    inventory.remove_node("np-0-1")
    assert inventory.usable(before) is False


def test_multi_host_node_without_a_node_pool_is_explained() -> None:
    node = a_tpu_node("lost", topology="2x2x2")
    del node["metadata"]["labels"]["cloud.google.com/gke-nodepool"]
    assert "has no label cloud.google.com/gke-nodepool" in an_inventory(node).counts(PAIR).unusable[0]


def test_changes_of_a_copy_do_not_reach_the_original() -> None:
    inventory = an_inventory(a_tpu_node("a"), a_tpu_node("b"), *a_tpu_slice("np-0", 2))
    inventory.set_reservations("job", {"a"})
    copy = inventory.copy()
    inventory.set_reservations("job", ())
    inventory.remove_node("b")
    inventory.remove_node("np-0-1")
    copy.set_reservations("other", {"np-0-0"})
    assert (names(inventory, SINGLE), inventory.counts(PAIR).unusable_count, inventory.reserved_by("np-0-0")) == (["a"], 1, frozenset())
    assert (names(copy, SINGLE), copy.counts(PAIR).unusable_count, copy.reserved_by("a")) == (["b"], 0, frozenset({"job"}))
    assert (inventory.counts(PAIR).held, copy.counts(PAIR).held) == (0, 1)


def test_a_host_offers_what_units_and_other_pods_leave_of_it() -> None:
    inventory = an_inventory(a_gpu_node("a", gpus=8))
    part = Resources(pods=1, devices=(("nvidia.com/gpu", 2),))
    inventory.set_reservations("one", {"a"}, {("a", "x-0"): part, ("a", "x-1"): part})
    inventory.set_reservations("two", {"a"}, {("a", "y-0"): part})
    offered = list(inventory.free(Shape("nvidia-h100-80gb", "", 2)))
    assert [(each.name, each.kind.chips_per_host, each.in_part) for each in offered] == [("a", 2, True)]
    assert list(inventory.free(H100)) == []  # all of a host
    assert inventory.set_reservations("one", {"a"}, {("a", "x-0"): part}) is True
    assert [each.kind.chips_per_host for each in inventory.free(Shape("nvidia-h100-80gb", "", 2))] == [4]
    inventory.set_reservations("three", {"a"})  # all of it
    assert list(inventory.free(Shape("nvidia-h100-80gb", "", 2))) == []
    assert inventory.reserved_by("a") == {"one", "two", "three"}


def test_node_that_offers_parts_of_accelerators_has_none_for_a_unit() -> None:
    node = a_gpu_node("mig", gpus=0)
    node["status"]["allocatable"] |= {"nvidia.com/mig-1g.10gb": "7", "nvidia.com/none": "0", "rdma/hca": "1", "example.com/npu": "1"}
    why = "node mig offers no nvidia.com/gpu now: it offers nvidia.com/mig-1g.10gb, which is no whole accelerator"
    assert an_inventory(node).counts(H100).unusable == (why,)


def test_slices_of_every_kind_and_state_are_told() -> None:
    inventory = an_inventory(a_tpu_node("a"), a_gpu_node("g", cordoned=True), a_node("plain"), *a_tpu_slice("np-0", 1))
    assert sorted(slice_.name for slice_ in inventory.every_slice()) == ["a", "g", "np-0", "plain"]
    assert list(inventory.kept(SINGLE)) == []


def test_names_of_slices_are_those_of_pools_only_for_shapes_with_a_topology() -> None:
    inventory = an_inventory(*a_tpu_slice("np-0", 2), a_gpu_node("g", pool="np-0"))
    assert [each.name for each in inventory.resolve(PAIR, "np-0") or ()] == ["np-0"]
    assert inventory.resolve(H100, "np-0") is None
    assert inventory.resolve(H100, "g+np-9") is None


def test_update_of_an_unknown_or_unchanged_thing_changes_nothing() -> None:
    inventory = an_inventory(a_tpu_node("a"))
    pod = PodUse("team", "train-0", "a", Resources(0, 0, 1))
    assert inventory.remove_node("gone") is False
    assert inventory.remove_node("a") is True
    assert inventory.node("a") is None
    assert inventory.replace_use(None, pod) is False
    assert inventory.replace_use(pod, pod) is False


def test_readiness_is_counted_over_the_nodes_that_are_there_now() -> None:
    inventory = an_inventory(a_tpu_node("a"), a_tpu_node("b", ready=False), a_node("plain"))
    assert (inventory.not_ready.nodes, inventory.not_ready.not_ready) == (3, 1)
    inventory.update_node(project_node(a_tpu_node("a", ready=False)))
    copy = inventory.copy()
    assert (inventory.not_ready.nodes, inventory.not_ready.not_ready) == (3, 2)
    inventory.remove_node("b")
    assert (inventory.not_ready.nodes, inventory.not_ready.not_ready) == (2, 1)
    assert (copy.not_ready.nodes, copy.not_ready.not_ready) == (3, 2)


def test_reservations_are_told_by_job_node_and_unit() -> None:
    inventory = an_inventory(a_gpu_node("a"), a_tpu_node("b"))
    inventory.set_reservations("job", {"a", "b"}, {("a", "u"): Resources(0, 0, 1, (("nvidia.com/gpu", 2),))})
    assert (inventory.reservations("job"), inventory.reservations("other")) == (frozenset(("a", "b")), frozenset())
    assert [inventory.has_reserved("job", node, "u") for node in ("a", "b")] == [True, False]


def test_changes_tell_where_slices_came_changed_or_went_since_they_were_last_asked_for() -> None:
    inventory = an_inventory(a_tpu_node("a"), a_tpu_node("b"))
    a, b = inventory.location("a"), inventory.location("b")
    assert a is not None
    assert b is not None
    inventory.track_changes()
    assert set(inventory.take_changes()) == {a, b}
    inventory.set_reservations("job", {"a"})
    assert list(inventory.take_changes()) == [a]
    inventory.replace_use(None, PodUse("team", "train-0", "b", Resources(0, 0, 1, (("google.com/tpu", 4),))))
    assert list(inventory.take_changes()) == [b]
    inventory.update_node(project_node(a_tpu_node("c")))
    assert list(inventory.take_changes()) == [inventory.location("c")]
    inventory.remove_node("a")
    assert list(inventory.take_changes()) == [a]
    assert (inventory.location("a"), inventory.slice_at(a), list(inventory.take_changes())) == (None, None, [])
    (second,) = inventory.resolve(SINGLE, "b") or ()
    assert inventory.slice_at(b) == second
    for name in ("b", "c"):
        inventory.remove_node(name)
    assert inventory.slice_at(b) is None  # nor any other of its kind
