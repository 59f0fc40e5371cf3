"""The view of a job that all commands show, and lines about its changes. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from diloco.wording import loss_text
from diloco_operator.api.conditions import TERMINAL, ConditionType
from diloco_operator.api.consequences import Concern, Follows, Lack
from diloco_operator.api.names import LABEL_HOME, learner_pod_name
from diloco_operator.api.reasons import CONDITION_REASONS, ConditionReason, EventReason, Severity, concern_of, follows, lack_of
from diloco_operator.api.state import JobState, state_on_record
from diloco_operator.api.status import Condition, ConditionStatus, Status, UnitState, UnitStatus
from diloco_operator.api.unit_figures import FIGURES
from diloco_operator.kube.client import Obj
from diloco_operator.kube.fields import printable
from diloco_operator.placement.request import with_remedies

_DECIDING = (
    ConditionType.ACCEPTED,
    ConditionType.FAILED,
    ConditionType.COMPLETE,
    ConditionType.SUSPENDED,
    ConditionType.DEGRADED,
    ConditionType.TRAINING,
)
"""Conditions that can decide a job's state. If several have its reason, the first in this order explains it."""
_PROGRESS_LINES = 20
"""Progress lines from the first to the last step."""


@dataclass(frozen=True, slots=True)
class JobView:
    """One job, as its status has it."""

    namespace: str
    name: str
    suspend: bool
    status: Status
    state: JobState | None = None
    """None if the operator has not seen the job."""
    context: str = ""
    """The kubeconfig's context of its cluster. "" if it is the one of the command."""
    made: bool = False
    """It is a part that the operator at home has made and writes."""

    @classmethod
    def of(cls, obj: Obj, context: str = "") -> JobView:
        # A user who may write the status must not be able to send escape sequences to the terminals of others.
        metadata, status = obj["metadata"], printable(obj.get("status") or {})
        checked = Status.model_validate(status)
        return cls(
            metadata.get("namespace", "default"),
            metadata["name"],
            bool(obj["spec"].get("suspend")),
            checked,
            state_on_record(status),
            context,
            LABEL_HOME in (metadata.get("labels") or {}),
        )

    @property
    def flags(self) -> str:
        """What a command for the job adds to its name."""
        return f"-n {self.namespace}{flag_of(self.context)}"

    def holds(self, type: str) -> bool:
        return any(condition.type == type and condition.status.value == "True" for condition in self.status.conditions)

    def refused(self) -> Condition | None:
        """The condition Accepted if it is False, else None. Its message says why the operator cannot act on the spec."""
        accepted = self.status.condition(ConditionType.ACCEPTED)
        return accepted if accepted is not None and accepted.status is ConditionStatus.FALSE else None

    @property
    def reason_text(self) -> str:
        """The reason of its state in brackets, after a space. "" if it says no more than the state."""
        return f" ({self.status.reason})" if self.status.reason not in ("", self.state) else ""

    @property
    def over(self) -> bool:
        return any(self.holds(terminal) for terminal in TERMINAL)

    @property
    def complete(self) -> bool:
        return self.holds(ConditionType.COMPLETE)

    @property
    def failed_at_end(self) -> bool:
        """Whether a program failed once the job was done."""
        return any(follows(unit.reason, Follows.JOB_WAS_DONE) for unit in self.status.units)

    @property
    def is_suspended(self) -> bool:
        """Nothing of the job runs, though it has not ended. `suspend` is what the spec asks for."""
        return self.holds(ConditionType.SUSPENDED)

    @property
    def waits_for_home(self) -> bool:
        """Whether it is a part that has given its hardware back because it has not heard of home for too long."""
        return self.state is JobState.SUSPENDED and not self.suspend and self.status.home is not None

    def why(self) -> str:
        """Why the job is in its state: the message of the condition that decides the state."""
        conditions = {condition.type: condition for condition in self.status.conditions}
        if self.waits_for_home and ConditionType.TRAINING in conditions:
            return conditions[ConditionType.TRAINING].message
        reason = self.status.reason
        concern = concern_of(reason)
        if concern is Concern.HARDWARE and ConditionType.PLACED in conditions:
            return conditions[ConditionType.PLACED].message
        if concern is Concern.QUORUM and (missing := self._who_is_missing()):
            return missing
        by_state = ConditionType(self.state.value) if self.state is not None and self.state.value in set(ConditionType) else None
        deciding = [
            conditions[kind]
            for kind in _DECIDING
            if kind in conditions and (conditions[kind].reason == reason if reason else kind is by_state)
        ]
        return deciding[0].message if deciding else self.missing_condition()

    def message(self, condition: Condition) -> str:
        """The condition's message for a line of its own: if learners are missing, Degraded's, because Training only refers to it."""
        quorum = condition.type == ConditionType.TRAINING and concern_of(condition.reason) is Concern.QUORUM
        return (self._who_is_missing() if quorum else "") or condition.message

    def _who_is_missing(self) -> str:
        """The message of Degraded, or "" if Degraded is False or missing."""
        degraded = self.status.condition(ConditionType.DEGRADED)
        return degraded.message if degraded is not None and degraded.status is not ConditionStatus.FALSE else ""

    def missing_condition(self) -> str:
        """The first condition on the way to Complete that is not True, with reason and message, or ""."""
        for step in (ConditionType.ACCEPTED, ConditionType.PLACED, ConditionType.TRAINING, ConditionType.COMPLETE):
            condition = self.status.condition(step)
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


def log_command(job: str, unit: str, flags: str, *, failed: int, newest: int) -> str:
    """The command that prints the log of the attempt that failed."""
    return f"kubectl diloco logs {job} {unit}{' -p' if failed < newest else ''} {flags}"


def flag_of(context: str) -> str:
    """What kubectl adds to a command for a cluster of another context."""
    return f" --context {shlex.quote(context)}" if context else ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line about one change."""

    kind: str
    """`condition`, `unit`, `pool`, `progress`, `event`, `fault`, `log` or `note`."""
    job: str
    text: str
    warning: bool = False
    unit: str = ""

    def as_json(self) -> dict[str, Any]:
        unit = {"unit": self.unit} if self.unit else {}
        return {"type": self.kind, "job": self.job, **unit, "warning": self.warning, "message": self.text}


def changes(old: JobView | None, new: JobView) -> list[Line]:
    """A line for everything that changed. Causes come before effects: conditions, pools, units, progress."""
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
            continue  # every job begins without these conditions
        reason = _reason(condition)
        if reason is not None and (reason.severity is Severity.SILENT or reason.concern is Concern.SUSPENSION):
            continue  # another condition tells this, or it is so at every start
        text = f"{condition.type}={condition.status.value} {condition.reason}"
        warning = _is_alarm(condition, old, reason)
        message = new.message(condition)
        yield Line("condition", new.name, f"{text}: {message}" if message else text, warning)


def _reason(condition: Condition) -> ConditionReason | None:
    """Look up the condition's reason. None if it is of another release."""
    reasons = CONDITION_REASONS[ConditionType(condition.type)] if condition.type in set(ConditionType) else ()
    return next((reason for reason in reasons if reason.value == condition.reason), None)


def _is_alarm(condition: Condition, old: Condition | None, reason: ConditionReason | None) -> bool:
    """Whether the change is for the worse, by the severity of its Event. Training=False is only if the job trained before."""
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
        previous = f" (was {old.state})" if old and old.state != unit.state else ""
        recovered = ""
        if unit.state is UnitState.TRAINING and old and old.ended_at is not None and unit.recover_seconds is not None:
            began = f", with {unit.began_with}" if unit.began_with else ""
            recovered = f", recovered in {unit.recover_seconds:.1f} s{began}"
        yield Line("unit", new.name, f"{unit.name} {unit.state}{where}{attempt}{previous}{recovered}{why}", _is_warning(unit), unit.name)
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
    """Units whose newest attempt has just failed, each with the name of its first pod, whose log can be shown."""
    before = {unit.name: unit for unit in old.status.units} if old else {}

    def just_failed(unit: UnitStatus) -> bool:
        previous = before.get(unit.name)
        # The program failed once the job was done, so no further attempt has ended.
        if previous is not None and previous.state is UnitState.COMPLETED and unit.state is UnitState.FAILED:
            return True
        return unit.ended_attempt > (previous.ended_attempt if previous is not None else 0)

    return [
        (unit, learner_pod_name(new.name, unit.name, unit.ended_attempt, 0))
        for unit in new.status.units
        if just_failed(unit) and unit.state not in (UnitState.COMPLETED, UnitState.DRAINING) and not new.suspend
    ]


def event_line(event: Obj) -> Line:
    about = event.get("involvedObject") or event.get("regarding") or {}
    text = f"{event.get('reason', '')}: {event.get('message') or event.get('note', '')}"
    return Line("event", about.get("name", ""), text, event.get("type") == "Warning")


_REPEATS_STATUS = re.compile(rf"^(?:{EventReason.POOL_CHANGED}: |\w+: (?:[a-z0-9-]+-\d+: |\w+=(?:True|False|Unknown)\b))")


def repeats_status(event: Line) -> bool:
    """Whether the event tells of a change of one unit, pool or condition, for which `changes` has a line already."""
    return bool(_REPEATS_STATUS.match(event.text))


type Speeds = Mapping[tuple[str, str], float]
"""Tokens/s of each (job, unit) when it last trained."""


def remember(speeds: Speeds, view: JobView) -> Speeds:
    """Update the speeds of units that train now. They are remembered because all fall to 0 at the end of a job."""
    progress = view.status.progress
    training = {
        (view.name, unit.name): unit.tokens_per_second
        for unit in view.status.units
        if unit.state is UnitState.TRAINING and unit.tokens_per_second and progress.step < progress.steps
    }
    return {**speeds, **training}


def with_speeds(view: JobView, speeds: Speeds) -> JobView:
    """The view, with the speed that each unit had when it last trained."""
    units = []
    for unit in view.status.units:
        speed = speeds.get((view.name, unit.name), unit.tokens_per_second)
        units.append(unit.model_copy(update={"tokens_per_second": speed}))
    return replace(view, status=view.status.model_copy(update={"units": tuple(units)}))


def seconds_left(view: JobView, now: float) -> float | None:
    """Seconds until the last step at the present speed, or None if not known. `now` is in seconds since the epoch."""
    when = view.status.progress.estimated_completion
    return max(0.0, when - now) if when is not None and not view.over else None


def result(views: Sequence[JobView]) -> list[dict[str, Any]]:
    """The jobs at the end of a run as JSON."""
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
            **_elsewhere(view),
        }
        for view in views
    ]  # fmt: skip


def _elsewhere(view: JobView) -> dict[str, Any]:
    dumped = view.status.model_dump(mode="json", by_alias=True, exclude_none=True, include={"parts", "outside"})
    return {key: entries for key, entries in dumped.items() if entries}
