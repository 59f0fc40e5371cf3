"""Explores a job of three learners, two fragments and six outer steps: orders of messages, duplicates, losses, deaths of every process.

Each invariant has a defect that breaks it; the explorer must find it. So an invariant that holds says something.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
from builders.exploration import examples, exploration, until_found
from builders.explored_defects import Broken, Defect, looking_for
from builders.explored_job import UNITS, ExploredJob
from diloco.algorithm.commit import Redo
from diloco.recovery.process_copy import ProcessCopy
from diloco.syncer.job.donors import Donors
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

pytestmark = pytest.mark.slow

EVENTS = 70
"""Of a run, at most."""
UNIT = st.sampled_from(UNITS)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Takers that find no donor say so, hundreds of times."""
    caplog.set_level(logging.ERROR, logger="diloco.recovery.taking")


def explorer(defect: Defect | None = None) -> type[RuleBasedStateMachine]:
    class Explorer(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.job = ExploredJob(defect)

        @rule(unit=UNIT)
        def join(self, unit: str) -> None:
            self.job.join(unit)

        @rule(unit=UNIT, event=st.sampled_from(["step", "deliver", "receive", "repeat", "give", "take"]))
        def one_event(self, unit: str, event: str) -> None:
            getattr(self.job, event)(unit)

        @rule(unit=UNIT, twice=st.booleans())
        def trains(self, unit: str, *, twice: bool = False) -> None:
            """A step, and all that is on the way to and from the unit. `twice`: what it answers comes twice, the second time later."""
            self.job.step(unit)
            while self.job.up[unit] or (self.job.down[unit] and self.job.processes[unit].joined):
                self.job.deliver(unit)
                self.job.receive(unit)
                if twice and not self.job.down[unit]:
                    self.job.repeat(unit)
                    self.job.deliver(unit)
                    return

        @rule()
        def all_train(self) -> None:
            for unit in UNITS:
                self.job.join(unit)
                self.trains(unit)
            self.job.name_donors()

        @rule(unit=UNIT)
        def restarts(self, unit: str) -> None:
            self.job.kill(unit)
            self.job.join(unit)
            while self.job.down[unit]:
                self.job.receive(unit)
            self.job.name_donors()

        @rule(unit=UNIT, parts=st.integers(0, 4), boundary=st.booleans())
        def copies(self, unit: str, parts: int, *, boundary: bool) -> None:
            """Some of what a taker waits for."""
            self.job.name_donors()
            for _ in range(parts):
                self.job.give(unit)
            if boundary:
                self.job.take(unit)

        @rule(event=st.sampled_from(["write", "write", "write", "save", "crash", "name_donors"]))
        def of_the_syncer(self, event: str) -> None:
            getattr(self.job, event)()

        @rule(unit=UNIT, event=st.sampled_from(["cut", "kill"]))
        def trouble(self, unit: str, event: str) -> None:
            getattr(self.job, event)(unit)

        @invariant()
        def holds(self) -> None:
            self.job.check()

        def teardown(self) -> None:
            if sys.exception() is None:  # else what comes of a broken invariant would hide it
                self.job.finish()

    return Explorer


def test_every_invariant_holds_whatever_comes_in_whatever_order() -> None:
    run_state_machine_as_test(explorer(), settings=exploration(runs=examples(150), events=EVENTS))


# --- defects --------------------------------------------------------------------------------------------------------------
def name_busy_donors(patch: pytest.MonkeyPatch) -> None:
    """Each taker is answered as if there were no other."""
    name = Donors.name

    def careless(donors: Donors, *arguments: Any) -> Any:
        waiting, given = donors._waiting, donors._given
        found = []
        for unit, taking in waiting.items():
            donors._waiting, donors._given = {unit: taking}, {}
            found += name(donors, *arguments)
            given |= donors._given
        answered = {taking.unit for taking, _ in found}
        donors._waiting, donors._given = {unit: one for unit, one in waiting.items() if unit not in answered}, given
        return found

    patch.setattr(Donors, "name", careless)


def take_older_parameters(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProcessCopy, "_is_new", lambda *_: True)


def redo_at_another_rate(patch: pytest.MonkeyPatch) -> None:
    repeat = Redo.repeat
    patch.setattr(Redo, "repeat", lambda self, commit, gradient: repeat(self, commit, gradient * 2))


@pytest.mark.parametrize(
    ("invariant_", "defect"),
    [
        ("durable", Defect.BROADCAST_FIRST),
        ("order", Defect.NO_LANES),
        ("equal bytes", Defect.ROUNDED),
        ("progress", Defect.FORGOTTEN),
        ("no step lost", Defect.LOST_RECORD),
        ("once", Defect.ANY_PULL),
        ("one taker", name_busy_donors),
        ("no older", take_older_parameters),
        ("replay", redo_at_another_rate),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_defect_is_found(invariant_: str, defect: Defect | Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    if not isinstance(defect, Defect):
        defect(monkeypatch)
    with looking_for(invariant_), pytest.raises(Broken, match=f"^{invariant_}:"):
        run_state_machine_as_test(explorer(defect if isinstance(defect, Defect) else None), settings=until_found(events=EVENTS))
