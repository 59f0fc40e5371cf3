"""What pods request and what is left of a node."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from builders.nodes import a_gpu_node
from diloco_operator.fleet import PodUse, Resources, project_node
from diloco_operator.fleet.resources import UNLISTED, least, left, pod_requests, resources_of
from diloco_operator.fleet.use import shortage

GPU = "nvidia.com/gpu"
GI = 1 << 30


def asks(**amounts: str) -> dict[str, Any]:
    return {"resources": {"requests": amounts}}


def cpu(**spec: Any) -> Fraction:
    return pod_requests({"containers": [], **spec}).get("cpu", Fraction(0))


def test_requests_of_containers_add_up_and_a_limit_without_a_request_is_one() -> None:
    limited = {"resources": {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "500m"}}}
    assert resources_of({"containers": [limited, asks(cpu="1"), {"name": "plain"}]}) == Resources(1500, GI, 1)


def test_init_containers_run_one_at_a_time_before_the_others() -> None:
    assert cpu(containers=[asks(cpu="2")], initContainers=[asks(cpu="3"), asks(cpu="1")]) == 3
    assert cpu(containers=[asks(cpu="4")], initContainers=[asks(cpu="3")]) == 4


def test_sidecars_stay_beside_the_containers_and_beside_later_init_containers() -> None:
    sidecar = {**asks(cpu="1"), "restartPolicy": "Always"}
    assert cpu(containers=[asks(cpu="2")], initContainers=[sidecar]) == 3
    assert cpu(containers=[asks(cpu="2")], initContainers=[sidecar, asks(cpu="4")]) == 5
    assert cpu(containers=[asks(cpu="2")], initContainers=[asks(cpu="4"), sidecar]) == 4


def test_overhead_comes_on_top() -> None:
    assert cpu(containers=[asks(cpu="2")], overhead={"cpu": "250m"}) == Fraction(9, 4)


def test_requests_of_the_whole_pod_replace_those_of_its_containers() -> None:
    whole = {"requests": {"cpu": "8", GPU: "4"}, "limits": {"cpu": "9", "memory": "1Gi"}}
    found = pod_requests({"containers": [asks(cpu="2", **{GPU: "1"})], "resources": whole, "overhead": {"cpu": "1"}})
    assert {**found, "pods": 0} == {"cpu": 9, "memory": GI, GPU: 1, "pods": 0}
    assert cpu(containers=[asks(cpu="2")], resources={"limits": {"cpu": "9"}}) == 2


@pytest.mark.parametrize(
    "amount", ["many", "", "1e999999999", "9" * 5000, "-", True, None, [], {}, "1 Gi", "１"], ids=lambda amount: str(amount)[:12]
)
def test_malformed_amounts_count_as_none(amount: Any) -> None:
    assert resources_of({"containers": [asks(cpu=amount, memory="1")]}) == Resources(0, 1, 1)


@pytest.mark.parametrize("spec", [{}, {"containers": 1}, {"containers": [None, {"resources": []}], "resources": 3, "overhead": []}])
def test_malformed_parts_request_nothing(spec: dict[str, Any]) -> None:
    assert resources_of(spec) == Resources(0, 0, 1)


def test_equal_requests_are_one_object() -> None:
    assert resources_of({"containers": [asks(cpu="1")]}) is resources_of({"containers": [asks(cpu="1000m")]})


def test_room_is_what_is_allocatable_less_what_pods_request() -> None:
    has = Resources(8000, 4 * GI, 110, ((GPU, 8),))
    uses = [Resources(500, GI, 1), Resources(1500, GI, 1, ((GPU, 2), ("example.com/nic", 1)))]
    assert left(has, uses) == Resources(6000, 2 * GI, 108, (("example.com/nic", -1), (GPU, 6)))


def test_room_of_several_nodes_is_the_least_of_each_resource() -> None:
    a, b = Resources(8, 5, 3, ((GPU, 8), ("x/y", 1))), Resources(7, 6, 4, ((GPU, 4),))
    assert least([a, b]) == Resources(7, 5, 3, ((GPU, 4),))


def test_node_counts_what_is_allocatable_not_its_capacity() -> None:
    node = a_gpu_node("a", resources={"cpu": "8", "memory": "16Gi", "pods": "110"})
    node["status"]["allocatable"] |= {"cpu": "7910m", "memory": "14Gi"}
    assert project_node(node).allocatable == Resources(7910, 14 * GI, 110, ((GPU, 8),))
    assert project_node(a_gpu_node("silent")).allocatable == Resources(UNLISTED, UNLISTED, UNLISTED, ((GPU, 8),))


@pytest.mark.parametrize(
    ("needs", "text"),
    [
        (Resources(64_000, 0, 1), "needs 64 CPU, node a has 12.5 CPU left: team-b/web-1 and 1 more use the rest"),
        (Resources(0, 200 * GI, 1), "needs 200Gi of memory, node a has 128Gi of memory"),
        (Resources(0, 0, 1, ((GPU, 8),)), f"needs 8 {GPU}, node a has 7 {GPU} left: team-b/web-0 uses the rest"),
        (Resources(0, 0, 1, (("example.com/nic", 1),)), "needs 1 example.com/nic, node a has 0 example.com/nic"),
        (Resources(12_000, 0, 1), ""),
    ],
)
def test_shortage_says_what_is_missing_and_who_has_it(needs: Resources, text: str) -> None:
    node = project_node(a_gpu_node("a", resources={"cpu": "96", "memory": "128Gi", "pods": "110"}))
    uses = [
        PodUse("team-b", "web-0", "a", Resources(500, 0, 1, ((GPU, 1),))),
        PodUse("team-b", "web-1", "a", Resources(83_000, 0, 1)),
        PodUse("team-b", "idle", "a", Resources(0, 0, 1)),
    ]
    assert shortage(node, uses, needs) == text


def test_a_node_that_is_full_of_pods_has_no_room_for_one_more() -> None:
    node = project_node(a_gpu_node("a", resources={"pods": "1"}))
    uses = [PodUse("team-b", "web-0", "a", Resources(0, 0, 1))]
    assert shortage(node, uses, Resources(0, 0, 1)) == "needs room for 1 pod, node a has room for 0 pods left: team-b/web-0 uses the rest"
