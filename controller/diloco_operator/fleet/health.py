"""Whether a node can be used for a new unit, and whether the units on it must leave. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from diloco_operator.fleet.node import NodeView
from diloco_operator.kube.timestamps import format_timestamp

_FEW_NODES, _MOST_NODES = 2, 0.55
"""So many NotReady nodes are believed whatever their share; from this share on they are too many to be lost at once. The thresholds are
those from which Kubernetes' own node lifecycle controller evicts nothing any more (unhealthy-zone-threshold)."""
_LOOK_AGAIN = 10.0
"""Seconds between two looks at a node that is NotReady: what is believed of it depends on others, of which nobody tells its jobs."""


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
    """Seconds; a node that says itself that it is NotReady is not left before."""
    unheard_tolerance: float = 0.0
    """Seconds; a node that nobody hears is not left before, nor before the fleet has been unchanged for so long."""
    outage_tolerance: float = 0.0
    """Seconds; the same while most of the fleet is NotReady, and at most where others fall silent or are heard again."""
    maintenance_labels: Sequence[str] = ()
    """Labels whose value is when maintenance of the node begins, in seconds since the epoch."""
    maintenance_lead: float = 0.0
    """Seconds before that moment from which the node is left."""
    maintenance_over: float = 0.0
    """Seconds after that moment from which the label says nothing any more: it was done, or called off, and nobody took it away."""


@dataclass(frozen=True, slots=True)
class Silence:
    """How much of a fleet is NotReady."""

    nodes: int = 0
    """Of the whole fleet."""
    silent: int = 0
    """NotReady."""
    changed: float = -math.inf
    """When last a node fell silent, or was heard again or for the first time, seconds since the epoch."""

    @property
    def most(self) -> bool:
        """Whoever hears the kubelets was away, rather than they."""
        return self.silent > _FEW_NODES and self.silent >= _MOST_NODES * self.nodes


def silence_of(nodes: Collection[NodeView]) -> Silence:
    """Of the fleet that these nodes are."""
    changes = (node.ready_since for node in nodes if node.ready_since is not None and (node.ready or node.unheard))
    return Silence(len(nodes), sum(not node.ready for node in nodes), max(changes, default=-math.inf))


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


def believed_from(node: NodeView, signs: DisruptionSigns, silence: Silence) -> float:
    """From when, in seconds since the epoch, it counts that this node is NotReady.

    One that nobody hears may be the first of many, or the last: after a time without an API server, or without a way to it, no kubelet
    could say that it lives. Kubelets report every 10 s and the node controller looks every 5 s, so they fall silent and are heard again
    one by one, and a node is believed to be lost when no other has done so for a while; if most are silent, only much later."""
    if node.ready_since is None:
        return -math.inf
    latest = node.ready_since + signs.outage_tolerance
    if silence.most:
        return latest
    if not node.unheard:
        return node.ready_since + signs.not_ready_tolerance
    return max(node.ready_since, min(silence.changed, latest - signs.unheard_tolerance)) + signs.unheard_tolerance


def _lost(node: NodeView, signs: DisruptionSigns, now: float, silence: Silence) -> bool:
    """NotReady for long enough."""
    return not node.ready and now >= believed_from(node, signs, silence)


def disruption(node: NodeView, signs: DisruptionSigns, now: float) -> str:
    """The announced or recorded loss of this node, in words; "" when there is none."""
    for taint in node.taints:
        if taint.key in signs.taints:
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


def must_leave(node: NodeView | None, name: str, signs: DisruptionSigns, now: float, silence: Silence) -> str:
    """Why the units on node `name` must leave it, in words; "" when they may stay. `node` is None when it is gone.

    Units on a node that is only not believed to be lost may well train on. One that does not is missed by the syncer, and leaves for
    that."""
    if node is None:
        return f"node {name} is gone"
    if reason := disruption(node, signs, now):
        return reason
    if _lost(node, signs, now, silence):
        return f"node {name} is NotReady" + (f" ({node.ready_message})" if node.ready_message else "")
    return ""


def not_ready_until(node: NodeView, signs: DisruptionSigns, now: float, silence: Silence) -> float | None:
    """When, in seconds since the epoch, to look again at a node that is NotReady and not left yet; None when it is ready."""
    if node.ready:
        return None
    return min(believed_from(node, signs, silence), now + _LOOK_AGAIN)


def is_dead(node: NodeView | None, signs: DisruptionSigns, now: float, silence: Silence) -> bool:
    """Nobody on this node will confirm that a pod has ended."""
    if node is None:
        return True
    return any(taint.key in signs.dead_taints for taint in node.taints) or _lost(node, signs, now, silence)
