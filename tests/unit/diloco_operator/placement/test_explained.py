"""What a pool that waits says: what the fleet has instead, which hosts others use, and what would help."""

from __future__ import annotations

from typing import Any

import pytest
from builders.jobs import Obj
from builders.nodes import a_gpu_node, a_tpu_node, a_tpu_slice, an_inventory
from builders.slice_requests import a_pool_request
from diloco_operator.accelerators.labels import NVIDIA_FEATURE_DISCOVERY
from diloco_operator.allotment.view import AllottedFleet
from diloco_operator.fleet import Fleet, Inventory, Shape
from diloco_operator.fleet.resources import Resources
from diloco_operator.fleet.use import PodUse
from diloco_operator.placement import JobRequest, PoolOutcome, place

CUBE = Shape("tpu-v5p", "2x2x2", 4, 2)
H100 = Shape("nvidia-h100-80gb", "", 8, 1)


def outcome(fleet: Inventory, shape: Shape = CUBE, units: int = 1, **how: Any) -> PoolOutcome:
    pool = a_pool_request("a", shape, units, **how)
    return place(JobRequest("ns/job", min=1, max=100, pools=(pool,)), fleet).pools[0]


def helps(found: PoolOutcome) -> list[str]:
    return found.message.partition(". What would help: ")[2].split("; ")


def use(fleet: Inventory, name: str, node: str) -> None:
    fleet.replace_use(None, PodUse("default", name, node, Resources(devices=(("google.com/tpu", 4),))))


# --- who has the slices -------------------------------------------------------------------------------------------------
def waiting(fleet: Fleet, least: int, shape: Shape = H100) -> list[str]:
    """What would help a job that must get so many units at once."""
    pool = a_pool_request("a", shape, least)
    return helps(place(JobRequest("ns/job", min=least, max=least, pools=(pool,)), fleet).pools[0])


def test_the_end_of_one_job_helps_only_if_it_leaves_enough_for_the_minimum() -> None:
    fleet = an_inventory(*(a_gpu_node(f"gpu-{i}") for i in range(3)))
    fleet.set_reservations("ns/large", {"gpu-0", "gpu-1"})
    fleet.set_reservations("ns/small", {"gpu-2"})
    # 24 GPUs in all; a unit takes 8, and the end of the smaller job leaves room for one.
    assert waiting(fleet, 1) == ["wait until one of these jobs ends, or suspend it", "more nodes"]
    assert waiting(fleet, 2) == ["wait until enough of these jobs have ended, or suspend them", "more nodes"]
    assert waiting(fleet, 4) == ["more nodes"]


@pytest.mark.parametrize(("least", "remedies"), [(1, ["raise the priority of this job", "more nodes"]), (2, ["more nodes"])])
def test_a_higher_priority_helps_only_if_what_is_kept_for_others_is_enough_for_the_minimum(least: int, remedies: list[str]) -> None:
    fleet = an_inventory(a_gpu_node("gpu-0"))
    assert waiting(AllottedFleet(fleet, {}, {"gpu-0": "ns/big"}, {}, {}), least) == remedies


def test_a_job_that_must_get_several_pools_at_once_names_those_that_need_nodes_too() -> None:
    pools = tuple(a_pool_request(name, shape, 1, min=1) for name, shape in (("a", H100), ("b", CUBE)))
    found = place(JobRequest("ns/job", min=2, max=2, pools=pools), an_inventory()).pools
    assert [helps(each) for each in found] == [["more nodes, also for pool b"], ["more nodes, also for pool a"]]


# --- other topologies and sizes -----------------------------------------------------------------------------------------
def test_free_slices_of_another_topology_are_named_with_their_number() -> None:
    found = outcome(an_inventory(*(a_tpu_node(f"tpu-{i}") for i in range(3))))
    assert found.reason == "NoMatchingNodes"
    assert found.why == "the fleet has no such nodes; 3 free tpu-v5p slices are 2x2x1, a unit needs 2x2x2"
    assert helps(found) == ["a pool with topology 2x2x1", "more nodes"]


def test_slices_of_another_topology_are_named_beside_those_that_are_taken() -> None:
    fleet = an_inventory(*a_tpu_slice("np", 2), a_tpu_node("one"), a_tpu_node("cordoned", cordoned=True))
    fleet.set_reservations("ns/other", {"np-0", "np-1"})
    found = outcome(fleet)
    assert found.reason == "NoFreeSlice"
    assert found.why == "the fleet has 1: 1 held by job ns/other; 1 free tpu-v5p slice is 2x2x1, a unit needs 2x2x2"
    assert helps(found) == ["wait until job ns/other ends, or suspend it", "a pool with topology 2x2x1", "more nodes"]


def test_other_topologies_stand_in_the_order_of_what_is_free_and_only_three_are_named() -> None:
    sizes = [("2x2x1", 1), ("2x2x4", 4), ("2x4x4", 8), ("4x4x4", 16), ("4x4x8", 32)]
    nodes: list[Obj] = []
    for topology, hosts in sizes:
        nodes += a_tpu_slice(f"np-{topology}", hosts, topology=topology)
    nodes += a_tpu_slice("second", 4, topology="2x2x4")
    found = outcome(an_inventory(*nodes))
    assert found.why.endswith(
        "2 free tpu-v5p slices are 2x2x4, 1 of 1 free 2x2x1, 1 of 1 free 2x4x4, 2 have 2 more forms, a unit needs 2x2x2"
    )


def test_other_topologies_of_which_none_is_free_say_so() -> None:
    fleet = an_inventory(a_tpu_node("one"), a_tpu_node("two"))
    fleet.set_reservations("ns/other", {"one", "two"})
    assert outcome(fleet).why.endswith("; 2 tpu-v5p slices are 2x2x1, none of them free, a unit needs 2x2x2")


def test_hosts_with_other_chips_of_the_same_topology_are_told_by_their_chips() -> None:
    fleet = an_inventory(a_tpu_node("v5e", kind="tpu-v5-lite-podslice", topology="2x4", chips=8))
    found = outcome(fleet, Shape("tpu-v5e", "2x4", 4, 2))
    assert found.why.endswith("1 free tpu-v5e slice is 2x4 with 8 chips on each host, a unit needs 2x4 with 4 chips on each host")
    assert helps(found)[0] == "a pool with chipsPerHost 8"


def test_hosts_with_fewer_accelerators_are_named_with_their_number() -> None:
    found = outcome(an_inventory(a_gpu_node("g0", gpus=4), a_gpu_node("g1", gpus=4), a_gpu_node("g2", gpus=1)), H100)
    assert found.why.endswith("of nvidia-h100-80gb 2 hosts have 4, 1 host has 1, a unit needs 8 on each host")
    assert helps(found) == ["a pool with acceleratorsPerHost 4", "more nodes"]


# --- nodes of no kind ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("node", "what"),
    [
        (
            a_gpu_node("odd", kind="nvidia-b999"),
            "1 node has cloud.google.com/gke-accelerator=nvidia-b999, which is not in the catalogue (odd)",
        ),
        (
            a_tpu_node("odd", topology="3x3x3"),
            "1 node has topology 3x3x3, which tpu-v5p does not come in (odd)",
        ),
    ],
)
def test_node_that_no_pool_can_use_is_named_with_the_label_that_says_why(node: Obj, what: str) -> None:
    node["status"]["capacity"] = node["status"]["allocatable"] = {}
    assert outcome(an_inventory(node)).why == f"the fleet has no such nodes; {what}"


def test_node_that_became_of_a_kind_or_went_away_is_odd_no_more() -> None:
    odd = a_tpu_node("odd", topology="3x3x3")
    fleet = an_inventory(odd, a_tpu_node("odd-too", topology="3x3x3"))
    assert "2 nodes have topology 3x3x3, which tpu-v5p does not come in (odd and 1 more)" in outcome(fleet).why
    assert "2 nodes have topology 3x3x3, which tpu-v5p does not come in (odd and 1 more)" in outcome(fleet.copy()).why
    fleet.remove_node("odd-too")
    assert "1 node has topology 3x3x3, which tpu-v5p does not come in (odd)" in outcome(fleet).why
    fleet.update_node(an_inventory(a_tpu_node("odd")).node("odd"))  # type: ignore[arg-type]
    assert "3x3x3" not in outcome(fleet).why


def test_label_of_an_unknown_product_without_devices_is_told() -> None:
    node = a_gpu_node("odd", gpus=0)
    node["metadata"]["labels"] = {NVIDIA_FEATURE_DISCOVERY.key: "NVIDIA-B999"}
    node["status"]["capacity"] = node["status"]["allocatable"] = {}
    assert outcome(an_inventory(node), H100).why.endswith(
        "1 node has nvidia.com/gpu.product=NVIDIA-B999, which is not in the catalogue (odd)"
    )


# --- what others use ----------------------------------------------------------------------------------------------------
def test_hosts_of_a_slice_that_others_use_are_named_with_the_pods() -> None:
    fleet = an_inventory(*a_tpu_slice("np", 4, topology="2x2x4"))
    use(fleet, "notebook-0", "np-1")
    use(fleet, "notebook-1", "np-3")
    found = outcome(fleet, Shape("tpu-v5p", "2x2x4", 4, 4))
    assert found.why == (
        "the fleet has 1: 1 used by other pods: default/notebook-0 and 1 more (2 of 4 hosts of np are used: np-1 by "
        "default/notebook-0, np-3 by default/notebook-1)"
    )
    assert helps(found) == ["end these pods, or wait until they have ended", "more nodes"]
    assert outcome(fleet.copy(), Shape("tpu-v5p", "2x2x4", 4, 4)) == found


def test_only_three_of_the_used_hosts_are_named() -> None:
    fleet = an_inventory(*a_tpu_slice("np", 16, topology="4x4x4"))
    for index in (10, 2, 3, 4, 5):
        use(fleet, f"pod-{index}", f"np-{index}")
    assert outcome(fleet, Shape("tpu-v5p", "4x4x4", 4, 16)).why.endswith(
        "(5 of 16 hosts of np are used: np-2 by default/pod-2, np-3 by default/pod-3, np-4 by default/pod-4 and 2 more)"
    )


def test_hosts_of_slices_of_one_host_are_not_counted() -> None:
    fleet = an_inventory(a_tpu_node("one"))
    use(fleet, "notebook-0", "one")
    assert outcome(fleet, Shape("tpu-v5p", "2x2x1", 4, 1)).why == "the fleet has 1: 1 used by other pods: default/notebook-0"


# --- what would help ----------------------------------------------------------------------------------------------------
def test_what_would_help_names_taints_labels_and_nodes_in_the_order_of_the_causes() -> None:
    ours = [{"key": "team", "value": "vision", "effect": "NoSchedule"}, {"key": "gone", "effect": "NoExecute"}]
    fleet = an_inventory(
        a_tpu_node("tainted", taints=ours, labels={"disk": "fast"}), a_tpu_node("slow"), a_tpu_node("broken", ready=False, heard=True)
    )
    found = outcome(fleet, Shape("tpu-v5p", "2x2x1", 4, 1), node_selector={"disk": "fast"})
    assert "the pool asks for label disk=fast (slow has no label disk)" in found.why
    # The node that is broken may lack the label as well.
    assert helps(found) == [
        "leave out label disk=fast",
        "tolerate team=vision:NoSchedule, gone:NoExecute in the pool's template",
        "more nodes",
    ]


def test_at_most_three_remedies_stand_before_more_nodes() -> None:
    taint = [{"key": "team", "value": "vision", "effect": "NoSchedule"}]
    fleet = an_inventory(a_tpu_node("broken", ready=False), a_tpu_node("theirs"), a_tpu_node("used"), a_tpu_node("tainted", taints=taint))
    fleet.set_reservations("ns/other", {"theirs"})
    use(fleet, "notebook-0", "used")
    found = outcome(fleet, Shape("tpu-v5p", "2x2x1", 4, 1))
    assert len(helps(found)) == 4
    assert helps(found)[-1] == "more nodes"


def test_hosts_in_parts_say_how_many_accelerators_would_fit() -> None:
    fleet = an_inventory(a_gpu_node("g0"), a_gpu_node("g1"))
    gpus = (("nvidia.com/gpu", 6),)
    for node in ("g0", "g1"):
        fleet.set_reservations(f"ns/of-{node}", {node}, {(node, "u-0"): Resources(devices=gpus)})
    found = outcome(fleet, Shape("nvidia-h100-80gb", "", 4, 1))
    assert "4 free, but a unit needs 4 on one host (g0: 2, g1: 2)" in found.why
    assert "a pool with acceleratorsPerHost 2 or less" in helps(found)


def test_avoided_hosts_name_the_time_and_not_how_long_it_is() -> None:
    found = outcome(an_inventory(*a_tpu_slice("np", 2)), avoided={"np-1": 1_795_208_460.0})
    assert "np-1 until 2026-11-20T21:01:00Z" in found.why
    assert helps(found) == ["repair it, or wait until then", "more nodes"]


def test_template_that_asks_for_too_much_is_told_to_ask_for_less() -> None:
    fleet = an_inventory(a_tpu_node("small", resources={"cpu": "8"}))
    found = outcome(fleet, Shape("tpu-v5p", "2x2x1", 4, 1), needs=Resources(cpu=64_000))
    assert helps(found) == ["request less in the pool's template", "more nodes"]


def test_the_message_stays_the_same_as_long_as_nothing_changes() -> None:
    fleet = an_inventory(*a_tpu_slice("np", 2), a_tpu_node("one"))
    fleet.set_reservations("ns/other", {"np-0", "np-1"})
    before = outcome(fleet)
    fleet.advance(10_000.0)
    assert outcome(fleet) == before
