"""Pods that name no node, in the labels of one cloud: a real API server takes them, and its scheduler binds them to such nodes alone."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.contended_slices import an_operator
from builders.control_plane import ON_LATE, ControlPlane
from builders.jobs import a_manifest, gpu_pool
from builders.operator_process import wait_for

GKE = {"cloud.google.com/gke-nodepool": "default-pool"}
L4 = {"cloud.google.com/gke-nodepool": "nap-l4", "cloud.google.com/gke-accelerator": "nvidia-l4", "cloud.google.com/gke-spot": "true"}
GPU = {"nvidia.com/gpu": "1"}


class Nodes:
    """The nodes of one test, in the cluster until it ends."""

    def __init__(self, plane: ControlPlane, test: str) -> None:
        self._plane, self._prefix = plane, f"dialects-{zlib.crc32(test.encode()):08x}"
        self.names: list[str] = []

    def add(self, name: str, labels: dict[str, str], devices: dict[str, str]) -> str:
        self.names.append(f"{self._prefix}-{name}")
        self._plane.add_node(self.names[-1], labels, devices, wait=False)
        return self.names[-1]


@pytest.fixture
def nodes(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    control_plane.install_crd()
    control_plane.offer_late_volumes()
    made = Nodes(control_plane, request.node.name)
    yield made
    control_plane.kubectl("delete", "node", *made.names)


def test_a_unit_asks_for_a_node_of_gke_by_a_plain_selector_and_takes_the_one_that_comes(
    control_plane: ControlPlane, nodes: Nodes, namespaces: list[str], tmp_path: Path
) -> None:
    plane, where = control_plane, namespaces[0]
    nodes.add("system", GKE, {})
    nodes.add("on-demand", {key: value for key, value in L4.items() if "spot" not in key}, GPU)
    nodes.add("other-cloud", {"nvidia.com/gpu.product": "NVIDIA-L4"}, GPU)
    asks = gpu_pool("l4", "nvidia-l4", acceleratorsPerHost=1, max=1, capacity="Spot", provisioning={"mode": "Autoscaler"})
    path = f"/api/v1/namespaces/{where}/pods/lm-l4-0-a1-0"

    def pod() -> dict[str, Any] | None:
        listed = json.loads(plane.kubectl("get", "pods", "-n", where, "-l", "diloco.dev/pool=l4", "-o", "json").stdout)["items"]
        return next(iter(listed), None)

    with an_operator(plane, tmp_path, where) as operator:
        manifest = a_manifest("lm", min=1, max=1, pools=[asks], spec=ON_LATE)
        plane.kubectl("apply", "-n", where, "-f", "-", input=json.dumps(manifest))
        wait_for(pod, "the unit to have its pod", operator)
        spec = plane.request("GET", path)["spec"]
        assert spec["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-l4", "cloud.google.com/gke-spot": "true"}
        assert "nodeAffinity" not in spec["affinity"]
        assert "nodeName" not in spec  # neither the node of another cloud nor the one that is no spot one
        brought = nodes.add("brought", L4, GPU)
        wait_for(
            lambda: plane.request("GET", path)["spec"].get("nodeName") == brought, "the scheduler to bind the pod to the new node", operator
        )
