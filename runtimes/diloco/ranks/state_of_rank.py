"""A rank's part of its unit's state. The rank stores and copies it as its leader orders. It keeps a copy beside the model until all ranks
take it at once.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from diloco.algorithm.pieces import Piece, Portion, by_tensor, overlap, within
from diloco.learner.inbox import InboxEvent
from diloco.learner.inner_state import StagedRest
from diloco.learner.store import Float32Array
from diloco.learner.stored_parts import PartsOfProcess
from diloco.learner.unit_plan import UnitPlan
from diloco.protocol.state_parts import PieceArray, StateError
from diloco.protocol.state_values import decode, encode
from diloco.ranks.copied_parameters import CopiedParameters
from diloco.ranks.messages import pieces_from_wire
from diloco.ranks.ranks_pb2 import StateCopy, StateOrder, StateSaid, StateWrite, WholeFragment
from diloco.ranks.state_messages import chunks, from_message, to_message
from diloco.recovery.copying import Copy, CopyDone, CopyFailed, Found, StoredCopy
from diloco.recovery.process_copy import ProcessCopy
from diloco.recovery.process_state import ProcessState
from diloco.snapshots.stored_state import Block, blocks_to_bytes

MOST_UNPASSED = 4 << 20
"""Bytes that may wait for the leader to pass them on to other ranks."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Copying:
    """The copy under way."""

    number: int
    """Number of the order."""
    source: Copy
    copy: ProcessCopy
    shared: Mapping[str, Sequence[Piece]]
    """The pieces of each tensor that other ranks store, too."""


class StateOfRank:
    """Called by the training thread. A thread of its own sends what was read to the leader."""

    def __init__(
        self,
        process: ProcessState,
        portions: Sequence[Portion],
        say: Callable[[StateSaid], None],
        wake: Callable[[], None],
    ) -> None:
        """
        Args:
            portions: what this rank owns of each fragment
            say: sends an answer to the leader, from any thread
            wake: brings this rank to its next boundary, if it waits between two steps. Called on any thread
        """
        self._process = process
        self._own = process.inner
        self._say = say
        self._wake = wake
        self._stored: PartsOfProcess | None = None
        self._parameters = CopiedParameters(portions)
        self._copying: _Copying | None = None
        self._unpassed = 0
        self._copy = 0
        """Number of the present copy."""
        self._whole: CopyDone | None = None
        """The copy that is whole and fits, with its small rest. None if there is none."""
        self._rests: deque[StateOrder] = deque()
        self._rest = bytearray()
        self._sending = ThreadPoolExecutor(1, "diloco-state")
        self.begun_at: float | None = None
        """When the first part of the newest copy came, on `time.monotonic`. None if nothing has come."""
        self.found: Found | None = None
        """The stored state that the newest copy reads. None while it is looked for, and for a copy from a peer."""
        self.end: CopyDone | None = None
        """The end of the newest whole copy. In the leader it has the small rest."""
        self.has_news = False
        """Something of a copy has come since the last boundary."""

    def warm_up(self) -> None:
        """Do now what would make the first reading slow."""
        self._process.warm_up()

    def order(self, order: StateOrder) -> None:
        """Carry out an order of the leader. Reading and copying wait for the next boundary."""
        match order.WhichOneof("what"):
            case "read":
                self._rests.append(order)
            case "write":
                values = np.frombuffer(order.write.values, np.float32)
                self._answer(order.number, lambda: self._own.put(from_message(order.write.array), values))
            case "rest":
                self._rest += order.rest.data
                if order.rest.last:
                    rest, self._rest = self._rest, bytearray()
                    self._answer(order.number, lambda: self.check(decode(rest)))
            case "forget":
                self.forget(order.forget.copy)
            case "store":
                self._store(order.number, order.store.state)
            case "copy":
                self._begin_copy(order.number, order.copy)
            case "give":
                self._process.state_donor.allow(order.give)
            case "passed":
                self._unpassed -= order.passed.bytes

    def forget(self, copy: int) -> None:
        """Forget the present copy. What comes from now on belongs to the copy with this number."""
        self._end_copy()
        self._copy, self._whole = copy, None
        self._rest = bytearray()
        self._unpassed = 0
        self._parameters.clear()
        self._own.begin()

    def copy_newest(self, number: int, former: Sequence[str], shared: Sequence[Piece]) -> None:
        """Begin to copy the state that the unit has stored last. Only in the leader, which finds it for all ranks.

        Args:
            number: of the answer
            former: as in `newest`
            shared: as in StateCopy
        """
        self._copy_from(number, self._process.copy_of_newest(former, self._on_arrival), shared)

    def check(self, rest: Any) -> None:
        """Note that the copy is whole, with this small rest. Raises StateError if it does not fit, so that this rank cannot take it."""
        self._own.check(rest)
        self._whole = CopyDone(rest)

    def adopted(self, fragment: int) -> None:
        """Note that a broadcast has overwritten the fragment. What was copied of it before is older."""
        self._parameters.adopted(fragment)

    def parameters(self, copy: int, fragments: Sequence[int]) -> Iterator[tuple[int, Float32Array]]:
        """Return (fragment, this rank's portion of it) from the copy with this number.

        Raises RuntimeError if this rank has not said that the copy fits: ranks that differ cannot train one model.
        """
        if self._whole is None or copy != self._copy:
            raise RuntimeError(f"the ranks of this unit differ: the leader orders to take copy {copy} of a state, and this rank has none")
        return ((fragment, self._parameters.take(fragment)) for fragment in fragments)

    def finish(self) -> None:
        """Adopt the copy as this rank's inner state; its parameters are taken before. Raises RuntimeError if it does not fit after all."""
        whole, self._whole = self._whole, None
        assert whole is not None
        try:
            self._own.finish(whole.rest)
        except StateError as error:
            raise RuntimeError(f"the ranks of this unit differ: the others have taken the state, and this one cannot: {error}") from error
        self._parameters.clear()

    def follow(self, events: Sequence[InboxEvent], plan: UnitPlan, step_seconds: float, *, readable: bool) -> None:
        """Note what came before this boundary and is done at it, and give to peers. Not called in the leader, whose `Peers` do this."""
        self._process.boundary(events, plan)
        self._process.state_donor.at_boundary(self._process.adopted, step_seconds, readable=readable and not self._own.lent)

    def at_boundary(self, local_step: int, step_seconds: float, *, readable: bool) -> None:
        """Go on with what the leader has ordered. Storing waits while a peer takes this rank's state.

        `readable`: the state is that after `local_step`.
        """
        self.has_news = False
        if self._copying is not None:
            self._go_on(self._copying)
        readable = readable and not self._own.lent
        if self._stored is not None and readable and not self._process.state_donor.busy:
            self._stored.at_boundary(step_seconds)
        while self._rests and (readable or local_step > self._rests[0].read.step) and local_step >= self._rests[0].read.step:
            order = self._rests.popleft()
            if local_step == order.read.step:
                self._read_rest(order.number)
            else:
                why = f"its state could not be read after local step {order.read.step}"
                self._say(StateSaid(number=order.number, last=True, error=why))

    def close(self) -> None:
        """Send, give and store nothing more."""
        self._end_copy()
        if self._stored is not None:
            self._stored.end()
        self._sending.shutdown(wait=False, cancel_futures=True)
        self._process.close()

    # --- a copy ---------------------------------------------------------------------------------------------------------

    def _begin_copy(self, number: int, order: StateCopy) -> None:
        shared = pieces_from_wire(order.shared)
        if order.donor.unit:
            self._copy_from(number, self._process.copy_of_peer(order.donor, self._on_arrival), shared)
        else:
            self._copy_from(number, self._process.copy_of_stored(order.former, order.state, self._on_arrival), shared)

    def _copy_from(self, number: int, source: Copy, shared: Sequence[Piece]) -> None:
        self.begun_at = self.found = self.end = None
        copy = ProcessCopy(source, self._put, self._process.fragment_of, lambda: self._unpassed < MOST_UNPASSED)
        self._copying = _Copying(number, source, copy, by_tensor(shared))

    def _on_arrival(self) -> None:
        self.has_news = True
        self._wake()

    def _go_on(self, copying: _Copying) -> None:
        try:
            end = copying.copy.go_on(self._process.adopted)
        except StateError as error:
            end = CopyFailed(str(error))
        self.begun_at = copying.copy.begun_at
        self.found = copying.source.found if isinstance(copying.source, StoredCopy) else None
        match end:
            case CopyFailed(why):
                self._end_copy()
                self._say(StateSaid(number=copying.number, last=True, error=why))
            case CopyDone():
                self._end_copy()
                self.end = end
                versions = self._process.adopted.versions
                whole = [WholeFragment(fragment=fragment, version=versions[fragment]) for fragment in self._parameters.whole()]
                self._say(StateSaid(number=copying.number, last=True, whole=whole, bytes=copying.copy.bytes))

    def _put(self, array: PieceArray, values: Float32Array) -> None:
        if not array.name:
            self._parameters.put(array.piece, values)
            return
        self._own.put(array, values)
        copying = self._copying
        assert copying is not None
        for piece in overlap((array.piece,), copying.shared):
            part = np.ascontiguousarray(within(piece, array.piece, values))
            self._unpassed += part.nbytes
            write = StateWrite(array=to_message(PieceArray(piece, array.name, array.dtype)), values=part.tobytes())
            self._say(StateSaid(number=copying.number, shared=write))

    def _end_copy(self) -> None:
        if self._copying is not None:
            self._copying.copy.cancel()
            self._copying = None

    # --- reading --------------------------------------------------------------------------------------------------------

    def _store(self, number: int, name: str) -> None:
        if self._stored is not None:
            self._stored.end()

        def done(blocks: Sequence[Block], error: str) -> None:
            for chunk, last in chunks(blocks_to_bytes(blocks)):
                self._say(StateSaid(number=number, data=chunk, last=last, error=error))

        self._stored = self._process.store(name, done)

    def _read_rest(self, number: int) -> None:
        try:
            staged = self._own.stage_rest()
        except StateError as error:
            self._say(StateSaid(number=number, last=True, error=str(error)))
        except Exception as error:  # noqa: BLE001 - of a framework: the unit stores nothing, and trains on
            _log.exception("the state of this rank could not be read")
            self._say(StateSaid(number=number, last=True, error=f"{type(error).__name__}: {error}"))
        else:
            self._sending.submit(self._send, number, staged)

    def _send(self, number: int, staged: StagedRest) -> None:
        try:
            data = encode(staged.wait())
        except Exception as error:  # noqa: BLE001 - as above
            self._say(StateSaid(number=number, last=True, error=str(error)))
            return
        for chunk, last in chunks(data):
            self._say(StateSaid(number=number, data=chunk, last=last))

    def _answer(self, number: int, do: Callable[[], None]) -> None:
        error = ""
        try:
            do()
        except StateError as why:
            error = str(why)
        self._say(StateSaid(number=number, last=True, error=error))
