"""Hosts that a unit must not be on, on a real cluster with kube-scheduler: one that fails, one without devices, and one in another zone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from builders.control_plane import ON_LATE, ControlPlane
from builders.jobs import JobBuilder
from builders.nodes import TPU, a_gpu_node, a_tpu_node
from builders.operator_process import OperatorReplica, replica, wait_for
from diloco_operator.api import names

type Obj = dict[str, Any]

TPU_NODES = ["unfit-tpu-0", "unfit-tpu-1", "unfit-tpu-2"]
ZONES = {"unfit-gpu-0": "z1", "unfit-gpu-1": "z2", "unfit-gpu-2": "z2"}
MERGE_PATCH = "application/merge-patch+json"


class Scene:
    """Slices of two kinds, and an operator that watches one namespace."""

    def __init__(self, plane: ControlPlane, namespace: str, operator: OperatorReplica) -> None:
        self.plane = plane
        self.namespace = namespace
        self.operator = operator

    def apply(self, job: JobBuilder) -> None:
        self.plane.kubectl("apply", "-f", "-", input=json.dumps(job.with_spec(**ON_LATE).in_namespace(self.namespace).build()))

    def status(self) -> Obj:
        found: Obj = self.plane.request("GET", f"/apis/diloco.dev/v1alpha1/namespaces/{self.namespace}/dilocojobs/lm").get("status", {})
        return found

    def learners(self) -> dict[str, str]:
        """Learner pods that kube-scheduler has bound, and their nodes."""
        path = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector=diloco.dev/component%3Dlearner"
        return {p["metadata"]["name"]: p["spec"]["nodeName"] for p in self.plane.request("GET", path)["items"] if p["spec"].get("nodeName")}

    def wait_bound(self, pod: str, node: str) -> None:
        self.wait(lambda: self.learners().get(pod) == node, f"kube-scheduler to bind {pod} to {node}")

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        wait_for(holds, what, self.operator)

    def set_devices(self, node: str, amount: str) -> None:
        """What the node's device plugin reports as allocatable."""
        patch = {"status": {"allocatable": {TPU: amount}}}
        self.plane.request("PATCH", f"/api/v1/nodes/{node}/status", patch, content_type=MERGE_PATCH)

    def crash(self, pod: str) -> None:
        """Its kubelet reports that the training program ended with status 1."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ended = {"exitCode": 1, "reason": "Error", "startedAt": now, "finishedAt": now}
        container = {"name": "learner", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": {"terminated": ended}}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/status"
        status = {"status": {"phase": "Failed", "containerStatuses": [container]}}
        self.plane.request("PATCH", path, status, content_type=MERGE_PATCH)


@pytest.fixture
def scene(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Scene]:
    plane = control_plane
    plane.install_crd()
    plane.offer_late_volumes()
    with ExitStack() as stack:
        gpus = (a_gpu_node(name, kind="nvidia-h200-141gb", labels={names.NODE_ZONE: zone}) for name, zone in ZONES.items())
        for node in (*(a_tpu_node(name, kind="tpu-v5-lite-podslice", topology="2x2") for name in TPU_NODES), *gpus):
            name = node["metadata"]["name"]
            plane.add_node(name, node["metadata"]["labels"], node["status"]["capacity"], wait=False)
            stack.callback(plane.request, "DELETE", f"/api/v1/nodes/{name}")
        namespace: str = plane.request("POST", "/api/v1/namespaces", {"metadata": {"generateName": "unfit-"}})["metadata"]["name"]
        stack.callback(plane.kubectl, "delete", "namespace", namespace, "--wait=false")
        plane.kubectl("wait", "--for=create", "serviceaccount/default", "-n", namespace, "--timeout=180s")
        options = ("--watch-namespace", namespace, "--leader-elect-namespace", namespace)
        yield Scene(plane, namespace, stack.enter_context(replica(tmp_path, namespace, plane.kubeconfig, *options)))


def test_unit_leaves_a_host_that_failed_twice_and_takes_none_without_devices(scene: Scene) -> None:
    first, silent, last = TPU_NODES
    scene.set_devices(silent, "0")
    job = JobBuilder("lm").with_learners(1, 1).with_restarts(limit=5, initial="1s")
    scene.apply(job.with_pool("v5e", accelerator="tpu-v5e", topology="2x2", max=2))
    for pod in ("lm-v5e-0-a1-0", "lm-v5e-0-a2-0"):
        scene.wait_bound(pod, first)
        scene.crash(pod)
    scene.wait_bound("lm-v5e-0-a3-0", last)
    [host] = [each for each in scene.status()["hosts"] if "avoidedUntil" in each]
    assert (host["node"], [each["attempt"] for each in host["failures"]]) == (first, [1, 2])

    scene.plane.kubectl("patch", "dlj", "lm", "-n", scene.namespace, "--type=merge", "-p", '{"spec": {"learners": {"max": 2}}}')
    scene.wait(lambda: f"node {silent}" in json.dumps(scene.status()["pools"]), f"the pool to name {silent}")
    scene.set_devices(silent, "4")
    scene.wait_bound("lm-v5e-1-a1-0", silent)


def test_the_hosts_of_one_unit_are_in_one_zone(scene: Scene) -> None:
    scene.apply(JobBuilder("lm").with_learners(1, 1).with_pool("h200", accelerator="nvidia-h200-141gb", hosts=2, max=1))
    expected = {"lm-h200-0-a1-0": "unfit-gpu-1", "lm-h200-0-a1-1": "unfit-gpu-2"}
    scene.wait(lambda: scene.learners() == expected, "both hosts of zone z2 to have a pod")
