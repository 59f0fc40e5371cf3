"""Nodes in, slices out."""

from __future__ import annotations

from typing import Any

import pytest
from builders.nodes import a_gpu_node, a_node, a_tpu_node, a_tpu_slice, an_inventory
from diloco_operator.fleet import CapacityType, Inventory, Shape, project_node
from diloco_operator.fleet.devices import is_extended_resource
from diloco_operator.fleet.node import natural_sort_key
from diloco_operator.fleet.resources import Resources, resources_of
from diloco_operator.fleet.slice_kinds import kind_of, uses_ports_of_host

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
    assert inventory.counts(H100).unusable == ("node no-driver-yet offers no nvidia.com/gpu now: its device plugin has not reported any",)


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


@pytest.mark.parametrize(
    ("resource", "extended"),
    [
        ("example.com/npu", True),
        ("amd.com/gpu", True),
        ("cpu", False),
        ("ephemeral-storage", False),
        ("hugepages-2Mi", False),
        ("attachable-volumes-aws-ebs", False),
        ("scheduling.kubernetes.io/foo", False),
        ("kubernetes.io/batch-cpu", False),
        ("requests.example.com/npu", False),
    ],
)
def test_extended_resources_are_what_kubernetes_says(resource: str, extended: bool) -> None:
    assert is_extended_resource(resource) is extended
    assert names(an_inventory(a_node("node", devices={resource: "1"})), CPU) == ([] if extended else ["node"])


def test_devices_of_a_template_are_those_of_all_its_containers() -> None:
    npu = {"resources": {"limits": {"example.com/npu": 2, "cpu": "1"}, "requests": {"memory": "1Gi"}}}
    nic = {"resources": {"requests": {"example.com/nic": "1", "example.com/none": 0}}}
    start = {"resources": {"limits": {"example.com/npu": "8"}}}
    pod = {"containers": [npu, npu, nic, {"name": "plain"}], "initContainers": [start]}
    assert resources_of(pod).devices == (("example.com/nic", 1), ("example.com/npu", 8))
    assert resources_of({"containers": "none", "initContainers": [1, {"resources": []}, {"resources": {"limits": 1}}]}).devices == ()


def test_only_pods_of_an_accelerator_tolerate_its_taint_by_default() -> None:
    """A cpu node with the taint of a GPU node needs a toleration in the template."""
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    inventory = an_inventory(a_node("plain", taints=[taint]), a_gpu_node("gpu", taints=[taint]))
    (plain,) = inventory.free(CPU)
    (gpu,) = inventory.free(H100)
    assert [each.key for each in plain.taints] == ["nvidia.com/gpu"]
    assert gpu.taints == ()


def test_a_slice_without_accelerators_counts_no_chips() -> None:
    kind = kind_of(project_node(a_node("plain")))
    assert kind is not None
    assert (kind.accelerator, kind.topology, kind.chips_per_host) == ("cpu", "", 0)


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


def test_names_are_ordered_by_their_numbers() -> None:
    assert sorted(["h-10", "h-9", "h-1a"], key=natural_sort_key) == ["h-1a", "h-9", "h-10"]


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


@pytest.mark.parametrize(
    "spec", [{"hostNetwork": True}, {"containers": [{"name": "learner", "ports": [{"containerPort": 1, "hostPort": 8080}]}]}]
)
def test_pods_that_use_ports_of_their_host_share_it_with_nobody(spec: dict[str, Any]) -> None:
    assert uses_ports_of_host(spec)
    assert not uses_ports_of_host({"hostNetwork": False, "containers": [{"name": "learner", "ports": [{"containerPort": 1}]}, None]})
