"""`status.goodput`: where the time of the units went, added up from one status write to the next. Pure.

The account compares the status on record with the one that replaces it: until `since` each unit was in the old state, and from then on
in the new one. An operator that dies loses nothing, because the next one compares the same two. The account is written only with
writes that have another reason. If the clock is set back, the time since the last write is lost, and none counts twice.

See docs/decisions/0041-what-a-syncer-says.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from diloco.goodput import Use

from diloco_operator.accelerators import UnitShape
from diloco_operator.api.goodput import MAX_KINDS, key_of
from diloco_operator.api.phases import Phase
from diloco_operator.api.status import UnitState
from diloco_operator.kube.timestamps import format_timestamp, parse_timestamp
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units.states import phase_of
from diloco_operator.report import Report

_MOST_COUNT = 2**53
"""JSON readers that take numbers as doubles are exact up to this."""


def account(
    old: Mapping[str, Any] | None,
    before: Mapping[str, UnitStatusRecord],
    after: Mapping[str, UnitStatusRecord],
    report: Report | None,
    now: float,
    *,
    shapes: Mapping[str, UnitShape],
    counts: bool = True,
    served: bool = True,
) -> dict[str, Any]:
    """Return the next `status.goodput`.

    Args:
        old: the account on record, None if there is none
        shapes: pool -> the hardware of one unit. Units of other pools, which are gone from the spec, count no accelerator-hours
        report: the syncer's last report, however old
        counts: False if the job was over by the status on record: then the time since is no unit's
        served: False if by the status on record nothing was heard of the syncer: then units waited for it
    """
    on_record = old or {}
    seconds: defaultdict[Use, float] = defaultdict(float)
    seconds.update({use: float((on_record.get("unitSeconds") or {}).get(key_of(use), 0.0)) for use in Use})
    hours: dict[str, float] = dict(on_record.get("acceleratorHours") or {})
    interruptions = on_record.get("interruptions", 0)
    if on_record and counts:
        start = min(parse_timestamp(on_record["measuredAt"]), now)
        for name in {**before, **after}:
            unit, then = before.get(name), after.get(name)
            for use, spent in _spent(unit, then, start, now):
                seconds[use if served or use is not Use.TRAINING else Use.WAITING] += spent
            for pool, held in _held(unit, then, start, now):
                _add(hours, shapes.get(pool), held)
            lost = min(_lost(unit, then, report), seconds[Use.TRAINING]) if served else 0.0
            seconds[Use.TRAINING] -= lost
            seconds[Use.LOST_WORK] += lost
    if counts:
        interruptions += sum(_interrupted(before.get(name), record) for name, record in after.items())
    seconds = defaultdict(float, {use: round(spent, 3) for use, spent in seconds.items()})
    total = sum(seconds.values())
    return {
        "productiveShare": round(seconds[Use.TRAINING] / total, 4) if total else 0.0,
        "interruptions": min(interruptions, _MOST_COUNT),
        "unitSeconds": {key_of(use): seconds[use] for use in Use},
        **({"acceleratorHours": hours} if hours else {}),
        "measuredAt": format_timestamp(now),
    }


def _spent(unit: UnitStatusRecord | None, then: UnitStatusRecord | None, start: float, now: float) -> Iterator[tuple[Use, float]]:
    """Yield what a unit did from `start` to `now`, by its old record `unit` and its new one `then`."""
    began_at = _began_at(unit, then, start, now)
    lost_at = began_at
    if unit is not None and then is not None and unit.state is UnitState.TRAINING:
        if then.ended_at is not None and unit.ended_at is None:
            lost_at = then.ended_at
        elif then.state is UnitState.TRAINING and then.attempt > unit.attempt and then.recover_seconds is not None:
            lost_at = began_at - then.recover_seconds  # between two writes the unit was lost and came back
    lost_at = min(max(lost_at, start), began_at)
    yield from _in(unit, lost_at - start)
    yield Use.RECOVERY, began_at - lost_at
    yield from _in(then, now - began_at)


def _began_at(unit: UnitStatusRecord | None, then: UnitStatusRecord | None, start: float, now: float) -> float:
    """Return the time until which the old record was true, and from which on the new one is."""
    if then is None or then.since is None:  # a unit that leaves the status does so with this write
        return now
    if unit is not None and (unit.state, unit.attempt, unit.ended_attempt) == (then.state, then.attempt, then.ended_attempt):
        return now  # same state and attempt: another phase began with the report that shows it
    return min(max(then.since, start), now)


def _held(unit: UnitStatusRecord | None, then: UnitStatusRecord | None, start: float, now: float) -> Iterator[tuple[str, float]]:
    """Yield for how long the unit held the hardware of its pool from `start` to `now`: while it has a slice, and its time counts."""
    began_at = _began_at(unit, then, start, now)
    for record, seconds in ((unit, began_at - start), (then, now - began_at)):
        if record is not None and record.slice and phase_of(record).use is not None:
            yield record.pool, seconds


def _add(hours: dict[str, float], shape: UnitShape | None, seconds: float) -> None:
    if shape is not None and seconds and shape.accelerators and (shape.accelerator in hours or len(hours) < MAX_KINDS):
        hours[shape.accelerator] = round(hours.get(shape.accelerator, 0.0) + seconds * shape.accelerators / 3600, 6)


def _in(unit: UnitStatusRecord | None, seconds: float) -> Iterator[tuple[Use, float]]:
    use = phase_of(unit).use if unit is not None else None
    if use is not None:
        yield use, seconds


def _lost(unit: UnitStatusRecord | None, then: UnitStatusRecord | None, report: Report | None) -> float:
    """Seconds of work that were lost when the unit's attempt ended: all since the syncer last heard of a step."""
    if unit is None or then is None or report is None or phase_of(unit) is not Phase.TRAINING:
        return 0.0
    if then.ended_at is None or unit.ended_at is not None or unit.since is None:
        return 0.0
    reported = report.units.get(unit.name)
    if reported is None or reported.attempt != unit.attempt:
        return 0.0
    heard = max(report.received_at - reported.seconds_since_heard, unit.since)
    return max(0.0, then.ended_at - heard)


def _interrupted(unit: UnitStatusRecord | None, then: UnitStatusRecord) -> int:
    """How many attempts of the unit ended by a failure or disruption between the two records."""
    restarts = then.restarts - (unit.restarts if unit is not None else 0)
    given_up = then.state is UnitState.FAILED and (unit is None or unit.state is not UnitState.FAILED)
    return max(0, restarts) + given_up
