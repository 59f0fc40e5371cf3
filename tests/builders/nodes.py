"""Nodes as raw API objects: `a_tpu_node("tpu-0")` as the API server has it, `a_fleet_tpu_node("tpu-0")` as a fleet file declares it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from builders.jobs import Obj
from diloco_operator.accelerators.labels import GKE_GPU, GKE_TPU
from diloco_operator.api import names
from diloco_operator.fleet import DisruptionSignals, Inventory, project_node
from diloco_operator.reconcile import OperatorConfig

READY_SINCE = "2026-11-20T11:00:00Z"
TPU = "google.com/tpu"
GPU = "nvidia.com/gpu"


# --- as the API server has them ---------------------------------------------------------------------------------------
def a_node(
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    devices: Mapping[str, str] | None = None,
    ready: bool = True,
    ready_since: str = READY_SINCE,
    heard: bool = False,
    taints: Sequence[Obj] = (),
    cordoned: bool = False,
    resources: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    created: str = "",
) -> Obj:
    """A node that is not `ready` reports that itself (`heard`), or its readiness is unknown. `resources`: what it has besides devices.
    `created`: metadata.creationTimestamp."""
    status = "True" if ready else "False" if heard else "Unknown"
    condition = {"type": "Ready", "status": status, "lastTransitionTime": ready_since}
    has = {**(resources or {}), **(devices or {})}
    spec: Obj = {"taints": list(taints)} if taints else {}
    if cordoned:
        spec["unschedulable"] = True
    meta: Obj = {"uid": f"uid-{name}"[:63], "labels": {names.NODE_HOSTNAME: name, **(labels or {})}}
    if annotations:
        meta["annotations"] = dict(annotations)
    if created:
        meta["creationTimestamp"] = created
    return _node(name, meta, spec, {"capacity": has, "allocatable": dict(has), "conditions": [condition]})


def a_tpu_node(name: str, *, kind: str = "tpu-v5p-slice", topology: str = "2x2x1", chips: int = 4, pool: str = "", **fields: Any) -> Obj:
    labels = {**_tpu_labels(kind, topology, chips, pool or f"np-{name}"), **fields.pop("labels", {})}
    return a_node(name, labels=labels, devices={TPU: str(chips)}, **fields)


def a_tpu_slice(pool: str, hosts: int = 1, *, topology: str = "2x2x2", **fields: Any) -> list[Obj]:
    """All hosts of one slice, which is one node pool."""
    return [a_tpu_node(f"{pool}-{index}", topology=topology, pool=pool, **fields) for index in range(hosts)]


def a_gpu_node(name: str, *, kind: str = "nvidia-h100-80gb", gpus: int = 8, pool: str = "gpus", **fields: Any) -> Obj:
    labels = {**_gpu_labels(kind, pool), **fields.pop("labels", {})}
    return a_node(name, labels=labels, devices={GPU: str(gpus)}, **fields)


# --- as a fleet file declares them ------------------------------------------------------------------------------------
def a_fleet_node(
    name: str, *, labels: Mapping[str, str] | None = None, speed: str = "", taints: Sequence[Obj] = (), **capacity: object
) -> Obj:
    """`capacity` by resource, with `tpu` and `gpu` for their long names."""
    long = {"tpu": TPU, "gpu": GPU}
    meta = {"labels": dict(labels or {}), "annotations": {names.ANNOTATION_RELATIVE_SPEED: speed} if speed else {}}
    has = {long.get(key, key): str(value) for key, value in capacity.items()}
    return _node(name, meta, {"taints": list(taints)} if taints else {}, {"capacity": has})


def a_fleet_tpu_node(name: str, kind: str = "tpu-v5p-slice", topology: str = "2x2x1", chips: int = 4, speed: str = "") -> Obj:
    """One host of a TPU slice, labelled and tainted as GKE does."""
    return a_fleet_node(name, labels=_tpu_labels(kind, topology, chips, f"np-{name}"), speed=speed, taints=[_taint(TPU)], tpu=chips)


def a_fleet_gpu_node(name: str, kind: str = "nvidia-h100-80gb", gpus: int = 8, speed: str = "") -> Obj:
    """A GPU host, labelled and tainted as GKE does."""
    return a_fleet_node(name, labels=_gpu_labels(kind, "np-gpu"), speed=speed, taints=[_taint(GPU)], gpu=gpus)


def _node(name: str, meta: Obj, spec: Obj, status: Obj) -> Obj:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **meta}, "spec": spec, "status": status}


def _tpu_labels(kind: str, topology: str, chips: int, pool: str) -> dict[str, str]:
    return {GKE_TPU.key: kind, GKE_TPU.topology: topology, GKE_TPU.count: str(chips), names.NODE_POOL: pool}


def _gpu_labels(kind: str, pool: str) -> dict[str, str]:
    return {GKE_GPU.key: kind, names.NODE_POOL: pool}


def _taint(resource: str) -> Obj:
    return {"key": resource, "value": "present", "effect": "NoSchedule"}


# --- what the operator keeps of them ----------------------------------------------------------------------------------
def signals() -> DisruptionSignals:
    return OperatorConfig().disruption_signals


def an_inventory(*nodes: Obj) -> Inventory:
    inventory = Inventory(signals())
    for node in nodes:
        inventory.update_node(project_node(node, OperatorConfig().end_annotations))
    return inventory
