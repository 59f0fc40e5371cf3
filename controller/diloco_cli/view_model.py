"""What `diloco up` shows of a job, and the lines that it prints for changes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from diloco.wording import loss_text
from diloco_operator.api.conditions import TERMINAL, ConditionType
from diloco_operator.api.consequences import Concern, Follows, Lack
from diloco_operator.api.names import learner_pod_name
from diloco_operator.api.reasons import CONDITION_REASONS, ConditionReason, EventReason, Severity, concern_of, follows, lack_of
from diloco_operator.api.state import JobState, state_on_record
from diloco_operator.api.status import Condition, ConditionStatus, Status, UnitState, UnitStatus
from diloco_operator.api.unit_figures import FIGURES
from diloco_operator.kube.client import Obj
from diloco_operator.placement.request import with_remedies

_DECIDING = (
    ConditionType.ACCEPTED,
    ConditionType.FAILED,
    ConditionType.COMPLETE,
    ConditionType.SUSPENDED,
    ConditionType.DEGRADED,
    ConditionType.TRAINING,
)
"""Conditions that can decide a job's state. Several can have one reason: the first is the one that explains it."""
_PROGRESS_LINES = 20
"""Number of progress lines from the first to the last step."""


@dataclass(frozen=True, slots=True)
class JobView:
    """One job, as in its status."""

    namespace: str
    name: str
    suspend: bool
    status: Status
    state: JobState | None = None
    """None: the operator has not seen it."""

    @classmethod
    def of(cls, obj: Obj) -> JobView:
        metadata, status = obj["metadata"], obj.get("status") or {}
        checked = Status.model_validate(status)
        return cls(
            metadata.get("namespace", "default"), metadata["name"], bool(obj["spec"].get("suspend")), checked, state_on_record(status)
        )

    def holds(self, type: str) -> bool:
        """Return whether the condition is True."""
        return any(condition.type == type and condition.status.value == "True" for condition in self.status.conditions)

    def refused(self) -> Condition | None:
        """Return the condition Accepted where it is False: the operator cannot act on the spec, and its message says why."""
        found = (each for each in self.status.conditions if each.type == ConditionType.ACCEPTED and each.status is ConditionStatus.FALSE)
        return next(found, None)

    @property
    def over(self) -> bool:
        return any(self.holds(terminal) for terminal in TERMINAL)

    @property
    def complete(self) -> bool:
        return self.holds(ConditionType.COMPLETE)

    @property
    def failed_at_end(self) -> bool:
        """A program failed once the job was done."""
        return any(follows(unit.reason, Follows.JOB_WAS_DONE) for unit in self.status.units)

    @property
    def is_suspended(self) -> bool:
        """Nothing of it runs, though it has not ended."""
        return self.holds(ConditionType.SUSPENDED)

    def why(self) -> str:
        """Return why it is in its state: the message of the condition that decides it."""
        found = {condition.type: condition for condition in self.status.conditions}
        reason = self.status.reason
        concern = concern_of(reason)
        if concern is Concern.HARDWARE and ConditionType.PLACED in found:
            return found[ConditionType.PLACED].message
        if concern is Concern.QUORUM and (missing := self._who_is_missing()):
            return missing
        by_state = ConditionType(self.state.value) if self.state is not None and self.state.value in set(ConditionType) else None
        deciding = [found[kind] for kind in _DECIDING if kind in found and (found[kind].reason == reason if reason else kind is by_state)]
        return deciding[0].message if deciding else self.missing_condition()

    def message(self, condition: Condition) -> str:
        """Return the condition's message for a line of its own. Where learners are missing, Degraded names them and Training only refers to
        it."""
        quorum = condition.type == ConditionType.TRAINING and concern_of(condition.reason) is Concern.QUORUM
        return (self._who_is_missing() if quorum else "") or condition.message

    def _who_is_missing(self) -> str:
        """Return what Degraded says where it does not deny that learners are missing; "": it does."""
        degraded = next((each for each in self.status.conditions if each.type == ConditionType.DEGRADED), None)
        return degraded.message if degraded is not None and degraded.status is not ConditionStatus.FALSE else ""

    def missing_condition(self) -> str:
        """Return why it is not Complete: the first condition on the way that is not True, with the operator's reason and message."""
        found = {condition.type: condition for condition in self.status.conditions}
        for step in (ConditionType.ACCEPTED, ConditionType.PLACED, ConditionType.TRAINING, ConditionType.COMPLETE):
            condition = found.get(step)
            if condition is None:
                return f"{step} is not known yet"
            if condition.status.value != "True":
                text = f"{step}={condition.status.value} {condition.reason}"
                message = self.message(condition)
                progress = self.status.progress
                if step == ConditionType.COMPLETE and not message and progress.steps:
                    message = f"it trains, and is at outer step {progress.step} of {progress.steps}"
                return f"{text}: {message}" if message else text
        return ""


@dataclass(frozen=True, slots=True)
class Line:
    """One change."""

    kind: str
    """condition, unit, pool, progress, event, fault, log or note."""
    job: str
    text: str
    warning: bool = False
    unit: str = ""

    def as_json(self) -> dict[str, Any]:
        unit = {"unit": self.unit} if self.unit else {}
        return {"type": self.kind, "job": self.job, **unit, "warning": self.warning, "message": self.text}


def changes(old: JobView | None, new: JobView) -> list[Line]:
    """Return a line for everything that changed, in the order of cause: conditions, pools, units, progress."""
    before = old.status if old else Status()
    return [
        *_condition_changes(before, new),
        *_pool_changes(before, new),
        *_unit_changes(before, new),
        *_progress(before, new),
    ]


def _condition_changes(before: Status, new: JobView) -> Iterator[Line]:
    known = {condition.type: condition for condition in before.conditions}
    for condition in new.status.conditions:
        old = known.get(condition.type)
        if old and (old.status, old.reason) == (condition.status, condition.reason):
            continue
        true = condition.status is ConditionStatus.TRUE
        if old is None and not true and condition.type in (ConditionType.DEGRADED, ConditionType.SUSPENDED, *TERMINAL):
            continue  # every job begins like this
        reason = _reason(condition)
        if reason is not None and (reason.severity is Severity.SILENT or reason.concern is Concern.SUSPENSION):
            continue  # another condition says it, or it belongs to every start
        text = f"{condition.type}={condition.status.value} {condition.reason}"
        warning = _is_alarm(condition, old, reason)
        message = new.message(condition)
        yield Line("condition", new.name, f"{text}: {message}" if message else text, warning)


def _reason(condition: Condition) -> ConditionReason | None:
    """Look the reason up in the table; None: another release has this reason."""
    reasons = CONDITION_REASONS[ConditionType(condition.type)] if condition.type in set(ConditionType) else ()
    return next((reason for reason in reasons if reason.value == condition.reason), None)


def _is_alarm(condition: Condition, old: Condition | None, reason: ConditionReason | None) -> bool:
    """Judge a change as its Event does: what is no change for the worse is no alarm. A job that starts does not train yet."""
    if condition.type == ConditionType.TRAINING:
        return old is not None and old.status is ConditionStatus.TRUE and (reason is None or reason.severity is Severity.WARNING)
    if reason is not None:
        return reason.severity is Severity.WARNING
    return (condition.status is ConditionStatus.TRUE) == (condition.type in (ConditionType.DEGRADED, ConditionType.FAILED))


def _pool_changes(before: Status, new: JobView) -> Iterator[Line]:
    known = {pool.name: pool for pool in before.pools}
    for pool in new.status.pools:
        old = known.get(pool.name)
        if lack_of(pool.reason) not in (Lack.NOTHING, Lack.ROOM_IN_JOB) and (old is None or old.reason != pool.reason):
            yield Line(
                "pool", new.name, f"pool {pool.name} {pool.reason}: {with_remedies(pool.message, pool.remedies or ())}", warning=False
            )


def _unit_changes(before: Status, new: JobView) -> Iterator[Line]:
    known = {unit.name: unit for unit in before.units}
    for unit in new.status.units:
        old = known.get(unit.name)
        if old and (old.state, old.attempt, old.reason, old.slice) == (unit.state, unit.attempt, unit.reason, unit.slice):
            continue
        where = f" on {unit.slice}" if unit.slice else ""
        attempt = f", attempt {unit.attempt}" if unit.attempt else ""
        why = f": {unit.reason}" + (f": {unit.message}" if unit.message else "") if unit.reason else ""
        came = f" (was {old.state})" if old and old.state != unit.state else ""
        recovered = ""
        if unit.state is UnitState.TRAINING and old and old.ended_at is not None and unit.recover_seconds is not None:
            began = f", with {unit.began_with}" if unit.began_with else ""
            recovered = f", recovered in {unit.recover_seconds:.1f} s{began}"
        yield Line("unit", new.name, f"{unit.name} {unit.state}{where}{attempt}{came}{recovered}{why}", _is_warning(unit), unit.name)
    for name in sorted(known.keys() - {unit.name for unit in new.status.units}):
        yield Line("unit", new.name, f"{name} is no longer desired", unit=name)


def _is_warning(unit: UnitStatus) -> bool:
    return unit.state in (UnitState.FAILED, UnitState.BACKING_OFF)


def _progress(before: Status, new: JobView) -> Iterator[Line]:
    progress = new.status.progress
    if not progress.steps:
        return
    stride = max(1, progress.steps // _PROGRESS_LINES)
    if progress.step // stride > before.progress.step // stride or (progress.step == progress.steps > before.progress.step):
        loss = f", loss {loss_text(progress.loss)}" if progress.loss is not None else ""
        text = f"step {progress.step}/{progress.steps}{loss}, {progress.tokens_per_second:,.0f} tokens/s, {progress.tokens:,} tokens"
        yield Line("progress", new.name, text)


def failed_attempts(old: JobView | None, new: JobView) -> list[tuple[UnitStatus, str]]:
    """Return units whose newest attempt has just failed, with the name of its first pod, so that the end of its log can be shown."""
    before = {unit.name: unit for unit in old.status.units} if old else {}

    def just_failed(unit: UnitStatus) -> bool:
        was = before.get(unit.name)
        if was is not None and was.state is UnitState.COMPLETED and unit.state is UnitState.FAILED:  # once the job was done
            return True
        return unit.ended_attempt > (was.ended_attempt if was is not None else 0)

    return [
        (unit, learner_pod_name(new.name, unit.name, unit.ended_attempt, 0))
        for unit in new.status.units
        if just_failed(unit) and unit.state not in (UnitState.COMPLETED, UnitState.DRAINING) and not new.suspend
    ]


def event_line(event: Obj) -> Line:
    """Return a Kubernetes Event as a line."""
    about = event.get("involvedObject") or event.get("regarding") or {}
    text = f"{event.get('reason', '')}: {event.get('message') or event.get('note', '')}"
    return Line("event", about.get("name", ""), text, event.get("type") == "Warning")


_SAID = re.compile(rf"^(?:{EventReason.POOL_CHANGED}: |\w+: (?:[a-z0-9-]+-\d+: |\w+=(?:True|False|Unknown)\b))")


def repeats_status(event: Line) -> bool:
    """Return whether the event is about one unit, pool or condition, whose change of status is a line already."""
    return bool(_SAID.match(event.text))


type Speeds = Mapping[tuple[str, str], float]
"""(job, unit) -> tokens/s while it last trained."""


def remember(speeds: Speeds, view: JobView) -> Speeds:
    """Return the speeds, updated for units that train now. They are kept because all fall to 0 at the end of a job."""
    progress = view.status.progress
    training = {
        (view.name, unit.name): unit.tokens_per_second
        for unit in view.status.units
        if unit.state is UnitState.TRAINING and unit.tokens_per_second and progress.step < progress.steps
    }
    return {**speeds, **training}


def with_speeds(view: JobView, speeds: Speeds) -> JobView:
    """Return the view, with the speed of every unit from when it last trained."""
    units = []
    for unit in view.status.units:
        speed = speeds.get((view.name, unit.name), unit.tokens_per_second)
        units.append(unit.model_copy(update={"tokens_per_second": speed}))
    return replace(view, status=view.status.model_copy(update={"units": tuple(units)}))


def seconds_left(view: JobView, now: float) -> float | None:
    """Estimate the seconds until the last step at the present speed; None: not known. `now` is in seconds since the epoch."""
    when = view.status.progress.estimated_completion
    return max(0.0, when - now) if when is not None and not view.over else None


def result(views: Sequence[JobView]) -> list[dict[str, Any]]:
    """Return the jobs at the end, as JSON."""
    return [
        {
            "namespace": view.namespace,
            "name": view.name,
            "state": view.state.value if view.state is not None else None,
            "reason": view.status.reason,
            "conditions": [condition.model_dump(mode="json", by_alias=True) for condition in view.status.conditions],
            "progress": view.status.progress.model_dump(mode="json", by_alias=True),
            "goodput": view.status.goodput.model_dump(mode="json", by_alias=True) if view.status.goodput is not None else None,
            "model": view.status.model.model_dump(mode="json", by_alias=True) if view.status.model is not None else None,
            "units": [
                unit.model_dump(
                    mode="json",
                    by_alias=True,
                    include={
                        "name", "pool", "slice", "state", "attempt", "restarts", "recover_seconds", "began_with", "reason", "message",
                        *FIGURES.keys() - {"refused"},
                    },
                )
                for unit in view.status.units
            ],
        }
        for view in views
    ]  # fmt: skip
