"""The table of a unit's life: it is whole, it is the only way to change a state, and the document shows it."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import pytest
import states_docs
from diloco_operator.api.phases import Phase
from diloco_operator.api.reasons import UnitReason
from diloco_operator.api.status import UnitState
from diloco_operator.reconcile.observe.unit_status import LIVE, UnitStatusRecord, read_units
from diloco_operator.reconcile.units.states import LIVES, State, phase_of, state_of
from diloco_operator.reconcile.units.transitions import ImpossibleTransitionError, UnitEvent, transition

ROOT = Path(__file__).parents[4]
CONTROLLER = ROOT / "controller" / "diloco_operator"
_OF_A_STATE = {"state", "reason", "since", "cause", "paused_until"}
"""Fields of a record that only a transition sets."""
_CORRECTED = {("lifecycle.py", "since")}
"""A time in the future, which an operator wrote whose clock was ahead."""


def a_unit(state: UnitState = UnitState.TRAINING, reason: str = "", **fields: object) -> UnitStatusRecord:
    return UnitStatusRecord("v5p-0", "v5p", state, reason=reason, since=100.0)._replace(**fields)  # type: ignore[arg-type]


# --- the table ----------------------------------------------------------------------------------------------------------
def test_every_state_reason_and_slice_of_a_status_is_one_state() -> None:
    for shown, reason, slice_ in itertools.product(UnitState, ("", "OfAnotherVersion", *UnitReason), ("", "tpu-0")):
        assert shown in state_of(a_unit(shown, reason, slice=slice_)).row.shown


def test_states_with_processes_are_those_that_show_so() -> None:
    assert {shown for state in LIVES for shown in state.row.shown} == LIVE


def test_every_state_is_reached_and_left() -> None:
    assert {state for event in UnitEvent for state in event.row.after} == set(State)
    lead_away = (event.row for event in UnitEvent if not event.row.stays)
    assert {state for row in lead_away for state in row.before if row.after != {state}} == set(State)


def test_every_event_happens_somewhere() -> None:
    text = "\n".join(path.read_text() for path in CONTROLLER.rglob("*.py") if path.name != "transitions.py")
    assert [event.name for event in UnitEvent if f"UnitEvent.{event.name}" not in text] == []


def test_only_transitions_change_a_state() -> None:
    units = CONTROLLER / "reconcile" / "units"
    found = set()
    for path in sorted((CONTROLLER / "reconcile").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or path.name in ("transitions.py", "unit_status.py"):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name == "UnitStatusRecord" or (name == "_replace" and path.parent == units):
                found |= {(path.name, keyword.arg) for keyword in node.keywords if keyword.arg in _OF_A_STATE}
    assert found - _CORRECTED == set()


def test_page_in_the_repository_is_up_to_date() -> None:
    assert (ROOT / "docs" / "states.md").read_text() == states_docs.page(), "run `make docs`"


def test_page_has_every_state_and_every_event() -> None:
    text = states_docs.page()
    assert [state for state in State if f"| {states_docs.name_of(state)} " not in text or state.row.meaning not in text] == []
    assert [event for event in UnitEvent if f"| `{event.name}` " not in text or event.row.meaning not in text] == []


# --- transitions --------------------------------------------------------------------------------------------------------
def test_event_that_is_no_row_for_the_state_is_refused() -> None:
    with pytest.raises(ImpossibleTransitionError, match="unit v5p-0, attempt 1: CRASHED cannot lead from FAILED to BACKING_OFF"):
        transition(a_unit(UnitState.FAILED, attempt=1), UnitEvent.CRASHED, 200.0, UnitReason.CRASHED)


def test_reason_that_makes_it_another_state_than_the_row_says_is_refused() -> None:
    """A unit that is not wanted is no unit that waits for a slice, although both are Pending."""
    with pytest.raises(ImpossibleTransitionError, match="LEFT_OUT cannot lead from WAITING_FOR_SLICE to UNWANTED"):
        transition(a_unit(UnitState.PENDING), UnitEvent.LEFT_OUT, 200.0, UnitReason.SCALED_DOWN)


def test_since_is_when_the_shown_state_changed() -> None:
    joining = a_unit(UnitState.JOINING, UnitReason.TAKING_PARAMETERS, slice="tpu-0")
    compiling = transition(joining, UnitEvent.SEEN, 200.0, UnitReason.FIRST_STEP, shown=UnitState.JOINING)
    training = transition(compiling, UnitEvent.SEEN, 300.0, shown=UnitState.TRAINING)
    assert [(state_of(each), each.since) for each in (joining, compiling, training)] == [
        (State.COPYING_STATE, 100.0),
        (State.COMPILING, 100.0),
        (State.TRAINING, 300.0),
    ]


def test_end_of_an_attempt_is_on_record_with_the_state() -> None:
    unit = a_unit(attempt=3, slice="tpu-0", not_before=50.0, cause="why", paused_until=60.0)
    ended = transition(unit, UnitEvent.GIVEN_UP, 200.0, UnitReason.BAD_CONTRACT, "it failed", failed_attempt=3)
    assert ended == a_unit(UnitState.FAILED, UnitReason.BAD_CONTRACT, attempt=3)._replace(
        message="it failed", since=200.0, ended_attempt=3, failed_attempt=3
    )


def test_status_whose_state_contradicts_its_attempts_is_read_by_these() -> None:
    """No operator writes such a status, but a user who may write it can."""
    units = [
        {"name": "v5p-0", "pool": "v5p", "state": "Failed", "attempt": 2, "endedAttempt": 1},
        {"name": "v5p-1", "pool": "v5p", "state": "Training", "attempt": 2, "endedAttempt": 2},
    ]
    assert [unit.state for unit in read_units({"units": units}).values()] == [UnitState.STARTING, UnitState.PENDING]


@pytest.mark.parametrize(
    ("unit", "phase"),
    [
        (a_unit(UnitState.STARTING), Phase.MISSING),
        (a_unit(UnitState.STARTING, UnitReason.PULLING_IMAGES, slice="tpu-0"), Phase.START),
        (a_unit(UnitState.JOINING, UnitReason.FIRST_STEP, slice="tpu-0"), Phase.COMPILE),
        (a_unit(UnitState.JOINING, UnitReason.FIRST_STEP, slice="tpu-0", restarts=1), Phase.RECOVERY),
        (a_unit(UnitState.TRAINING, UnitReason.WAITING_FOR_QUORUM, slice="tpu-0"), Phase.WAITING),
        (a_unit(UnitState.PENDING, UnitReason.SUSPENDED), Phase.OVER),
    ],
)
def test_phase_of_a_unit_follows_from_its_state_and_whether_it_has_trained(unit: UnitStatusRecord, phase: Phase) -> None:
    assert phase_of(unit) is phase
