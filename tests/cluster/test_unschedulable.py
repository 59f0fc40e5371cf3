"""Learner pods that the real kube-scheduler does not bind."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from builders.control_plane import ON_LATE, ControlPlane
from builders.jobs import JobBuilder, template
from builders.nodes import TPU, a_tpu_node
from builders.operator_process import OperatorReplica, replica, wait_for

type Obj = dict[str, Any]

STORAGE = "ephemeral-storage"
"""A resource that kube-scheduler counts and the operator does not: it cannot know that a node has none left."""


class Scene:
    """Two TPU slices of one host, and operators that watch one namespace each."""

    def __init__(self, plane: ControlPlane, folder: Path, stack: ExitStack, nodes: list[str]) -> None:
        self.plane = plane
        self.nodes = nodes
        self._folder = folder
        self._stack = stack

    def namespace(self) -> str:
        made = self.plane.request("POST", "/api/v1/namespaces", {"metadata": {"generateName": "unschedulable-"}})
        name: str = made["metadata"]["name"]
        self._stack.callback(self.plane.kubectl, "delete", "namespace", name, "--wait=false")
        self.plane.kubectl("wait", "--for=create", "serviceaccount/default", "-n", name, "--timeout=180s")
        return name

    def operator(self, namespace: str) -> OperatorReplica:
        options = ("--watch-namespace", namespace, "--leader-elect-namespace", namespace)
        return self._stack.enter_context(replica(self._folder, namespace, self.plane.kubeconfig, *options))

    def occupy(self, node: str, namespace: str, **requests: str) -> None:
        """A stranger's pod runs on the node."""
        spec = {
            "nodeName": node,
            "containers": [{"name": "main", "image": "image:1", "resources": {"requests": requests, "limits": requests}}],
            "tolerations": [{"operator": "Exists"}],
        }
        self.plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": f"on-{node}"}, "spec": spec})

    def apply(self, *namespaces: str) -> None:
        """A job with one unit in each namespace, all at once."""
        pods = template()
        pods["spec"]["containers"][0]["resources"] = {"requests": {STORAGE: "10Gi"}}
        job = (
            JobBuilder("lm")
            .with_learners(1, 1, timeouts={"schedule": "2s"})
            .with_pool("v6e", accelerator="tpu-v6e", topology="2x2", max=1, template=pods)
            .with_spec(**ON_LATE)
        )
        items = [job.in_namespace(namespace).build() for namespace in namespaces]
        self.plane.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))

    def unit(self, namespace: str) -> Obj:
        status = self.plane.request("GET", f"/apis/diloco.dev/v1alpha1/namespaces/{namespace}/dilocojobs/lm").get("status", {})
        return next(iter(status.get("units", ())), {})

    def bound_to(self, namespace: str) -> str:
        """The node to which kube-scheduler bound the learner's pod; "": to none."""
        pods = self.plane.request("GET", f"/api/v1/namespaces/{namespace}/pods?labelSelector=diloco.dev/component%3Dlearner")["items"]
        return next((pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")), "")

    def reasons(self, namespace: str) -> set[str]:
        """Return the reasons of all Events in the namespace."""
        return {event["reason"] for event in self.plane.request("GET", f"/api/v1/namespaces/{namespace}/events")["items"]}


@pytest.fixture
def scene(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Scene]:
    control_plane.install_crd()
    control_plane.offer_late_volumes()
    # Without kubelets a pod stays on its node beyond its test, so each test has nodes of its own.
    nodes = [f"{tmp_path.name.replace('_', '-')[:40]}-{index}" for index in range(2)]
    with ExitStack() as stack:
        for name in nodes:
            labels = a_tpu_node(name, kind="tpu-v6e-slice", topology="2x2")["metadata"]["labels"]
            control_plane.add_node(name, labels, {TPU: "4"})
            stack.callback(control_plane.kubectl, "delete", "node", name)
        yield Scene(control_plane, tmp_path, stack, nodes)


def test_unit_leaves_a_node_to_which_kube_scheduler_does_not_bind_it(scene: Scene) -> None:
    namespace = scene.namespace()
    scene.occupy(scene.nodes[0], namespace, **{STORAGE: "1Ti"})
    operator = scene.operator(namespace)
    scene.apply(namespace)
    wait_for(lambda: scene.bound_to(namespace) == scene.nodes[1], "the unit on the node that has room", operator)

    # The status comes after the pod.
    wait_for(lambda: scene.unit(namespace).get("slice") == scene.nodes[1], "the unit's slice", operator)
    unit = scene.unit(namespace)
    assert (unit["slice"], unit["attempt"], unit["restarts"], unit["failures"]) == (scene.nodes[1], 2, 0, [])
    status = scene.plane.request("GET", f"/apis/diloco.dev/v1alpha1/namespaces/{namespace}/dilocojobs/lm")["status"]
    assert [node["name"] for node in status["unschedulableNodes"]] == [scene.nodes[0]]
    wait_for(lambda: "UnitGaveSliceUp" in scene.reasons(namespace), "the Event", operator)
    said = operator.said(r"UnitGaveSliceUp: v6e-0: .*")
    assert said is not None
    assert "Insufficient ephemeral-storage" in said[0]  # kube-scheduler's words
    assert operator.total("diloco_job_slices_given_up_total") == 1


def test_two_operators_that_start_at_the_same_moment_get_a_node_each_without_a_failure(scene: Scene) -> None:
    def is_placed(namespace: str) -> bool:
        return bool(scene.unit(namespace).get("slice") == scene.bound_to(namespace))

    first, second = namespaces = [scene.namespace(), scene.namespace()]
    operators = [scene.operator(namespace) for namespace in namespaces]
    for operator in operators:
        operator.wait_ready()
        operator.wait_leads()
    scene.apply(first, second)
    wait_for(lambda: {scene.bound_to(first), scene.bound_to(second)} == set(scene.nodes), "each unit on a node of its own", *operators)
    for namespace in namespaces:
        # The status comes after the pod.
        wait_for(functools.partial(is_placed, namespace), f"the unit's slice in {namespace}", *operators)
        unit = scene.unit(namespace)
        assert (unit["restarts"], unit["failures"]) == (0, [])
