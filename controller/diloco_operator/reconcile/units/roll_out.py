"""Units that are replaced because the template of their pool changed, and when that stops. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from diloco_operator.api.reasons import UnitReason
from diloco_operator.api.status import UnitState
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units import departure_words
from diloco_operator.reconcile.units.transitions import UnitEvent, transition

_WITHOUT_PROCESSES = (UnitState.PENDING, UnitState.BACKING_OFF, UnitState.FAILED)


class StoppedRollOut(NamedTuple):
    """A pool of which no more units are replaced, because one of the new template failed and has not contributed since."""

    pool: str
    failed: UnitStatusRecord
    """The first such unit."""
    left: int
    """Units that train from an earlier template."""


def replace_outdated(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> dict[str, UnitStatusRecord]:
    """Replace units that were made from another template than the pool's present one. Those that do not contribute leave at once; the
    others one after the other, each when all others are back, and none while one of the pool's new template fails. What failed before
    starts again at once: failures of another template say nothing about this one."""
    found = dict(records)
    outdated = _outdated(context, records)
    for record in outdated:
        if record.state in _WITHOUT_PROCESSES:
            found[record.name] = _afresh(record, context.now)
        elif record.state in (UnitState.STARTING, UnitState.JOINING):
            found[record.name] = _drain(record, context.now)
    stopped = {each.pool for each in stopped_roll_outs(context, records)}
    training = [r for r in outdated if r.state is UnitState.TRAINING and r.pool not in stopped]
    quiet = all(r.state is UnitState.TRAINING or not r.slice for r in found.values())
    if training and quiet:
        first = min(training, key=lambda r: (r.pool, r.number))
        found[first.name] = _drain(first, context.now)
    return found


def stopped_roll_outs(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> Sequence[StoppedRollOut]:
    """Find them, in the order of the pools. They go on when the unit contributes, and with the next change of the template."""
    outdated = _outdated(context, records)
    found = []
    for pool in context.pools:
        left = sum(r.pool == pool and r.state is UnitState.TRAINING for r in outdated)
        failed = [r for r in records.values() if r.pool == pool and context.up_to_date(r) and _has_failed(r)]
        if left and failed:
            found.append(StoppedRollOut(pool, min(failed, key=lambda r: r.number), left))
    return found


def _has_failed(record: UnitStatusRecord) -> bool:
    """Return whether an attempt of the unit failed since it contributed last."""
    if record.ended_at is None:
        return False
    return record.state is UnitState.FAILED or (bool(record.failures) and record.failures[-1] >= record.ended_at)


def _outdated(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> list[UnitStatusRecord]:
    return [r for r in records.values() if r.template_hash and r.pool in context.hashes and not context.up_to_date(r)]


def _afresh(record: UnitStatusRecord, now: float) -> UnitStatusRecord:
    """Return a unit without processes as if the new template were its first."""
    if record.state is UnitState.PENDING:
        return record._replace(failures=(), template_hash="") if record.failures else record
    return transition(record, UnitEvent.RENEWED, now, UnitReason.TEMPLATE_CHANGED, departure_words.TEMPLATE_CHANGED)


def _drain(record: UnitStatusRecord, now: float) -> UnitStatusRecord:
    return transition(record, UnitEvent.ROLLED_OUT, now, UnitReason.TEMPLATE_CHANGED, departure_words.TEMPLATE_CHANGED)
