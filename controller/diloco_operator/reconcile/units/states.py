"""The states of a learner unit, as one table: how each shows in a status, and what the unit's hardware does. Pure.

Status has a state in two fields, `status.units[].state` and `reason`; `state_of` reads both. The events that change a state are the table
of `transitions`. docs/states.md shows both.

See docs/decisions/0231-states-reasons-words.md.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from diloco_operator.api.phases import Phase, UnitFacts
from diloco_operator.api.reasons import UnitReason
from diloco_operator.api.status import UnitState


class StateRow(NamedTuple):
    """How a state shows in a status."""

    shown: tuple[UnitState, ...]
    """`status.units[].state`."""
    phase: Phase
    """What its hardware does before the unit has trained for the first time, for goodput and the record of a run."""
    meaning: str
    reasons: tuple[UnitReason, ...] = ()
    """Values of `status.units[].reason` that tell it from other states. Empty: all that no other state has."""
    placed: bool | None = None
    """Whether the unit has a slice. None: with or without one."""


_ATTEMPT = (UnitState.STARTING, UnitState.JOINING, UnitState.TRAINING)


class State(enum.Enum):
    """Where a unit is in its life. The first row that fits a unit is its state."""

    # Without an attempt.
    UNWANTED = StateRow(
        (UnitState.PENDING,),
        Phase.OVER,
        "The job does not want it now, or is suspended.",
        (UnitReason.SCALED_DOWN, UnitReason.SUSPENDED),
    )
    COOLING_DOWN = StateRow(
        (UnitState.PENDING,),
        Phase.MISSING,
        "No nodes or quota came for it in time; they are asked for again at `notBefore`.",
        (UnitReason.NOT_PROVISIONED,),
    )
    LOOKING_ELSEWHERE = StateRow(
        (UnitState.PENDING,),
        Phase.MISSING,
        "It gave its slice up, which is no failure; it tries again at `notBefore`, on other nodes first.",
        (UnitReason.UNSCHEDULABLE, UnitReason.NODE_TAKEN, UnitReason.HOST_REFUSED, UnitReason.HOST_CANNOT_PULL),
    )
    PODS_REFUSED = StateRow(
        (UnitState.PENDING,), Phase.MISSING, "The API server rejects its pods.", (UnitReason.PODS_REFUSED,), placed=False
    )
    WAITING_FOR_SLICE = StateRow((UnitState.PENDING,), Phase.MISSING, "It has no slice.", placed=False)
    WAITING_TO_START = StateRow(
        (UnitState.PENDING,), Phase.START, "It has a slice, and something must come or go before its pods.", placed=True
    )
    BACKING_OFF = StateRow((UnitState.BACKING_OFF,), Phase.RECOVERY, "Its attempt failed; the next one starts at `notBefore`.")
    OUT_OF_RESTARTS = StateRow(
        (UnitState.FAILED,), Phase.FAILED, "Given up: its restart budget is used up.", (UnitReason.RESTARTS_EXHAUSTED,)
    )
    FAILED = StateRow((UnitState.FAILED,), Phase.FAILED, "Given up: a restart does not help.")
    COMPLETED = StateRow((UnitState.COMPLETED,), Phase.OVER, "Its program ended with status 0.")
    # With an attempt.
    WAITING_FOR_GRANTOR = StateRow(_ATTEMPT, Phase.MISSING, "Nodes or quota were asked for, and its slice is not known yet.", placed=False)
    PREPARING = StateRow(
        (UnitState.STARTING,),
        Phase.START,
        "Its pods wait for volumes, network or init containers.",
        (UnitReason.STARTING_CONTAINERS,),
        placed=True,
    )
    PULLING = StateRow((UnitState.STARTING,), Phase.START, "Its pods pull images.", (UnitReason.PULLING_IMAGES,), placed=True)
    SCHEDULING = StateRow((UnitState.STARTING,), Phase.START, "Its pods exist, and a scheduler binds them.", placed=True)
    PAUSED = StateRow(
        (UnitState.JOINING, UnitState.TRAINING),
        Phase.PAUSE,
        "Its program takes no steps for a while, as it announced.",
        (UnitReason.PAUSED,),
        placed=True,
    )
    COPYING_STATE = StateRow(
        (UnitState.JOINING,),
        Phase.START,
        "It is connected and takes the current parameters.",
        (UnitReason.TAKING_PARAMETERS,),
        placed=True,
    )
    COMPILING = StateRow(
        (UnitState.JOINING,),
        Phase.COMPILE,
        "It has the parameters; its program compiles, or runs its first step.",
        (UnitReason.FIRST_STEP,),
        placed=True,
    )
    IMPORTING = StateRow(
        (UnitState.JOINING,),
        Phase.START,
        "Its pods run: the program imports and builds its model, connects again after a loss, or has left its loop.",
        placed=True,
    )
    RESTING = StateRow(
        (UnitState.TRAINING,),
        Phase.WAITING,
        "It is ahead of the job, and rests until a quorum trains.",
        (UnitReason.WAITING_FOR_QUORUM,),
        placed=True,
    )
    TRAINING = StateRow((UnitState.TRAINING,), Phase.TRAINING, "It contributes.", placed=True)
    DRAINING = StateRow((UnitState.DRAINING,), Phase.RECONFIGURATION, "It hands back its state before it ends.")

    @property
    def row(self) -> StateRow:
        return self.value

    def fits(self, shown: UnitState, reason: str, *, placed: bool) -> bool:
        """Return whether a unit whose status shows this is in this state. `placed`: it has a slice."""
        row = self.row
        return shown in row.shown and (not row.reasons or reason in row.reasons) and row.placed in (None, placed)


_KNOWN: Mapping[tuple[UnitState, str, bool], State] = {
    (shown, reason, placed): next(state for state in State if state.fits(shown, reason, placed=placed))
    for shown in UnitState
    for reason in ("", *UnitReason)
    for placed in (False, True)
}
"""(`state`, `reason`, has a slice) -> state. A table, because every reconcile reads thousands of records."""


def state_of(unit: UnitFacts) -> State:
    """Return the state of a unit, from its status or its record. A reason that the operator does not know counts as no reason."""
    placed = bool(unit.slice)
    return _KNOWN.get((unit.state, unit.reason, placed)) or _KNOWN[unit.state, "", placed]


def phase_of(unit: UnitFacts, *, trained: bool = False) -> Phase:
    """Return what the unit's hardware does. `trained`: it is known to have trained before, even if it has no committed step."""
    state = state_of(unit)
    # Its pods run already, and only the name of its slice is missing: count it as if it had the slice.
    if state is State.WAITING_FOR_GRANTOR and unit.state is not UnitState.STARTING:
        state = _KNOWN.get((unit.state, unit.reason, True)) or _KNOWN[unit.state, "", True]
    phase = state.row.phase
    again = phase in (Phase.START, Phase.COMPILE) and (trained or unit.steps or unit.restarts)
    return Phase.RECOVERY if again else phase


IDLE = frozenset(
    {
        State.UNWANTED,
        State.COOLING_DOWN,
        State.LOOKING_ELSEWHERE,
        State.PODS_REFUSED,
        State.WAITING_FOR_SLICE,
        State.WAITING_TO_START,
        State.BACKING_OFF,
    }
)
"""No attempt is under way, and another one will follow."""
PENDING = IDLE - {State.BACKING_OFF}
ENDED_IN_FAILURE = frozenset({State.OUT_OF_RESTARTS, State.FAILED})
"""The unit was given up: only a user can start another attempt."""
OVER = ENDED_IN_FAILURE | {State.COMPLETED}
"""No attempt is under way, and none follows by itself."""
ATTEMPT = frozenset(state for state in State if set(state.row.shown) <= set(_ATTEMPT))
"""An attempt is under way."""
ABLE = IDLE | ATTEMPT
"""An attempt is under way, or another one will follow. All other units start no more pods, and hold only what their pods are bound to."""
STARTS = frozenset({State.SCHEDULING, State.PREPARING, State.PULLING, State.WAITING_FOR_GRANTOR})
LIVES = ATTEMPT | {State.DRAINING}
"""An attempt has processes, or had them a moment ago."""
GAVE_SLICE_UP = frozenset({State.COOLING_DOWN, State.LOOKING_ELSEWHERE})
"""No slice came, or the unit gave up the one that it had. Neither is a failure."""
