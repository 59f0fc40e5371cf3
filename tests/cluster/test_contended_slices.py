"""Jobs, other operators and strangers that want the same slices, on a real control plane with its scheduler."""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.contended_slices import an_operator, apply, beside, end, learners, listed, looked_at, nodes, pretend, status, stranger
from builders.control_plane import ON_LATE, ControlPlane
from builders.jobs import a_manifest, template, tpu_pool
from builders.nodes import a_tpu_node
from builders.operator_process import OperatorReplica, wait_for


@pytest.fixture
def slices(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """The nodes of five slices of one kind. No kubelet runs there, so a pod stays on its node beyond its test: each test has its own."""
    control_plane.install_crd()
    control_plane.offer_late_volumes()
    nodes = [f"contended-{zlib.crc32(request.node.name.encode()):08x}-{index}" for index in range(5)]
    for name in nodes:
        node = a_tpu_node(name, kind="tpu-v6e-slice", topology="2x2")
        control_plane.add_node(name, node["metadata"]["labels"], node["status"]["capacity"], wait=False)
    yield nodes
    control_plane.kubectl("delete", "node", *nodes)


def test_units_of_two_operators_and_a_strangers_pods_take_different_slices(
    control_plane: ControlPlane, slices: list[str], namespaces: list[str], tmp_path: Path
) -> None:
    plane = control_plane
    others, first, second = namespaces
    for node in slices[:2]:
        stranger(plane, others, node)

    def wait_bound(where: str, count: int, operator: OperatorReplica) -> None:
        wait_for(lambda: len(nodes(plane, where)) == count, f"{count} learners in {where} to be bound", operator)

    with an_operator(plane, tmp_path, first) as one, an_operator(plane, tmp_path, second) as two:
        apply(plane, first, 2)
        wait_bound(first, 2, one)
        apply(plane, second, 2)
        wait_bound(second, 1, two)
        text = f"4 used by other pods: {others}/on-{slices[0]} and 3 more"
        wait_for(lambda: text in status(plane, second).get("pools", [{}])[0].get("message", ""), f"the pool to say {text!r}", two)
        bound = [*nodes(plane, first).items(), *nodes(plane, second).items()]
        assert sorted(node for _, node in bound) == slices[2:]
        assert {name.rsplit("-", 2)[1] for name, _ in bound} == {"a1"}  # no unit needed a second attempt
        end(plane, others, f"on-{slices[1]}")
        wait_bound(second, 2, two)
        assert nodes(plane, second)["lm-v6e-1-a1-0"] == slices[1]


def test_a_job_with_every_slice_leaves_one_for_the_minimum_of_a_younger_job(
    control_plane: ControlPlane, slices: list[str], namespaces: list[str], tmp_path: Path
) -> None:
    plane = control_plane
    where = namespaces[0]
    with an_operator(plane, tmp_path, where) as operator:
        apply(plane, where, 10, "old")
        wait_for(lambda: len(learners(plane, where, "old")) == len(slices), "old to have every slice", operator)
        apply(plane, where, 1, "young")

        def leaving() -> list[dict[str, Any]]:
            return [pod for pod in learners(plane, where, "old").values() if "deletionTimestamp" in pod["metadata"]]

        wait_for(leaving, "a unit of old to leave its slice", operator)
        assert [unit["reason"] for unit in status(plane, where, "old")["units"] if unit["state"] == "Draining"] == ["GaveWay"]
        queued = {"old": ["Starting", "SyncerStarting", "0", "10"], "young": ["Queued", "WaitingForHardware", "0", "1"]}
        wait_for(lambda: listed(plane, where) == queued, f"kubectl to list {queued}, not {listed(plane, where)}", operator)
        [pod] = leaving()
        end(plane, where, pod["metadata"]["name"])
        wait_for(lambda: learners(plane, where, "young"), "young to get the slice", operator)
        wait_for(lambda: listed(plane, where)["young"][0] == "Starting", "young to start", operator)
        [successor] = learners(plane, where, "young").values()
        assert successor["spec"]["nodeName"] == pod["spec"]["nodeName"]
        assert len(learners(plane, where, "old")) == len(slices) - 1
        assert all(unit.get("restarts", 0) == 0 for unit in status(plane, where, "old")["units"])


@pytest.fixture
def urgent(control_plane: ControlPlane) -> Iterator[str]:
    """A PriorityClass whose pods end others for their place."""
    name = "contended-urgent"
    body = {"metadata": {"name": name}, "value": 1000, "preemptionPolicy": "PreemptLowerPriority"}
    control_plane.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
    yield name
    control_plane.kubectl("delete", "priorityclass", name)


def test_pods_that_wait_for_an_autoscaler_do_not_end_the_minimum_of_another_job(
    control_plane: ControlPlane, slices: list[str], namespaces: list[str], urgent: str, tmp_path: Path
) -> None:
    plane, where = control_plane, namespaces[0]
    with an_operator(plane, tmp_path, where) as operator:
        pool = tpu_pool("v6e", "tpu-v6e", "2x2", max=len(slices))
        holds = a_manifest("holds", min=len(slices), max=len(slices), pools=[pool], spec=ON_LATE)
        plane.kubectl("apply", "-n", where, "-f", "-", input=json.dumps(holds))
        wait_for(lambda: len(learners(plane, where, "holds")) == len(slices), "holds to have every slice", operator)
        before = nodes(plane, where, "holds")
        for job, own, pods in (
            ("urgent", {"priorityClassName": urgent}, template()),
            ("inside", {}, template(priorityClassName=urgent)),
        ):
            asks = tpu_pool("v6e", "tpu-v6e", "2x2", template=pods, max=1, provisioning={"mode": "Autoscaler"})
            manifest = a_manifest(job, min=1, max=1, pools=[asks], spec={**ON_LATE, **own})
            plane.kubectl("apply", "-n", where, "-f", "-", input=json.dumps(manifest))
            wait_for(
                functools.partial(looked_at, plane, where, f"{job}-v6e-0-a1-0"), f"the scheduler to look at the pod of {job}", operator
            )

        def leaving() -> list[str]:
            return [name for name, pod in learners(plane, where, "holds").items() if "deletionTimestamp" in pod["metadata"]]

        assert leaving() == []
        assert nodes(plane, where, "holds") == before
        # A pod of a stranger with this class does end one: the scheduler would have.
        container = {"name": "main", "image": "none", "resources": {"limits": {"google.com/tpu": "4"}}}
        spec = {"containers": [container], "nodeSelector": {"kubernetes.io/hostname": slices[0]}, "priorityClassName": urgent}
        plane.request("POST", f"/api/v1/namespaces/{where}/pods", {"metadata": {"name": "stranger"}, "spec": spec})
        wait_for(leaving, "the scheduler to end a learner for a stranger", operator)


def test_a_job_of_a_class_that_pre_empts_waits_for_slices_and_ends_no_minimum_of_another(
    control_plane: ControlPlane, slices: list[str], namespaces: list[str], urgent: str, tmp_path: Path
) -> None:
    plane, where = control_plane, namespaces[0]
    with an_operator(plane, tmp_path, where) as operator:
        apply(plane, where, len(slices), "holds")
        wait_for(lambda: len(learners(plane, where, "holds")) == len(slices), "holds to have every slice", operator)
        pool = tpu_pool("v6e", "tpu-v6e", "2x2", max=len(slices))
        asks = a_manifest("urgent", min=2, max=len(slices), pools=[pool], spec={**ON_LATE, "priorityClassName": urgent})
        plane.kubectl("patch", "dilocojob", "holds", "-n", where, "--type=merge", "-p", '{"spec": {"learners": {"min": 3}}}')
        plane.kubectl("apply", "-n", where, "-f", "-", input=json.dumps(asks))

        def leaving() -> list[str]:
            return [name for name, pod in learners(plane, where, "holds").items() if "deletionTimestamp" in pod["metadata"]]

        wait_for(lambda: len(leaving()) == 2, "the surplus of holds to leave its slices", operator)
        for name in leaving():
            end(plane, where, name)
        wait_for(lambda: len(learners(plane, where, "urgent")) == 2, "urgent to have its minimum", operator)
        classes = {pod["spec"].get("priorityClassName") for pod in learners(plane, where, "urgent").values()}
        assert classes == {urgent}
        text = f"3 held by job {where}/holds (none surplus)"
        wait_for(lambda: text in status(plane, where, "urgent")["pools"][0].get("message", ""), f"the pool to say {text!r}", operator)
        assert status(plane, where, "urgent")["pools"][0]["reason"] == "NoFreeSlice"
        assert (leaving(), len(learners(plane, where, "holds"))) == ([], 3)


@pytest.mark.parametrize("spec", [{"managedBy": "example.com/other"}, {}], ids=["of another operator", "of this operator"])
def test_pods_that_request_nothing_take_no_slice_from_another_tenant(
    control_plane: ControlPlane, slices: list[str], namespaces: list[str], spec: dict[str, str], tmp_path: Path
) -> None:
    plane = control_plane
    mine, theirs, _ = namespaces
    waits = tpu_pool("v5p", "tpu-v5p", "2x2x1", max=1)  # for hardware that is not there
    manifest = a_manifest("evil", min=1, max=1, pools=[waits], spec={**ON_LATE, **spec})
    plane.kubectl("apply", "-n", theirs, "-f", "-", input=json.dumps(manifest))
    for number, node in enumerate(slices):
        pretend(plane, theirs, "evil", f"v5p-{number}", node)
    with an_operator(plane, tmp_path, mine, theirs) as operator:
        apply(plane, mine, len(slices), "victim")
        wait_for(lambda: len(learners(plane, mine, "victim")) == len(slices), "the victim to have every slice", operator)
        assert sorted(nodes(plane, mine, "victim").values()) == sorted(slices)
        assert {name.rsplit("-", 2)[1] for name in nodes(plane, mine, "victim")} == {"a1"}, "no unit needed a second attempt"


def test_a_job_whose_pods_a_quota_refuses_takes_no_slice_from_another_tenant(
    control_plane: ControlPlane, slices: list[str], namespaces: list[str], tmp_path: Path
) -> None:
    plane = control_plane
    mine, theirs, _ = namespaces

    def limit_to(chips: int) -> None:
        hard = json.dumps({"spec": {"hard": {"requests.google.com/tpu": str(chips)}}})
        plane.kubectl("patch", "resourcequota", "chips", "-n", theirs, "--type=merge", "-p", hard)
        path = f"/api/v1/namespaces/{theirs}/resourcequotas/chips"
        known = {"requests.google.com/tpu": str(chips)}
        wait_for(lambda: plane.request("GET", path).get("status", {}).get("hard") == known, f"the quota of {chips} to be in force")

    def refused() -> str:
        units = status(plane, theirs, "refused").get("units", ())
        return next((unit["message"] for unit in units if unit["reason"] == "PodsRefused"), "")

    plane.kubectl("create", "quota", "chips", "-n", theirs, "--hard=requests.google.com/tpu=1")
    limit_to(0)
    with an_operator(plane, tmp_path, mine, theirs) as operator:
        apply(plane, mine, 10, "victim")
        wait_for(lambda: len(learners(plane, mine, "victim")) == len(slices), "the victim to have every slice", operator)
        before = nodes(plane, mine, "victim")
        apply(plane, theirs, 1, "refused")
        wait_for(refused, "the other job to be refused", operator)
        first = refused()
        assert "no unit of another job leaves for it: the API server rejected it:" in first
        assert "exceeded quota: chips, requested: requests.google.com/tpu=4" in first
        assert beside(plane, theirs, "refused") == [], "a job that waits for hardware has nothing beside it"
        wait_for(lambda: refused() not in ("", first), "the next dry run to be refused", operator)
        assert nodes(plane, mine, "victim") == before
        assert {unit["attempt"] for unit in status(plane, mine, "victim")["units"] if unit.get("slice")} == {1}
        limit_to(4)
        gave = "a unit of the victim to leave for the job whose pods are admitted now"
        wait_for(lambda: any(unit["reason"] == "GaveWay" for unit in status(plane, mine, "victim")["units"]), gave, operator)
        assert "pod/refused-syncer" in beside(plane, theirs, "refused"), "no unit leaves before the syncer is there"
