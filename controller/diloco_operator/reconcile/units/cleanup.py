"""Which pods are deleted: pods whose end is on record, pods that drain, and by force pods whose end no kubelet will confirm. Pure.

Pods that ended by themselves stay for their logs, as the pods of a Kubernetes Job do: each unit keeps the pods of its newest failed attempt
and of the attempt that completed. They occupy no hardware, and are deleted with the job.

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
    """Return why a pod is deleted, or "" if it is not."""
    if pod.attempt < record.attempt or pod.attempt <= record.ended_attempt:
        return "" if _stays(context, record, pod) else f"attempt {pod.attempt} of {record.name} has ended"
    if record.state is UnitState.DRAINING:
        return f"{record.name} drains: {record.message or record.reason}"
    return ""


def _stays(context: ReconcileContext, record: UnitStatusRecord, pod: PodView) -> bool:
    """Return whether the pod of an attempt that is over stays for its log."""
    if not pod.ended or record.pool not in context.pools:  # units of a removed pool leave status with their last pod
        return False
    return pod.attempt == record.failed_attempt or (record.state is UnitState.COMPLETED and pod.attempt == record.attempt)


def force_deletes(context: ReconcileContext) -> tuple[list[Delete], list[float]]:
    """Return learner pods to delete by force, also from an earlier job of this name, and when others will be due. They were asked to
    go, and their node does not answer.

    This is safe, because the syncer refuses what an old attempt sends. The syncer's own pod is never deleted by force."""
    deletes: list[Delete] = []
    deadlines: list[float] = []
    for pod in itertools.chain(*context.learners.values(), context.strays):
        if pod.deletion is None or not context.unreachable(pod.node):
            continue
        if pod.ended and pod.held:
            continue  # its grantor's finalizer keeps it, and force would not help
        due = pod.deletion + context.observed.config.dead_node_force_delete
        if context.now < due:
            deadlines.append(due)
        else:
            deletes.append(delete_pod(pod, f"node {pod.node} does not answer", grace_seconds=0))
    return deletes, deadlines


def prune_pods_of_finished_job(context: ReconcileContext, *, ended_at: float, complete: bool) -> PodCleanup:
    """Return the pods to delete of a job that ended at `ended_at`. Pods of a complete job get some time to end by themselves."""
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
    """Return the pods of a job that is over, without those that are being deleted, and without learner pods that stay for their logs."""
    remaining = [context.syncer] if context.syncer is not None else []
    for unit, pods in context.learners.items():
        record = context.records_before.get(unit)
        # The last attempt ended with the job, however its pods ended, so they stay too.
        kept = (record.attempt, record.failed_attempt) if record is not None else ()
        remaining += [pod for pod in pods if not (pod.ended and pod.attempt in kept)]
    return [pod for pod in remaining if pod.deletion is None]


def delete_pod(pod: PodView, why: str, *, grace_seconds: int | None = None) -> Delete:
    return Delete(names.PODS, pod.namespace, pod.name, pod.uid, grace_seconds=grace_seconds, why=why)
