"""A rank's part of its unit's state: it reads it as its leader orders, and keeps what comes of a copy until all ranks take it at once.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import functools
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from diloco.algorithm.pieces import Piece, Portion, common
from diloco.learner.inner_state import InnerState, StagedRest, staging_seconds
from diloco.learner.store import Float32Array, Staged
from diloco.learner.stored_parts import PartsOfProcess
from diloco.protocol.state_parts import PieceArray, StateError, cut
from diloco.protocol.state_values import decode, encode
from diloco.ranks.copied_parameters import CopiedParameters
from diloco.ranks.ranks_pb2 import StateOrder, StateSaid
from diloco.ranks.state_messages import chunks, from_message
from diloco.snapshots.stored_state import Block, BlockWriter, blocks_to_bytes

_log = logging.getLogger(__name__)


class StateOfRank:
    """Called by the training thread. What is read goes to the leader on a thread of its own."""

    def __init__(
        self,
        own: InnerState,
        portions: Sequence[Portion],
        say: Callable[[StateSaid], None],
        writer: Callable[[str], BlockWriter],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin with `portions`: what this rank owns of each fragment. `say` sends an answer to the leader, from any thread. `writer`: of
        this rank's blocks of the stored state with this name. `now`: seconds, to measure short times with."""
        self._own = own
        self._portions = portions
        self._say = say
        self._writer = writer
        self._now = now
        self._stored: PartsOfProcess | None = None
        self._parameters = CopiedParameters(portions)
        self._copy = 0
        """The number of the copy that comes."""
        self._whole: tuple[Any] | None = None
        """The small rest of a copy that is whole, and fits."""
        self._reads: deque[StateOrder] = deque()
        self._rests: deque[StateOrder] = deque()
        self._rest = bytearray()
        self._sending = ThreadPoolExecutor(1, "diloco-state")

    def warm_up(self) -> None:
        """Do now what would make the first reading of this rank's portions slow."""
        self._own.warm_up(self._owned_parts)

    @functools.cached_property
    def _owned_parts(self) -> list[list[Piece]]:
        """Return what this rank owns of each part of the model."""
        owned = [piece for one in self._portions for piece in one.pieces]
        of_tensor = {tensor: list(pieces) for tensor, pieces in itertools.groupby(owned, lambda piece: piece.tensor)}
        return [
            [both for piece in part for own in of_tensor.get(piece.tensor, ()) if (both := common(piece, own)) is not None]
            for part in cut([tensor for one in self._portions for tensor in one.fragment.tensors])
        ]

    def order(self, order: StateOrder) -> None:
        """Carry out an order of the leader. What is read waits for its boundary."""
        match order.WhichOneof("what"):
            case "read":
                (self._reads if order.read.arrays else self._rests).append(order)
            case "write":
                values = np.frombuffer(order.write.values, np.float32)
                self._answer(order.number, lambda: self.write(from_message(order.write.array), values))
            case "rest":
                self._rest += order.rest.data
                if order.rest.last:
                    rest, self._rest = self._rest, bytearray()
                    self._answer(order.number, lambda: self.check(decode(rest)))
            case "forget":
                self.forget(order.forget.copy)
            case "store":
                self._store(order.number, order.store.state)

    def forget(self, copy: int) -> None:
        """Forget what was written: what comes from now on is of the copy with this number."""
        self._copy, self._whole = copy, None
        self._rest = bytearray()
        self._parameters.clear()
        self._own.begin()

    def write(self, array: PieceArray, values: Float32Array) -> None:
        """Keep a part of the copy. Raises StateError for what has no place here."""
        if array.name:
            self._own.put(array, values)
        else:
            self._parameters.put(array.piece, values)

    def check(self, rest: Any) -> None:
        """Note that all has come, with this small rest. Raises StateError if it does not fit: then this rank does not take the copy."""
        self._own.check(rest)
        self._whole = (rest,)

    def parameters(self, copy: int, fragments: Sequence[int]) -> Iterator[tuple[int, Float32Array]]:
        """Return each fragment with what this rank owns of it, of the copy with this number. Raises RuntimeError where this rank has not
        said that the copy fits: ranks that differ cannot train one model."""
        if self._whole is None or copy != self._copy:
            raise RuntimeError(f"the ranks of this unit differ: the leader orders to take copy {copy} of a state, and this rank has none")
        return ((fragment, self._parameters.take(fragment)) for fragment in fragments)

    def finish(self) -> None:
        """Make what was written this rank's state, after its parameters. Raises RuntimeError if the program does not take it after all."""
        whole, self._whole = self._whole, None
        assert whole is not None
        try:
            self._own.finish(*whole)
        except StateError as error:
            raise RuntimeError(f"the ranks of this unit differ: the others have taken the state, and this one cannot: {error}") from error
        self._parameters.clear()

    def at_boundary(self, local_step: int, step_seconds: float, *, readable: bool, gives: bool = False) -> None:
        """Read what the leader has ordered, in the time that a boundary may take after a step of `step_seconds`: one order at least. What
        is stored is read where no peer waits. `readable`: the state is as after this local step. `gives`: a peer waits for what is read of
        this rank without an order."""
        readable = readable and not self._own.lent
        until = self._now() + staging_seconds(step_seconds)
        if self._stored is not None and readable and not (self._reads or gives):
            self._stored.at_boundary(step_seconds)
        while self._reads and readable and local_step >= self._reads[0].read.step:
            self._read(self._reads.popleft())
            if self._now() >= until:
                break
        while self._rests and (readable or local_step > self._rests[0].read.step) and local_step >= self._rests[0].read.step:
            order = self._rests.popleft()
            if local_step == order.read.step:
                self._read(order)
            else:
                why = f"its state could not be read after local step {order.read.step}"
                self._say(StateSaid(number=order.number, last=True, error=why))

    def close(self) -> None:
        """Send and store nothing more."""
        if self._stored is not None:
            self._stored.end()
        self._sending.shutdown(wait=False, cancel_futures=True)

    def _store(self, number: int, name: str) -> None:
        if self._stored is not None:
            self._stored.end()

        def done(blocks: Sequence[Block], error: str) -> None:
            for chunk, last in chunks(blocks_to_bytes(blocks)):
                self._say(StateSaid(number=number, data=chunk, last=last, error=error))

        self._stored = PartsOfProcess(self._own, self._owned_parts, lambda: self._writer(name), done, self._now)

    def _read(self, order: StateOrder) -> None:
        try:
            arrays = [from_message(one) for one in order.read.arrays]
            staged = self._own.stage(arrays) if arrays else self._own.stage_rest()
        except StateError as error:
            self._say(StateSaid(number=order.number, last=True, error=str(error)))
        except Exception as error:  # noqa: BLE001 - of a framework: the unit stores nothing, and trains on
            _log.exception("the state of this rank could not be read")
            self._say(StateSaid(number=order.number, last=True, error=f"{type(error).__name__}: {error}"))
        else:
            self._sending.submit(self._send, order.number, staged)

    def _send(self, number: int, staged: Staged | StagedRest) -> None:
        try:
            found = staged.wait()
            data = found.tobytes() if isinstance(found, np.ndarray) else encode(found)
        except Exception as error:  # noqa: BLE001 - as above
            self._say(StateSaid(number=number, last=True, error=str(error)))
            return
        for chunk, last in chunks(data):
            self._say(StateSaid(number=number, data=chunk, last=last))
        if isinstance(found, np.ndarray):
            staged.release()  # type: ignore[union-attr]  # what has arrays is `Staged`

    def _answer(self, number: int, do: Callable[[], None]) -> None:
        error = ""
        try:
            do()
        except StateError as why:
            error = str(why)
        self._say(StateSaid(number=number, last=True, error=error))
