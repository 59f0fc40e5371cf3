"""Node objects as clouds make them: `tpu_nodes("np-v5p-1", "tpu-v5p-slice", "2x2x2", hosts=2)`."""

from __future__ import annotations

from typing import Any

from diloco_operator.accelerators.labels import GKE_TPU
from diloco_operator.api import names

type Obj = dict[str, Any]

READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastTransitionTime": "2026-11-20T20:00:00Z"}


def a_node(name: str, labels: dict[str, str] | None = None, **capacity: str) -> Obj:
    """A ready node with room for everything; `capacity` are further resources, "/" written as "__" and "." as "_"."""
    resources = {"cpu": "208", "memory": "1800Gi", "pods": "256"}
    resources.update({name.replace("__", "/").replace("_", "."): amount for name, amount in capacity.items()})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {names.NODE_HOSTNAME: name, **(labels or {})}},
        "status": {"capacity": resources, "allocatable": dict(resources), "conditions": [dict(READY)]},
    }


def cpu_node(name: str) -> Obj:
    """A node without accelerators: syncers run here."""
    return a_node(name, {names.NODE_POOL: "cpu"})


def tpu_nodes(node_pool: str, gke_type: str, topology: str, *, hosts: int = 1, chips: int = 4) -> list[Obj]:
    """All hosts of one slice; a slice of several hosts is one node pool."""
    labels = {
        names.NODE_POOL: node_pool,
        GKE_TPU.key: gke_type,
        GKE_TPU.topology: topology,
        GKE_TPU.count: str(chips),
    }
    return [a_node(f"{node_pool}-{host}", labels, google_com__tpu=str(chips)) for host in range(hosts)]
