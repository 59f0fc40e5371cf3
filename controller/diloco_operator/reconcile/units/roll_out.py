"""Units that are replaced because the template of their pool changed, and when that stops. Pure.

See docs/decisions/0206-before-units-leave.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from diloco_operator.api.reasons import UnitReason
from diloco_operator.api.status import UnitState
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.grantors.registry import grantor_of
from diloco_operator.reconcile.observe.pod_answers import admits, refusal
from diloco_operator.reconcile.observe.rejected_writes import RejectedWrite, explain
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units import departure_words
from diloco_operator.reconcile.units.requirements import pool_requirements
from diloco_operator.reconcile.units.states import GAVE_SLICE_UP, State, state_of
from diloco_operator.reconcile.units.transitions import UnitEvent, transition

_WITHOUT_PROCESSES = (UnitState.PENDING, UnitState.BACKING_OFF, UnitState.FAILED)
_BEFORE_TRAINING = (UnitState.STARTING, UnitState.JOINING)
_FORBIDDEN = 403


class StoppedRollOut(NamedTuple):
    """A pool of which no more units are replaced."""

    pool: str
    why: str
    """What keeps a unit of the new template from training."""
    left: int
    """Units that train from an earlier template."""


def replace_outdated(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> dict[str, UnitStatusRecord]:
    """Replace units that were made from another template than the pool's present one: those of `leaving` that the API server is known to
    admit. What failed before starts again at once: failures of another template say nothing about this one."""
    found = dict(records)
    if context.finishing:
        return found
    for record in _outdated(context, records):
        if record.state in _WITHOUT_PROCESSES:
            found[record.name] = _afresh(record, context.now)
    for record in leaving(context, records):
        if _is_admitted(context, record.pool, records):
            found[record.name] = _drain(record, context.now)
    return found


def leaving(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> Sequence[UnitStatusRecord]:
    """Return the units that leave next for a new template, once a dry run of its pods has been admitted. Those that do not contribute leave
    together; the others one after the other, each when all others train, and none while one of the pool's new template cannot."""
    if context.finishing:
        return ()
    outdated = [record for record in _outdated(context, records) if _has_place(context, record)]
    found = [record for record in outdated if record.state in _BEFORE_TRAINING]
    training = [record for record in outdated if record.state is UnitState.TRAINING and not _stuck(context, record.pool, records)]
    if training and all(_is_back(context, record) for record in records.values()):
        found.append(min(training, key=lambda record: (record.pool, record.number)))
    return found


def _is_admitted(context: ReconcileContext, pool: str, records: Mapping[str, UnitStatusRecord]) -> bool:
    """Return whether a dry run has shown lately that pods of the pool's present template are admitted, or one unit may try."""
    answer, generation = context.observed.pod_answers.get(pool), context.observed.job.generation
    return admits(answer, generation, context.now) or _may_try(context, refusal(answer, generation), records)


def _may_try(context: ReconcileContext, rejected: RejectedWrite | None, records: Mapping[str, UnitStatusRecord]) -> bool:
    """Return whether a unit leaves although a dry run was forbidden. That may be a quota whose last part the unit itself uses, and the
    answer does not tell quotas from policies. So one leaves where the job has more than its minimum."""
    training = sum(record.state is UnitState.TRAINING for record in records.values())
    return rejected is not None and rejected.code == _FORBIDDEN and training > context.spec.learners.min


def stopped_roll_outs(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> Sequence[StoppedRollOut]:
    """Find them, in the order of the pools. They go on when the unit contributes, and with the next change of the template."""
    found = []
    for pool in context.pools:
        left = [record for record in _outdated(context, records) if record.pool == pool and record.state is UnitState.TRAINING]
        if left and (why := _why_stopped(context, left[0], records)):
            found.append(StoppedRollOut(pool, why, len(left)))
    return found


def _why_stopped(context: ReconcileContext, first: UnitStatusRecord, records: Mapping[str, UnitStatusRecord]) -> str:
    """Return why the roll-out of a pool has stopped; "": it has not. `first`: a unit that trains from an earlier template."""
    if stuck := _stuck(context, first.pool, records):
        return stuck
    if not _has_place(context, first):
        return departure_words.would_not_come_back(departure_words.no_place_for_template(str(context.shapes[first.pool])))
    observed = context.observed
    rejected = refusal(observed.pod_answers.get(first.pool), observed.job.generation)
    if rejected is None or _may_try(context, rejected, records):
        return ""
    return departure_words.would_not_come_back(explain(rejected, observed.config))


def _stuck(context: ReconcileContext, pool: str, records: Mapping[str, UnitStatusRecord]) -> str:
    """Return which unit of the pool does not train from the new template, and why; "": none is known."""
    for record in sorted((each for each in records.values() if each.pool == pool), key=lambda each: each.number):
        if context.up_to_date(record) and _has_failed(record):
            return departure_words.failed_with_it(record.name, record.last_failure or record.message)
        if _cannot_start(context, record):
            return departure_words.failed_with_it(record.name, record.message)
    return ""


def _has_failed(record: UnitStatusRecord) -> bool:
    """Return whether an attempt of the unit failed since it contributed last."""
    if record.ended_at is None:
        return False
    return record.state is UnitState.FAILED or (bool(record.failures) and record.failures[-1] >= record.ended_at)


def _cannot_start(context: ReconcileContext, record: UnitStatusRecord) -> bool:
    """Return whether the unit trained until it left for the new template, and does not start: its pods were refused, or found no place."""
    if not _left_by_itself(record):
        return False
    state = state_of(record)
    return state is State.PODS_REFUSED or (state in GAVE_SLICE_UP and context.up_to_date(record))


def _left_by_itself(record: UnitStatusRecord) -> bool:
    """Return whether the unit trained until it was asked to leave, and has not trained since."""
    return record.ended_at is None and record.steps > 0 and record.state is not UnitState.TRAINING


def _is_back(context: ReconcileContext, record: UnitStatusRecord) -> bool:
    """Return whether the unit trains, or nothing says that it will soon."""
    if record.state is UnitState.TRAINING:
        return True
    if record.running and _left_by_itself(record):  # without a slice, it waits for what a grantor gives back
        return False
    again = record.state in (UnitState.BACKING_OFF, UnitState.FAILED) and record in _outdated(context, {record.name: record})
    return not (record.slice or again)


def _has_place(context: ReconcileContext, record: UnitStatusRecord) -> bool:
    """Return whether there are slices for the unit once it has left: its own, and those that are free and kept for no other job. A grantor
    may bring what is not there."""
    if grantor_of(context.spec, context.pools[record.pool]) is not None:
        return True
    requirements, fleet = pool_requirements(context, context.pools[record.pool]), context.observed.fleet
    shape = requirements.shape
    own = fleet.resolve(shape, record.slice) or () if record.slice else ()
    free = itertools.chain(fleet.free(shape, record.pool), (slice_ for slice_, job in fleet.kept(shape, record.pool) if not job))
    fitting = {slice_.key for slice_ in own if fleet.usable(slice_) and requirements._replace(avoided=frozenset()).suits(slice_)}
    for slice_ in free:
        if len(fitting) >= shape.slots:
            break
        if requirements.suits(slice_):
            fitting.add(slice_.key)
    return len(fitting) >= shape.slots


def _outdated(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> list[UnitStatusRecord]:
    return [r for r in records.values() if r.template_hash and r.pool in context.hashes and not context.up_to_date(r)]


def _afresh(record: UnitStatusRecord, now: float) -> UnitStatusRecord:
    """Return a unit without processes as if the new template were its first."""
    if record.state is UnitState.PENDING:
        return record._replace(failures=(), template_hash="") if record.failures else record
    return transition(record, UnitEvent.RENEWED, now, UnitReason.TEMPLATE_CHANGED, departure_words.TEMPLATE_CHANGED)


def _drain(record: UnitStatusRecord, now: float) -> UnitStatusRecord:
    return transition(record, UnitEvent.ROLLED_OUT, now, UnitReason.TEMPLATE_CHANGED, departure_words.TEMPLATE_CHANGED)
