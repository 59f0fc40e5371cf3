"""A node, as much of it as fleet, placement and reconcile need: projected once from the raw JSON, kept instead of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from diloco_operator.api import names
from diloco_operator.kube.client import Obj
from diloco_operator.kube.timestamps import parse_timestamp


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: str
    """NoSchedule, PreferNoSchedule or NoExecute."""


@dataclass(frozen=True, slots=True)
class Toleration:
    """As in a pod's spec. An empty key with Exists tolerates everything."""

    key: str
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == taint.value)


@dataclass(frozen=True, slots=True)
class Host:
    """One machine of a slice."""

    node: str
    """Name of the Node object, to which pods are pinned."""


@dataclass(frozen=True, slots=True)
class NodeView:
    name: str
    uid: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool
    """Cordoned."""
    ready: bool
    ready_unknown: bool
    """Not ready because nobody hears its kubelet, which would know better."""
    ready_since: float | None
    """When the condition last changed, as it tells itself; seconds since the epoch."""
    ready_message: str
    tpus: int
    gpus: int
    deleting: bool = False
    host: Host = field(default=Host(""))


def project_node(obj: Obj) -> NodeView:
    """From the raw Node object. A node without a Ready condition is not ready: nothing vouches for it."""
    meta = obj.get("metadata", {})
    spec = obj.get("spec") or {}
    status = obj.get("status") or {}
    ready = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), None)
    resources = status.get("allocatable") or status.get("capacity") or {}
    labels = dict(meta.get("labels") or {})
    return NodeView(
        name=meta["name"],
        uid=meta.get("uid", ""),
        labels=labels,
        taints=tuple(Taint(t["key"], t.get("value", ""), t.get("effect", "")) for t in spec.get("taints") or ()),
        unschedulable=bool(spec.get("unschedulable")),
        ready=ready is not None and ready.get("status") == "True",
        ready_unknown=ready is not None and ready.get("status") == "Unknown",
        ready_since=parse_timestamp(ready["lastTransitionTime"]) if ready and ready.get("lastTransitionTime") else None,
        ready_message=ready.get("message", "") if ready else "the node has no Ready condition",
        tpus=_count(resources.get(names.RESOURCE_TPU)),
        gpus=_count(resources.get(names.RESOURCE_GPU)),
        deleting=bool(meta.get("deletionTimestamp")),
        host=Host(meta["name"]),
    )


def _count(quantity: object) -> int:
    """Devices are whole numbers; anything else (missing, malformed) counts as none."""
    try:
        return int(str(quantity)) if quantity is not None else 0
    except ValueError:
        return 0
