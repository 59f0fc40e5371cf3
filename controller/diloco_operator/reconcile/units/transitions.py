"""What can happen to a learner unit, as one table: in which states, which states follow, and which fields of its record it resets. Pure.

Every event goes through `transition`, which sets state, reason, message, `since` and the reset fields together, and refuses what the table
does not have. docs/states.md shows the table.

See docs/decisions/0231-states-reasons-words.md.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, Unpack

from diloco_operator.api.status import UnitState
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units.states import ATTEMPT, ENDED_IN_FAILURE, IDLE, LIVES, OVER, PENDING, STARTS, State, state_of


class EventRow(NamedTuple):
    """What an event does to a unit."""

    before: frozenset[State]
    """States in which it can happen."""
    after: frozenset[State]
    """States to which it can lead."""
    meaning: str
    ends: bool = False
    """It puts the end of the attempt on record."""
    leaves: bool = False
    """The unit loses its slice."""
    forgets: tuple[str, ...] = ()
    """Fields of the record that it sets back to their defaults."""
    stays: bool = False
    """It leaves `state` as it was."""


_PAUSE = ("not_before",)
_LOSS = ("failures", "not_before", "unschedulable", "ended_at")
"""Fields of failures and pauses, which a new start wipes out."""


class UnitEvent(enum.Enum):
    """What can happen to a unit."""

    # It gets a place, or waits for one.
    PLACED = EventRow(
        IDLE, IDLE - {State.WAITING_FOR_SLICE, State.PODS_REFUSED}, "It gets a slice, or keeps the one that it has.", stays=True
    )
    UNPLACED = EventRow(
        IDLE, IDLE - {State.WAITING_TO_START}, "It has no slice any more; it starts no sooner than before.", leaves=True, stays=True
    )
    STARTED = EventRow(
        IDLE,
        frozenset({State.SCHEDULING}),
        "It has a slice, and its pods are created.",
        forgets=(*_PAUSE, "grantor_said"),
    )
    ASKED = EventRow(
        IDLE,
        frozenset({State.WAITING_FOR_GRANTOR}),
        "No slice is free, and a grantor is asked for nodes or quota.",
        leaves=True,
        forgets=(*_PAUSE, "grantor_said"),
    )
    HELD = EventRow(
        IDLE,
        frozenset({State.WAITING_FOR_SLICE, State.PODS_REFUSED, State.WAITING_TO_START}),
        "It could start, and must not yet: a pod must go first, the syncer comes first, or its pods are refused.",
    )
    LEFT_OUT = EventRow(
        IDLE, frozenset({State.WAITING_FOR_SLICE, State.PODS_REFUSED}), "No slice is free for it.", leaves=True, forgets=_PAUSE
    )
    NOT_WANTED = EventRow(IDLE, frozenset({State.UNWANTED}), "The job wants fewer units.", leaves=True, forgets=_PAUSE)
    GRANTED = EventRow(frozenset({State.WAITING_FOR_GRANTOR}), ATTEMPT, "kube-scheduler has bound its pods to its slice.", stays=True)
    # Its attempt goes on.
    FOUND = EventRow(
        IDLE | OVER,
        STARTS,
        "There are pods of an attempt that is not on record: an operator died before it wrote status.",
        forgets=(*_PAUSE, "grantor_said"),
    )
    SEEN = EventRow(ATTEMPT, ATTEMPT, "Its pods, and what the syncer reports, say how far it is.")
    # Its attempt ends.
    GAVE_UP_SLICE = EventRow(
        ATTEMPT,
        frozenset({State.COOLING_DOWN, State.LOOKING_ELSEWHERE}),
        "No nodes came, no scheduler bound its pods, or another operator's learner was first.",
        ends=True,
        leaves=True,
    )
    REFUSED = EventRow(STARTS, frozenset({State.PODS_REFUSED}), "The API server refuses the rest of its pods.", ends=True, leaves=True)
    NEVER_RAN = EventRow(ATTEMPT, PENDING, "Its pods are gone, and none of them ever ran.", ends=True, forgets=_PAUSE)
    DISRUPTED = EventRow(
        LIVES | {State.COMPLETED},
        PENDING,
        "The platform ended it; this does not count against its restart budget.",
        ends=True,
        forgets=_PAUSE,
    )
    DRAINED = EventRow(
        frozenset({State.DRAINING, State.COMPLETED}),
        PENDING,
        "It has handed back its state and ended, as it was asked to.",
        ends=True,
        forgets=(*_PAUSE, "ended_at"),
    )
    CRASHED = EventRow(
        ATTEMPT | {State.COMPLETED}, frozenset({State.BACKING_OFF}), "It failed, and its restart budget has room.", ends=True
    )
    GIVEN_UP = EventRow(
        ATTEMPT | {State.COMPLETED},
        ENDED_IN_FAILURE,
        "It failed, and its restart budget is used up or a restart would not help.",
        ends=True,
        leaves=True,
        forgets=_PAUSE,
    )
    ENDED = EventRow(LIVES, frozenset({State.COMPLETED}), "Its program ended with status 0.", ends=True, forgets=_PAUSE)
    BROKE = EventRow(
        frozenset(State),
        frozenset({State.WAITING_FOR_SLICE}),
        "A defect of the operator: this table lacks what happened to it. Its attempt ends, so that no other unit stops for it.",
        ends=True,
        leaves=True,
    )
    # It has to leave.
    ASKED_TO_LEAVE = EventRow(
        ATTEMPT,
        frozenset({State.DRAINING}),
        "Its slice goes to another job, the job wants fewer units or is suspended, or its node goes.",
    )
    ROLLED_OUT = EventRow(
        ATTEMPT,
        frozenset({State.DRAINING}),
        "The template of its pool changed, and the new one has a place and is admitted. A unit that trains leaves when all others train, "
        "and not while a unit of the new template fails or cannot start: then the roll-out has stopped.",
        forgets=("failures",),
    )
    STILL_DRAINS = EventRow(frozenset({State.DRAINING}), frozenset({State.DRAINING}), "Its pods have not ended yet.", stays=True)
    MADE_WAY = EventRow(
        IDLE,
        frozenset({State.WAITING_FOR_SLICE, State.BACKING_OFF}),
        "Its slice goes to another job, and nothing of it runs.",
        leaves=True,
        stays=True,
    )
    SUSPENDED = EventRow(
        IDLE | OVER,
        frozenset({State.UNWANTED}),
        "The job is suspended, and nothing of it runs.",
        leaves=True,
        forgets=(*_LOSS, "grantor_said"),
    )
    POOL_REMOVED = EventRow(
        IDLE | OVER,
        frozenset({State.UNWANTED}),
        "Its pool has gone from the spec, and only pods that have ended are left.",
        leaves=True,
        forgets=_PAUSE,
    )
    # It starts anew.
    RETRIED = EventRow(
        IDLE | OVER,
        frozenset({State.WAITING_FOR_SLICE}),
        "A user retries the job; it has a new restart budget.",
        leaves=True,
        forgets=_LOSS,
    )
    RENEWED = EventRow(
        ENDED_IN_FAILURE | {State.BACKING_OFF},
        frozenset({State.WAITING_FOR_SLICE, State.WAITING_TO_START}),
        "The template of its pool changed: what failed before says nothing about the new one.",
        forgets=(*_PAUSE, "failures", "template_hash"),
    )
    EXCUSED = EventRow(
        frozenset({State.OUT_OF_RESTARTS}), frozenset({State.BACKING_OFF}), "Its failures happened on one host, which is avoided now."
    )
    # The job ends.
    JOB_COMPLETE = EventRow(
        LIVES | {State.COMPLETED},
        frozenset({State.COMPLETED}),
        "The job is complete.",
        ends=True,
        leaves=True,
        forgets=("not_before", "ended_at", "grantor_said"),
    )
    FAILED_AT_END = EventRow(
        IDLE | OVER | ATTEMPT,
        frozenset({State.FAILED}),
        "The job is complete, and the unit's program ended with an error once the last step was done.",
        ends=True,
        leaves=True,
        forgets=("not_before", "ended_at", "grantor_said"),
    )
    JOB_OVER = EventRow(
        IDLE | LIVES,
        frozenset({State.WAITING_FOR_SLICE}),
        "The job is over, and the unit had not ended by itself.",
        ends=True,
        leaves=True,
        forgets=("not_before", "ended_at", "grantor_said"),
    )

    @property
    def row(self) -> EventRow:
        return self.value


class ImpossibleTransitionError(Exception):
    """An event that the table does not have for a unit in this state: a defect of the operator."""

    def __init__(self, unit: str, why: str) -> None:
        super().__init__(f"unit {unit}, {why}")
        self.unit = unit
        self.why = why


class Changes(TypedDict, total=False):
    """Further fields of a record that an event sets."""

    slice: str
    attempt: int
    ended_attempt: int
    failed_attempt: int
    last_failure: str
    restarts: int
    failures: tuple[float, ...]
    ended_at: float | None
    not_before: float | None
    unschedulable: int
    grantor_said: str
    cause: str
    paused_until: float | None
    template_hash: str


def transition(
    record: UnitStatusRecord,
    event: UnitEvent,
    now: float,
    reason: str = "",
    why: str = "",
    *,
    shown: UnitState | None = None,
    since: float | None = None,
    **changes: Unpack[Changes],
) -> UnitStatusRecord:
    """Return the record after an event. Raises ImpossibleTransitionError if the table does not have it.

    Args:
        reason, why: why the unit is in its new state, as a `UnitReason` and as a message.
        shown: the new `state`, if the event can lead to several.
        since: when it entered that state. None: now, or as before if `state` stays the same.
        changes: further fields that the event sets.
    """
    row = event.row
    if row.stays:
        to = record.state
    elif shown is not None:
        to = shown
    else:
        to = _shown(event)
    if since is None:
        since = record.since if to is record.state and record.since is not None else now
    fields: dict[str, Any] = {**_WIPED[event], **({"ended_attempt": record.attempt} if row.ends else {}), **changes}
    changed = record._replace(**fields, state=to, reason=reason, message=why, since=since)
    before, after = state_of(record), state_of(changed)
    if before not in row.before or after not in row.after:
        raise ImpossibleTransitionError(
            record.name,
            f"attempt {record.attempt}: {event.name} cannot lead from {before.name} to {after.name} "
            f"({to.value}, {reason or 'no reason'}); docs/states.md has the table. Please report this",
        )
    return changed


def _shown(event: UnitEvent) -> UnitState:
    """Return the only `state` that the event leads to."""
    states = _LEADS_TO[event]
    assert len(states) == 1, "where an event has several, the caller says which"
    return states[0]


_LEADS_TO: Mapping[UnitEvent, Sequence[UnitState]] = {
    event: sorted({shown for state in event.row.after for shown in state.row.shown}) for event in UnitEvent
}
_WIPED: Mapping[UnitEvent, Mapping[str, Any]] = {
    event: {
        name: UnitStatusRecord._field_defaults[name]
        for name in (*event.row.forgets, *(("slice",) if event.row.leaves else ()), "cause", "paused_until")
    }
    for event in UnitEvent
}
"""Fields that an event sets back to their defaults, before the caller's changes."""


def new_unit(name: str, pool: str, now: float, reason: str = "", why: str = "") -> UnitStatusRecord:
    return UnitStatusRecord(name, pool, UnitState.PENDING, reason=reason, message=why, since=now)
