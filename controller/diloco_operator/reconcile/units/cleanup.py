"""Which pods go: those whose end is on record, those that drain, and by force those whose end no kubelet will confirm. Pure.

Pods that ended by themselves stay for their logs, as those of a Kubernetes Job do: of each unit those of the newest attempt that failed,
and those of the attempt that completed. They hold nothing. They go with the job.

See docs/decisions/0102-failures-of-nodes-and-units.md. See docs/decisions/0040-learner-pods.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from diloco_operator.api import names
from diloco_operator.api.status import UnitState
from diloco_operator.plan import Delete
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.timeouts import RECONCILE


class PodCleanup(NamedTuple):
    deletes: Sequence[Delete]
    deadlines: Sequence[float]
    """When pods must be deleted, or deleted by force."""


def prune_pods(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> PodCleanup:
    """Return learner pods to delete, given the records as they will be once this plan's status is written."""
    deletes, deadlines = force_deletes(context)
    for unit, pods in context.learners.items():
        record = records.get(unit)
        for pod in pods:
            if pod.deletion is None and record is not None and (why := _why(context, record, pod)):
                deletes.append(delete_pod(pod, why))
    return PodCleanup(deletes, deadlines)


def _why(context: ReconcileContext, record: UnitStatusRecord, pod: PodView) -> str:
    if pod.attempt < record.attempt or pod.attempt <= record.ended_attempt:
        return "" if _stays(context, record, pod) else f"attempt {pod.attempt} of {record.name} has ended"
    if record.state is UnitState.DRAINING:
        return f"{record.name} drains: {record.message or record.reason}"
    return ""


def _stays(context: ReconcileContext, record: UnitStatusRecord, pod: PodView) -> bool:
    """Return whether the pod of an attempt that is over stays for its log. Units of a pool that is gone leave status, and so nothing of
    them."""
    if not pod.ended or record.pool not in context.pools:
        return False
    return pod.attempt == record.failed_attempt or (record.state is UnitState.COMPLETED and pod.attempt == record.attempt)


def force_deletes(context: ReconcileContext) -> tuple[list[Delete], list[float]]:
    """Return learner pods that were asked to go on nodes that do not answer, also those of an earlier job of this name, and when others
    will be due. The syncer refuses what an old attempt sends, so it is safe to forget a learner pod. The syncer's pod is never forced."""
    deletes: list[Delete] = []
    deadlines: list[float] = []
    for pod in itertools.chain(*context.learners.values(), context.strays):
        if pod.deletion is None or not context.unreachable(pod.node):
            continue
        if pod.ended and pod.held:
            continue  # it goes when its grantor lets it go
        due = pod.deletion + context.observed.config.dead_node_force_delete
        if context.now < due:
            deadlines.append(due)
        else:
            deletes.append(delete_pod(pod, f"node {pod.node} does not answer", grace_seconds=0))
    return deletes, deadlines


def prune_pods_of_finished_job(context: ReconcileContext, *, ended_at: float, complete: bool) -> PodCleanup:
    """Return pods to delete of a job that is over since `ended_at`. Those of a complete job get a while to end by themselves."""
    deletes, deadlines = force_deletes(context)
    due = ended_at + (RECONCILE.end_by_itself if complete else 0.0)
    for pod in _remaining(context):
        if pod.component == names.COMPONENT_SYNCER and pod.ended:
            continue
        if not pod.ended and context.now < due:
            deadlines.append(due)
        else:
            deletes.append(delete_pod(pod, "the job is over"))
    return PodCleanup(deletes, deadlines)


def _remaining(context: ReconcileContext) -> list[PodView]:
    """Return pods of a job that is over, without those that go already and those of learners that stay for their logs. The last attempt of
    a unit had no other end than that of the job, however its pods ended."""
    found = [context.syncer] if context.syncer is not None else []
    for unit, pods in context.learners.items():
        record = context.before.get(unit)
        kept = (record.attempt, record.failed_attempt) if record is not None else ()
        found += [pod for pod in pods if not (pod.ended and pod.attempt in kept)]
    return [pod for pod in found if pod.deletion is None]


def delete_pod(pod: PodView, why: str, *, grace_seconds: int | None = None) -> Delete:
    return Delete(names.PODS, pod.namespace, pod.name, pod.uid, grace_seconds=grace_seconds, why=why)
