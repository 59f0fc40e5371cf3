"""The state of a unit of several ranks, as its leader manages it.

Each rank gives, stores and takes what it owns by itself, over its own connections. So donor and taker may have different numbers of ranks,
sharded in different ways. The leader coordinates what must be common: the small rest, which all ranks read after the same local step, and
the moment at which all take a copy.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diloco.algorithm.pieces import Piece, Portion, by_tensor, overlap, within
from diloco.learner.inner_state import StagedRest
from diloco.learner.store import Float32Array
from diloco.protocol.diloco_pb2 import Donor, Give
from diloco.protocol.state_parts import PieceArray, StateError
from diloco.protocol.state_values import decode, encode
from diloco.ranks.messages import pieces_to_wire
from diloco.ranks.orders import TakeState
from diloco.ranks.ranks_pb2 import StateCopy, StateForget, StateOrder, StatePassed, StateRead, StateRest, StateSaid, StateStore, StateWrite
from diloco.ranks.state_messages import chunks, from_message, to_message
from diloco.ranks.state_of_rank import StateOfRank
from diloco.recovery.adopted_versions import AdoptedVersions
from diloco.recovery.copying import CopyDone, CopyFailed
from diloco.recovery.process_copy import End
from diloco.recovery.process_state import ProcessState
from diloco.snapshots.stored_state import Block, blocks_from_bytes

ANSWER_SECONDS = 120.0
"""How long a rank may take to answer. Its program may evaluate, or be in a step."""
MOST_UNWRITTEN = 16 << 20
"""Bytes that may be on their way to other ranks."""
RANKS = "ranks"
"""Key in the leader's small rest for the rests of the other ranks, rank 1 first."""


@dataclass(slots=True, eq=False)
class _RankAnswer:
    """A rank's answer to an order, as far as it has come."""

    size: int = 0
    """Bytes of values that were sent with the order."""
    data: bytearray = field(default_factory=bytearray, repr=False)
    whole: Mapping[int, int] = field(default_factory=dict)
    """The fragments of a copy that are complete, each with the version that this rank had adopted."""
    bytes: int = 0
    """How much of a copy has come."""
    error: str = ""
    done: bool = False


class StateOfUnit:
    """The `WholeState` of all ranks. The channel's thread calls `said`, any thread `wait` of what is staged, the training thread the rest.

    Each rank keeps its part of a copy until the copy is whole and fits every rank. Then `take` orders all to take it.
    """

    def __init__(
        self,
        process: ProcessState,
        portions: Sequence[Portion],
        say: Callable[[int, StateOrder], None],
        owned: Sequence[Sequence[Piece]],
        held: Sequence[Sequence[Piece]],
    ) -> None:
        """
        Args:
            process: of this rank, the leader
            portions: what the leader owns of each fragment
            say: sends an order to a rank
            owned: the pieces that each rank owns
            held: the pieces that each rank stores. Several ranks may store the same
        """
        # A lambda, because each copy sets another `_on_arrival`.
        self.leader = StateOfRank(process, portions, lambda said: self.said(0, said), lambda: self._on_arrival())
        """This rank's part."""
        self.take: Callable[[TakeState], None] = lambda action: None
        """Orders all ranks, with this one, to take a copy."""
        process.state_donor.stage_rest = self.stage_rest
        self._process = process
        self._say = say
        # Only for tensors that are stored twice: all pieces of many ranks would take 100 MB, and with every parameter sharded over all
        # ranks none is stored twice.
        twice = _stored_twice(owned, held)
        self._held = [by_tensor(piece for piece in pieces if piece.tensor in twice) for pieces in held]
        """For each rank the pieces that it stores of tensors that are stored twice."""
        self._shared = [
            [piece for piece in pieces if piece.tensor in twice and self._is_shared(rank, piece)] for rank, pieces in enumerate(owned)
        ]
        """For each rank the pieces that it owns and others store, too."""
        self._others = range(1, len(owned))
        self._copy = 0
        self._fragments: tuple[int, ...] = ()
        """The fragments of the newest copy whose parameters are taken."""
        self._on_arrival: Callable[[], None] = lambda: None
        self.released = 0
        """How many local steps are released to all ranks."""
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._answers: dict[int, _RankAnswer] = {}
        self._to_pass: deque[tuple[int, StateWrite]] = deque()
        """(rank, what it has copied and others store, too)."""
        self._unwritten = 0
        self._failed = ""
        """Why a rank could not take a part of the present copy. Empty if all could."""

    @property
    def kind(self) -> str:
        return self._process.inner.kind

    @property
    def lent(self) -> bool:
        return self._process.inner.lent

    def allow(self, give: Give) -> None:
        self._process.state_donor.allow(give)
        for rank in self._others:
            self._say(rank, StateOrder(give=give))

    def stage_rest(self) -> StagedRest:
        # Every rank comes to the end of this step, even while the unit rests. There it waits, within `session.step`, for the next release,
        # which takes the same way as this order and comes behind it. So each rank gets the order before it takes another step.
        asked = [self._ask(rank, StateOrder(read=StateRead(step=self.released))) for rank in (0, *self._others)]
        return _GatheredRest(self, asked)

    def store(self, name: str) -> StoredByRanks:
        return StoredByRanks([self._ask(rank, StateOrder(store=StateStore(state=name))) for rank in (0, *self._others)])

    def begin(self) -> None:
        # What is on its way belongs to the copy before this one. Its errors must not count against this one.
        self._wait(lambda: not self._unwritten, "has not taken all of the state")
        self._failed = ""
        self._copy += 1
        with self._changed:
            self._to_pass.clear()
        self.leader.forget(self._copy)
        for rank in self._others:
            self._say(rank, StateOrder(forget=StateForget(copy=self._copy)))

    def copy_of_peer(self, donor: Donor, on_arrival: Callable[[], None]) -> CopyOfRanks:
        self._on_arrival = on_arrival
        orders = [StateOrder(copy=StateCopy(donor=donor, shared=pieces_to_wire(shared))) for shared in self._shared]
        return CopyOfRanks(self, [self._ask(rank, order) for rank, order in enumerate(orders)])

    def copy_of_newest(self, former: Sequence[str], on_arrival: Callable[[], None]) -> CopyOfRanks:
        # Only the leader looks for the newest one, so that all ranks take the same: a process of an earlier attempt may still be storing.
        self._on_arrival = on_arrival
        number, answer = self._answer()
        self.leader.copy_newest(number, former, self._shared[0])
        return CopyOfRanks(self, [answer], self._copy_found)

    def _copy_found(self) -> list[_RankAnswer] | None:
        """Order the other ranks to copy what the leader has found. None while the leader is looking for it."""
        if self.leader.found is None:
            return None
        former, state = self.leader.found.former, self.leader.found.state.name
        orders = [StateCopy(former=former, state=state, shared=pieces_to_wire(self._shared[rank])) for rank in self._others]
        return [self._ask(rank, StateOrder(copy=copy)) for rank, copy in zip(self._others, orders, strict=True)]

    def cancel(self, answers: Sequence[_RankAnswer]) -> None:
        """Let all ranks end their part of the copy that these are the answers of."""
        with self._changed:
            self._answers = {number: answer for number, answer in self._answers.items() if answer not in answers}
        self.leader.forget(self._copy)
        for rank in self._others:
            self._say(rank, StateOrder(forget=StateForget(copy=self._copy)))

    def pass_on(self) -> bool:
        """Send ranks the values that others have copied and they store, too. True if all are on their way. Raises StateError."""
        while not self._failed and self._unwritten < MOST_UNWRITTEN:
            with self._changed:
                if not self._to_pass:
                    return True
                source, write = self._to_pass.popleft()
            array, values = from_message(write.array), np.frombuffer(write.values, np.float32)
            for rank in (0, *self._others):
                if rank == source:
                    continue
                for piece in overlap((array.piece,), self._held[rank]):
                    share = PieceArray(piece, array.name, array.dtype)
                    self._write(rank, share, np.ascontiguousarray(within(piece, array.piece, values)))
            self._tell(source, StateOrder(passed=StatePassed(bytes=len(write.values))))
        if self._failed:
            raise StateError(self._failed)
        return False

    def finish(self, rest: Any) -> None:
        self._check(rest)
        self.take(TakeState(self._copy, self._fragments))

    def finished(self, answers: Sequence[_RankAnswer]) -> CopyDone:
        """Note that all ranks have their part of the copy. Returns its end."""
        # If the unit has adopted a fragment since a rank reported it complete, the copied values are older than the model's.
        adopted = self._process.adopted.versions
        self._fragments = tuple(
            fragment for fragment, version in enumerate(adopted) if all(answer.whole.get(fragment) == version for answer in answers)
        )
        assert self.leader.end is not None
        return self.leader.end

    def said(self, rank: int, said: StateSaid) -> None:
        """Take a part of a rank's answer."""
        with self._changed:
            answer = self._answers.get(said.number)
            if answer is None:
                return  # it is not waited for any more
            answer.data += said.data
            if said.HasField("shared"):
                self._to_pass.append((rank, said.shared))
            if said.last:
                answer.done = True
                answer.error = f"rank {rank}: {said.error}" if said.error else ""
                answer.whole = {fragment.fragment: fragment.version for fragment in said.whole}
                answer.bytes = said.bytes
                del self._answers[said.number]
                if answer.size:
                    self._unwritten -= answer.size
                    self._failed = self._failed or answer.error
            self._changed.notify_all()
        self._on_arrival()

    def wait_for(self, answer: _RankAnswer) -> bytearray:
        """Return what a rank has read. Raises StateError."""
        self._wait(lambda: answer.done, "has not done its part of the state")
        if answer.error:
            raise StateError(answer.error)
        return answer.data

    def _check(self, rest: Any) -> None:
        """Raise StateError unless the copy fits every rank."""
        self._wait(lambda: not self._unwritten, "has not taken all of the state")
        if self._failed:
            raise StateError(self._failed)
        self.leader.check(rest)
        others = rest.get(RANKS, []) if isinstance(rest, Mapping) else []
        answers = []
        for rank in self._others:
            # If the donor has another number of ranks, its rests cannot be matched with this unit's ranks, and all take its leader's.
            data = encode(others[rank - 1] if len(others) == len(self._others) else _of_leader(rest))
            number, answer = self._answer()
            answers.append(answer)
            for chunk, last in chunks(data):
                self._say(rank, StateOrder(number=number, rest=StateRest(data=chunk, last=last)))
        for answer in answers:
            self.wait_for(answer)

    def _answer(self, size: int = 0) -> tuple[int, _RankAnswer]:
        answer = _RankAnswer(size)
        with self._changed:
            # Registered before the order is sent: the answer comes on another thread, perhaps at once.
            number = next(self._numbers)
            self._answers[number] = answer
        return number, answer

    def _ask(self, rank: int, order: StateOrder, size: int = 0) -> _RankAnswer:
        order.number, answer = self._answer(size)
        self._tell(rank, order)
        return answer

    def _tell(self, rank: int, order: StateOrder) -> None:
        if rank:
            self._say(rank, order)
        else:
            self.leader.order(order)

    def _write(self, rank: int, share: PieceArray, values: Float32Array) -> None:
        with self._changed:
            self._unwritten += values.nbytes
        self._ask(rank, StateOrder(write=StateWrite(array=to_message(share), values=values.tobytes())), values.nbytes)

    def _wait(self, come: Callable[[], bool], what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(come, ANSWER_SECONDS):
                raise StateError(f"a rank of this unit {what} for {ANSWER_SECONDS:.0f} s")

    def _is_shared(self, owner: int, piece: Piece) -> bool:
        return any(overlap((piece,), held) for rank, held in enumerate(self._held) if rank != owner)


class CopyOfRanks:
    """The `UnitCopy` of all ranks. Each rank copies what it owns."""

    changed_parameters = False  # each rank keeps the copy beside its model until all take it

    def __init__(self, unit: StateOfUnit, answers: Sequence[_RankAnswer], others: Callable[[], list[_RankAnswer] | None] = list) -> None:
        """
        Args:
            answers: of the ranks that were told to copy
            others: tells the other ranks to copy and returns their answers, or None if it is too early
        """
        self._unit = unit
        self._answers = list(answers)
        self._others: Callable[[], list[_RankAnswer] | None] | None = others
        self.begun_at: float | None = None

    @property
    def bytes(self) -> int:
        return sum(answer.bytes for answer in self._answers)

    def go_on(self, adopted: AdoptedVersions) -> End | None:
        if self.begun_at is None:
            self.begun_at = self._unit.leader.begun_at
        if self._others is not None and (answers := self._others()) is not None:
            self._answers += answers
            self._others = None
        passed_on = self._unit.pass_on()
        if failed := next((answer.error for answer in self._answers if answer.error), ""):
            return CopyFailed(failed)
        if passed_on and self._others is None and all(answer.done for answer in self._answers):
            return self._unit.finished(self._answers)
        return None

    def cancel(self) -> None:
        self._unit.cancel(self._answers)


class StoredByRanks:
    """The `StoredParts` of all ranks. Each rank, also the leader, stages at its own boundaries and ends when it leaves."""

    def __init__(self, answers: Sequence[_RankAnswer]) -> None:
        self._answers = answers

    def at_boundary(self, step_seconds: float) -> None:
        pass

    def done(self) -> bool:
        if error := next((answer.error for answer in self._answers if answer.error), ""):
            raise StateError(error)
        return all(answer.done for answer in self._answers)

    def blocks(self) -> Sequence[Block]:
        return [block for answer in self._answers for block in blocks_from_bytes(answer.data)]

    def end(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class _GatheredRest:
    """The `StagedRest` of all ranks: the leader's, with those of the others under RANKS."""

    unit: StateOfUnit
    asked: Sequence[_RankAnswer]

    def wait(self) -> Any:
        leader, *others = (decode(self.unit.wait_for(answer)) for answer in self.asked)
        return {**leader, RANKS: others}


def _stored_twice(owned: Sequence[Sequence[Piece]], held: Sequence[Sequence[Piece]]) -> set[str]:
    """Return the tensors that the ranks store more elements of than they own. They own each element once."""
    more: Counter[str] = Counter()
    for pieces in held:
        for piece in pieces:
            more[piece.tensor] += piece.elements
    for pieces in owned:
        for piece in pieces:
            more[piece.tensor] -= piece.elements
    return {tensor for tensor, elements in more.items() if elements}


def _of_leader(rest: Any) -> Any:
    return {key: value for key, value in rest.items() if key != RANKS} if isinstance(rest, Mapping) else rest
