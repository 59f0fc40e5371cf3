"""A taker's way from the syncer's parameters to its first step, on a clock of the test."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from builders.exchange import weights
from builders.momentum_learner import MomentumState
from diloco.algorithm.pieces import Piece
from diloco.learner.peers import Model
from diloco.protocol.diloco_pb2 import Donor, Recovery
from diloco.protocol.incoming_state import ArraysReceived
from diloco.protocol.state_parts import PieceArray
from diloco.recovery.adopted_versions import AdoptedVersions
from diloco.recovery.copying import CopyDone, CopyEvent, CopyFailed
from diloco.recovery.process_copy import SILENCE_SECONDS, ProcessCopy
from diloco.recovery.taking import MOST_ROUNDS, NAME_SECONDS, Taker

W0 = Piece("w0", (0, 0), (16, 8))
SIZE = W0.elements


@dataclass
class ScriptedCopy:
    """What a test lets come."""

    donor: Donor
    heard_at: float
    begun_at: float | None = None
    bytes: int = 0
    cancelled: bool = False
    events: deque[CopyEvent] = field(default_factory=deque)

    def take(self) -> CopyEvent | None:
        return self.events.popleft() if self.events else None

    def cancel(self) -> None:
        self.cancelled = True


class Scene:
    """A taker that has the parameters, all 0, at version 5 of both fragments."""

    def __init__(self, *, stores: bool = False, stored_steps: int = 0) -> None:
        """`stores`: its unit, x, stores its state. `stored_steps`: local steps behind it, as far as they are known."""
        self.now = 100.0
        self.state = MomentumState(weights(0.0))
        self.adopted = AdoptedVersions(2)
        self.adopted.versions = [5, 5]
        self.copies: list[ScriptedCopy] = []
        self.took_back = 0
        self.overwritten = 0
        self.begin, self.finish = self.state.begin, self.state.finish
        model = Model(self._take_back, self._overwritten)
        nothing = lambda: None  # noqa: E731
        self.taker = Taker(self, model, nothing, nothing, self.now, lambda: self.now, "x", stores=stores)  # type: ignore[arg-type]
        self.taker.begin(1.0, 2.0, wanted=True, why="", stored_steps=stored_steps)

    def _take_back(self) -> None:
        self.took_back += 1

    def _overwritten(self) -> None:
        self.overwritten += 1

    def copy_of_peer(self, donor: Donor, on_arrival: Callable[[], None]) -> ProcessCopy:
        self.copies.append(ScriptedCopy(donor, self.now))
        return ProcessCopy(self.copies[-1], self.state.put, {"w0": 0, "w1": 1}, now=lambda: self.now)  # type: ignore[arg-type]

    def copy_of_newest(self, former: Sequence[str], on_arrival: Callable[[], None]) -> ProcessCopy:
        return self.copy_of_peer(Donor(former=former), on_arrival)

    def names(self, unit: str, why: str = "") -> ScriptedCopy:
        self.taker.named(Donor(round=self.taker.message.round, unit=unit, attempt=1, why=why))
        return self.copies[-1]

    def boundary(self, *events: CopyEvent, restarted: bool = False) -> None:
        if events:
            self.copies[-1].events.extend(events)
        self.taker.boundary(self.adopted, restarted=restarted)

    @property
    def said(self) -> Recovery:
        return self.taker.message


def arrays(value: float, versions: Sequence[int] = (5, 5), names: Sequence[str] = ("", "momentum")) -> ArraysReceived:
    return ArraysReceived([PieceArray(W0, name, "float32") for name in names], versions, np.full(SIZE * len(names), value, np.float32))


def test_a_whole_copy_becomes_parameters_and_state() -> None:
    scene = Scene()
    assert (scene.said.phase, scene.said.round) == (Recovery.WANTED, 1)
    scene.names("a")
    assert (scene.said.phase, scene.said.unit) == (Recovery.COPYING, "a")
    scene.boundary(arrays(3.0))
    assert (scene.state.arrays_of_model["w0"] == 3.0).all()
    assert not scene.state.momentum["w0"].any()  # not before all is there
    scene.boundary(CopyDone({"steps": 7}))
    assert (scene.state.momentum["w0"] == 3.0).all()
    assert (scene.state.steps, scene.overwritten, scene.taker.over) == (7, 1, True)
    assert (scene.said.unit, scene.said.t, scene.said.steps) == ("a", 5, 7)


def test_parameters_that_are_older_than_what_was_adopted_meanwhile_are_left_out_and_their_moments_kept() -> None:
    scene = Scene()
    scene.names("a")
    scene.adopted.versions = [9, 5]
    scene.boundary(arrays(3.0, versions=(8, 8)), CopyDone({"steps": 7}))
    assert not scene.state.arrays_of_model["w0"].any()
    assert (scene.state.momentum["w0"] == 3.0).all()


def test_an_answer_to_an_earlier_round_counts_for_nothing() -> None:
    scene = Scene()
    scene.taker.named(Donor(round=0, unit="a"))
    assert scene.said.phase == Recovery.WANTED
    assert scene.copies == []


def test_without_a_donor_it_begins_with_the_syncers_parameters_and_says_why() -> None:
    scene = Scene()
    scene.taker.named(Donor(round=1, why="all others have the state of torch SGD"))
    assert (scene.said.phase, scene.said.why) == (Recovery.OVER, "all others have the state of torch SGD")
    assert scene.took_back == 0  # nothing of a copy was there


def test_a_donor_that_is_silent_is_left_for_another_one() -> None:
    scene = Scene()
    copy = scene.names("a")
    scene.now += SILENCE_SECONDS + 1
    scene.boundary()
    assert copy.cancelled
    assert (scene.said.phase, scene.said.round, list(scene.said.failed)) == (Recovery.WANTED, 2, ["a"])
    assert scene.said.why == "unit a: it sent nothing for 30 s"


def test_a_copy_may_take_hours_as_long_as_something_comes() -> None:
    scene = Scene()
    copy = scene.names("a")
    for _ in range(500):
        scene.now += SILENCE_SECONDS - 1
        copy.heard_at = scene.now
        scene.boundary()
    assert not copy.cancelled
    assert scene.said.phase == Recovery.COPYING


def test_a_syncer_that_names_no_donor_for_long_is_not_waited_for() -> None:
    scene = Scene()
    scene.now += NAME_SECONDS + 1
    scene.boundary()
    assert (scene.said.phase, scene.said.why) == (Recovery.OVER, "the syncer has named no donor for 60 s")


def test_a_restart_of_the_syncer_begins_a_new_round_without_blame() -> None:
    scene = Scene()
    copy = scene.names("a")
    scene.boundary(restarted=True)
    assert copy.cancelled
    assert (scene.said.phase, scene.said.round, list(scene.said.failed)) == (Recovery.WANTED, 2, [])


def test_after_some_donors_it_gives_up_and_nothing_of_their_copies_stays() -> None:
    scene = Scene()
    for number in range(MOST_ROUNDS):
        scene.names(f"u{number}")
        scene.boundary(arrays(3.0), CopyFailed("the connection broke"))
    assert (scene.said.phase, len(scene.said.failed)) == (Recovery.OVER, MOST_ROUNDS)
    assert scene.took_back == 1
    assert not scene.state.momentum["w0"].any()


def test_without_a_donor_it_takes_what_its_unit_has_stored() -> None:
    scene = Scene(stores=True)
    scene.taker.named(Donor(round=1, why="none trains", former=["before"]))
    assert (scene.said.phase, scene.said.unit, scene.said.stored) == (Recovery.COPYING, "x", True)
    assert list(scene.copies[-1].donor.former) == ["before"]
    scene.boundary(arrays(1.0, (), ["momentum"]), CopyDone({"steps": 4}, t=24))
    assert (scene.said.phase, scene.said.stored, scene.said.t, scene.said.why) == (Recovery.OVER, True, 24, "")
    assert scene.state.steps == 4
    assert (scene.state.momentum["w0"] == 1.0).all()
    assert not scene.state.arrays_of_model["w0"].any(), "it holds no parameters"


def test_what_cannot_be_used_of_the_own_state_is_said_beside_why_there_is_no_donor() -> None:
    scene = Scene(stores=True)
    scene.taker.named(Donor(round=1, why="none trains"))
    scene.boundary(CopyFailed("a block is missing"))
    assert (scene.said.phase, scene.said.stored, scene.said.why) == (Recovery.OVER, False, "none trains; a block is missing")
    assert list(scene.said.failed) == []


def test_when_what_its_unit_has_stored_cannot_be_used_donors_with_fewer_steps_are_asked() -> None:
    scene = Scene(stores=True, stored_steps=340)
    assert (scene.said.phase, scene.said.steps) == (Recovery.WANTED, 340)
    scene.names("", "all have fewer steps")
    scene.boundary(CopyFailed("a block is missing"))
    assert (scene.said.phase, scene.said.round, scene.said.steps, list(scene.said.failed)) == (Recovery.WANTED, 2, 0, [])
    scene.names("a")
    scene.boundary(CopyFailed("the connection broke"))
    scene.names("", "none is left")
    assert (scene.said.phase, scene.said.stored) == (Recovery.OVER, False)
    assert scene.said.why == "none is left; a block is missing"


def test_after_some_donors_it_takes_the_own_state_over_the_syncers_parameters() -> None:
    scene = Scene(stores=True)
    for number in range(MOST_ROUNDS):
        scene.names(f"u{number}")
        scene.boundary(arrays(3.0), CopyFailed("the connection broke"))
    assert (scene.said.phase, scene.said.stored) == (Recovery.COPYING, True)
    assert scene.took_back == 1


def test_a_restart_of_the_syncer_while_the_own_state_comes_asks_for_a_donor_again() -> None:
    scene = Scene(stores=True)
    scene.taker.named(Donor(round=1, why="none trains"))
    scene.taker.boundary(scene.adopted, restarted=True)
    assert (scene.said.phase, scene.said.round, scene.said.stored) == (Recovery.WANTED, 2, False)
    assert scene.copies[-1].cancelled


def test_a_rest_that_does_not_fit_is_a_failure_of_the_donor() -> None:
    scene = Scene()
    scene.names("a")
    scene.boundary(arrays(3.0), CopyDone({}))
    assert (scene.said.phase, scene.said.why) == (Recovery.WANTED, "unit a: the donor has counted no steps")


def test_a_process_that_leaves_cancels_the_copy() -> None:
    scene = Scene()
    copy = scene.names("a")
    scene.taker.cancel()
    assert copy.cancelled
    assert scene.taker.over
