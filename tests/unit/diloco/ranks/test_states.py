"""The inner state of a unit of several ranks: what any number of them gives, any other one takes."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from builders.exchange import WAIT_TIMEOUT, weights
from builders.momentum_learner import MomentumState
from diloco.algorithm.fragments import make_fragments
from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import Piece, deal, portion, whole
from diloco.learner.arrays import ArrayStore
from diloco.learner.store import Float32Array
from diloco.protocol.state_parts import PART_ELEMENTS, PieceArray, StateError, cut
from diloco.protocol.state_values import decode, encode
from diloco.ranks import state_of_unit
from diloco.ranks.ranks_pb2 import FromLeader, StateArray, StateOrder, StateRead, StateSaid, StateWrite
from diloco.ranks.state_of_rank import StateOfRank
from diloco.ranks.state_of_unit import StateOfUnit
from diloco.ranks.stream import MOST_BYTES

LAYOUT = Layout(ArrayStore(weights()).specs())


class OneRank(MomentumState):
    """Of the momentum it stores what it holds; elsewhere there is no number."""

    def __init__(self, seed: int, owned: Sequence[Piece], held: Sequence[Piece]) -> None:
        super().__init__(weights())
        self.owned_pieces, self.held_pieces = owned, held
        self.steps = seed
        self.refuses = ""
        for name, array in self.momentum.items():
            values = np.random.default_rng(len(name)).standard_normal(array.shape, np.float32)
            self.momentum[name] = np.full_like(array, np.nan)
            for piece in held:
                if piece.tensor == name:
                    piece.of(self.momentum[name])[...] = piece.of(values)

    def held(self) -> Sequence[Piece]:
        return self.held_pieces

    def put(self, array: PieceArray, values: Float32Array) -> None:
        if self.refuses == "put":
            raise StateError("there is no room")
        super().put(array, values)

    def finish(self, rest: Any) -> None:
        if self.refuses == "finish":
            raise StateError("it does not fit")
        super().finish(rest)

    def stage(self, arrays: Sequence[PieceArray]) -> Any:
        if self.refuses == "stage":
            raise StateError("it is sharded in another way")
        return super().stage(arrays)


class Unit:
    """Its ranks, which carry out each order at once. `replicated`: each holds all."""

    def __init__(self, ranks: int, *, replicated: bool = False, seed: int = 0) -> None:
        owned = deal(LAYOUT.tensors, ranks)
        held = [[whole(spec) for spec in LAYOUT.tensors]] * ranks if replicated else owned
        self.ranks = [OneRank(seed + rank, owned[rank], held[rank]) for rank in range(ranks)]
        self.others = [StateOfRank(state, self._answering(rank)) for rank, state in enumerate(self.ranks) if rank]
        self.state = StateOfUnit(self.ranks[0], self._say, owned, held)
        self.step = 0
        self.silent = False

    def _say(self, rank: int, order: StateOrder) -> None:
        if not self.silent:
            self.others[rank - 1].order(StateOrder.FromString(order.SerializeToString()))
            self.others[rank - 1].at_boundary(self.step, readable=True)

    def _answering(self, rank: int) -> Callable[[StateSaid], None]:
        return lambda said: self.state.said(rank, StateSaid.FromString(said.SerializeToString()))

    def forget(self) -> Unit:
        """It is new."""
        for rank in self.ranks:
            rank.momentum = {name: np.zeros_like(array) for name, array in rank.momentum.items()}
            rank.steps = 0
        return self

    def parts(self) -> list[tuple[list[PieceArray], Float32Array]]:
        """All that it gives."""
        found = []
        for part in cut(LAYOUT.tensors, 50):
            arrays = self.state.arrays(part)
            staged = self.state.stage(arrays)
            found.append((arrays, staged.wait().copy()))
            staged.release()
        return found

    def rest(self) -> Any:
        staged = self.state.stage_rest()
        self.step += 1
        self.state.at_boundary(self.step, self.step, readable=True)
        for rank in self.others:
            rank.at_boundary(self.step, readable=True)
        return decode(encode(staged.wait()))

    def takes(self, donor: Unit) -> None:
        self.state.begin()
        for arrays, values in donor.parts():
            start = 0
            for one in arrays:
                self.state.put(one, values[start : start + one.piece.elements])
                start += one.piece.elements
        self.state.finish(donor.rest())


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("donors", [1, 2, 3])
@pytest.mark.parametrize("replicated", [False, True], ids=["sharded", "replicated"])
def test_any_number_of_ranks_takes_what_any_other_one_gives(donors: int, ranks: int, *, replicated: bool) -> None:
    donor, taker = Unit(donors, seed=7), Unit(ranks, replicated=replicated).forget()
    expected = Unit(1).ranks[0].momentum
    taker.takes(donor)
    for rank in taker.ranks:
        for piece in rank.held_pieces:
            np.testing.assert_array_equal(piece.of(rank.momentum[piece.tensor]), piece.of(expected[piece.tensor]))
    # The small rest: each rank's own, of another number of ranks that of the first one.
    assert [rank.steps for rank in taker.ranks] == [7 + (number if donors == ranks else 0) for number in range(ranks)]


def test_each_element_is_read_of_one_rank_where_several_hold_it() -> None:
    unit = Unit(3, replicated=True)
    for rank in unit.ranks:
        for piece in rank.held_pieces:
            own = [one for one in rank.owned_pieces if one.tensor == piece.tensor]
            kept = [one.of(rank.momentum[piece.tensor]).copy() for one in own]
            rank.momentum[piece.tensor][...] = np.nan
            for one, values in zip(own, kept, strict=True):
                one.of(rank.momentum[piece.tensor])[...] = values
    assert all(np.isfinite(values).all() for _, values in unit.parts())


def test_each_rank_warms_up_for_what_it_owns_of_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    unit = Unit(2)
    warmed: dict[int, list[Piece]] = {}

    def noting(number: int) -> Callable[[Sequence[Sequence[Piece]]], None]:
        return lambda parts: warmed.update({number: sorted(one for part in parts for one in part)})

    for number, rank in enumerate(unit.ranks):
        monkeypatch.setattr(rank, "warm_up", noting(number))
    unit.state.warm_up(cut(LAYOUT.tensors))
    unit.others[0].warm_up([portion(fragment, unit.ranks[1].owned_pieces) for fragment in make_fragments(LAYOUT, 2)])
    # No tensor is larger than a part: of each, all that a rank owns is in one.
    assert warmed == {number: sorted(rank.owned_pieces) for number, rank in enumerate(unit.ranks)}


def test_it_gives_no_parameters_and_takes_none() -> None:
    unit = Unit(2)
    whole_of_it = [whole(spec) for spec in LAYOUT.tensors]
    assert {one.name for one in unit.state.arrays(whole_of_it)} == {"momentum"}
    with pytest.raises(StateError, match="parameters, which a unit of several processes takes of the syncer alone"):
        unit.state.put(PieceArray(whole_of_it[0], "", "float32"), np.zeros(whole_of_it[0].elements, np.float32))


def test_a_rank_that_cannot_read_its_part_is_named() -> None:
    unit = Unit(2)
    unit.ranks[1].refuses = "stage"
    with pytest.raises(StateError, match="rank 1: it is sharded in another way"):
        unit.parts()
    unit.ranks[1].refuses = ""
    assert unit.parts(), "the next state is stored"


def test_a_copy_that_one_rank_could_not_take_is_nobodys_state() -> None:
    donor, taker = Unit(2, seed=7), Unit(2).forget()
    taker.ranks[1].refuses = "put"
    with pytest.raises(StateError, match="rank 1: there is no room"):
        taker.takes(donor)
    assert [rank.taken for rank in taker.ranks] == [0, 0]
    taker.ranks[1].refuses = ""
    taker.takes(donor)
    assert [rank.taken for rank in taker.ranks] == [1, 1], "another copy may follow"


def test_a_state_that_does_not_fit_the_leader_is_nobodys() -> None:
    donor, taker = Unit(2, seed=7), Unit(2).forget()
    taker.ranks[0].refuses = "finish"
    with pytest.raises(StateError, match="it does not fit"):
        taker.takes(donor)
    assert [rank.taken for rank in taker.ranks] == [0, 0]


def test_ranks_that_would_differ_end_the_unit() -> None:
    donor, taker = Unit(2, seed=7), Unit(2).forget()
    taker.ranks[1].refuses = "finish"
    with pytest.raises(RuntimeError, match="rank 0 has taken the state, and rank 1: it does not fit"):
        taker.takes(donor)


def test_a_rank_that_does_not_answer_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_of_unit, "ANSWER_SECONDS", 0.01)
    unit = Unit(2)
    unit.silent = True
    with pytest.raises(StateError, match="a rank of this unit has not done its part of the state"):
        unit.parts()


def test_what_is_on_its_way_to_a_rank_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_of_unit, "MOST_UNWRITTEN", 1)
    unit = Unit(2)
    unit.state.begin()
    held: list[StateOrder] = []
    unit.state._say = lambda rank, order: held.append(order)
    piece = unit.ranks[1].held_pieces[0]
    array, values = PieceArray(piece, "momentum", "float32"), np.zeros(piece.elements, np.float32)
    unit.state.put(array, values)
    second = threading.Thread(target=unit.state.put, args=(array, values))
    second.start()
    assert len(held) == 1, "the second one waits for the first"
    unit.others[0].order(held[0])
    second.join(WAIT_TIMEOUT)
    assert not second.is_alive()
    assert len(held) == 2


class Reading:
    """A rank that has been told to read its small rest after local step 5."""

    def __init__(self) -> None:
        self.said: queue.Queue[StateSaid] = queue.Queue()
        self.own = OneRank(3, [], [whole(spec) for spec in LAYOUT.tensors])
        self.rank = StateOfRank(self.own, self.said.put)
        self.rank.order(StateOrder(number=1, read=StateRead(step=5)))

    def answer(self) -> StateSaid:
        found = self.said.get(timeout=WAIT_TIMEOUT)
        self.rank.close()
        return found


def test_the_small_rest_is_read_after_one_local_step_of_all_ranks() -> None:
    reading = Reading()
    reading.rank.at_boundary(4, readable=True)
    reading.rank.at_boundary(5, readable=False)  # the program is in its next step
    reading.own.steps = 5
    reading.rank.at_boundary(5, readable=True)
    reading.own.steps = 6
    assert decode(reading.answer().data) == {"steps": 5}


def test_a_rank_that_could_not_read_after_that_step_says_so() -> None:
    reading = Reading()
    reading.own.lent = True
    reading.rank.at_boundary(5, readable=True)
    reading.own.lent = False
    reading.rank.at_boundary(6, readable=True)
    assert reading.answer().error == "its state could not be read after local step 5"


def test_the_step_after_which_all_read_is_one_that_no_rank_may_have_done() -> None:
    unit = Unit(2)
    unit.silent = True
    orders: list[StateOrder] = []
    unit.state._say = lambda rank, order: orders.append(order)
    unit.state.at_boundary(3, released=7, readable=True)
    unit.state.stage_rest()
    assert [order.read.step for order in orders] == [8]


def test_a_part_of_one_array_fits_into_one_message() -> None:
    values = bytes(4 * PART_ELEMENTS)
    array = StateArray(name="n" * 64, dtype="bfloat16")
    message = FromLeader(state=StateOrder(number=1 << 40, write=StateWrite(array=array, values=values)))
    assert message.ByteSize() < MOST_BYTES
    assert math.prod((512, 512)) == PART_ELEMENTS
