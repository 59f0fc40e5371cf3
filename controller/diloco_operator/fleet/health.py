"""Whether a node can be used for a new unit, and whether the units on it must leave. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diloco_operator.api.timestamps import format_timestamp
from diloco_operator.fleet.node import NodeView


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


def must_leave(node: NodeView | None, name: str, signs: DisruptionSigns, now: float) -> str:
    """Why the units on node `name` must leave it, in words; "" when they may stay. `node` is None when it is gone."""
    if node is None:
        return f"node {name} is gone"
    if reason := disruption(node, signs, now):
        return reason
    if not node.ready and (node.ready_since is None or now - node.ready_since >= signs.not_ready_tolerance):
        return f"node {name} is NotReady" + (f" ({node.ready_message})" if node.ready_message else "")
    return ""


def not_ready_until(node: NodeView, signs: DisruptionSigns) -> float | None:
    """When, in seconds since the epoch, a node that has just become NotReady is left; None when it is ready."""
    if node.ready or node.ready_since is None:
        return None
    return node.ready_since + signs.not_ready_tolerance


def is_dead(node: NodeView | None, signs: DisruptionSigns) -> bool:
    """Nobody on this node will confirm that a pod has ended."""
    return node is None or not node.ready or any(t.key in signs.dead_taints for t in node.taints)
