"""What is worth an Event: units that were lost, came back or were given up, and conditions that turned. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from diloco_operator.api.conditions import REASON_LEARNERS_STARTING, ConditionType
from diloco_operator.api.job import UnitState
from diloco_operator.plan import Event
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord

NORMAL, WARNING = "Normal", "Warning"
_LIMIT = 20
"""Units that get an event of their own in one pass."""
_BAD_WHEN_TRUE = (ConditionType.FAILED, ConditionType.DEGRADED)
_TOLD = (
    ConditionType.PLACED,
    ConditionType.TRAINING,
    ConditionType.DEGRADED,
    ConditionType.SUSPENDED,
    ConditionType.COMPLETE,
    ConditionType.FAILED,
    ConditionType.ACCEPTED,
)


def unit_events(before: Mapping[str, UnitStatusRecord], after: Mapping[str, UnitStatusRecord]) -> list[Event]:
    found: list[Event] = []
    for name, record in after.items():
        old = before.get(name)
        event = _unit_event(old, record)
        if event is not None:
            found.append(replace(event, unit=name))
    if len(found) > _LIMIT:
        return [*found[:_LIMIT], Event(NORMAL, "UnitsChanged", f"{len(found) - _LIMIT} more units changed")]
    return found


def _unit_event(old: UnitStatusRecord | None, new: UnitStatusRecord) -> Event | None:
    changed = old is None or old.state is not new.state or old.attempt != new.attempt
    if not changed:
        return None
    if new.state is UnitState.FAILED:
        return Event(WARNING, "UnitFailed", f"{new.name}: {new.message}")
    ended = old is not None and new.ended_attempt > old.ended_attempt and new.restarts > old.restarts
    if new.state is UnitState.BACKING_OFF and ended:
        return Event(WARNING, "UnitCrashed", f"{new.name}: {new.message}")
    if new.state is UnitState.STARTING and new.attempt > (old.attempt if old else 0):
        again = f" after attempt {new.attempt - 1}: {old.message}" if old and old.attempt and old.message else ""
        return Event(NORMAL, "UnitStarted", f"{new.name}: attempt {new.attempt} starts on {new.slice}{again}")
    if ended:
        return Event(WARNING, "UnitLost", f"{new.name}: {new.message}")
    if new.state is UnitState.DRAINING:
        return Event(NORMAL, "UnitDraining", f"{new.name}: {new.message}")
    if new.state is UnitState.TRAINING:
        back = f", {new.recover_seconds:.1f} s after it was lost" if new.recover_seconds is not None and new.attempt > 1 else ""
        return Event(NORMAL, "UnitContributes", f"{new.name}: attempt {new.attempt} contributes{back}")
    return None


def condition_events(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[Event]:
    old = {each["type"]: each["status"] for each in before}
    found = []
    for condition in after:
        kind = ConditionType(condition["type"])
        was = old.get(kind.value, "False" if kind is not ConditionType.ACCEPTED else "True")
        starting = condition["reason"] == REASON_LEARNERS_STARTING  # nothing is missing that was there
        if kind in _TOLD and condition["status"] != was and not starting:
            bad = condition["status"] == "False" if kind in (ConditionType.ACCEPTED, ConditionType.TRAINING) else kind in _BAD_WHEN_TRUE
            text = f"{kind.value}={condition['status']}: {condition['message']}"
            found.append(Event(WARNING if bad and condition["status"] != "Unknown" else NORMAL, condition["reason"], text))
    return found
