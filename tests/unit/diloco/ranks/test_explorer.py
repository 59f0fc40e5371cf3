"""Explores how units of one, two and three ranks give their states to each other: orders of messages, ranks that refuse, deaths.

Each invariant has a defect that breaks it; the explorer must find it. So an invariant that holds says something.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
from builders.exploration import examples, exploration, full, until_found
from builders.explored_defects import Broken, looking_for
from builders.explored_rank import FRAGMENTS
from builders.explored_ranks import RANKS, ExploredPeers, ExploredUnits, Unit
from diloco.ranks.leading import LeaderMember
from diloco.ranks.ranks_pb2 import StateSaid, WholeFragment
from diloco.ranks.state_of_rank import StateOfRank
from diloco.recovery.adopted_versions import AdoptedVersions
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

pytestmark = pytest.mark.slow

EVENTS = 60
"""Of a run, at most."""
UNIT = st.sampled_from(sorted(RANKS))
RANK = st.integers(0, max(RANKS.values()) - 1)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Takers that find no donor say so, hundreds of times."""
    caplog.set_level(logging.ERROR, logger="diloco")


def explorer(defect: Callable[[Unit], None] = lambda unit: None) -> type[RuleBasedStateMachine]:
    class Explorer(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.job = ExploredUnits(defect)
            self.all_train()
            self.all_train()

        @rule(unit=UNIT, rank=RANK, receives=st.booleans())
        def moves(self, unit: str, rank: int, *, receives: bool) -> None:
            self.job.moves(unit, rank, receives=receives)

        @rule(unit=UNIT, rank=RANK, messages=st.integers(1, 5))
        def delivers(self, unit: str, rank: int, messages: int) -> None:
            for _ in range(messages):
                self.job.deliver(unit, rank)

        @rule()
        def all_train(self) -> None:
            for unit, ranks in RANKS.items():
                for rank in range(ranks):
                    for _ in range(6):
                        self.job.deliver(unit, rank)
                    self.job.moves(unit, rank, receives=True)

        @rule()
        def broadcasts(self) -> None:
            self.job.broadcast()

        @rule(unit=UNIT)
        def restarts(self, unit: str) -> None:
            """It has the job's parameters soon, and is told of a donor."""
            self.job.broadcast()
            self.job.kill(unit)
            for _ in range(3):
                self.all_train()
                self.job.name_donors()

        @rule(unit=UNIT, rank=RANK, parts=st.integers(1, 4))
        def copies(self, unit: str, rank: int, parts: int) -> None:
            for _ in range(parts):
                self.job.send(unit, rank)
            self.job.moves(unit, rank, receives=False)

        @rule(unit=UNIT)
        def copies_all(self, unit: str) -> None:
            for rank in range(RANKS[unit]):
                self.job.send(unit, rank)
                self.job.moves(unit, rank, receives=False)

        @rule(unit=UNIT, rank=RANK, what=st.sampled_from(["parts", "rests"]))
        def refuses(self, unit: str, rank: int, what: str) -> None:
            self.job.refuse(unit, rank, what)

        @rule(unit=UNIT)
        def dies(self, unit: str) -> None:
            self.job.kill(unit)

        @rule()
        def names_donors(self) -> None:
            self.job.name_donors()

        @invariant()
        def holds(self) -> None:
            self.job.check()

        def teardown(self) -> None:
            if sys.exception() is None:  # else what comes of a broken invariant would hide it
                self.job.finish()

    return Explorer


def test_every_invariant_holds_whatever_comes_in_whatever_order() -> None:
    run_state_machine_as_test(explorer(), settings=exploration(runs=examples(100), events=EVENTS))


# --- defects --------------------------------------------------------------------------------------------------------------
def read_parameters_when_they_are_sent(unit: Unit) -> None:
    for rank in unit.ranks:
        rank.state.late = True


def say_a_version_ahead(unit: Unit) -> None:
    """Each rank says that it has adopted what is yet to come."""
    for process in unit.processes:

        def careless(
            adopted: AdoptedVersions, step_seconds: float, *, readable: bool, give: Callable[..., None] = process.state_donor.at_boundary
        ) -> None:
            ahead = AdoptedVersions(len(adopted.versions))
            ahead.epoch, ahead.versions = adopted.epoch, [version + 1 for version in adopted.versions]
            give(ahead, step_seconds, readable=readable)

        process.state_donor.at_boundary = careless  # type: ignore[method-assign]


def forget_what_is_adopted_meanwhile(unit: Unit) -> None:
    for member in unit.members:
        member._state.adopted = lambda fragment: None
    unit.state.finished = lambda answers: take_all(unit)  # type: ignore[method-assign]


def take_all(unit: Unit) -> Any:
    unit.state._fragments = tuple(range(len(FRAGMENTS)))
    return unit.state.leader.end


def forget_what_ranks_refuse(unit: Unit) -> None:
    """A rank that cannot take a part says that it has all."""
    hear = unit.state.said

    def careless(rank: int, said: StateSaid) -> None:
        if rank and said.error == "it is not taken":
            said.error = ""
            said.whole.extend(
                WholeFragment(fragment=one, version=version) for one, version in enumerate(unit.processes[0].adopted.versions)
            )
        hear(rank, said)

    unit.state.said = careless  # type: ignore[method-assign]
    unit.ranks[0].channel.state_said = careless


def take_before_all_have_agreed(unit: Unit) -> None:
    unit.state._check = lambda rest: unit.state.leader.check(rest)  # type: ignore[method-assign]


def take_alone(unit: Unit) -> None:
    leader: LeaderMember = unit.members[0]
    unit.state.take = leader._carry_out


def train_while_a_copy_comes(unit: Unit) -> None:
    class Careless(ExploredPeers):
        awaited = property(lambda self: not self._taker.begun)

    unit.peers.__class__ = Careless


def do_not_answer(unit: Unit) -> None:
    """A rank that cannot take a part says nothing."""
    for member in unit.members[1:]:
        state: StateOfRank = member._state
        say = state._say
        state._say = lambda said, say=say: None if said.error else say(said)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("invariant_", "defect"),
    [
        ("one step", read_parameters_when_they_are_sent),
        ("as said", say_a_version_ahead),
        full("replayed", forget_what_is_adopted_meanwhile),
        full("whole", forget_what_ranks_refuse),
        ("alike", take_before_all_have_agreed),
        ("alike", take_alone),
        ("first", train_while_a_copy_comes),
        full("progress", do_not_answer),
    ],
)
def test_a_defect_is_found(invariant_: str, defect: Callable[[Unit], None]) -> None:
    with looking_for(invariant_), pytest.raises(Broken, match=f"^{invariant_}:"):
        run_state_machine_as_test(explorer(defect), settings=until_found(events=EVENTS))
