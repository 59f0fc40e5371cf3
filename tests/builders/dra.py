"""Objects of dynamic resource allocation (DRA), raw: `a_device_slice("gpu-a")` is the ResourceSlice of a host with 8 GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from builders.fake_cluster import FakeCluster
from builders.jobs import Obj
from builders.nodes import a_node
from diloco_operator.api import names

H100 = "NVIDIA H100 80GB HBM3"


def a_dra_node(name: str, *, labels: Mapping[str, str] | None = None) -> Obj:
    """A host whose device plugin is off, so that it offers no `nvidia.com/gpu`."""
    return a_node(name, labels=labels, resources={"cpu": "192", "memory": "2048Gi", "pods": "110"})


def a_device(name: str, product: str = H100, kind: str = "gpu") -> Obj:
    """As NVIDIA's driver writes it: https://github.com/NVIDIA/k8s-dra-driver-gpu/blob/main/cmd/gpu-kubelet-plugin/deviceinfo.go."""
    attributes = {"type": kind, "productName": product, "uuid": f"GPU-{name}"}
    return {
        "name": name,
        "attributes": {key: {"string": value} for key, value in attributes.items()},
        "capacity": {"memory": {"value": "80Gi"}},
    }


def a_device_slice(
    node: str,
    *devices: Obj,
    gpus: int = 8,
    product: str = H100,
    generation: int = 1,
    slices: int = 1,
    part: str = "",
) -> Obj:
    """One of `slices` ResourceSlices of the pool of the node, which is called as the node; `devices` in the place of `gpus` whole ones."""
    return {
        "apiVersion": names.RESOURCE_SLICES.api_version,
        "kind": names.RESOURCE_SLICES.kind,
        "metadata": {"name": f"{node}-gpus{part}"},
        "spec": {
            "driver": names.GPU_DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": slices},
            "devices": list(devices) or [a_device(f"gpu-{index}", product) for index in range(gpus)],
        },
    }


def an_allocated_claim(name: str, node: str, devices: Sequence[str], *, pod: str = "", labels: Mapping[str, str] | None = None) -> Obj:
    """A ResourceClaim that holds these devices of the node, with what kube-scheduler writes into its status."""
    results = [{"request": "gpus", "driver": names.GPU_DRIVER, "pool": node, "device": each} for each in devices]
    return {
        "apiVersion": names.RESOURCE_CLAIMS.api_version,
        "kind": names.RESOURCE_CLAIMS.kind,
        "metadata": {"name": name, "namespace": "team-a", "labels": dict(labels or {})},
        "spec": {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": names.GPU_DRIVER, "count": len(devices)}}]}},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": pod or f"{name}-pod", "uid": "uid-pod"}],
        },
    }


# --- in a cluster -----------------------------------------------------------------------------------------------------
async def offer(cluster: FakeCluster, *nodes: str, gpus: int = 8) -> None:
    """These nodes' drivers publish their GPUs."""
    for node in nodes:
        await cluster.api.create(names.RESOURCE_SLICES, a_device_slice(node, gpus=gpus))


async def claim(cluster: FakeCluster, name: str, node: str, devices: Sequence[str], *, pod: str = "") -> None:
    """A pod of team-a has these devices."""
    await cluster.api.create(names.NAMESPACES, {"metadata": {"name": "team-a"}})
    await hold(cluster, an_allocated_claim(name, node, devices, pod=pod))


async def hold(cluster: FakeCluster, obj: Obj) -> None:
    """A scheduler has allocated this claim."""
    await cluster.api.create(names.RESOURCE_CLAIMS, obj)
    meta = obj["metadata"]
    await cluster.api.patch(names.RESOURCE_CLAIMS, meta["namespace"], meta["name"], {"status": obj["status"]}, subresource="status")
