"""What pods request and what is left of a node."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from builders.nodes import a_gpu_node
from diloco_operator.fleet import PodUse, Resources, project_node
from diloco_operator.fleet.resources import (
    UNLISTED,
    Lack,
    allocatable,
    lack,
    least,
    left,
    most,
    pod_requests,
    resources_of,
    takes_accelerators,
    thousandths,
)
from diloco_operator.fleet.use import excludes_units, shortage

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


def test_devices_of_a_template_are_those_of_all_its_containers() -> None:
    npu = {"resources": {"limits": {"example.com/npu": 2, "cpu": "1"}, "requests": {"memory": "1Gi"}}}
    nic = {"resources": {"requests": {"example.com/nic": "1", "example.com/none": 0}}}
    start = {"resources": {"limits": {"example.com/npu": "8"}}}
    pod = {"containers": [npu, npu, nic, {"name": "plain"}], "initContainers": [start]}
    assert resources_of(pod).devices == (("example.com/nic", 1), ("example.com/npu", 8))
    assert resources_of({"containers": "none", "initContainers": [1, {"resources": []}, {"resources": {"limits": 1}}]}).devices == ()


def test_requests_are_rounded_up_and_room_is_rounded_down() -> None:
    asked = {"cpu": "1500001n", "memory": "1500m", GPU: "1500m"}  # 1.500001 thousandths of a CPU; 1.5 bytes
    assert resources_of({"containers": [asks(**asked)]}) == Resources(2, 2, 1, ((GPU, 2),))
    assert allocatable({"allocatable": {**asked, "pods": "1500m"}}, ()) == Resources(1, 1, 1)
    assert thousandths(Fraction(3, 2)) == 1500


def test_limits_of_the_whole_pod_count_where_nothing_else_is_requested() -> None:
    found = pod_requests({"containers": [asks(cpu="0")], "resources": {"limits": {"cpu": "2", "hugepages-2Mi": "4Mi", "x/y": "1"}}})
    assert found == {"cpu": 2, "hugepages-2Mi": 4 << 20, "pods": 1}


@pytest.mark.parametrize(("resource", "takes"), [(GPU, True), ("example.com/npu", False), ("cpu", False)])
def test_pod_takes_accelerators_if_it_requests_one_of_the_catalogue(resource: str, takes: bool) -> None:
    assert takes_accelerators({"containers": [asks(**{resource: "1"})]}) is takes


@pytest.mark.parametrize(
    ("needs", "empty"),
    [(Resources(0, 0, 1), True), (Resources(1, 0, 1), False), (Resources(0, 1, 1), False), (Resources(0, 0, 1, ((GPU, 1),)), False)],
)
def test_pod_that_requests_nothing_is_empty(needs: Resources, empty: bool) -> None:
    assert needs.empty is empty


def test_equal_requests_are_one_object() -> None:
    assert resources_of({"containers": [asks(cpu="1")]}) is resources_of({"containers": [asks(cpu="1000m")]})


def test_room_is_what_is_allocatable_less_what_pods_request() -> None:
    has = Resources(8000, 4 * GI, 110, ((GPU, 8),))
    uses = [Resources(500, GI, 1), Resources(1500, GI, 1, ((GPU, 2), ("example.com/nic", 1)))]
    assert left(has, uses) == Resources(6000, 2 * GI, 108, (("example.com/nic", -1), (GPU, 6)))


ROOM = Resources(8, 5, 3, ((GPU, 4),))


@pytest.mark.parametrize(
    ("needs", "fits"),
    [
        (ROOM, True),
        (Resources(9), False),
        (Resources(0, 6), False),
        (Resources(0, 0, 4), False),
        (Resources(devices=((GPU, 5),)), False),
        (Resources(devices=((GPU, 4), ("x/y", 1))), False),
        (Resources(devices=((GPU, 4), ("x/y", 0))), True),
    ],
)
def test_pod_fits_where_there_is_as_much_of_each_resource(needs: Resources, fits: bool) -> None:
    assert needs.fits(ROOM) is fits


def test_room_of_a_resource_that_a_node_does_not_list_is_enough_for_every_pod() -> None:
    assert Resources(1 << 40, 1 << 60, 1 << 20).fits(allocatable({"capacity": {GPU: "1"}}, ()))
    assert allocatable({"allocatable": {}, "capacity": {"cpu": "1"}}, ()).cpu == 1000


def test_most_is_the_larger_amount_of_each_resource() -> None:
    one, other = Resources(1, 6, 2, ((GPU, 4), ("x/a", 1))), Resources(2, 5, 3, ((GPU, 3), ("x/b", 1)))
    assert most(one, other) == most(other, one) == Resources(2, 6, 3, ((GPU, 4), ("x/a", 1), ("x/b", 1)))


def test_room_of_several_nodes_is_the_least_of_each_resource() -> None:
    a, b = Resources(8, 5, 3, ((GPU, 8), ("x/y", 1))), Resources(7, 6, 4, ((GPU, 4),))
    assert least([a, b]) == least([b, a]) == Resources(7, 5, 3, ((GPU, 4),))
    assert least([a]) == a


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


# Of 0 that a node has: all of these are lacking, and the first is told.
@pytest.mark.parametrize(
    ("needs", "wanted"),
    [
        (Resources(1, 1, 1, ((GPU, 1),)), "0.001 CPU"),
        (Resources(0, 1, 1, ((GPU, 1),)), "1 of memory"),
        (Resources(0, 1023), "1023 of memory"),
        (Resources(0, 1024), "1Ki of memory"),
        (Resources(0, 1536), "1.5Ki of memory"),
        (Resources(0, 1 << 20), "1Mi of memory"),
        (Resources(0, 1 << 30), "1Gi of memory"),
        (Resources(0, (1 << 30) * 10 // 3), "3.333Gi of memory"),
        (Resources(0, 0, 1, (("x/a", 0), ("x/b", 2))), "2 x/b"),
        (Resources(0, 0, 1), "room for 1 pod"),
        (Resources(0, 0, 2), "room for 2 pods"),
    ],
)
def test_first_resource_that_is_lacking_is_told_in_its_unit(needs: Resources, wanted: str) -> None:
    found = lack(needs, Resources())
    assert found is not None
    assert found.wanted == wanted
    assert lack(needs, needs) is None


def test_node_that_has_less_than_nothing_has_none() -> None:
    assert lack(Resources(0, 0, 1), Resources(0, 0, -3)) == Lack("pods", "room for 1 pod", "room for 0 pods")


def test_a_node_that_is_full_of_pods_has_no_room_for_one_more() -> None:
    node = project_node(a_gpu_node("a", resources={"pods": "1"}))
    uses = [PodUse("team-b", "web-0", "a", Resources(0, 0, 1))]
    assert shortage(node, uses, Resources(0, 0, 1)) == "needs room for 1 pod, node a has room for 0 pods left: team-b/web-0 uses the rest"


def test_of_pods_that_use_as_much_the_first_by_name_is_told() -> None:
    node = project_node(a_gpu_node("a", resources={"cpu": "2"}))
    uses = [PodUse("team", name, "a", Resources(1000, 0, 1)) for name in ("b", "a", "c")]
    assert shortage(node, uses, Resources(1000, 0, 1)) == "needs 1 CPU, node a has 0 CPU left: team/a and 2 more use the rest"


@pytest.mark.parametrize(
    ("devices", "learner", "resource", "excludes"),
    [
        (((GPU, 1),), None, GPU, True),
        (((GPU, 0),), None, GPU, False),
        ((), (0.0, "uid"), GPU, False),
        ((), (0.0, "uid"), "", True),  # a host without accelerators has one learner
        (((GPU, 1),), None, "", False),
    ],
)
def test_units_keep_off_hosts_whose_accelerators_others_use_or_on_which_another_operators_learner_runs(
    devices: Any, learner: tuple[float, str] | None, resource: str, excludes: bool
) -> None:
    assert excludes_units(PodUse("team", "p", "a", Resources(0, 0, 1, devices), learner), resource) is excludes
