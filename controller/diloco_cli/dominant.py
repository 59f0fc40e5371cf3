"""The main cause why a job does not have what it asks for, and what comes next. Pure.

Several things may be wrong at once, and only the first in a fixed precedence is told. What stops the whole job comes before what stops a
unit; what a person must do, before what time solves; what keeps the job below its minimum, before what keeps it from growing.

See docs/decisions/0176-explain-and-doctor.md.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diloco_operator.api.conditions import ConditionType
from diloco_operator.api.consequences import Concern, Follows, Lack
from diloco_operator.api.reasons import all_reasons, concern_of, follows, lack_of
from diloco_operator.api.state import JobState
from diloco_operator.api.status import Condition, PoolStatus, UnitState, UnitStatus
from diloco_operator.reconcile.units.states import State, state_of

from diloco_cli.runbook import next_step
from diloco_cli.view_model import JobView, log_command


class Cause(enum.StrEnum):
    """What may keep a job from what it asks for, in order of precedence."""

    OVER = "Ended"
    NOT_SEEN = "NotSeen"
    REFUSED = "NotUsable"
    SUSPENDED = "OnRequest"
    BLOCKED = "ObjectsMissing"
    SYNCER = "NoSyncer"
    PODS = "PodsNotAdmitted"
    GIVEN_UP = "UnitsGivenUp"
    CRASHES = "UnitsFail"
    HARDWARE = "NoHardware"
    WARNED = "Warned"
    GRANTS = "NotGranted"
    STARTING = "Starts"
    GROWTH = "NoHardwareToGrow"
    NOTHING = "Nothing"


@dataclass(frozen=True, slots=True)
class Dominant:
    cause: Cause
    reason: str
    """The reason as in status."""
    subject: str
    """The condition, pool or units that have the reason."""
    evidence: str
    """The operator's message."""
    meaning: str
    """What the reason means in general."""
    next_step: str
    """What a person can do, or "" if nothing needs to be done."""


@dataclass(frozen=True, slots=True)
class Upcoming:
    """Something that happens by itself at a known time."""

    at: float
    """Seconds since the epoch."""
    what: str


_STARTING = (UnitState.STARTING, UnitState.JOINING)


def dominant(view: JobView) -> Dominant:
    """The first cause that holds."""
    for find in _PRECEDENCE:
        if (cause := find(view)) is not None:
            return cause
    return Dominant(Cause.NOTHING, view.status.reason, "", "", "", "")


def _over(view: JobView) -> Dominant | None:
    if not view.over:
        return None
    kind = ConditionType.COMPLETE if view.complete else ConditionType.FAILED
    condition = view.status.condition(kind)
    step = f"{at_home(view, 'export')} -o model.safetensors"
    if not view.complete:
        step = f"remove the cause, then kubectl diloco retry {_job(view)}"
    return _of_condition(Cause.OVER, condition, step)


def _not_seen(view: JobView) -> Dominant | None:
    if view.state is not None:
        return None
    return Dominant(Cause.NOT_SEEN, "", "", "", "", "")  # the job's headline says what to do


def _refused(view: JobView) -> Dominant | None:
    condition = view.refused()
    return _of_condition(Cause.REFUSED, condition, next_step(condition.reason, _job(view))) if condition is not None else None


def _suspended(view: JobView) -> Dominant | None:
    if not view.suspend and view.state is not JobState.SUSPENDED:
        return None
    condition = view.status.condition(ConditionType.TRAINING if view.waits_for_home else ConditionType.SUSPENDED)
    at_its_home = view.made or view.waits_for_home  # which writes spec.suspend of a part that it has made
    return _of_condition(Cause.SUSPENDED, condition, at_home(view, "status") if at_its_home else f"kubectl diloco resume {_job(view)}")


def _blocked(view: JobView) -> Dominant | None:
    condition = _concerning(view, Concern.OBSTACLE)
    return _of_condition(Cause.BLOCKED, condition, next_step(condition.reason, _job(view))) if condition else None


def _syncer(view: JobView) -> Dominant | None:
    condition = _concerning(view, Concern.SYNCER)
    return _of_condition(Cause.SYNCER, condition, at_home(view, "logs", "syncer ")) if condition else None


def _pods(view: JobView) -> Dominant | None:
    units = [unit for unit in view.status.units if state_of(unit) is State.PODS_REFUSED]
    return _of_units(Cause.PODS, units, next_step(units[0].reason, _job(view))) if units else None


def _given_up(view: JobView) -> Dominant | None:
    units = [unit for unit in view.status.units if unit.state is UnitState.FAILED]
    if not units:
        return None
    return _of_units(Cause.GIVEN_UP, units, f"{_log(view, units[0])}; once the cause is gone, kubectl diloco retry {_job(view)}")


def _crashes(view: JobView) -> Dominant | None:
    units = [unit for unit in view.status.units if unit.state is UnitState.BACKING_OFF and unit.failed_attempt]
    return _of_units(Cause.CRASHES, units, _log(view, units[0])) if units else None


def _hardware(view: JobView) -> Dominant | None:
    return _of_pools(Cause.HARDWARE, view, _short(view)) if view.status.learners.placed < view.status.learners.min else None


def _grants(view: JobView) -> Dominant | None:
    waiting = [unit for unit in view.status.units if follows(unit.reason, Follows.GRANT_AWAITED)]
    return _of_units(Cause.GRANTS, waiting, next_step(waiting[0].reason, _job(view))) if waiting else None


def _starting(view: JobView) -> Dominant | None:
    return _of_units(Cause.STARTING, [unit for unit in view.status.units if unit.state in _STARTING], "")


def _warned(view: JobView) -> Dominant | None:
    condition = _concerning(view, Concern.WARNING)
    return _of_condition(Cause.WARNED, condition, next_step(condition.reason, _job(view))) if condition is not None else None


def _growth(view: JobView) -> Dominant | None:
    return _of_pools(Cause.GROWTH, view, _short(view))


_PRECEDENCE: Sequence[Callable[[JobView], Dominant | None]] = (
    _over, _not_seen, _refused, _suspended, _blocked, _syncer, _pods, _given_up, _crashes, _hardware, _warned, _grants, _starting, _growth,
)  # fmt: skip


# --- from what status has ----------------------------------------------------------------------------------------------
def _concerning(view: JobView, concern: Concern) -> Condition | None:
    return next((condition for condition in view.status.conditions if concern_of(condition.reason) is concern), None)


def _of_condition(cause: Cause, condition: Condition | None, step: str) -> Dominant:
    if condition is None:
        return Dominant(cause, "", "", "", "", step)
    return Dominant(cause, condition.reason, condition.type, condition.message, _meaning(condition.reason), step)


def _of_units(cause: Cause, units: Sequence[UnitStatus], step: str) -> Dominant | None:
    """The cause of the first unit, and of all others with the same reason."""
    if not units:
        return None
    same = [unit.name for unit in units if unit.reason == units[0].reason]
    return Dominant(cause, units[0].reason, ", ".join(same), units[0].message, _meaning(units[0].reason), step)


def _of_pools(cause: Cause, view: JobView, pools: Sequence[PoolStatus]) -> Dominant | None:
    """The cause of one pool: if possible of one that waits for no grantor, and then of one with a remedy. Grantors have a cause of their
    own, `GRANTS`, before `GROWTH`."""
    if not pools:
        return None
    pool = min(pools, key=lambda candidate: (lack_of(candidate.reason) is Lack.GRANT, not candidate.remedies))
    if lack_of(pool.reason) is Lack.GRANT and cause is Cause.GROWTH:
        return None
    step = (pool.remedies or ("",))[0]
    return Dominant(cause, pool.reason, f"pool {pool.name}", pool.message, _meaning(pool.reason), step)


def _short(view: JobView) -> list[PoolStatus]:
    return [pool for pool in view.status.pools if lack_of(pool.reason).of_slices]


_MEANINGS: Mapping[str, str] = {row.value: row.meaning for row in all_reasons() if row.subject != "Event"}
"""By reason. If several things have the same one, a pool's meaning wins, then a unit's, then the last condition's."""


def _meaning(reason: str) -> str:
    return _MEANINGS.get(reason, "")


def _job(view: JobView) -> str:
    return f"{view.name} {view.flags}"


def at_home(view: JobView, command: str, argument: str = "") -> str:
    """A command about the syncer or its volume, which a part has in the cluster of its job."""
    home = view.status.home
    if home is not None and home.name:
        return f"in the cluster of job {home.name}: kubectl diloco {command} {home.name} {argument}-n {home.namespace}"
    return f"kubectl diloco {command} {view.name} {argument}{view.flags}"


def _log(view: JobView, unit: UnitStatus) -> str:
    return log_command(view.name, unit.name, view.flags, failed=unit.failed_attempt or 0, newest=unit.attempt)


# --- what comes by itself -----------------------------------------------------------------------------------------------
def upcoming_of(view: JobView, spec: Mapping[str, Any]) -> tuple[Upcoming, ...]:
    """What happens by itself at a known time, the soonest first. Some times may have passed."""
    unit_names: dict[tuple[float, str], list[str]] = {}
    for unit in view.status.units:
        if unit.not_before is not None and unit.state in (UnitState.PENDING, UnitState.BACKING_OFF):
            unit_names.setdefault((unit.not_before, "may start again"), []).append(unit.name)
        if unit.paused_until is not None:
            unit_names.setdefault((unit.paused_until, "must be over with its pause"), []).append(unit.name)
    actions = [Upcoming(at, f"{', '.join(names)} {what}") for (at, what), names in unit_names.items()]
    actions += [Upcoming(host.avoided_until, f"units start on {host.node} again") for host in view.status.hosts if host.avoided_until]
    ttl = spec.get("ttlSecondsAfterFinished")
    if ttl is not None and view.over:
        end = view.status.condition(ConditionType.COMPLETE if view.complete else ConditionType.FAILED)
        if end is not None:
            actions.append(Upcoming(end.last_transition_time + ttl, "the job is deleted"))
    return tuple(sorted(actions, key=lambda item: (item.at, item.what)))
