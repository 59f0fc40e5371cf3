"""Stragglers: units whose steps take much longer than those of the other units of their pool. Their hosts are avoided, and they move. Pure.

Units of one template run one program on one kind of hardware, so only the host can make one of them slower for long. What is compared is
the duration of a step without waiting: where each outer step waits for all units, the tokens/s of the others are no higher than the
straggler lets them be.

See docs/decisions/0213-values-and-moves.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from diloco_operator.api.reasons import UnitReason
from diloco_operator.api.status import UnitState
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.grantors.registry import chooser_of
from diloco_operator.reconcile.observe.host_status import HostFailure
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units.departure_words import LeavesSlowHost, SlowSteps
from diloco_operator.reconcile.units.hosts import BlamedFailure, SpareSlices
from diloco_operator.reconcile.units.requirements import pool_requirements
from diloco_operator.reconcile.units.states import State, state_of
from diloco_operator.reconcile.units.transitions import UnitEvent, transition
from diloco_operator.reconcile.units.worth import on_the_way
from diloco_operator.report import Report, UnitPhase

SLOW_FOR = 600.0
"""Seconds for which each report must say that a unit is slow."""
_SLOW, _NORMAL = 1.5, 1.25
"""Shares of the duration of its pool's steps: from the first on a unit is slow, below the second it is not any more."""
_PEERS = 3
"""Units that must train, so that the middle one says what is normal."""


def normal_steps(records: Mapping[str, UnitStatusRecord], report: Report) -> dict[tuple[str, str], float]:
    """Return pool and template -> seconds of a step of the middle unit, without waiting; only of those of which enough units train."""
    found: dict[tuple[str, str], list[float]] = {}
    for name, record in records.items():
        seen = report.units.get(name)
        if seen is not None and seen.attempt == record.attempt and seen.phase is UnitPhase.CONTRIBUTING and seen.step_seconds > 0:
            found.setdefault(_peers_of(record), []).append(seen.step_seconds)
    return {peers: statistics.median(times) for peers, times in found.items() if len(times) >= _PEERS}


def _peers_of(record: UnitStatusRecord) -> tuple[str, str]:
    """Return the key of those with which a unit is compared: of the same template, as another one may take larger batches."""
    return record.pool, record.template_hash


def mark_slow(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> dict[str, UnitStatusRecord]:
    """Return the units, with since when each is slow. Without a report it stays as it is."""
    normal = normal_steps(records, context.report) if context.report is not None else {}
    found = dict(records)
    for name, record in records.items():
        if record.state is not UnitState.TRAINING:
            slow = False
        elif context.report is None:
            slow = record.slow_since is not None
        else:
            seen = context.unit_report(name, record.attempt)
            limit = _NORMAL if record.slow_since is not None else _SLOW
            usual = normal.get(_peers_of(record))
            slow = seen is not None and usual is not None and seen.step_seconds > limit * usual
        if slow:
            since = record.slow_since if record.slow_since is not None else context.now
            found[name] = _explained(context, record._replace(slow_since=since))
        elif record.slow_since is not None:
            found[name] = record._replace(slow_since=None)
    return found


def _explained(context: ReconcileContext, record: UnitStatusRecord) -> UnitStatusRecord:
    """Return the record with the reason for all to see, where there is no other one."""
    if is_straggler(context, record) and state_of(record) is State.TRAINING and not record.reason:
        return transition(record, UnitEvent.SLOW, context.now, UnitReason.SLOW, _slow_steps(record))
    return record


def _slow_steps(record: UnitStatusRecord) -> SlowSteps:
    assert record.slow_since is not None, "it is a straggler"
    return SlowSteps(record.slow_since, record.pool)


def is_straggler(context: ReconcileContext, record: UnitStatusRecord) -> bool:
    """Return whether it has been slow for long."""
    return record.state is UnitState.TRAINING and record.slow_since is not None and context.now - record.slow_since >= SLOW_FOR


def blame_slow_hosts(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> list[BlamedFailure]:
    """Return the hosts that stragglers run on, as if an attempt had failed there. Of a unit of several hosts it is not known which one is
    slow."""
    found = []
    for record in records.values():
        if is_straggler(context, record):
            nodes = {pod.node for pod in _pods(context, record) if pod.node}
            if len(nodes) == 1:
                failure = HostFailure(record.name, record.attempt, context.now, str(UnitReason.SLOW))
                found.append(BlamedFailure(nodes.pop(), failure, _slow_steps(record)))
    return found


def leave_slow_hosts(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> dict[str, UnitStatusRecord]:
    """Return the units, of which stragglers drain whose host is avoided, if another slice is free: no more at once than may move, and none
    that a minimum needs. Those whose places a grantor chooses stay."""
    found = dict(records)
    if chooser_of(context.spec) is not None or context.finishing:
        return found
    stragglers = [record for record in records.values() if is_straggler(context, record) and record.pool in context.pools]
    for record in sorted(stragglers, key=lambda record: record.slow_since or 0.0):
        if on_the_way(found.values()) >= context.spec.placement.max_moving or not _is_spare(context, record, found):
            continue
        nodes = {pod.node for pod in _pods(context, record) if pod.node}
        if not nodes & context.hosts.avoided.keys():
            continue
        slices = context.observed.fleet.resolve(context.shapes[record.pool], record.slice)
        requirements = pool_requirements(context, context.pools[record.pool])
        if slices is not None and SpareSlices(context.observed.fleet, record.pool, requirements).take_for(slices):
            why = LeavesSlowHost(_slow_steps(record))
            found[record.name] = transition(record, UnitEvent.ASKED_TO_LEAVE, context.now, UnitReason.SLOW, why, slow_since=None)
    return found


def _pods(context: ReconcileContext, record: UnitStatusRecord) -> Sequence[PodView]:
    return [pod for pod in context.learners.get(record.name, ()) if pod.attempt == record.attempt]


def _is_spare(context: ReconcileContext, record: UnitStatusRecord, records: Mapping[str, UnitStatusRecord]) -> bool:
    """Return whether the minima hold without it."""
    training = [each.pool for each in records.values() if each.state is UnitState.TRAINING]
    return len(training) > context.spec.learners.min and training.count(record.pool) > context.pools[record.pool].learners.min
