"""Two operators and a stranger on one real cluster: kube-scheduler binds every unit at its first attempt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.control_plane import ControlPlane
from builders.jobs import a_manifest, tpu_pool
from builders.nodes import a_tpu_node
from builders.operator_process import OperatorReplica, replica, wait_for
from diloco_operator.api import names

NODES = [f"others-{index}" for index in range(5)]


@pytest.fixture
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """With five slices of one kind."""
    control_plane.install_crd()
    for name in NODES:
        node = a_tpu_node(name, kind="tpu-v6e-slice", topology="2x2")
        control_plane.add_node(name, node["metadata"]["labels"], node["status"]["capacity"], wait=False)
    yield control_plane
    control_plane.kubectl("delete", "node", *NODES)


def namespace(plane: ControlPlane) -> str:
    made: str = plane.request("POST", "/api/v1/namespaces", {"metadata": {"generateName": "others-"}})["metadata"]["name"]
    return made


def stranger(plane: ControlPlane, where: str, node: str) -> None:
    """A pod that kube-scheduler puts on the node."""
    container = {"name": "main", "image": "none", "resources": {"limits": {"google.com/tpu": "4"}}}
    spec = {"containers": [container], "nodeSelector": {"kubernetes.io/hostname": node}, "automountServiceAccountToken": False}
    plane.request("POST", f"/api/v1/namespaces/{where}/pods", {"metadata": {"name": f"on-{node}"}, "spec": spec})
    path = f"/api/v1/namespaces/{where}/pods/on-{node}"
    wait_for(lambda: plane.request("GET", path)["spec"].get("nodeName") == node, f"kube-scheduler to bind the pod to {node}")


def learners(plane: ControlPlane, where: str) -> dict[str, str]:
    """Learner pods that kube-scheduler has bound, and their nodes."""
    selector = f"{names.LABEL_COMPONENT}={names.COMPONENT_LEARNER}"
    pods = json.loads(plane.kubectl("get", "pods", "-n", where, "-l", selector, "-o", "json").stdout)["items"]
    return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"]}


def apply(plane: ControlPlane, where: str, count: int) -> None:
    manifest = a_manifest("lm", min=1, max=count, pools=[tpu_pool("v6e", "tpu-v6e", "2x2", max=count)], spec={"syncer": {}})
    plane.kubectl("apply", "-n", where, "-f", "-", input=json.dumps(manifest))


def pool_status(plane: ControlPlane, where: str) -> dict[str, Any]:
    job = json.loads(plane.kubectl("get", "dilocojob", "lm", "-n", where, "-o", "json").stdout)
    pools: list[dict[str, Any]] = job.get("status", {}).get("pools", [{}])
    return pools[0]


def test_units_of_two_operators_and_a_strangers_pods_take_different_slices(plane: ControlPlane, tmp_path: Path) -> None:
    others, first, second = (namespace(plane) for _ in range(3))
    for node in NODES[:2]:
        stranger(plane, others, node)

    def an_operator(where: str) -> Any:
        return replica(tmp_path, where, plane.kubeconfig, "--watch-namespace", where, "--leader-elect-namespace", where)

    def wait_bound(where: str, count: int, operator: OperatorReplica) -> None:
        wait_for(lambda: len(learners(plane, where)) == count, f"{count} learners in {where} to be bound", operator)

    with an_operator(first) as one, an_operator(second) as two:
        apply(plane, first, 2)
        wait_bound(first, 2, one)
        apply(plane, second, 2)
        wait_bound(second, 1, two)
        text = f"4 used by other pods: {others}/on-{NODES[0]} and 3 more"
        wait_for(lambda: text in pool_status(plane, second).get("message", ""), f"the pool to say {text!r}", two)
        bound = {**learners(plane, first), **learners(plane, second)}
        taken = [*learners(plane, first).values(), *learners(plane, second).values()]
        assert sorted(taken) == NODES[2:]
        assert {name.rsplit("-", 2)[1] for name in bound} == {"a1"}  # no unit needed a second attempt
        plane.kubectl("delete", "pod", f"on-{NODES[1]}", "-n", others, "--grace-period=0", "--force")
        wait_bound(second, 2, two)
        assert learners(plane, second)["lm-v6e-1-a1-0"] == NODES[1]
    for where in (others, first, second):
        plane.kubectl("delete", "namespace", where, "--wait=false")
