"""The state of a unit of several ranks: what any number of them gives, any other one takes, all its ranks at once."""

from __future__ import annotations

import itertools
import math
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.exchange import WAIT_TIMEOUT, until, weights
from builders.momentum_learner import MomentumState
from builders.stored_states import stores_nothing
from diloco.algorithm.fragments import make_fragments
from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import Piece, deal, portion, whole
from diloco.learner.arrays import ArrayStore
from diloco.learner.store import Float32Array
from diloco.protocol.state_parts import PART_ELEMENTS, PieceArray, StateError, cut
from diloco.protocol.state_values import decode, encode
from diloco.ranks import state_of_unit
from diloco.ranks.orders import TakeState
from diloco.ranks.ranks_pb2 import FromLeader, StateArray, StateOrder, StateRead, StateSaid, StateWrite
from diloco.ranks.state_messages import to_message
from diloco.ranks.state_of_rank import StateOfRank
from diloco.ranks.state_of_unit import StateOfUnit
from diloco.ranks.stream import MOST_BYTES
from diloco.snapshots.stored_state import Block, BlockWriter, UnitFolder

LAYOUT = Layout(ArrayStore(weights()).specs())
FRAGMENTS = make_fragments(LAYOUT, 2)
STEP = 0.1
"""Seconds of a local step."""


class OneRank(MomentumState):
    """Of momentum and parameters it stores what it holds; elsewhere there is no number."""

    def __init__(self, seed: int, owned: Sequence[Piece], held: Sequence[Piece]) -> None:
        super().__init__(weights())
        self.owned_pieces, self.held_pieces = owned, held
        self.steps = seed
        self.refuses = ""
        for number, arrays in enumerate((self.momentum, self.arrays_of_model)):
            for name, array in arrays.items():
                values = np.random.default_rng([number, *name.encode()]).standard_normal(array.shape, np.float32)
                arrays[name] = np.full_like(array, np.nan)
                for piece in held:
                    if piece.tensor == name:
                        piece.of(arrays[name])[...] = piece.of(values)

    def held(self) -> Sequence[Piece]:
        return self.held_pieces

    def put(self, array: PieceArray, values: Float32Array) -> None:
        if self.refuses == "put":
            raise StateError("there is no room")
        super().put(array, values)

    def check(self, rest: Any) -> None:
        if self.refuses == "check":
            raise StateError("it does not fit")
        super().check(rest)

    def finish(self, rest: Any) -> None:
        if self.refuses == "finish":
            raise StateError("the program does not take it")
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
        self.portions = [[portion(fragment, its) for fragment in FRAGMENTS] for its in owned]
        self.others = [
            StateOfRank(state, self.portions[rank], self._answering(rank), self._writer(rank))
            for rank, state in enumerate(self.ranks)
            if rank
        ]
        self.state = StateOfUnit(self.ranks[0], self._say, owned, held, FRAGMENTS, self._writer(0))
        self.state.take = self._take
        self.step = 0
        self.uri = "memory://nowhere"
        """Where it stores its state."""
        self.silent = False
        self.taken: list[TakeState] = []

    def _writer(self, rank: int) -> Callable[[str], BlockWriter]:
        return lambda name: BlockWriter(UnitFolder(self.uri), name, rank)

    def _say(self, rank: int, order: StateOrder) -> None:
        if not self.silent:
            self.others[rank - 1].order(StateOrder.FromString(order.SerializeToString()))
            self.others[rank - 1].at_boundary(self.step, STEP, readable=True)

    def _take(self, action: TakeState) -> None:
        """As their members do; instead of the framework each rank writes to what it owns alone."""
        self.taken.append(action)
        for state, rank, portions in zip((self.state.leader, *self.others), self.ranks, self.portions, strict=True):
            for fragment, values in state.parameters(action.copy, action.fragments):
                for piece, at in portions[fragment].slices():
                    piece.of(rank.arrays_of_model[piece.tensor])[...] = values[at].reshape(piece.size)
            state.finish()

    def _answering(self, rank: int) -> Callable[[StateSaid], None]:
        return lambda said: self.state.said(rank, StateSaid.FromString(said.SerializeToString()))

    def forget(self) -> Unit:
        """It is new."""
        for rank in self.ranks:
            for arrays in (rank.momentum, rank.arrays_of_model):
                arrays.update({name: np.zeros_like(array) for name, array in arrays.items()})
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
        self.state.at_boundary(self.step, self.step, STEP, readable=True)
        for rank in self.others:
            rank.at_boundary(self.step, STEP, readable=True)
        return decode(encode(staged.wait()))

    def takes(self, donor: Unit, meanwhile: Callable[[int], None] = lambda part: None) -> None:
        """All that the donor gives. `meanwhile` is called after each part, with its number."""
        self.state.begin()
        for number, (arrays, values) in enumerate(donor.parts()):
            start = 0
            for one in arrays:
                self.state.put(one, values[start : start + one.piece.elements])
                start += one.piece.elements
            meanwhile(number)
        self.state.finish(donor.rest())


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("donors", [1, 2, 3])
@pytest.mark.parametrize("replicated", [False, True], ids=["sharded", "replicated"])
def test_any_number_of_ranks_takes_what_any_other_one_gives(donors: int, ranks: int, *, replicated: bool) -> None:
    donor, taker = Unit(donors, seed=7), Unit(ranks, replicated=replicated).forget()
    expected = Unit(1).ranks[0]
    taker.takes(donor)
    for rank in taker.ranks:
        for piece in rank.held_pieces:
            np.testing.assert_array_equal(piece.of(rank.momentum[piece.tensor]), piece.of(expected.momentum[piece.tensor]))
        # What further ranks hold of a parameter is filled by the framework, as of a broadcast.
        for piece in rank.owned_pieces:
            np.testing.assert_array_equal(piece.of(rank.arrays_of_model[piece.tensor]), piece.of(expected.arrays_of_model[piece.tensor]))
    assert taker.taken == [TakeState(1, (0, 1))]
    # The small rest: each rank's own, of another number of ranks that of the first one.
    assert [rank.steps for rank in taker.ranks] == [7 + (number if donors == ranks else 0) for number in range(ranks)]


def stored(unit: Unit) -> Sequence[Block]:
    """What its ranks have written, once each has had so many boundaries as it needs."""
    parts = unit.state.store("000001-0000000001")

    def all_written() -> Sequence[Block] | None:
        unit.state.at_boundary(unit.step, unit.step, STEP, readable=True)
        for rank in unit.others:
            rank.at_boundary(unit.step, STEP, readable=True)
        return parts.blocks() if parts.done() else None

    blocks: Sequence[Block] = until(all_written, "all ranks have written")
    return blocks


@pytest.mark.parametrize(("donors", "ranks"), [(1, 2), (2, 2), (2, 1), (3, 2)])
@pytest.mark.parametrize("replicated", [False, True], ids=["sharded", "replicated"])
def test_any_number_of_ranks_takes_what_each_of_another_one_has_stored(
    tmp_path: Path, donors: int, ranks: int, *, replicated: bool
) -> None:
    donor, taker = Unit(donors, replicated=replicated, seed=7), Unit(ranks).forget()
    donor.uri = f"file://{tmp_path}"
    blocks = stored(donor)
    assert {int(block.file[:5]) for block in blocks} == set(range(donors))
    assert sum(block.bytes for block in blocks) == 4 * sum(math.prod(spec.shape) for spec in LAYOUT.tensors)
    taker.state.begin()
    for block in blocks:
        values = np.fromfile(tmp_path / "000001-0000000001" / block.file, "<f4")
        for one in block.arrays:
            taker.state.put(one, values[: one.piece.elements])
            values = values[one.piece.elements :]
    taker.state.finish(donor.rest())
    expected = Unit(1).ranks[0]
    for rank in taker.ranks:
        for piece in rank.held_pieces:
            np.testing.assert_array_equal(piece.of(rank.momentum[piece.tensor]), piece.of(expected.momentum[piece.tensor]))


@pytest.mark.parametrize("give", [Unit.parts, stored], ids=["to a peer", "to a file"])
def test_a_rank_that_cannot_read_its_part_is_named(tmp_path: Path, give: Callable[[Unit], object]) -> None:
    unit = Unit(2)
    unit.uri = f"file://{tmp_path}"
    unit.ranks[1].refuses = "stage"
    with pytest.raises(StateError, match="rank 1: it is sharded in another way"):
        give(unit)
    unit.ranks[1].refuses = ""
    assert unit.parts(), "the next state is given"


def test_what_a_leader_stores_waits_for_what_a_peer_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = Unit(2)
    unit.uri = f"file://{tmp_path}"
    staged: list[Sequence[PieceArray]] = []
    own = unit.ranks[0].stage

    def stage(arrays: Sequence[PieceArray]) -> Any:
        staged.append(arrays)
        return own(arrays)

    monkeypatch.setattr(unit.ranks[0], "stage", stage)
    unit.state.store("000001-0000000001")
    unit.state.stage(unit.state.arrays(cut(LAYOUT.tensors, 50)[0])).wait()
    del staged[:]
    unit.state.at_boundary(1, 1, STEP, readable=True)
    assert not staged
    unit.state.at_boundary(2, 2, STEP, readable=True)
    assert [{one.name for one in arrays} for arrays in staged] == [{"momentum"}], "no peer was given anything since"


def test_each_element_is_read_of_one_rank_where_several_hold_it() -> None:
    unit = Unit(3, replicated=True)
    for rank in unit.ranks:
        for piece in rank.held_pieces:
            own = [one for one in rank.owned_pieces if one.tensor == piece.tensor]
            for arrays in (rank.momentum, rank.arrays_of_model):
                kept = [one.of(arrays[piece.tensor]).copy() for one in own]
                arrays[piece.tensor][...] = np.nan
                for one, values in zip(own, kept, strict=True):
                    one.of(arrays[piece.tensor])[...] = values
    assert all(np.isfinite(values).all() for _, values in unit.parts())


def test_each_rank_warms_up_for_what_it_owns_of_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    unit = Unit(2)
    warmed: dict[int, list[Piece]] = {}

    def noting(number: int) -> Callable[[Sequence[Sequence[Piece]]], None]:
        return lambda parts: warmed.update({number: sorted(one for part in parts for one in part)})

    for number, rank in enumerate(unit.ranks):
        monkeypatch.setattr(rank, "warm_up", noting(number))
    unit.state.warm_up(cut(LAYOUT.tensors))
    unit.others[0].warm_up()
    # No tensor is larger than a part: of each, all that a rank owns is in one.
    assert warmed == {number: sorted(rank.owned_pieces) for number, rank in enumerate(unit.ranks)}


def test_a_fragment_that_is_adopted_while_the_copy_comes_keeps_what_was_adopted() -> None:
    donor, taker = Unit(2, seed=7), Unit(2).forget()
    taker.takes(donor, lambda part: taker.state.adopted(0) if part == 1 else None)
    assert taker.taken == [TakeState(1, (1,))]
    for rank in taker.ranks:
        of_fragment = {piece.tensor: piece for piece in rank.owned_pieces}
        for index, fragment in enumerate(FRAGMENTS):
            for tensor in fragment.tensors:
                values = of_fragment[tensor.name].of(rank.arrays_of_model[tensor.name])
                assert values.any() == bool(index), "the framework adopts the other one, which this unit has not"
    assert all(rank.momentum[piece.tensor].any() for rank in taker.ranks for piece in rank.owned_pieces), "its moments are kept"


def test_a_fragment_that_comes_anew_after_its_adoption_is_taken() -> None:
    donor, taker = Unit(2, seed=7), Unit(2).forget()
    taker.takes(donor, lambda part: taker.state.adopted(0) if part == 0 else None)
    assert taker.taken == [TakeState(1, (1,))]
    taker.takes(donor)
    assert taker.taken[1:] == [TakeState(2, (0, 1))]


def assert_empty(unit: Unit) -> None:
    assert not any(array.any() for rank in unit.ranks for arrays in (rank.momentum, rank.arrays_of_model) for array in arrays.values())


def test_a_parameter_that_a_rank_does_not_own_is_refused() -> None:
    unit = Unit(2)
    other = unit.ranks[0].owned_pieces[0]
    with pytest.raises(StateError, match="this rank owns no"):
        unit.others[0].write(PieceArray(other, "", "float32"), np.zeros(other.elements, np.float32))


def test_a_rank_that_has_not_found_that_a_copy_fits_does_not_take_it() -> None:
    rank = Unit(2).others[0]
    rank.forget(3)
    with pytest.raises(RuntimeError, match="the leader orders to take copy 3 of a state, and this rank has none"):
        rank.parameters(3, ())
    rank.check({"steps": 1})
    with pytest.raises(RuntimeError, match="the leader orders to take copy 2 of a state"):
        rank.parameters(2, ())
    assert list(rank.parameters(3, ())) == []


@pytest.mark.parametrize(
    ("rank", "refuses", "said"),
    [
        (0, "check", "it does not fit"),
        (1, "check", "rank 1: it does not fit"),
        (2, "check", "rank 2: it does not fit"),
        (1, "put", "rank 1: there is no room"),
    ],
)
def test_a_state_that_one_rank_cannot_take_is_nobodys(rank: int, refuses: str, said: str) -> None:
    donor, taker = Unit(3, seed=7), Unit(3).forget()
    taker.ranks[rank].refuses = refuses
    with pytest.raises(StateError, match=said):
        taker.takes(donor, lambda _: assert_empty(taker))
    assert_empty(taker)
    assert not taker.taken
    taker.ranks[rank].refuses = ""
    taker.takes(donor, lambda _: assert_empty(taker))
    assert [one.taken for one in taker.ranks] == [1, 1, 1], "another copy may follow"


def test_ranks_that_would_differ_end_the_unit() -> None:
    donor, taker = Unit(2, seed=7), Unit(2).forget()
    taker.ranks[1].refuses = "finish"
    with pytest.raises(RuntimeError, match="the others have taken the state, and this one cannot: the program does not take it"):
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
        self.rank = StateOfRank(self.own, [], self.said.put, stores_nothing)
        self.rank.order(StateOrder(number=1, read=StateRead(step=5)))

    def answer(self) -> StateSaid:
        found = self.said.get(timeout=WAIT_TIMEOUT)
        self.rank.close()
        return found


def test_the_small_rest_is_read_after_one_local_step_of_all_ranks() -> None:
    reading = Reading()
    reading.rank.at_boundary(4, STEP, readable=True)
    reading.rank.at_boundary(5, STEP, readable=False)  # the program is in its next step
    reading.own.steps = 5
    reading.rank.at_boundary(5, STEP, readable=True)
    reading.own.steps = 6
    assert decode(reading.answer().data) == {"steps": 5}


def test_a_rank_that_could_not_read_after_that_step_says_so() -> None:
    reading = Reading()
    reading.own.lent = True
    reading.rank.at_boundary(5, STEP, readable=True)
    reading.own.lent = False
    reading.rank.at_boundary(6, STEP, readable=True)
    assert reading.answer().error == "its state could not be read after local step 5"


def a_read(step: int) -> StateOrder:
    array = PieceArray(whole(LAYOUT.tensors[0]), "momentum", "float32")
    return StateOrder(number=2, read=StateRead(arrays=[to_message(array)], step=step))


def test_a_rank_that_is_behind_its_leader_reads_once_it_has_adopted_as_much() -> None:
    reading = Reading()
    reading.rank.order(a_read(3))
    reading.own.momentum["w0"][...] = 1
    reading.rank.at_boundary(2, STEP, readable=True)
    reading.own.momentum["w0"][...] = 2
    reading.rank.at_boundary(4, STEP, readable=True)
    assert set(np.frombuffer(reading.answer().data, np.float32)) == {2.0}


def test_a_rank_reads_for_no_longer_than_a_share_of_its_step() -> None:
    own = OneRank(3, [], [whole(spec) for spec in LAYOUT.tensors])
    ticks = itertools.count()
    rank = StateOfRank(own, [], lambda said: None, stores_nothing, now=lambda: next(ticks) / 1000)  # a millisecond for each read
    for _ in range(10):
        rank.order(a_read(0))
    # 5 % of a step of 90 ms are 4.5 ms: after the fifth read they are over.
    for left in (5, 0):
        rank.at_boundary(1, 0.09, readable=True)
        assert len(rank._reads) == left
    rank.close()


def test_all_ranks_read_after_the_last_step_that_is_released_as_none_may_follow_while_the_unit_rests() -> None:
    unit = Unit(2)
    unit.silent = True
    orders: list[StateOrder] = []
    unit.state._say = lambda rank, order: orders.append(order)
    unit.state.at_boundary(3, 7, STEP, readable=True)
    unit.state.stage_rest()
    assert [order.read.step for order in orders] == [7]


def test_a_part_of_one_array_fits_into_one_message() -> None:
    values = bytes(4 * PART_ELEMENTS)
    array = StateArray(name="n" * 64, dtype="bfloat16")
    message = FromLeader(state=StateOrder(number=1 << 40, write=StateWrite(array=array, values=values)))
    assert message.ByteSize() < MOST_BYTES
