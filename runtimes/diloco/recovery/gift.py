"""A state on its way out of a process that trains on: from the training thread, which stages it part by part, to the thread that sends it.

At each step boundary the training thread stages a few parts, for no longer than a small share of a step. A part is of one boundary.
Different parts may be of different ones, as fragments of a model are of different versions anyway. No more than QUEUE_BYTES wait for the
link.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import grpc

from diloco.algorithm.layout import Layout
from diloco.learner.inner_state import InnerState, StagedRest, staging_seconds
from diloco.learner.store import Staged
from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import StateEnd, StateMessage
from diloco.protocol.outgoing_state import part_messages
from diloco.protocol.state_parts import PieceArray, StateError, cut, elements
from diloco.protocol.state_values import encode

_log = logging.getLogger(__name__)

QUEUE_BYTES = 64 << 20
"""Staged, and not yet sent."""
BOUNDARY_SECONDS = 120.0
"""How long the next part may take: the program may evaluate, or wait for what the peer holds already."""


class Refused(Exception):
    """The state is not given. `code` and the message are for the peer."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class _Part:
    arrays: Sequence[PieceArray]
    """None of them: the small rest."""
    staged: Staged | StagedRest
    versions: Sequence[int]
    bytes: int


class Gift:
    """What one receiver gets: a queue from the training thread, which calls `stage`, to another one, which calls `messages`."""

    def __init__(self, layout: Layout, state: InnerState, receiver: str, *, parameters: bool = True) -> None:
        """Begin with `receiver`, for people. `parameters`: False leaves them out."""
        self.receiver = receiver
        self._layout = layout
        self._state = state
        self._parameters = parameters
        self._parts = cut(layout.tensors)
        self.next = 0
        """Parts that are staged."""
        self._changed = threading.Condition()
        self._queue: deque[_Part | None] = deque()
        self._waiting = 0
        self._over = False
        self._why = ""

    @property
    def over(self) -> bool:
        """Nothing more is wanted."""
        return self._over

    def stage(self, versions: Sequence[int], step_seconds: float, now: Callable[[], float]) -> None:
        """Stage what there is room for, in the time that a boundary may take after a step of `step_seconds`: at least one part. `versions`:
        per fragment what this process has adopted. What goes wrong ends the gift, and this process trains on."""
        try:
            self._stage(versions, now() + staging_seconds(step_seconds), now)
        except StateError as error:
            self.end(str(error))
        except Exception as error:  # noqa: BLE001 - of a framework: the receiver does without
            _log.exception("the state could not be given to %s", self.receiver)
            self.end(f"the donor could not read its state: {type(error).__name__}: {error}")

    def _stage(self, versions: Sequence[int], until: float, now: Callable[[], float]) -> None:
        while self._waiting < QUEUE_BYTES and self.next <= len(self._parts):
            if self.next == len(self._parts):
                self._put(_Part((), self._state.stage_rest(), list(versions), 0))
                self._put(None)
            elif arrays := self._arrays():
                self._put(_Part(arrays, self._state.stage(arrays), list(versions), 4 * elements(arrays)))
            self.next += 1
            if now() >= until:
                return

    def _arrays(self) -> list[PieceArray]:
        return [one for one in self._state.arrays(self._parts[self.next]) if one.name or self._parameters]

    def _put(self, part: _Part | None) -> None:
        """Add a part; None: that was the last one. Never waits."""
        with self._changed:
            if part is not None:
                self._waiting += part.bytes
            self._queue.append(part)
            self._changed.notify()

    def end(self, why: str = "") -> None:
        """End the transfer: nothing more comes. `why`: what went wrong."""
        with self._changed:
            self._over, self._why = True, self._why or why
            for part in self._queue:
                _release(part)
            self._queue.clear()
            self._changed.notify()

    def messages(self) -> Iterator[StateMessage | DataChunk]:
        """Yield what the receiver gets. Raises Refused."""
        index = total = 0
        while (part := self.take()) is not None:
            try:
                values = part.staged.wait()
                payload = memoryview(values).cast("B") if part.arrays else memoryview(encode(values))
            except StateError as error:
                raise Refused(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from error
            yield from part_messages(index, part.arrays, payload, part.versions, self._layout)
            index, total = index + 1, total + len(payload)
            self.sent(part)
        yield StateMessage(end=StateEnd(parts=index, bytes=total))

    def take(self) -> _Part | None:
        """Return the next part; None: there is none any more. Raises Refused if it does not come."""
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._queue) or self._over, BOUNDARY_SECONDS):
                self._over, self._why = True, f"the donor has reached no step boundary with news for {BOUNDARY_SECONDS:.0f} s"
            if self._over:
                raise Refused(grpc.StatusCode.UNAVAILABLE, self._why or "the taker is gone")
            return self._queue.popleft()

    def sent(self, part: _Part) -> None:
        """Note that the part has left the queue and its memory."""
        _release(part)
        with self._changed:
            self._waiting -= part.bytes


def _release(part: _Part | None) -> None:
    if part is not None and part.arrays:
        part.staged.release()  # type: ignore[union-attr]  # what has arrays is `Staged`
