"""The state of a unit of several ranks: what any number of them gives, any other one takes, all its ranks at once."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.exchange import WAIT_TIMEOUT, until, weights
from builders.explored_rank import Inline, Rank
from builders.local_process import LocalProcess
from builders.momentum_learner import MomentumState
from diloco.algorithm.fragments import make_fragments
from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import Piece, by_tensor, deal, overlap, portion, wholes
from diloco.learner.arrays import ArrayStore
from diloco.learner.incarnations import Incarnations
from diloco.learner.store import Float32Array
from diloco.protocol.diloco_pb2 import Donor, Give
from diloco.protocol.state_parts import PART_ELEMENTS, PieceArray, StateError
from diloco.protocol.state_values import decode, encode
from diloco.ranks import state_of_rank, state_of_unit
from diloco.ranks.following import FollowerMember
from diloco.ranks.orders import TakeState
from diloco.ranks.ranks_pb2 import FromLeader, StateArray, StateOrder, StateRead, StateSaid, StateWrite
from diloco.ranks.state_of_rank import StateOfRank
from diloco.ranks.state_of_unit import StateOfUnit
from diloco.ranks.stream import MOST_BYTES
from diloco.recovery.copying import CopyDone, CopyFailed
from diloco.recovery.state_donor import StateDonor
from diloco.recovery.whole_state import UnitCopy
from diloco.snapshots.stored_state import Block, StoredState, UnitFolder

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
    """Its ranks, which carry out each order at once. `replicated`: each holds all. It is at version 5 of both fragments."""

    def __init__(self, ranks: int, *, replicated: bool = False, seed: int = 0, uri: str = "memory://nowhere") -> None:
        owned = deal(LAYOUT.tensors, ranks)
        held = [wholes(LAYOUT.tensors)] * ranks if replicated else owned
        self.ranks = [OneRank(seed + rank, owned[rank], held[rank]) for rank in range(ranks)]
        self.portions = [[portion(fragment, its) for fragment in FRAGMENTS] for its in owned]
        self.donor: Unit | None = None
        incarnations = Incarnations()
        incarnations.number(b"now")
        self.processes = [
            LocalProcess(LAYOUT, FRAGMENTS, state, owned[rank], incarnations, self._state_donors, rank=rank, uri=uri)
            for rank, state in enumerate(self.ranks)
        ]
        for process in self.processes:
            process.adopted.epoch, process.adopted.versions = 0, [5, 5]
        self.others = [
            StateOfRank(self.processes[rank], self.portions[rank], self._answering(rank), lambda: None) for rank in range(1, ranks)
        ]
        self.state = StateOfUnit(self.processes[0], self.portions[0], self._say, owned, held)
        self.state.take = self._take
        for part in self.parts_of_ranks:
            part._sending = Inline()  # type: ignore[assignment]
        self.step = 0
        self.silent = False
        self.taken: list[TakeState] = []

    @property
    def parts_of_ranks(self) -> list[StateOfRank]:
        return [self.state.leader, *self.others]

    def _state_donors(self, donor: Donor) -> list[StateDonor]:
        assert self.donor is not None
        return [process.state_donor for process in self.donor.processes]

    def _say(self, rank: int, order: StateOrder) -> None:
        if not self.silent:
            self.others[rank - 1].order(StateOrder.FromString(order.SerializeToString()))

    def boundary(self) -> None:
        for process, part in zip(self.processes, self.parts_of_ranks, strict=True):
            process.state_donor.at_boundary(process.adopted, STEP, readable=True)
            part.at_boundary(self.step, STEP, readable=True)

    def adopts(self, fragment: int) -> None:
        """A broadcast of the next version comes to all ranks."""
        for process, part in zip(self.processes, self.parts_of_ranks, strict=True):
            process.adopted.versions[fragment] += 1
            part.adopted(fragment)

    def _take(self, action: TakeState) -> None:
        """As their members do; instead of the framework each rank writes to what it owns alone."""
        self.taken.append(action)
        for state, rank, portions in zip(self.parts_of_ranks, self.ranks, self.portions, strict=True):
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

    def copies(self, donor: Unit) -> UnitCopy:
        """Begin to take what the donor gives."""
        self.donor = donor
        grant = b"%d" % self.state._copy
        donor.state.allow(Give(unit="u", attempt=1, grant=grant))
        self.state.begin()
        return self.state.copy_of_peer(Donor(unit="donor", grant=grant), lambda: None)

    def takes(self, donor: Unit, meanwhile: Callable[[int], None] = lambda part: None) -> None:
        """All that the donor gives. `meanwhile` is called after each part, with its number. Raises StateError."""
        self.finishes(self.copies(donor), donor, meanwhile)

    def finishes(self, copy: UnitCopy, donor: Unit, meanwhile: Callable[[int], None] = lambda part: None) -> None:
        for number in range(20):
            donor.boundary()
            for process in self.processes:
                if process.copies:
                    process.copies[-1].send()
            self.boundary()
            end = copy.go_on(self.processes[0].adopted)
            if isinstance(end, CopyFailed):
                copy.cancel()
                raise StateError(end.why)
            if end is not None:
                try:
                    self.state.finish(end.rest)
                except StateError:
                    copy.cancel()
                    raise
                return
            meanwhile(number)
        raise AssertionError("the copy does not come to its end")

    def stores(self, donor_name: str = "000001-0000000001") -> Sequence[Block]:
        """What its ranks have written, once each has had so many boundaries as it needs."""
        parts = self.state.store(donor_name)

        def all_written() -> Sequence[Block] | None:
            self.boundary()
            return parts.blocks() if parts.done() else None

        blocks: Sequence[Block] = until(all_written, "all ranks have written")
        return blocks

    def rest(self) -> Any:
        staged = self.state.stage_rest()
        self.boundary()
        return staged.wait()


def assert_momentum_of(donor_seed: int, taker: Unit) -> None:
    expected = Unit(1, seed=donor_seed).ranks[0]
    for rank in taker.ranks:
        for piece in rank.held_pieces:
            np.testing.assert_array_equal(piece.of(rank.momentum[piece.tensor]), piece.of(expected.momentum[piece.tensor]))


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("donors", [1, 2, 3])
@pytest.mark.parametrize("replicated", [False, True], ids=["sharded", "replicated"])
def test_any_number_of_ranks_takes_what_any_other_one_gives(donors: int, ranks: int, *, replicated: bool) -> None:
    donor, taker = Unit(donors, seed=7), Unit(ranks, replicated=replicated).forget()
    taker.takes(donor)
    assert_momentum_of(0, taker)
    expected = Unit(1).ranks[0]
    for rank in taker.ranks:
        # What further ranks hold of a parameter is filled by the framework, as of a broadcast.
        for piece in rank.owned_pieces:
            np.testing.assert_array_equal(piece.of(rank.arrays_of_model[piece.tensor]), piece.of(expected.arrays_of_model[piece.tensor]))
    assert taker.taken == [TakeState(1, (0, 1))]
    # The small rest: each rank's own, of another number of ranks that of the first one.
    assert [rank.steps for rank in taker.ranks] == [7 + (number if donors == ranks else 0) for number in range(ranks)]


def elements_given(donor: Unit) -> list[int]:
    """By rank of the donor, in all streams."""
    return [sum(transfer._elements for transfer, _ in process.state_donor._transfers) for process in donor.processes]


def test_ranks_that_are_sharded_alike_exchange_with_one_process_each() -> None:
    donor, taker = Unit(3), Unit(3).forget()
    copy = taker.copies(donor)
    assert [[stream.transfer._elements for stream in process.copies[-1].streams] for process in taker.processes] == [
        [sum(piece.elements for piece in owned) if state_donor == rank else 0 for state_donor in range(3)]
        for rank, owned in enumerate(deal(LAYOUT.tensors, 3))
    ]
    taker.finishes(copy, donor)


def test_each_element_is_read_of_one_rank_where_several_hold_it() -> None:
    donor, taker = Unit(3, replicated=True), Unit(2, replicated=True).forget()
    for rank in donor.ranks:
        for piece in rank.held_pieces:
            own = [one for one in rank.owned_pieces if one.tensor == piece.tensor]
            for arrays in (rank.momentum, rank.arrays_of_model):
                kept = [one.of(arrays[piece.tensor]).copy() for one in own]
                arrays[piece.tensor][...] = np.nan
                for one, values in zip(own, kept, strict=True):
                    one.of(arrays[piece.tensor])[...] = values
    copy = taker.copies(donor)
    assert sum(elements_given(donor)) == LAYOUT.size
    taker.finishes(copy, donor)
    assert_momentum_of(0, taker)


@pytest.mark.parametrize(("donors", "ranks"), [(1, 2), (2, 2), (2, 1), (3, 2)])
@pytest.mark.parametrize("replicated", [False, True], ids=["sharded", "replicated"])
def test_any_number_of_ranks_takes_what_each_of_another_one_has_stored(
    tmp_path: Path, donors: int, ranks: int, *, replicated: bool
) -> None:
    uri = f"file://{tmp_path}"
    donor, taker = Unit(donors, replicated=replicated, seed=7, uri=uri), Unit(ranks, replicated=replicated, uri=uri).forget()
    blocks = donor.stores()
    assert {int(block.file[:5]) for block in blocks} == set(range(donors))
    assert sum(block.bytes for block in blocks) == 4 * LAYOUT.size
    rest = encode(donor.rest())
    state = StoredState("u", 1, 8, 1, 7, donor.ranks[0].kind, LAYOUT.fingerprint, (len(rest), sha256(rest).hexdigest()), blocks)
    UnitFolder(uri).finish(state, rest)
    taker.state.begin()
    copy = taker.state.copy_of_newest((), lambda: None)

    def whole() -> CopyDone | None:
        taker.boundary()
        end = copy.go_on(taker.processes[0].adopted)
        assert not isinstance(end, CopyFailed), end
        return end

    end: CopyDone = until(whole, "all has come")
    assert end.t == 8
    taker.state.finish(end.rest)
    assert_momentum_of(0, taker)
    assert [rank.steps for rank in taker.ranks] == [7 + (number if donors == ranks else 0) for number in range(ranks)]


def test_a_rank_that_cannot_store_its_part_is_named(tmp_path: Path) -> None:
    unit = Unit(2, uri=f"file://{tmp_path}")
    unit.ranks[1].refuses = "stage"
    with pytest.raises(StateError, match="rank 1: it is sharded in another way"):
        unit.stores()
    unit.ranks[1].refuses = ""
    assert unit.stores(), "the next state is stored"


def test_a_donors_rank_that_cannot_read_its_part_ends_the_copy() -> None:
    donor, taker = Unit(2), Unit(2).forget()
    donor.ranks[1].refuses = "stage"
    with pytest.raises(StateError, match="rank 1: it is sharded in another way"):
        taker.takes(donor)
    donor.ranks[1].refuses = ""
    taker.takes(donor)
    assert_momentum_of(0, taker)


def test_what_a_rank_stores_waits_for_what_a_peer_takes(tmp_path: Path) -> None:
    donor, taker = Unit(2, uri=f"file://{tmp_path}"), Unit(2).forget()
    copy = taker.copies(donor)
    parts = donor.state.store("000001-0000000001")
    taker.finishes(copy, donor)
    assert not parts.done(), "it had as many boundaries as it needs"

    def stored() -> bool:
        donor.boundary()
        return parts.done()

    until(stored, "it stores")


def test_each_rank_warms_up_for_what_it_owns(monkeypatch: pytest.MonkeyPatch) -> None:
    unit = Unit(2)
    warmed: dict[int, list[Piece]] = {}

    def noting(number: int) -> Callable[[Sequence[Sequence[Piece]]], None]:
        return lambda parts: warmed.update({number: [one for part in parts for one in part]})

    for number, rank in enumerate(unit.ranks):
        monkeypatch.setattr(rank, "warm_up", noting(number))
    for part in unit.parts_of_ranks:
        part.warm_up()
    for number, rank in enumerate(unit.ranks):
        assert sum(piece.elements for piece in warmed[number]) == sum(piece.elements for piece in rank.owned_pieces)
        assert len(overlap(warmed[number], by_tensor(rank.owned_pieces))) == len(warmed[number])


def test_a_fragment_that_is_adopted_while_the_copy_comes_keeps_what_was_adopted() -> None:
    donor, taker = Unit(2, seed=7), Unit(2).forget()
    taker.takes(donor, lambda part: taker.adopts(0) if part == 0 else None)
    assert taker.taken == [TakeState(1, (1,))]
    for rank in taker.ranks:
        of_fragment = {piece.tensor: piece for piece in rank.owned_pieces}
        for index, fragment in enumerate(FRAGMENTS):
            for tensor in fragment.tensors:
                values = of_fragment[tensor.name].of(rank.arrays_of_model[tensor.name])
                assert values.any() == bool(index), "the framework adopts the other one, which this unit has not"
    assert all(rank.momentum[piece.tensor].any() for rank in taker.ranks for piece in rank.owned_pieces), "its moments are kept"


def test_a_fragment_that_one_rank_has_not_adopted_yet_when_it_has_all_of_it_is_not_taken() -> None:
    donor, taker = Unit(2, seed=7), Unit(2).forget()
    copy = taker.copies(donor)
    # The leader has adopted a broadcast, and its order is on its way to the other rank.
    taker.processes[0].adopted.versions[1] += 1
    taker.state.leader.adopted(1)
    taker.finishes(copy, donor)
    assert taker.taken == [TakeState(1, (0,))]


def test_a_fragment_that_comes_anew_after_its_adoption_is_taken() -> None:
    donor, taker = Unit(2, seed=7), Unit(2).forget()
    taker.takes(donor, lambda part: taker.adopts(0) if part == 0 else None)
    donor.adopts(0)
    taker.takes(donor)
    assert taker.taken[1:] == [TakeState(2, (0, 1))]


def assert_empty(unit: Unit) -> None:
    assert not any(array.any() for rank in unit.ranks for arrays in (rank.momentum, rank.arrays_of_model) for array in arrays.values())


def test_a_parameter_that_a_rank_does_not_own_is_refused() -> None:
    unit = Unit(2)
    other = unit.ranks[0].owned_pieces[0]
    with pytest.raises(StateError, match="this rank owns no"):
        unit.others[0]._put(PieceArray(other, "", "float32"), np.zeros(other.elements, np.float32))


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
        (0, "put", "rank 0: there is no room"),
        (1, "put", "rank 1: there is no room"),
    ],
)
@pytest.mark.parametrize("replicated", [False, True], ids=["sharded", "replicated"])
def test_a_state_that_one_rank_cannot_take_is_nobodys(rank: int, refuses: str, said: str, *, replicated: bool) -> None:
    donor, taker = Unit(3, seed=7), Unit(3, replicated=replicated).forget()
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
        unit.rest()


def test_what_is_on_its_way_to_a_rank_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_of_unit, "MOST_UNWRITTEN", 1)
    donor, taker = Unit(2, seed=7), Unit(2, replicated=True).forget()
    held: list[tuple[int, StateOrder]] = []
    say = taker.state._say

    def hold(rank: int, order: StateOrder) -> None:
        if order.WhichOneof("what") == "write":
            held.append((rank, order))
        else:
            say(rank, order)

    taker.state._say = hold
    copy = taker.copies(donor)
    with pytest.raises(AssertionError, match="does not come to its end"):
        taker.finishes(copy, donor)
    assert len(held) == 1, "the second one waits for the first"
    taker.state._say = say
    say(*held.pop())
    taker.finishes(copy, donor)
    assert_momentum_of(0, taker)


def test_what_a_rank_leaves_to_its_leader_to_pass_on_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_of_rank, "MOST_UNPASSED", 1)
    donor, taker = Unit(2, seed=7), Unit(2, replicated=True).forget()
    monkeypatch.setattr(taker.state, "pass_on", lambda: False)
    copy = taker.copies(donor)
    with pytest.raises(AssertionError, match="does not come to its end"):
        taker.finishes(copy, donor)
    # Each has put one part, with the momentum of several tensors, and takes no further one.
    assert all(process.copies[-1].events for process in taker.processes)
    monkeypatch.undo()
    taker.finishes(copy, donor)
    assert_momentum_of(0, taker)


class Reading:
    """A rank that has been told to read its small rest after local step 5."""

    def __init__(self) -> None:
        self.said: queue.Queue[StateSaid] = queue.Queue()
        self.own = OneRank(3, [], wholes(LAYOUT.tensors))
        process = LocalProcess(LAYOUT, FRAGMENTS, self.own, [], Incarnations(), lambda donor: [])
        self.rank = StateOfRank(process, [], self.said.put, lambda: None)
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


def test_all_ranks_read_after_the_last_step_that_is_released_as_none_may_follow_while_the_unit_rests() -> None:
    unit = Unit(2)
    unit.silent = True
    orders: list[StateOrder] = []
    unit.state._say = lambda rank, order: orders.append(order)
    unit.state.released = 7
    unit.state.stage_rest()
    assert [order.read.step for order in orders] == [7]


def test_a_part_of_one_array_fits_into_one_message() -> None:
    values = bytes(4 * PART_ELEMENTS)
    array = StateArray(name="n" * 64, dtype="bfloat16")
    message = FromLeader(state=StateOrder(number=1 << 40, write=StateWrite(array=array, values=values)))
    assert message.ByteSize() < MOST_BYTES


def test_a_rank_without_inner_state_keeps_nothing_of_what_came_for_its_peers() -> None:
    rank = Rank(1, 2, 1, lambda message, to: None)
    member = FollowerMember(rank.parts(), rank.data, rank.channel, rank.incarnations, None)  # type: ignore[arg-type]
    for _ in range(3):
        rank.welcomed(0)
        member.boundary()
    assert member._for_peers == []
