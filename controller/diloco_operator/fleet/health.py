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
"""Up to `_FEW_NODES` NotReady nodes count as lost whatever their share. From `_OUTAGE_SHARE` of the fleet on they are too many to fail
at once. Kubernetes' node lifecycle controller stops evicting at the same thresholds (unhealthy-zone-threshold)."""
_RECHECK_SECONDS = 10.0
"""Between two checks of a NotReady node: whether it counts as lost depends on other nodes, whose changes do not wake its jobs."""


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
    """Seconds. Units stay for this long on a node that reports itself NotReady."""
    ready_unknown_tolerance: float
    """Seconds. Units stay for this long on a node whose readiness is unknown, and until the fleet has been stable for this long."""
    outage_tolerance: float
    """Seconds. The same while most of the fleet is NotReady; and the upper bound while the readiness of other nodes keeps changing."""
    maintenance_labels: Sequence[str]
    """Labels whose value is the start of the node's maintenance, in seconds since the epoch."""
    maintenance_lead: float
    """Seconds before the start at which units leave the node."""
    maintenance_over: float
    """Seconds after the start at which the label is ignored: the maintenance is over or was called off, and the label was left behind."""
    lifetime: LifetimeSignals


@dataclass(frozen=True, slots=True)
class NotReadyCounts:
    """How much of a fleet is NotReady."""

    nodes: int
    """Nodes of the whole fleet."""
    not_ready: int
    """Those among them that are NotReady."""
    changed: float
    """The last time that a node became ready, or that its readiness became unknown; seconds since the epoch. -inf: no node says."""

    @property
    def outage(self) -> bool:
        """So many nodes are NotReady that the control plane or its network failed, not the nodes."""
        return self.not_ready > _FEW_NODES and self.not_ready / self.nodes >= _OUTAGE_SHARE


def count_not_ready(nodes: Collection[NodeView]) -> NotReadyCounts:
    """Count over these nodes, which are the whole fleet."""
    changes = (node.ready_since for node in nodes if node.ready_since is not None and (node.ready or node.ready_unknown))
    return NotReadyCounts(len(nodes), sum(not node.ready for node in nodes), max(changes, default=-math.inf))


def maintenance(node: NodeView, signals: DisruptionSignals) -> tuple[float, float] | None:
    """Return the interval during which units stay away from the node because of announced maintenance, seconds since the epoch."""
    starts = [float(value) for label in signals.maintenance_labels if (value := node.labels.get(label, "")).isdecimal()]
    if not starts:
        return None
    start = min(starts)
    return start - signals.maintenance_lead, start + signals.maintenance_over


def next_transition(node: NodeView, signals: DisruptionSignals, now: float) -> float | None:
    """Return when the answer of `disruption` for this node next changes by the passing of time alone; None: never."""
    moments = list(maintenance(node, signals) or ())
    if (end := end_of_life(node, signals.lifetime)) is not None:
        moments.append(end - signals.lifetime.lead)
    return min((moment for moment in moments if moment > now), default=None)


def lost_from(node: NodeView, signals: DisruptionSignals, counts: NotReadyCounts) -> float:
    """Return from when on this NotReady node counts as lost, in seconds since the epoch.

    A node whose readiness is unknown may be the first or the last of many: while the API server is down or unreachable, no kubelet
    can report. Kubelets report every 10 s and the node controller checks every 5 s, so their nodes become NotReady, and ready again, one
    by one. A node therefore counts as lost only when no other node has changed for a while; during an outage only much later."""
    if node.ready_since is None:
        return -math.inf
    latest = node.ready_since + signals.outage_tolerance
    if counts.outage:
        return latest
    if not node.ready_unknown:
        return node.ready_since + signals.not_ready_tolerance
    return max(node.ready_since, min(counts.changed, latest - signals.ready_unknown_tolerance)) + signals.ready_unknown_tolerance


def _lost(node: NodeView, signals: DisruptionSignals, now: float, counts: NotReadyCounts) -> bool:
    """Say whether it was NotReady for long enough."""
    return not node.ready and now >= lost_from(node, signals, counts)


def disruption(node: NodeView, signals: DisruptionSignals, now: float) -> str:
    """Return the announced or recorded loss of this node, in words; "" when there is none."""
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
    """Return why no new unit may start here, in words; "" when one may."""
    if not node.ready:
        return f"node {node.name} is NotReady" + (f" ({node.ready_message})" if node.ready_message else "")
    if node.unschedulable:
        return f"node {node.name} is cordoned"
    return disruption(node, signals, now)


def eviction_reason(node: NodeView | None, name: str, signals: DisruptionSignals, now: float, counts: NotReadyCounts) -> str:
    """Return why the units on node `name` must leave it, in words; "" when they may stay. `node` is None when it is gone.

    Units on a NotReady node that does not count as lost yet may well train on. The syncer notices one that stopped, and that unit is
    replaced for its own sake."""
    if node is None:
        return f"node {name} is gone"
    if reason := disruption(node, signals, now):
        return reason
    if _lost(node, signals, now, counts):
        return f"node {name} is NotReady" + (f" ({node.ready_message})" if node.ready_message else "")
    return ""


def not_ready_recheck(node: NodeView, signals: DisruptionSignals, now: float, counts: NotReadyCounts) -> float | None:
    """Return when, in seconds since the epoch, to check a NotReady node again on which units may stay for now; None when it is ready."""
    if node.ready:
        return None
    return min(lost_from(node, signals, counts), now + _RECHECK_SECONDS)


def is_unreachable(node: NodeView | None, signals: DisruptionSignals, now: float, counts: NotReadyCounts) -> bool:
    """Say whether no kubelet on this node can confirm that a pod has ended."""
    if node is None:
        return True
    return any(taint.key in signals.unreachable_taints for taint in node.taints) or _lost(node, signals, now, counts)
