"""Which pods go: those whose end is on record, those that drain, and by force those that nobody will confirm. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from diloco_operator.api import names
from diloco_operator.api.job import UnitState
from diloco_operator.api.reasons import UnitReason
from diloco_operator.plan import Delete
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.state import PodView
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord


def prune_pods(context: ReconcileContext, records: Mapping[str, UnitStatusRecord], *, only_forced: bool = False) -> list[Delete]:
    """Learner pods to delete, given the records as they will be once this plan's status is written."""
    deletes: list[Delete] = []
    for unit, pods in context.learners.items():
        record = records.get(unit)
        for pod in pods:
            if pod.deletion is not None:
                deletes += _force(context, pod)
            elif record is not None and not only_forced and (why := _why(record, pod)):
                deletes.append(Delete(names.PODS, pod.namespace, pod.name, pod.uid, why=why))
    return deletes


def _why(record: UnitStatusRecord, pod: PodView) -> str:
    if pod.attempt < record.attempt or pod.attempt <= record.ended_attempt:
        return f"attempt {pod.attempt} of {record.name} has ended"
    if record.state is UnitState.DRAINING:
        return f"{record.name} drains: {record.message or record.reason}"
    return ""


def _force(context: ReconcileContext, pod: PodView) -> list[Delete]:
    """A learner on a node that does not answer: the syncer refuses what an old attempt sends, so it is safe to forget it."""
    assert pod.deletion is not None
    if not context.unreachable(pod.node):
        return []
    due = pod.deletion + context.observed.config.dead_node_force_delete
    if context.now < due:
        context.deadlines.append(due)
        return []
    return [Delete(names.PODS, pod.namespace, pod.name, pod.uid, grace_seconds=0, why=f"node {pod.node} does not answer")]


def remaining_pods(context: ReconcileContext, why: str) -> list[Delete]:
    """Every pod of a job that is over. The syncer is never forced."""
    deletes: list[Delete] = []
    for pod in (p for pods in context.learners.values() for p in pods):
        deletes += _force(context, pod) if pod.deletion is not None else [Delete(names.PODS, pod.namespace, pod.name, pod.uid, why=why)]
    syncer = context.syncer
    if syncer is not None and syncer.deletion is None:
        deletes.append(Delete(names.PODS, syncer.namespace, syncer.name, syncer.uid, why=why))
    return deletes


def templates_changed(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> dict[str, UnitStatusRecord]:
    """Units made from another template than the pool's present one: who does not contribute is replaced at once, the others one
    after the other, each when everybody else is back; who was given up gets a new chance."""
    found = dict(records)
    outdated = [r for r in records.values() if r.template_hash and r.template_hash != context.hashes.get(r.pool, r.template_hash)]
    text = "the pool's template changed; the unit is made again from the new one"
    for record in outdated:
        if record.state is UnitState.FAILED:
            found[record.name] = record._replace(
                state=UnitState.PENDING,
                reason=UnitReason.TEMPLATE_CHANGED,
                message=text,
                failures=(),
                since=context.now,
                template_hash="",
            )
        elif record.state in (UnitState.STARTING, UnitState.JOINING):
            found[record.name] = _drain(record, text, context.now)
    training = [r for r in outdated if r.state is UnitState.TRAINING]
    quiet = all(r.state in (UnitState.TRAINING, UnitState.FAILED) or not r.slice for r in found.values())
    if training and quiet:
        first = min(training, key=lambda r: (r.pool, r.number))
        found[first.name] = _drain(first, text, context.now)
    return found


def _drain(record: UnitStatusRecord, message: str, now: float) -> UnitStatusRecord:
    return record._replace(state=UnitState.DRAINING, reason=UnitReason.TEMPLATE_CHANGED, message=message, since=now)
