"""Jobs, other operators and strangers that want the same slices, on a real control plane with its scheduler."""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.control_plane import ControlPlane
from builders.jobs import a_manifest, template, tpu_pool
from builders.nodes import a_tpu_node
from builders.operator_process import OperatorReplica, replica, wait_for
from diloco_operator.api import names


@pytest.fixture
def slices(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """The nodes of five slices of one kind. No kubelet runs there, so a pod stays on its node beyond its test: each test has its own."""
    control_plane.install_crd()
    nodes = [f"contended-{zlib.crc32(request.node.name.encode()):08x}-{index}" for index in range(5)]
    for name in nodes:
        node = a_tpu_node(name, kind="tpu-v6e-slice", topology="2x2")
        control_plane.add_node(name, node["metadata"]["labels"], node["status"]["capacity"], wait=False)
    yield nodes
    control_plane.kubectl("delete", "node", *nodes)


@pytest.fixture
def namespaces(control_plane: ControlPlane) -> Iterator[list[str]]:
    """Three of them."""
    plane = control_plane
    made = [plane.request("POST", "/api/v1/namespaces", {"metadata": {"generateName": "contended-"}}) for _ in range(3)]
    found = [each["metadata"]["name"] for each in made]
    for name in found:
        plane.kubectl("wait", "--for=create", "serviceaccount/default", "-n", name, "--timeout=180s")
    yield found
    plane.kubectl("delete", "namespace", *found, "--wait=false")


def an_operator(plane: ControlPlane, folder: Path, *where: str) -> Any:
    """One that watches these namespaces. Units may have to leave slices that they have just got."""
    file = folder / f"{where[0]}.yaml"
    file.write_text("apiVersion: config.diloco.dev/v1alpha1\nkind: OperatorConfiguration\nminimumHold: 0s\n")
    watched = [option for namespace in where for option in ("--watch-namespace", namespace)]
    return replica(folder, where[0], plane.kubeconfig, *watched, "--leader-elect-namespace", where[0], "--config", str(file))


def stranger(plane: ControlPlane, where: str, node: str) -> None:
    """A pod that kube-scheduler puts on the node."""
    container = {"name": "main", "image": "none", "resources": {"limits": {"google.com/tpu": "4"}}}
    spec = {"containers": [container], "nodeSelector": {"kubernetes.io/hostname": node}, "automountServiceAccountToken": False}
    plane.request("POST", f"/api/v1/namespaces/{where}/pods", {"metadata": {"name": f"on-{node}"}, "spec": spec})
    path = f"/api/v1/namespaces/{where}/pods/on-{node}"
    wait_for(lambda: plane.request("GET", path)["spec"].get("nodeName") == node, f"kube-scheduler to bind the pod to {node}")


def end(plane: ControlPlane, where: str, pod: str) -> None:
    """As a kubelet does in the end."""
    plane.kubectl("delete", "pod", pod, "-n", where, "--grace-period=0", "--force")


def apply(plane: ControlPlane, where: str, count: int, job: str = "lm") -> None:
    manifest = a_manifest(job, min=1, max=count, pools=[tpu_pool("v6e", "tpu-v6e", "2x2", max=count)], spec={"syncer": {}})
    plane.kubectl("apply", "-n", where, "-f", "-", input=json.dumps(manifest))


def learners(plane: ControlPlane, where: str, job: str = "lm") -> dict[str, dict[str, Any]]:
    """Learner pods that kube-scheduler has bound, by name."""
    selector = f"{names.LABEL_COMPONENT}={names.COMPONENT_LEARNER},{names.LABEL_JOB}={job}"
    pods = json.loads(plane.kubectl("get", "pods", "-n", where, "-l", selector, "-o", "json").stdout)["items"]
    return {pod["metadata"]["name"]: pod for pod in pods if "nodeName" in pod["spec"]}


def nodes(plane: ControlPlane, where: str, job: str = "lm") -> dict[str, str]:
    """Learner pod -> its node."""
    return {name: pod["spec"]["nodeName"] for name, pod in learners(plane, where, job).items()}


def status(plane: ControlPlane, where: str, job: str = "lm") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(plane.kubectl("get", "dilocojob", job, "-n", where, "-o", "json").stdout).get("status", {})
    return found


def looked_at(plane: ControlPlane, where: str, pod: str) -> bool:
    """Whether kube-scheduler has found no node for the pod. It has then also looked whether the end of others would help."""
    listed = json.loads(plane.kubectl("get", "pods", "-n", where, f"--field-selector=metadata.name={pod}", "-o", "json").stdout)["items"]
    conditions = [condition for found in listed for condition in found.get("status", {}).get("conditions", [])]
    return any((each["type"], each.get("reason")) == ("PodScheduled", "Unschedulable") for each in conditions)


def listed(plane: ControlPlane, where: str) -> dict[str, list[str]]:
    """The rows of the namespace's jobs as kubectl prints them: state, reason, learners that contribute, and of how many, by name."""
    rows = (line.split() for line in plane.kubectl("get", "dlj", "-n", where, "--no-headers").stdout.splitlines())
    return {row[0]: row[1:5] for row in rows}


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
        holds = a_manifest("holds", min=len(slices), max=len(slices), pools=[pool], spec={"syncer": {}})
        plane.kubectl("apply", "-n", where, "-f", "-", input=json.dumps(holds))
        wait_for(lambda: len(learners(plane, where, "holds")) == len(slices), "holds to have every slice", operator)
        before = nodes(plane, where, "holds")
        for job, own, pods in (
            ("urgent", {"priorityClassName": urgent}, template()),
            ("inside", {}, template(priorityClassName=urgent)),
        ):
            asks = tpu_pool("v6e", "tpu-v6e", "2x2", template=pods, max=1, provisioning={"mode": "Autoscaler"})
            manifest = a_manifest(job, min=1, max=1, pools=[asks], spec={"syncer": {}, **own})
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
        wait_for(lambda: refused() not in ("", first), "the next dry run to be refused", operator)
        assert nodes(plane, mine, "victim") == before
        assert {unit["attempt"] for unit in status(plane, mine, "victim")["units"] if unit.get("slice")} == {1}
        limit_to(4)
        gave = "a unit of the victim to leave for the job whose pods are admitted now"
        wait_for(lambda: any(unit["reason"] == "GaveWay" for unit in status(plane, mine, "victim")["units"]), gave, operator)
