"""Nodes as GKE labels them, as raw API objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from builders.jobs import Obj
from diloco_operator.fleet import DisruptionSignals, Inventory, project_node
from diloco_operator.reconcile import OperatorConfig

READY_SINCE = "2026-11-20T11:00:00Z"


def a_node(
    name: str,
    *,
    labels: dict[str, str] | None = None,
    devices: dict[str, str] | None = None,
    ready: bool = True,
    ready_since: str = READY_SINCE,
    heard: bool = False,
    taints: list[dict[str, str]] | None = None,
    cordoned: bool = False,
    resources: Mapping[str, str] | None = None,
) -> Obj:
    """A node that is not `ready` reports that itself (`heard`), or its readiness is unknown. `resources`: what it has besides devices."""
    status = "True" if ready else "False" if heard else "Unknown"
    condition = {"type": "Ready", "status": status, "lastTransitionTime": ready_since}
    has = {**(resources or {}), **(devices or {})}
    spec: Obj = {"taints": taints} if taints else {}
    if cordoned:
        spec["unschedulable"] = True
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": spec,
        "status": {"capacity": has, "allocatable": dict(has), "conditions": [condition]},
    }


def a_tpu_node(name: str, *, kind: str = "tpu-v5p-slice", topology: str = "2x2x1", chips: int = 4, pool: str = "", **fields: Any) -> Obj:
    labels = {
        "cloud.google.com/gke-tpu-accelerator": kind,
        "cloud.google.com/gke-tpu-topology": topology,
        "cloud.google.com/gke-accelerator-count": str(chips),
        "cloud.google.com/gke-nodepool": pool or f"np-{name}",
        **fields.pop("labels", {}),
    }
    return a_node(name, labels=labels, devices={"google.com/tpu": str(chips)}, **fields)


def a_tpu_slice(pool: str, hosts: int, *, topology: str = "2x2x2", **fields: Any) -> list[Obj]:
    """A multi-host slice: one node pool."""
    return [a_tpu_node(f"{pool}-{index}", topology=topology, pool=pool, **fields) for index in range(hosts)]


def a_gpu_node(name: str, *, kind: str = "nvidia-h100-80gb", gpus: int = 8, pool: str = "gpus", **fields: Any) -> Obj:
    labels = {
        "cloud.google.com/gke-accelerator": kind,
        "cloud.google.com/gke-nodepool": pool,
        **fields.pop("labels", {}),
    }
    return a_node(name, labels=labels, devices={"nvidia.com/gpu": str(gpus)}, **fields)


def signals() -> DisruptionSignals:
    return OperatorConfig().disruption_signals


def an_inventory(*nodes: Obj) -> Inventory:
    inventory = Inventory(signals())
    for node in nodes:
        inventory.update_node(project_node(node))
    return inventory
