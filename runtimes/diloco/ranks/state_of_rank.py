"""A rank's part of its unit's inner state: it reads and writes it as its leader orders.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from diloco.algorithm.pieces import Portion, common
from diloco.learner.inner_state import InnerState, StagedRest
from diloco.learner.store import Staged
from diloco.protocol.state_parts import StateError, cut
from diloco.protocol.state_values import decode, encode
from diloco.ranks.ranks_pb2 import StateOrder, StateSaid
from diloco.ranks.state_messages import chunks, from_message

_log = logging.getLogger(__name__)


class StateOfRank:
    """Called by the training thread. What is read goes to the leader on a thread of its own."""

    def __init__(self, own: InnerState, say: Callable[[StateSaid], None]) -> None:
        """`say` sends an answer to the leader, from any thread."""
        self._own = own
        self._say = say
        self._reads: deque[StateOrder] = deque()
        self._rests: deque[StateOrder] = deque()
        self._rest = bytearray()
        self._sending = ThreadPoolExecutor(1, "diloco-state")

    def warm_up(self, portions: Sequence[Portion]) -> None:
        """Do now what would make the first reading of this rank's portions slow."""
        parts = cut([tensor for one in portions for tensor in one.fragment.tensors])
        owned = [piece for one in portions for piece in one.pieces]
        of_tensor = {tensor: list(pieces) for tensor, pieces in itertools.groupby(owned, lambda piece: piece.tensor)}
        pairs = ((piece, own) for part in parts for piece in part for own in of_tensor.get(piece.tensor, ()))
        self._own.warm_up([[both for piece, own in pairs if (both := common(piece, own)) is not None]])

    def order(self, order: StateOrder) -> None:
        """Carry out an order of the leader. What is read waits for its boundary."""
        match order.WhichOneof("what"):
            case "read":
                (self._reads if order.read.arrays else self._rests).append(order)
            case "write":
                self._answer(
                    order.number, lambda: self._own.put(from_message(order.write.array), np.frombuffer(order.write.values, np.float32))
                )
            case "rest":
                self._rest += order.rest.data
                if order.rest.last:
                    rest, self._rest = self._rest, bytearray()
                    self._answer(order.number, lambda: self._own.finish(decode(rest)))
            case "forget":
                self._rest = bytearray()
                self._own.begin()

    def at_boundary(self, local_step: int, *, readable: bool) -> None:
        """Read what the leader has ordered. `readable`: the state is as after this local step."""
        readable = readable and not self._own.lent
        while self._reads and readable:
            self._read(self._reads.popleft())
        while self._rests and (readable or local_step > self._rests[0].read.step) and local_step >= self._rests[0].read.step:
            order = self._rests.popleft()
            if local_step == order.read.step:
                self._read(order)
            else:
                why = f"its state could not be read after local step {order.read.step}"
                self._say(StateSaid(number=order.number, last=True, error=why))

    def close(self) -> None:
        """Send nothing more."""
        self._sending.shutdown(wait=False, cancel_futures=True)

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
