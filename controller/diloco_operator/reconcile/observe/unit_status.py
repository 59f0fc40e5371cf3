"""What is on record of a unit: `status.units[]`, read without building models, because every reconcile reads all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from diloco_operator.api import names
from diloco_operator.api.status import UnitState
from diloco_operator.api.unit_figures import DEFAULTS, KEYS
from diloco_operator.kube.timestamps import format_timestamp, parse_timestamp

LIVE = frozenset({UnitState.STARTING, UnitState.JOINING, UnitState.TRAINING, UnitState.DRAINING})
"""States in which the current attempt has processes, or had them a moment ago."""


class UnitStatusRecord(NamedTuple):
    """Fields as in `api.status.UnitStatus`. Times are seconds since the epoch. A tuple, because a reconcile of a big job makes thousands: a
    changed copy of a frozen dataclass with so many fields takes five times as long."""

    name: str
    pool: str
    state: UnitState = UnitState.PENDING
    slice: str = ""
    attempt: int = 0
    ended_attempt: int = 0
    failed_attempt: int = 0
    last_failure: str = ""
    restarts: int = 0
    reason: str = ""
    message: str = ""
    since: float | None = None
    failures: tuple[float, ...] = ()
    ended_at: float | None = None
    not_before: float | None = None
    unschedulable: int = 0
    grantor_said: str = ""
    cause: str = ""
    paused_until: float | None = None
    recover_seconds: float | None = None
    began_with: str = ""
    template_hash: str = ""
    figures: Mapping[str, Any] = DEFAULTS
    """By their fields in status; one that is absent there is absent here."""

    @property
    def running(self) -> bool:
        """The current attempt's end is not on record."""
        return self.attempt > self.ended_attempt

    @property
    def steps(self) -> int:
        """Local steps that were committed, all attempts."""
        steps: int = self.figures.get("steps", 0)
        return steps

    @property
    def number(self) -> int:
        """In its pool: that of `v5p-2` is 2."""
        index = names.unit_index(self.pool, self.name)
        assert index is not None, "checked where status and pods come in"
        return index


def read_units(status: Mapping[str, Any]) -> dict[str, UnitStatusRecord]:
    """Read the units by name, in the order of status."""
    return {raw["name"]: _read(raw) for raw in status.get("units") or ()}


def _read(raw: Mapping[str, Any]) -> UnitStatusRecord:
    get = raw.get
    attempt, ended = get("attempt", 0), get("endedAttempt", 0)
    return UnitStatusRecord(
        name=raw["name"],
        pool=raw["pool"],
        state=_state(UnitState(raw["state"]), runs=attempt > ended),
        slice=get("slice", ""),
        attempt=attempt,
        ended_attempt=ended,
        failed_attempt=get("failedAttempt", 0),
        last_failure=get("lastFailure", ""),
        restarts=get("restarts", 0),
        reason=get("reason", ""),
        message=get("message", ""),
        since=_time(get("since")),
        failures=tuple(parse_timestamp(t) for t in get("failures") or ()),
        ended_at=_time(get("endedAt")),
        not_before=_time(get("notBefore")),
        unschedulable=get("unschedulable", 0),
        grantor_said=get("grantorSaid", ""),
        cause=get("cause", ""),
        paused_until=_time(get("pausedUntil")),
        recover_seconds=get("recoverSeconds"),
        began_with=get("beganWith", ""),
        template_hash=get("templateHash", ""),
        figures={key: raw[key] for key in KEYS.values() if key in raw},
    )


def _state(state: UnitState, *, runs: bool) -> UnitState:
    """Return the state as written, unless the attempts contradict it, which no operator writes: they decide which pods may go."""
    if runs is (state in LIVE):
        return state
    return UnitState.STARTING if runs else UnitState.PENDING


def write_unit(record: UnitStatusRecord) -> dict[str, Any]:
    """Return every field, also those at their defaults, so that what the API server gives back equals what was written."""
    found: dict[str, Any] = {
        "name": record.name,
        "pool": record.pool,
        "slice": record.slice,
        "state": record.state.value,
        "attempt": record.attempt,
        "restarts": record.restarts,
        "reason": str(record.reason),
        "message": record.message,
        "failures": [format_timestamp(t) for t in record.failures],
        "endedAttempt": record.ended_attempt,
        "templateHash": record.template_hash,
        **DEFAULTS,
    }
    times = (
        ("since", record.since),
        ("endedAt", record.ended_at),
        ("notBefore", record.not_before),
        ("pausedUntil", record.paused_until),
    )
    for key, moment in times:
        if moment is not None:
            found[key] = format_timestamp(moment)
    # Absent otherwise, so that a new version need not write every job's status.
    found |= {key: value for key, value in record.figures.items() if value or key in DEFAULTS}
    if record.unschedulable:
        found["unschedulable"] = record.unschedulable
    if record.grantor_said:
        found["grantorSaid"] = record.grantor_said
    if record.cause:
        found["cause"] = record.cause
    if record.failed_attempt:
        found["failedAttempt"] = record.failed_attempt
    if record.last_failure:
        found["lastFailure"] = record.last_failure
    if record.recover_seconds is not None:
        found["recoverSeconds"] = record.recover_seconds
    if record.began_with:
        found["beganWith"] = record.began_with
    return found


def _time(text: str | None) -> float | None:
    return parse_timestamp(text) if text else None
