"""Whether a node can take a new unit, and whether the units on it must leave. Pure.

See docs/decisions/0102-failures-of-nodes-and-units.md.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from diloco_operator.fleet.lifetime import LifetimeSignals, end_of_life
from diloco_operator.fleet.node import NodeView
from diloco_operator.kube.timestamps import format_timestamp

_FEW_NODES, _OUTAGE_SHARE = 2, 0.55
"""More than `_FEW_NODES` NotReady nodes that are `_OUTAGE_SHARE` of the fleet or more are too many to have failed at once. Kubernetes' node
lifecycle controller stops evicting at the same thresholds (unhealthy-zone-threshold)."""
_RECHECK_SECONDS = 10.0
"""The time between two checks of a NotReady node. Whether it counts as lost depends on other nodes, whose changes do not wake its jobs."""


@dataclass(frozen=True, slots=True)
class DisruptionSignals:
    """What announces or records the loss of a node."""

    taints: Sequence[str]
    """Taint keys."""
    labels: Sequence[tuple[str, str]]
    """Labels with their values."""
    unreachable_taints: Sequence[str]
    """Taint keys of a node whose kubelet does not answer."""
    not_ready_tolerance: float
    """Seconds for which units stay on a node that reports itself NotReady."""
    ready_unknown_tolerance: float
    """Seconds for which units stay on a node whose readiness is unknown, and for which the fleet must have been stable."""
    outage_tolerance: float
    """Seconds for which units stay while most of the fleet is NotReady. They stay no longer if the readiness of other nodes keeps
    changing."""
    maintenance_labels: Sequence[str]
    """Labels whose value is the start of the node's maintenance, in seconds since the epoch."""
    maintenance_lead: float
    """How many seconds before the start units leave the node."""
    maintenance_over: float
    """How many seconds after the start the label is ignored: the maintenance is over or was called off, and the label was left behind."""
    lifetime: LifetimeSignals


@dataclass(frozen=True, slots=True)
class NotReadyCounts:
    """How much of a fleet is NotReady."""

    nodes: int
    """Nodes of the whole fleet."""
    not_ready: int
    """How many of them are NotReady."""
    changed: float
    """When a node last became ready, or its readiness unknown, in seconds since the epoch. -inf if no node says."""

    @property
    def outage(self) -> bool:
        """Whether so many nodes are NotReady that the control plane or its network must have failed, not the nodes."""
        return self.not_ready > _FEW_NODES and self.not_ready / self.nodes >= _OUTAGE_SHARE


def count_not_ready(nodes: Collection[NodeView]) -> NotReadyCounts:
    """Count the NotReady nodes among `nodes`, which are the whole fleet."""
    changes = (node.ready_since for node in nodes if node.ready_since is not None and (node.ready or node.ready_unknown))
    return NotReadyCounts(len(nodes), sum(not node.ready for node in nodes), max(changes, default=-math.inf))


def maintenance(node: NodeView, signals: DisruptionSignals) -> tuple[float, float] | None:
    """Return when announced maintenance keeps units away from the node: from and until, in seconds since the epoch. None if none is
    announced."""
    starts = [float(value) for label in signals.maintenance_labels if (value := node.labels.get(label, "")).isdecimal()]
    if not starts:
        return None
    start = min(starts)
    return start - signals.maintenance_lead, start + signals.maintenance_over


def next_transition(node: NodeView, signals: DisruptionSignals, now: float) -> float | None:
    """Return when the result of `disruption` for this node may next change just because time passes. None if it never does."""
    moments = list(maintenance(node, signals) or ())
    if (end := end_of_life(node, signals.lifetime)) is not None:
        moments.append(end - signals.lifetime.lead)
    return min((moment for moment in moments if moment > now), default=None)


def lost_from(node: NodeView, signals: DisruptionSignals, counts: NotReadyCounts) -> float:
    """Return from when on this NotReady node counts as lost, in seconds since the epoch.

    A node whose readiness is unknown may be one of many: while the API server is down or unreachable, no kubelet can report. Kubelets
    report every 10 s and the node controller checks every 5 s, so nodes become NotReady, and ready again, one by one. A node therefore
    counts as lost only when no other node has changed for a while, and during an outage only much later.
    """
    if node.ready_since is None:
        return -math.inf
    latest = node.ready_since + signals.outage_tolerance
    if counts.outage:
        return latest
    if not node.ready_unknown:
        return node.ready_since + signals.not_ready_tolerance
    return max(node.ready_since, min(counts.changed, latest - signals.ready_unknown_tolerance)) + signals.ready_unknown_tolerance


def _lost(node: NodeView, signals: DisruptionSignals, now: float, counts: NotReadyCounts) -> bool:
    """Whether the node has been NotReady for so long that it counts as lost."""
    return not node.ready and now >= lost_from(node, signals, counts)


def disruption(node: NodeView, signals: DisruptionSignals, now: float) -> str:
    """Return the announced or recorded loss of this node, in words. "" if there is none."""
    for taint in node.taints:
        if taint.key in signals.taints:
            return f"node {node.name} has the taint {taint.key}"
    for key, value in signals.labels:
        if node.labels.get(key) == value:
            return f"node {node.name} has the label {key}={value}"
    if node.deleting:
        return f"node {node.name} is being deleted"
    span = maintenance(node, signals)
    if span is not None and span[0] <= now < span[1]:
        return f"maintenance of node {node.name} begins at {format_timestamp(span[0] + signals.maintenance_lead)}"
    end = end_of_life(node, signals.lifetime)
    if end is not None and now >= end - signals.lifetime.lead:
        return f"node {node.name} ends at {format_timestamp(end)}"
    return ""


def unusable(node: NodeView, signals: DisruptionSignals, now: float) -> str:
    """Return why no new unit may start on the node, in words. "" if one may."""
    if not node.ready:
        return f"node {node.name} is NotReady" + (f" ({node.ready_message})" if node.ready_message else "")
    if node.unschedulable:
        return f"node {node.name} is cordoned"
    return disruption(node, signals, now)


def eviction_reason(node: NodeView | None, name: str, signals: DisruptionSignals, now: float, counts: NotReadyCounts) -> str:
    """Return why the units on node `name` must leave it, in words. "" if they may stay. `node` is None if the node is gone.

    Units on a NotReady node that does not count as lost yet may well go on training. If one stops, the syncer notices, and the unit is
    replaced for that.
    """
    if node is None:
        return f"node {name} is gone"
    if reason := disruption(node, signals, now):
        return reason
    if _lost(node, signals, now, counts):
        return f"node {name} is NotReady" + (f" ({node.ready_message})" if node.ready_message else "")
    return ""


def not_ready_recheck(node: NodeView, signals: DisruptionSignals, now: float, counts: NotReadyCounts) -> float | None:
    """Return when to check a NotReady node again on which units may stay for now, in seconds since the epoch. None if the node is ready."""
    if node.ready:
        return None
    return min(lost_from(node, signals, counts), now + _RECHECK_SECONDS)


def is_unreachable(node: NodeView | None, signals: DisruptionSignals, now: float, counts: NotReadyCounts) -> bool:
    """Whether no kubelet on this node can confirm that a pod has ended. The node is None if it is gone."""
    if node is None:
        return True
    return any(taint.key in signals.unreachable_taints for taint in node.taints) or _lost(node, signals, now, counts)
