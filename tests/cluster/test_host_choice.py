"""Which hosts units with parts of them get, on a real control plane with its scheduler.

See docs/decisions/0130-what-occupies-a-node.md.
"""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from builders.contended_slices import an_operator, nodes
from builders.control_plane import ON_LATE, ControlPlane
from builders.jobs import a_manifest, gpu_pool, template
from builders.nodes import a_gpu_node
from builders.operator_process import wait_for


@pytest.fixture
def hosts(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[tuple[list[str], list[str]]]:
    """Three hosts with 8 GPUs of one kind, and three of another."""
    control_plane.install_crd()
    control_plane.offer_late_volumes()
    found = []
    for kind in ("nvidia-h100-80gb", "nvidia-l4"):
        name = f"{zlib.crc32(request.node.name.encode()):08x}-{kind}"
        for index in range(3):
            node = a_gpu_node(f"{name}-{index}", kind=kind)
            control_plane.add_node(f"{name}-{index}", node["metadata"]["labels"], node["status"]["capacity"], wait=False)
            found.append(f"{name}-{index}")
    yield found[:3], found[3:]
    control_plane.kubectl("delete", "node", *found)


def test_units_of_parts_share_a_host_and_leave_whole_ones_which_kube_scheduler_would_not(
    control_plane: ControlPlane, hosts: tuple[list[str], list[str]], namespaces: list[str], tmp_path: Path
) -> None:
    """Why the operator chooses hosts: kube-scheduler spreads pods of parts that name none, so that no host is left as a whole."""
    plane, (where, other, _) = control_plane, namespaces
    ours, theirs = hosts
    each_part = template()["spec"]["containers"][0] | {"resources": {"requests": {"cpu": "8"}, "limits": {"nvidia.com/gpu": "1"}}}
    for index, host in enumerate(theirs):
        # kube-scheduler spreads over the nodes that it knows: a bound pod on each shows that it knows them all.
        pod = {"containers": [template()["spec"]["containers"][0]], "nodeSelector": {"kubernetes.io/hostname": host}}
        node_for_a_pod(plane, other, f"known-{index}", pod)
    spec = {"containers": [each_part], "nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-l4"}}
    parts = [node_for_a_pod(plane, other, f"part-{index}", spec) for index in range(3)]
    assert sorted(parts) == theirs
    with an_operator(plane, tmp_path, where) as operator:
        for job, each, count in (("parts", 1, 3), ("whole", 8, 2)):
            pods = {"spec": {"containers": [template()["spec"]["containers"][0] | {"resources": {"requests": {"cpu": "8"}}}]}}
            pool = gpu_pool(acceleratorsPerHost=each, max=count, template=pods)
            manifest = a_manifest(job, min=count, max=count, pools=[pool], spec=ON_LATE)
            plane.kubectl("apply", "-n", where, "-f", "-", input=json.dumps(manifest))
            wait_for(functools.partial(has_units, plane, where, job, count), f"{count} units of {job} to be bound", operator)
        assert len(set(nodes(plane, where, "parts").values())) == 1
        assert sorted({*nodes(plane, where, "parts").values(), *nodes(plane, where, "whole").values()}) == ours


def node_for_a_pod(plane: ControlPlane, namespace: str, name: str, spec: Mapping[str, object]) -> str:
    """Create a pod and return the node that kube-scheduler chooses for it."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    plane.request("POST", path, {"metadata": {"name": name}, "spec": {**spec, "automountServiceAccountToken": False}})
    wait_for(functools.partial(node_of, plane, f"{path}/{name}"), f"kube-scheduler to bind {name}")
    return node_of(plane, f"{path}/{name}")


def node_of(plane: ControlPlane, path: str) -> str:
    """The node that kube-scheduler has chosen for the pod; "" while it has not."""
    return str(plane.request("GET", path)["spec"].get("nodeName", ""))


def has_units(plane: ControlPlane, where: str, job: str, count: int) -> bool:
    """Whether so many pods of learners are bound."""
    return len(nodes(plane, where, job)) == count
