"""Units are replaced because the template of their pool changed, and this roll-out stops if a new one does not train. Pure.

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
    """A pool whose roll-out has stopped: no more units are replaced."""

    pool: str
    why: str
    """What keeps a unit of the new template from training."""
    left: int
    """Units that train from an earlier template."""


def replace_outdated(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> dict[str, UnitStatusRecord]:
    """Replace units that were made from an earlier template of their pool: the units of `leaving` drain if the API server is known to admit
    their new pods. Units without processes forget their failures, which say nothing about the new template."""
    units = dict(records)
    if context.finishing:
        return units
    for record in _outdated(context, records):
        if record.state in _WITHOUT_PROCESSES:
            units[record.name] = _afresh(record, context.now)
    for record in leaving(context, records):
        if _is_admitted(context, record.pool, records):
            units[record.name] = _drain(record, context.now)
    return units


def leaving(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> Sequence[UnitStatusRecord]:
    """Return the units that leave next for a new template, once a dry run of its pods has been admitted. Units that do not contribute leave
    together. The others leave one after the other: each when all others train, and none while a unit of the pool's new template cannot."""
    if context.finishing:
        return ()
    outdated = [record for record in _outdated(context, records) if _has_place(context, record)]
    next_units = [record for record in outdated if record.state in _BEFORE_TRAINING]
    training = [record for record in outdated if record.state is UnitState.TRAINING and not _stuck(context, record.pool, records)]
    if training and all(_is_back(context, record) for record in records.values()):
        next_units.append(min(training, key=lambda record: (record.pool, record.number)))
    return next_units


def _is_admitted(context: ReconcileContext, pool: str, records: Mapping[str, UnitStatusRecord]) -> bool:
    """Return whether a dry run has shown lately that pods of the pool's present template are admitted, or one unit may try."""
    answer, generation = context.observed.pod_answers.get(pool), context.observed.job.generation
    return admits(answer, generation, context.now) or _may_try(context, refusal(answer, generation), records)


def _may_try(context: ReconcileContext, rejected: RejectedWrite | None, records: Mapping[str, UnitStatusRecord]) -> bool:
    """Return whether a unit leaves although a dry run was forbidden: it does if the job has more than its minimum.

    The unit itself may use the last part of a quota that its new pods need, and the answer does not tell quotas from policies."""
    training = sum(record.state is UnitState.TRAINING for record in records.values())
    return rejected is not None and rejected.code == _FORBIDDEN and training > context.spec.learners.min


def stopped_roll_outs(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> Sequence[StoppedRollOut]:
    """Return the roll-outs that have stopped, in the order of the pools. One goes on when the unit that stopped it contributes, or with the
    next change of the template."""
    stopped = []
    for pool in context.pools:
        left = [record for record in _outdated(context, records) if record.pool == pool and record.state is UnitState.TRAINING]
        if left and (why := _why_stopped(context, left[0], records)):
            stopped.append(StoppedRollOut(pool, why, len(left)))
    return stopped


def _why_stopped(context: ReconcileContext, first: UnitStatusRecord, records: Mapping[str, UnitStatusRecord]) -> str:
    """Return why the roll-out of a pool has stopped, or "" if it has not. `first`: a unit that trains from an earlier template."""
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
    """Return which unit of the pool does not train from the new template, and why. "" if all that tried do."""
    for record in sorted((unit for unit in records.values() if unit.pool == pool), key=lambda unit: unit.number):
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
    """Return whether the unit trained until it left for the new template, and cannot start: its pods were refused, or found no place."""
    if not _left_by_itself(record):
        return False
    state = state_of(record)
    return state is State.PODS_REFUSED or (state in GAVE_SLICE_UP and context.up_to_date(record))


def _left_by_itself(record: UnitStatusRecord) -> bool:
    """Return whether the unit trained until it was asked to leave, and has not trained since."""
    return record.ended_at is None and record.steps > 0 and record.state is not UnitState.TRAINING


def _is_back(context: ReconcileContext, record: UnitStatusRecord) -> bool:
    """Return whether the roll-out need not wait for this unit: it trains, or nothing says that it will soon."""
    if record.state is UnitState.TRAINING:
        return True
    # A unit that left for the new template comes back, even if it has no slice: it waits for a grantor to give back its nodes.
    if record.running and _left_by_itself(record):
        return False
    again = record.state in (UnitState.BACKING_OFF, UnitState.FAILED) and record in _outdated(context, {record.name: record})
    return not (record.slice or again)


def _has_place(context: ReconcileContext, record: UnitStatusRecord) -> bool:
    """Return whether slices are left for the unit once it has left: its own ones, and free ones that are kept for no other job."""
    if grantor_of(context.spec, context.pools[record.pool]) is not None:
        return True  # the grantor may bring nodes
    requirements, fleet = pool_requirements(context, context.pools[record.pool]), context.observed.fleet
    shape = requirements.shape
    own_slices = fleet.resolve(shape, record.slice) or () if record.slice else ()
    free = itertools.chain(fleet.free(shape, record.pool), (slice_ for slice_, job in fleet.kept(shape, record.pool) if not job))
    fitting = {slice_.key for slice_ in own_slices if fleet.usable(slice_) and requirements._replace(avoided=frozenset()).suits(slice_)}
    for slice_ in free:
        if len(fitting) >= shape.slots:
            break
        if requirements.suits(slice_):
            fitting.add(slice_.key)
    return len(fitting) >= shape.slots


def _outdated(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> list[UnitStatusRecord]:
    return [r for r in records.values() if r.template_hash and r.pool in context.hashes and not context.up_to_date(r)]


def _afresh(record: UnitStatusRecord, now: float) -> UnitStatusRecord:
    """Return a unit without processes that forgets what happened with the earlier template."""
    if record.state is UnitState.PENDING:
        return record._replace(failures=(), template_hash="") if record.failures else record
    return transition(record, UnitEvent.RENEWED, now, UnitReason.TEMPLATE_CHANGED, departure_words.TEMPLATE_CHANGED)


def _drain(record: UnitStatusRecord, now: float) -> UnitStatusRecord:
    return transition(record, UnitEvent.ROLLED_OUT, now, UnitReason.TEMPLATE_CHANGED, departure_words.TEMPLATE_CHANGED)
