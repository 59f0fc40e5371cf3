"""The state of a unit of several ranks as its leader has it: what a giver reads and a taker writes, divided over the ranks.

What a rank owns is read of it, and what a rank holds is written to it, so that any number of ranks, sharded in any way, gives what any
other one takes. A part is read of each rank at one of its own boundaries, and not before the leader's; the small rest of all after one
local step, as ranks whose counts differ would not stay alike. Of parameters a rank is written what it owns. What is
stored each rank writes itself.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from diloco.algorithm.fragments import Fragment
from diloco.algorithm.pieces import Piece, common, portion
from diloco.learner.inner_state import InnerState, StagedRest
from diloco.learner.store import Float32Array, Staged
from diloco.protocol.state_parts import PieceArray, StateError
from diloco.protocol.state_values import decode, encode
from diloco.ranks.copied_parameters import CopiedFragments
from diloco.ranks.orders import TakeState
from diloco.ranks.ranks_pb2 import StateForget, StateOrder, StateRead, StateRest, StateSaid, StateStore, StateWrite
from diloco.ranks.state_messages import chunks, to_message
from diloco.ranks.state_of_rank import StateOfRank
from diloco.snapshots.stored_state import Block, BlockWriter, blocks_from_bytes

ANSWER_SECONDS = 120.0
"""How long a rank may take to answer: its program may evaluate, or be in a step."""
MOST_UNWRITTEN = 16 << 20
"""Bytes that may be on their way to other ranks."""
MOST_ARRAYS = 4096
"""Arrays that are named in one message."""
RANKS = "ranks"
"""Key of the small rest under which those of the other ranks are, rank 1 first."""


@dataclass(slots=True)
class _Answer:
    """What a rank has said so far to an order."""

    size: int = 0
    """Bytes that were sent with the order."""
    data: bytearray = field(default_factory=bytearray, repr=False)
    error: str = ""
    done: bool = False


class StateOfUnit:
    """An `InnerState` of all ranks. `said` belongs to the channel's thread, `wait` of what is staged to any, and the rest to the training
    thread.

    What comes of a copy is kept by each rank until it is whole and all have found that it fits. Then `take` orders them to take it."""

    def __init__(
        self,
        own: InnerState,
        say: Callable[[int, StateOrder], None],
        owned: Sequence[Sequence[Piece]],
        held: Sequence[Sequence[Piece]],
        fragments: Sequence[Fragment],
        writer: Callable[[str], BlockWriter],
    ) -> None:
        """Begin with `own`: of this rank, the leader. `say` sends an order to a rank. `owned` and `held`: per rank. `writer`: see
        `StateOfRank`."""
        self.leader = StateOfRank(own, [portion(one, owned[0]) for one in fragments], lambda said: self.said(0, said), writer)
        """This rank's part."""
        self.take: Callable[[TakeState], None] = lambda action: None
        """Orders all ranks to take a copy, and has this one do it."""
        self._own = own
        self._say = say
        self._owned, self._held = by_tensor(owned), by_tensor(held)
        self._others = range(1, len(owned))
        self._fragments = CopiedFragments(fragments)
        self._copy = 0
        self._gives = False
        """A peer was given a part at the last boundary."""
        self._local_step = self._released = 0
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._answers: dict[int, _Answer] = {}
        self._unwritten = 0
        self._failed = ""
        """Why a rank could not take a part of the copy under way."""

    @property
    def kind(self) -> str:
        return self._own.kind

    @property
    def lent(self) -> bool:
        return self._own.lent

    def held(self) -> Sequence[Piece]:
        return self._own.held()

    def warm_up(self, parts: Sequence[Sequence[Piece]]) -> None:
        own = ((piece, one) for part in parts for piece in part for rank, one in self._owned.get(piece.tensor, ()) if rank == 0)
        self._own.warm_up([[both for piece, one in own if (both := common(piece, one)) is not None]])

    def arrays(self, pieces: Sequence[Piece]) -> list[PieceArray]:
        return self._own.arrays(pieces)

    def stage(self, arrays: Sequence[PieceArray]) -> Staged:
        self._gives = True
        shares = divide(arrays, self._owned)
        own = shares.pop(0, [])
        staged = self._own.stage([share.array for share in own]) if own else None
        asked = []
        for rank, theirs in sorted(shares.items()):
            for first in range(0, len(theirs), MOST_ARRAYS):
                some = theirs[first : first + MOST_ARRAYS]
                # A rank that is behind has not adopted all that this one has, and what it reads must not be older than is said of it.
                read = StateRead(arrays=[to_message(share.array) for share in some], step=self._local_step)
                asked.append((some, self._ask(rank, StateOrder(read=read))))
        return _Gathered(self, arrays, own, staged, asked)

    def stage_rest(self) -> StagedRest:
        # All ranks come to the end of this step, also while the unit rests, and each waits there, within `session.step`, until the next one
        # is released. That goes the same way as this order, and behind it.
        asked = [self._ask(rank, StateOrder(read=StateRead(step=self._released))) for rank in (0, *self._others)]
        return _GatheredRest(self, asked)

    def store(self, name: str) -> StoredByRanks:
        """Begin to store what all ranks have, as the state of this name."""
        return StoredByRanks([self._ask(rank, StateOrder(store=StateStore(state=name))) for rank in (0, *self._others)])

    def at_boundary(self, local_step: int, released: int, step_seconds: float, *, readable: bool) -> None:
        """Note where this rank is, and that so many steps are released to all ranks. `readable`: the state is as after `local_step`."""
        self._local_step, self._released = local_step, released
        # What other ranks are asked for they are told by an order; what is stored waits there behind it.
        self.leader.at_boundary(local_step, step_seconds, readable=readable, gives=self._gives)
        self._gives = False

    def adopted(self, fragment: int) -> None:
        """Note that all ranks overwrite a fragment with a broadcast, or will before they take a copy: it is replayed over that."""
        self._fragments.adopted(fragment)

    def begin(self) -> None:
        # What is on its way belongs to the copy before, and so would its errors.
        self._wait(lambda: not self._unwritten, "has not taken all of the state")
        self._failed = ""
        self._copy += 1
        self._fragments.clear()
        self.leader.forget(self._copy)
        for rank in self._others:
            self._say(rank, StateOrder(forget=StateForget(copy=self._copy)))

    def put(self, array: PieceArray, values: Float32Array) -> None:
        if not array.name:
            self._fragments.came(array.piece)
        whole = values.reshape(array.piece.size)
        for rank, theirs in sorted(divide([array], self._held if array.name else self._owned).items()):
            for _, share in theirs:
                part = np.ascontiguousarray(within(share.piece, array.piece, whole)).reshape(-1)
                if rank == 0:
                    self.leader.write(share, part)
                else:
                    self._write(rank, share, part)

    def check(self, rest: Any) -> None:
        self._wait(lambda: not self._unwritten, "has not taken all of the state")
        if self._failed:
            raise StateError(self._failed)
        self.leader.check(rest)
        others = rest.get(RANKS, []) if isinstance(rest, Mapping) else []
        answers = []
        for rank in self._others:
            # The donor may have had another number of ranks. Then no rest is that of this one, and all take its leader's.
            data = encode(others[rank - 1] if len(others) == len(self._others) else _of_leader(rest))
            with self._changed:
                number = next(self._numbers)
                self._answers[number] = answer = _Answer()
            answers.append(answer)
            for chunk, last in chunks(data):
                self._say(rank, StateOrder(number=number, rest=StateRest(data=chunk, last=last)))
        for answer in answers:
            self.wait_for(answer)

    def finish(self, rest: Any) -> None:
        self.check(rest)
        self.take(TakeState(self._copy, self._fragments.whole()))

    def said(self, rank: int, said: StateSaid) -> None:
        """Take what a rank answers."""
        with self._changed:
            answer = self._answers.get(said.number)
            if answer is None:
                return  # it is not waited for any more
            answer.data += said.data
            if said.last:
                answer.done, answer.error = True, f"rank {rank}: {said.error}" if said.error else ""
                del self._answers[said.number]
                if answer.size:
                    self._unwritten -= answer.size
                    self._failed = self._failed or answer.error
            self._changed.notify_all()

    def wait_for(self, answer: _Answer) -> bytearray:
        """Return what a rank has read. Raises StateError."""
        self._wait(lambda: answer.done, "has not done its part of the state")
        if answer.error:
            raise StateError(answer.error)
        return answer.data

    def _ask(self, rank: int, order: StateOrder) -> _Answer:
        answer = _Answer()
        with self._changed:
            # Before the order is sent: its answer comes on another thread, perhaps at once.
            order.number = next(self._numbers)
            self._answers[order.number] = answer
        if rank:
            self._say(rank, order)
        else:
            self.leader.order(order)
        return answer

    def _write(self, rank: int, share: PieceArray, values: Float32Array) -> None:
        # What is said to a rank is queued without a bound: a slow one would take the memory of this process.
        self._wait(lambda: self._unwritten < MOST_UNWRITTEN, "takes nothing more of the state")
        if self._failed:
            raise StateError(self._failed)
        with self._changed:
            number = next(self._numbers)
            self._answers[number] = _Answer(values.nbytes)
            self._unwritten += values.nbytes
        self._say(rank, StateOrder(number=number, write=StateWrite(array=to_message(share), values=values.tobytes())))

    def _wait(self, come: Callable[[], bool], what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(come, ANSWER_SECONDS):
                raise StateError(f"a rank of this unit {what} for {ANSWER_SECONDS:.0f} s")


class StoredByRanks:
    """A `StoredParts` of all ranks. Each stages at its own boundaries, the leader too, and ends when it leaves."""

    def __init__(self, answers: Sequence[_Answer]) -> None:
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


class _Gathered:
    """A `Staged` of what each rank has of some arrays."""

    def __init__(
        self,
        unit: StateOfUnit,
        arrays: Sequence[PieceArray],
        own: Sequence[Share],
        staged: Staged | None,
        asked: Sequence[tuple[Sequence[Share], _Answer]],
    ) -> None:
        self._unit = unit
        self._arrays = arrays
        self._own, self._staged = own, staged
        self._asked = asked

    def wait(self) -> Float32Array:
        sizes = [one.piece.elements for one in self._arrays]
        flat = np.empty(sum(sizes), np.float32)
        ends = list(itertools.accumulate(sizes))
        targets = [flat[end - size : end].reshape(one.piece.size) for one, size, end in zip(self._arrays, sizes, ends, strict=True)]
        if self._staged is not None:
            self._place(self._own, self._staged.wait(), targets)
        for shares, answer in self._asked:
            self._place(shares, np.frombuffer(self._unit.wait_for(answer), np.float32), targets)
        return flat

    def release(self) -> None:
        if self._staged is not None:
            self._staged.release()

    def _place(self, shares: Sequence[Share], values: Float32Array, targets: Sequence[Float32Array]) -> None:
        if len(values) != sum(share.array.piece.elements for share in shares):
            raise StateError(f"a rank of this unit has read {len(values)} elements of the state")
        start = 0
        for index, one in shares:
            part = values[start : start + one.piece.elements].reshape(one.piece.size)
            within(one.piece, self._arrays[index].piece, targets[index])[...] = part
            start += one.piece.elements


@dataclass(frozen=True, slots=True)
class _GatheredRest:
    """A `StagedRest` of all ranks: that of the leader, and those of the others beside it."""

    unit: StateOfUnit
    asked: Sequence[_Answer]

    def wait(self) -> Any:
        leader, *others = (decode(self.unit.wait_for(answer)) for answer in self.asked)
        return {**leader, RANKS: others}


def _of_leader(rest: Any) -> Any:
    return {key: value for key, value in rest.items() if key != RANKS} if isinstance(rest, Mapping) else rest


# --- How arrays of a unit's state are divided over its ranks ----------------------------------------------------------
class Share(NamedTuple):
    """What one rank has of an array."""

    number: int
    """Which of the arrays it is."""
    array: PieceArray


def by_tensor(pieces: Sequence[Sequence[Piece]]) -> Mapping[str, Sequence[tuple[int, Piece]]]:
    """Return by tensor which rank has which piece of it, from the pieces of each rank."""
    found: defaultdict[str, list[tuple[int, Piece]]] = defaultdict(list)
    for rank, its in enumerate(pieces):
        for piece in its:
            found[piece.tensor].append((rank, piece))
    return found


def divide(arrays: Sequence[PieceArray], places: Mapping[str, Sequence[tuple[int, Piece]]]) -> dict[int, list[Share]]:
    """Return per rank what it has of the arrays."""
    shares: defaultdict[int, list[Share]] = defaultdict(list)
    for index, one in enumerate(arrays):
        for rank, piece in places.get(one.piece.tensor, ()):
            if (both := common(one.piece, piece)) is not None:
                shares[rank].append(Share(index, PieceArray(both, one.name, one.dtype)))
    return shares


def within(part: Piece, whole: Piece, values: Float32Array) -> Float32Array:
    """Return a view of a part of a piece's values."""
    where = tuple(slice(low - first, low - first + size) for low, first, size in zip(part.start, whole.start, part.size, strict=True))
    index: Any = (*where, ...)
    view: Float32Array = values[index]
    return view
