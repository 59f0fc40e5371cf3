"""Which pods go: those whose end is on record, those that drain, and by force those whose end no kubelet will confirm. Pure.

See docs/decisions/0102-node-disruption.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from diloco_operator.api import names
from diloco_operator.api.job import UnitState
from diloco_operator.plan import Delete
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.state import PodView
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord


class PodCleanup(NamedTuple):
    deletes: Sequence[Delete]
    deadlines: Sequence[float]
    """When pods must be deleted by force."""


def prune_pods(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> PodCleanup:
    """Learner pods to delete, given the records as they will be once this plan's status is written."""
    deletes, deadlines = force_deletes(context)
    for unit, pods in context.learners.items():
        record = records.get(unit)
        for pod in pods:
            if pod.deletion is None and record is not None and (why := _why(record, pod)):
                deletes.append(delete_pod(pod, why))
    return PodCleanup(deletes, deadlines)


def _why(record: UnitStatusRecord, pod: PodView) -> str:
    if pod.attempt < record.attempt or pod.attempt <= record.ended_attempt:
        return f"attempt {pod.attempt} of {record.name} has ended"
    if record.state is UnitState.DRAINING:
        return f"{record.name} drains: {record.message or record.reason}"
    return ""


def force_deletes(context: ReconcileContext) -> tuple[list[Delete], list[float]]:
    """Learner pods that were asked to go on nodes that do not answer, and when others will be due. The syncer refuses what an old attempt
    sends, so it is safe to forget a learner pod. The syncer's pod is never forced."""
    deletes: list[Delete] = []
    deadlines: list[float] = []
    for pods in context.learners.values():
        for pod in pods:
            if pod.deletion is None or not context.unreachable(pod.node):
                continue
            due = pod.deletion + context.observed.config.dead_node_force_delete
            if context.now < due:
                deadlines.append(due)
            else:
                deletes.append(delete_pod(pod, f"node {pod.node} does not answer", grace_seconds=0))
    return deletes, deadlines


def remaining_pods(context: ReconcileContext, why: str) -> PodCleanup:
    """Every pod of a job that is over."""
    deletes, deadlines = force_deletes(context)
    pods = [pod for pods in context.learners.values() for pod in pods] + ([context.syncer] if context.syncer is not None else [])
    return PodCleanup([*deletes, *(delete_pod(pod, why) for pod in pods if pod.deletion is None)], deadlines)


def delete_pod(pod: PodView, why: str, *, grace_seconds: int | None = None) -> Delete:
    return Delete(names.PODS, pod.namespace, pod.name, pod.uid, grace_seconds=grace_seconds, why=why)
