"""What is worth an Event: units that were lost, returned or were given up, pools that wait, and conditions that changed. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from diloco.wording import plural

from diloco_operator.api.conditions import ConditionType
from diloco_operator.api.consequences import Lack
from diloco_operator.api.last_failure import read_last_failure
from diloco_operator.api.reasons import (
    CONDITION_REASONS,
    FALSE,
    TRUE,
    UNKNOWN,
    EventReason,
    Severity,
    lack_of,
)
from diloco_operator.api.status import HostStatus, UnitState
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.placement.request import with_remedies
from diloco_operator.plan import Event
from diloco_operator.reconcile.observe.host_status import JobHosts
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units.states import State, state_of
from diloco_operator.reconcile.units.unschedulable import gave_slice_up

_LIMIT = 20
"""Units that get an Event of their own in one reconcile."""


def unit_events(
    before: Mapping[str, UnitStatusRecord],
    after: Mapping[str, UnitStatusRecord],
    observed: Mapping[str, UnitStatusRecord] | None = None,
) -> list[Event]:
    """Return the Events about what has changed since the last status. `observed`: the records once the ends of attempts were known, before
    anything was planned. None where no unit starts in the same reconcile."""
    events: list[Event] = []
    for name, record in after.items():
        old = before.get(name)
        # An attempt that follows without a pause begins in the status that records the end of the one before: else users would not hear of
        # that end.
        if record.running and (why := _new_failure(old, record)):
            events.append(Event.about(name, EventReason.UNIT_CRASHED, why))
        elif record.running and observed and (why := _new_loss(old, observed.get(name))):
            events.append(Event.about(name, EventReason.UNIT_LOST, why))
        if (event := _unit_event(old, record)) is not None:
            events.append(event)
    if len(events) > _LIMIT:
        return [*events[:_LIMIT], Event.of(EventReason.UNITS_CHANGED, f"{plural(len(events) - _LIMIT, 'more unit', 'more units')} changed")]
    return events


def _unit_event(old: UnitStatusRecord | None, new: UnitStatusRecord) -> Event | None:
    changed = old is None or old.state is not new.state or old.attempt != new.attempt or _waits(old) != _waits(new)
    if not changed:
        return None
    if new.state is UnitState.FAILED:
        return Event.about(new.name, EventReason.UNIT_FAILED, new.message)
    if gave_slice_up(old, new):
        return Event.about(new.name, EventReason.UNIT_GAVE_SLICE_UP, new.message)
    begins = new.state is UnitState.STARTING and new.attempt > (old.attempt if old else 0)
    ended = old is not None and new.ended_attempt > old.ended_attempt and new.restarts > old.restarts
    if new.state is UnitState.BACKING_OFF and ended:
        return Event.about(new.name, EventReason.UNIT_CRASHED, new.message)
    if _waits(new):
        return Event.about(new.name, EventReason.NODES_REQUESTED, f"attempt {new.attempt} {new.message}") if begins else None
    if old is not None and _waits(old) and new.slice and new.attempt == old.attempt:
        return Event.about(new.name, EventReason.UNIT_STARTED, f"attempt {new.attempt} got {new.slice}")
    if begins:
        return Event.about(new.name, EventReason.UNIT_STARTED, f"attempt {new.attempt} starts on {new.slice}")
    if ended:
        return Event.about(new.name, EventReason.UNIT_LOST, new.message)
    if new.state is UnitState.DRAINING:
        return Event.about(new.name, EventReason.UNIT_DRAINING, new.message)
    if new.state is UnitState.TRAINING:
        recovered = old is not None and old.ended_at is not None and new.recover_seconds is not None
        back = f", {new.recover_seconds:.1f} s after it was lost" if recovered else ""
        state = f"; it began with {new.began_with}" if recovered and new.began_with else ""
        return Event.about(new.name, EventReason.UNIT_CONTRIBUTES, f"attempt {new.attempt} contributes{back}{state}")
    return None


def _new_failure(old: UnitStatusRecord | None, new: UnitStatusRecord) -> str:
    """How an attempt failed between the two records, "" if none did."""
    failed = new.failed_attempt > (old.failed_attempt if old is not None else 0)
    return f"attempt {new.failed_attempt} ended: {read_last_failure(new.last_failure).message}" if failed else ""


def _new_loss(old: UnitStatusRecord | None, observed: UnitStatusRecord | None) -> str:
    """How an attempt that did not fail ended, "" if none did."""
    if observed is None or observed.running or old is None or observed.restarts <= old.restarts:
        return ""
    return f"attempt {observed.ended_attempt} ended: {observed.message}"


def _waits(record: UnitStatusRecord) -> bool:
    return state_of(record) is State.WAITING_FOR_GRANTOR


def own_data_events(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[Event]:
    """An Event when a second unit begins to read its data itself."""
    was, now = (sum(unit.get("ownData", False) for unit in units) for units in (before, after))
    return [Event.of(EventReason.OWN_DATA, own_data_advice(now))] if was < 2 <= now else []


def pool_events(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[Event]:
    """An Event for each pool that began to wait for slices, waits for another reason, or waits no more. None for a pool that is full, or
    where only the message changed."""
    old = {pool["name"]: pool.get("reason", "") for pool in before}
    events = []
    for pool in after:
        was, reason = old.get(pool["name"], ""), pool["reason"]
        if reason == was:
            continue
        if lack_of(reason).of_slices:
            events.append(Event.of(EventReason.POOL_CHANGED, _with_message(reason, _whole(pool))))
        elif lack_of(was).of_slices:
            unused = _whole(pool) if lack_of(reason) is Lack.ROOM_IN_JOB else ""
            events.append(
                Event.of(EventReason.POOL_CHANGED, _with_message(f"pool {pool['name']}: no unit of it waits for a slice any more", unused))
            )
    return events


def _whole(pool: Mapping[str, Any]) -> str:
    return with_remedies(pool["message"], pool.get("remedies") or ())


def host_events(before: Mapping[str, HostStatus], hosts: JobHosts) -> list[Event]:
    """An Event for each avoidance that begins."""
    events = []
    for node, until in hosts.avoided.items():
        record, old = hosts.records[node], before.get(node)
        if old is not None and (old.uid, old.avoided_until) == (record.uid, until):
            continue
        text = f"node {node}: {plural(len(record.failures), 'attempt')} failed there; no unit starts there until {format_timestamp(until)}"
        events.append(Event.of(EventReason.HOST_AVOIDED, f"{text} as long as another host is free. The last: {record.message}"))
    return events


def condition_events(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], about: Collection[ConditionType]
) -> list[Event]:
    """An Event for each condition of the types in `about` whose status changed."""
    # That a new job is accepted, and nothing else yet, is no news. Placed begins as Unknown, so that missing hardware is.
    expected = dict.fromkeys(ConditionType, FALSE) | {ConditionType.ACCEPTED: TRUE, ConditionType.PLACED: UNKNOWN}
    old = {**expected, **{each["type"]: each["status"] for each in before}}
    events = []
    for condition in after:
        kind = ConditionType(condition["type"])
        if kind not in about or condition["status"] == old[kind]:
            continue
        reason = {each.value: each for each in CONDITION_REASONS[kind]}[condition["reason"]]
        if reason.severity is not Severity.SILENT:
            events.append(Event.of(reason, _with_message(f"{kind.value}={condition['status']}", condition["message"])))
    return events


def own_data_advice(units: int) -> str:
    return (
        f"{units} units feed themselves, and nothing keeps them from training the same samples: let each read its own part by DILOCO_UNIT, "
        "or draw what it trains with session.numbers or session.shards"
    )


def _with_message(subject: str, message: str) -> str:
    return f"{subject}: {message}" if message else subject
