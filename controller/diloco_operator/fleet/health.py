"""Whether a node can be used for a new unit, and whether the units on it must leave. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diloco_operator.api.timestamps import format_timestamp
from diloco_operator.fleet.node import NodeView

_UNHEARD = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints of a node of which nothing more is known than that nobody hears its kubelet."""
_FEW_NODES, _MOST_NODES = 2, 0.55
"""So many NotReady nodes are believed whatever their share; from this share on they are too many to be lost at once."""
_OUTAGE_LOOK = 10.0
"""Seconds between two looks at a node that nobody hears while most of the fleet is NotReady."""


@dataclass(frozen=True, slots=True)
class DisruptionSigns:
    """What announces or records the loss of a node."""

    taints: Sequence[str]
    """Taint keys."""
    labels: Sequence[tuple[str, str]]
    """Labels with their values."""
    dead_taints: Sequence[str]
    """Taint keys of a node whose kubelet does not answer."""
    not_ready_tolerance: float
    """Seconds; a node that is NotReady, without any taint, for less than this is not left yet."""
    outage_tolerance: float = 0.0
    """Seconds; the same for a node with or without such a taint, while most of the fleet is NotReady."""
    maintenance_labels: Sequence[str] = ()
    """Labels whose value is when maintenance of the node begins, in seconds since the epoch."""
    maintenance_lead: float = 0.0
    """Seconds before that moment from which the node is left."""
    maintenance_over: float = 0.0
    """Seconds after that moment from which the label says nothing any more: it was done, or called off, and nobody took it away."""


def maintenance(node: NodeView, signs: DisruptionSigns) -> tuple[float, float] | None:
    """From when until when the node is to be left because of announced maintenance, seconds since the epoch."""
    starts = [float(value) for label in signs.maintenance_labels if (value := node.labels.get(label, "")).isdecimal()]
    if not starts:
        return None
    start = min(starts)
    return start - signs.maintenance_lead, start + signs.maintenance_over


def turns(node: NodeView, signs: DisruptionSigns, now: float) -> float | None:
    """When what `disruption` says of this node next changes by the mere passing of time; None: never."""
    span = maintenance(node, signs)
    return next((moment for moment in span if moment > now), None) if span is not None else None


def is_outage(silent: int, nodes: int) -> bool:
    """Whether so many of a fleet's nodes are NotReady that whoever hears their kubelets was away, rather than they. The thresholds are
    those from which Kubernetes' own node lifecycle controller evicts nothing any more (unhealthy-zone-threshold)."""
    return silent > _FEW_NODES and silent >= _MOST_NODES * nodes


def _believed(node: NodeView, signs: DisruptionSigns, now: float, *, outage: bool) -> bool:
    """Whether it counts that nobody hears this node."""
    return not outage or node.ready_since is None or now - node.ready_since >= signs.outage_tolerance


def disruption(node: NodeView, signs: DisruptionSigns, now: float, *, unheard: bool = True) -> str:
    """The announced or recorded loss of this node, in words; "" when there is none. `unheard`: also that nobody hears it."""
    for taint in node.taints:
        if taint.key in signs.taints and (unheard or taint.key not in _UNHEARD):
            return f"node {node.name} has the taint {taint.key}"
    for key, value in signs.labels:
        if node.labels.get(key) == value:
            return f"node {node.name} has the label {key}={value}"
    if node.deleting:
        return f"node {node.name} is being deleted"
    span = maintenance(node, signs)
    if span is not None and span[0] <= now < span[1]:
        return f"maintenance of node {node.name} begins at {format_timestamp(span[0] + signs.maintenance_lead)}"
    return ""


def unusable(node: NodeView, signs: DisruptionSigns, now: float) -> str:
    """Why no new unit may start here, in words; "" when one may."""
    if not node.ready:
        return f"node {node.name} is NotReady" + (f" ({node.ready_message})" if node.ready_message else "")
    if node.unschedulable:
        return f"node {node.name} is cordoned"
    return disruption(node, signs, now)


def must_leave(node: NodeView | None, name: str, signs: DisruptionSigns, now: float, *, outage: bool = False) -> str:
    """Why the units on node `name` must leave it, in words; "" when they may stay. `node` is None when it is gone.

    In an `outage` of most of the fleet it does not count for a while that nobody hears a node: its units may well train on. One that
    does not is missed by the syncer, and leaves for that."""
    if node is None:
        return f"node {name} is gone"
    believed = _believed(node, signs, now, outage=outage)
    if reason := disruption(node, signs, now, unheard=believed):
        return reason
    if believed and not node.ready and (node.ready_since is None or now - node.ready_since >= signs.not_ready_tolerance):
        return f"node {name} is NotReady" + (f" ({node.ready_message})" if node.ready_message else "")
    return ""


def not_ready_until(node: NodeView, signs: DisruptionSigns, now: float, *, outage: bool = False) -> float | None:
    """When, in seconds since the epoch, to look again at a node that is NotReady and not left yet; None when it is ready."""
    if node.ready or node.ready_since is None:
        return None
    if outage:  # an outage may end before, without a word about this very node
        return min(node.ready_since + signs.outage_tolerance, now + _OUTAGE_LOOK)
    return node.ready_since + signs.not_ready_tolerance


def is_dead(node: NodeView | None, signs: DisruptionSigns, now: float, *, outage: bool = False) -> bool:
    """Nobody on this node will confirm that a pod has ended."""
    if node is None:
        return True
    believed = _believed(node, signs, now, outage=outage)
    tainted = any(t.key in signs.dead_taints and (believed or t.key not in _UNHEARD) for t in node.taints)
    return tainted or (believed and not node.ready)
