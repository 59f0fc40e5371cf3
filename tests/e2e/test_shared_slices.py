"""Two jobs and too few slices on a real control plane: the younger one gets its minimum."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.control_plane import ControlPlane
from builders.jobs import a_manifest, tpu_pool
from builders.nodes import a_tpu_node
from builders.operator_process import replica, wait_for
from diloco_operator.api import names

NODES = [f"shared-{index}" for index in range(3)]


@pytest.fixture
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """With three slices of one kind. No kubelet runs there."""
    control_plane.install_crd()
    for name in NODES:
        node = a_tpu_node(name, kind="tpu-v6e-slice", topology="2x2")
        control_plane.add_node(name, node["metadata"]["labels"], node["status"]["capacity"], wait=False)
    yield control_plane
    control_plane.kubectl("delete", "node", *NODES)


def learners(plane: ControlPlane, where: str, job: str) -> list[dict[str, Any]]:
    """Learner pods that kube-scheduler has bound."""
    selector = f"{names.LABEL_COMPONENT}={names.COMPONENT_LEARNER},{names.LABEL_JOB}={job}"
    pods = json.loads(plane.kubectl("get", "pods", "-n", where, "-l", selector, "-o", "json").stdout)["items"]
    return [pod for pod in pods if "nodeName" in pod["spec"]]


def apply(plane: ControlPlane, where: str, name: str, count: int) -> None:
    pools = [tpu_pool("v6e", "tpu-v6e", "2x2", max=count)]
    plane.kubectl("apply", "-n", where, "-f", "-", input=json.dumps(a_manifest(name, min=1, max=count, pools=pools, spec={"syncer": {}})))


def units(plane: ControlPlane, where: str, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(plane.kubectl("get", "dilocojob", job, "-n", where, "-o", "json").stdout)["status"]["units"]
    return found


def test_a_job_with_every_slice_leaves_one_for_the_minimum_of_a_younger_job(plane: ControlPlane, tmp_path: Path) -> None:
    where: str = plane.request("POST", "/api/v1/namespaces", {"metadata": {"generateName": "shared-"}})["metadata"]["name"]
    plane.kubectl("wait", "--for=create", "serviceaccount/default", "-n", where)
    with replica(tmp_path, where, plane.kubeconfig, "--watch-namespace", where, "--leader-elect-namespace", where) as operator:
        apply(plane, where, "old", 10)
        wait_for(lambda: len(learners(plane, where, "old")) == 3, "old to have every slice", operator)
        apply(plane, where, "young", 1)

        def leaving() -> list[dict[str, Any]]:
            return [pod for pod in learners(plane, where, "old") if "deletionTimestamp" in pod["metadata"]]

        wait_for(leaving, "a unit of old to leave its slice", operator)
        assert [unit["reason"] for unit in units(plane, where, "old") if unit["state"] == "Draining"] == ["GaveWay"]
        [pod] = leaving()
        plane.kubectl("delete", "pod", pod["metadata"]["name"], "-n", where, "--grace-period=0", "--force")  # as a kubelet does in the end
        wait_for(lambda: learners(plane, where, "young"), "young to get the slice", operator)
        assert learners(plane, where, "young")[0]["spec"]["nodeName"] == pod["spec"]["nodeName"]
        assert len(learners(plane, where, "old")) == 2
        assert all(unit.get("restarts", 0) == 0 for unit in units(plane, where, "old"))
    plane.kubectl("delete", "namespace", where, "--wait=false")
