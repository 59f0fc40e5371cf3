"""A learner gives its state to a peer, and trains on.

At each step boundary the training thread stages a few parts, for no longer than a small share of a step; the server's thread brings them to
the peer. A part is of one boundary. Different parts may be of different ones, as fragments of a model are of different versions anyway.

Nothing is staged before the unit has adopted what the peer holds (t_s of the paper), and no more than QUEUE_BYTES wait for the link.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import grpc

from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import Piece
from diloco.contract import learner_identity
from diloco.learner.store import Staged
from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import Chunk, Give, StateEnd, StateMessage, StatePart, StateWanted
from diloco.protocol.framing import split
from diloco.recovery.held import Held
from diloco.recovery.inner import InnerState, StagedRest
from diloco.recovery.parts import PieceArray, StateError, cut, elements, to_message
from diloco.recovery.values import encode

_log = logging.getLogger(__name__)

STEP_SHARE = 0.05
"""Share of a step that staging may take at the boundary after it."""
LEAST_SECONDS = 0.0005
"""That staging may take in any case."""
QUEUE_BYTES = 64 << 20
"""Staged, and not yet sent."""
CHUNK_BYTES = 1 << 20
"""Bytes of one message: while it is made, the training thread may have to wait for it."""
GRANT_SECONDS = 5.0
"""How long a peer may be sooner here than the syncer's word of it."""
BOUNDARY_SECONDS = 120.0
"""How long the next part may take: the program may evaluate, or wait for what the peer holds already."""
MOST_GRANTS = 1024
"""Units that may be known as takers."""


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
    """What one peer gets: a queue from the training thread to the server's."""

    def __init__(self, wanted: StateWanted, epoch: int) -> None:
        """`epoch`: of the syncer that the peer is connected to."""
        self.wanted = wanted
        self.epoch = epoch
        self.next = 0
        """Parts that are staged."""
        self._changed = threading.Condition()
        self._queue: deque[_Part | None] = deque()
        self._waiting = 0
        self._over = False
        self._why = ""

    @property
    def room(self) -> bool:
        """Whether another part may be staged."""
        return self._waiting < QUEUE_BYTES

    @property
    def over(self) -> bool:
        """Nothing more is wanted."""
        return self._over

    def put(self, part: _Part | None) -> None:
        """Add a part; None: that was the last one. Never waits."""
        with self._changed:
            if part is not None:
                self._waiting += part.bytes
            self._queue.append(part)
            self._changed.notify()

    def end(self, why: str = "") -> None:
        """Nothing more comes. `why`: what went wrong."""
        with self._changed:
            self._over, self._why = True, self._why or why
            for part in self._queue:
                _release(part)
            self._queue.clear()
            self._changed.notify()

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


class Giver:
    """One process's end. `at_boundary` belongs to the training thread, the rest to those of the connection and the server."""

    def __init__(
        self,
        layout: Layout,
        state: InnerState,
        job_uid: str,
        epoch_of: Callable[[bytes], int | None],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`epoch_of`: the number of an incarnation that this process has met. `now`: seconds, to measure short times with."""
        self._layout = layout
        self._state = state
        self._job_uid = job_uid
        self._epoch_of = epoch_of
        self._now = now
        self._parts: Sequence[Sequence[Piece]] = cut(layout.tensors)
        self._changed = threading.Condition()
        self._grants: dict[str, Give] = {}
        self._gift: Gift | None = None
        self._closed = False

    def allow(self, give: Give) -> None:
        """Allow this attempt of a unit to take the state, as the syncer says."""
        with self._changed:
            self._grants.pop(give.unit, None)
            self._grants[give.unit] = give
            while len(self._grants) > MOST_GRANTS:
                del self._grants[next(iter(self._grants))]
            self._changed.notify_all()

    def begin(self, wanted: StateWanted, identity: str) -> Gift:
        """Admit a peer whose certificate says `identity` and who wants the state. Waits GRANT_SECONDS at most. Raises Refused."""
        if wanted.job_uid != self._job_uid or identity != learner_identity(wanted.job_uid, wanted.unit, wanted.attempt):
            raise Refused(
                grpc.StatusCode.PERMISSION_DENIED,
                f"the taker says that it is attempt {wanted.attempt} of {wanted.unit}; its certificate says {identity or 'no identity'}",
            )
        with self._changed:
            if not self._changed.wait_for(lambda: self._allows(wanted) or self._closed, GRANT_SECONDS) or self._closed:
                raise Refused(
                    grpc.StatusCode.PERMISSION_DENIED, f"the syncer has not named attempt {wanted.attempt} of unit {wanted.unit} as a taker"
                )
            if wanted.fingerprint != self._layout.fingerprint or len(wanted.versions) == 0 or wanted.inner_state != self._state.kind:
                raise Refused(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    f"the donor's state is {self._state.kind} of another model, or of another kind than {wanted.inner_state}",
                )
            epoch = self._epoch_of(wanted.incarnation)
            if epoch is None:
                raise Refused(grpc.StatusCode.UNAVAILABLE, "the donor has not met the syncer since this has started again")
            if self._gift is not None and not self._gift.over:
                raise Refused(grpc.StatusCode.UNAVAILABLE, f"the donor gives its state to unit {self._gift.wanted.unit} now")
            del self._grants[wanted.unit]
            self._gift = gift = Gift(wanted, epoch)
            return gift

    def _allows(self, wanted: StateWanted) -> bool:
        give = self._grants.get(wanted.unit)
        return give is not None and (give.attempt, give.grant) == (wanted.attempt, wanted.grant)

    def messages(self, gift: Gift) -> Iterator[StateMessage | DataChunk]:
        """Yield what the peer gets, on the server's thread. Raises Refused."""
        index = total = 0
        while (part := gift.take()) is not None:
            if part.arrays:
                values = part.staged.wait()
                payload = memoryview(values).cast("B")
            else:
                try:
                    payload = memoryview(encode(part.staged.wait()))
                except StateError as error:
                    raise Refused(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from error
            yield StateMessage(
                part=StatePart(
                    index=index,
                    arrays=to_message(self._layout, part.arrays),
                    versions=part.versions,
                    bytes=len(payload),
                    checksum=zlib.crc32(payload),
                )
            )
            yield from split(Chunk(kind=Chunk.STATE, fragment=index, coding=Chunk.FLOAT32), payload, CHUNK_BYTES)
            index, total = index + 1, total + len(payload)
            gift.sent(part)
        yield StateMessage(end=StateEnd(parts=index, bytes=total))

    def at_boundary(self, held: Held, step_seconds: float, *, readable: bool) -> None:
        """Stage what fits into the time that this boundary may take. `readable`: the state is as after the last local step that was
        counted."""
        gift = self._gift
        if gift is None:
            return
        if gift.over:
            self._gift = None
            return
        if gift.epoch != held.epoch:
            gift.end("the syncer has started again: the donor's outer steps are not the taker's")
            return
        if not readable or gift.next > len(self._parts) or not held.reach(gift.wanted.versions):
            return
        try:
            self._stage(gift, held, self._now() + max(LEAST_SECONDS, STEP_SHARE * step_seconds))
        except StateError as error:
            gift.end(str(error))
        except Exception as error:  # noqa: BLE001 - of a framework: the peer does without, and this unit trains on
            _log.exception("the state could not be given to unit %s", gift.wanted.unit)
            gift.end(f"the donor could not read its state: {type(error).__name__}: {error}")

    def _stage(self, gift: Gift, held: Held, until: float) -> None:
        while gift.room:
            if gift.next == len(self._parts):
                gift.put(_Part((), self._state.stage_rest(), list(held.versions), 0))
                gift.put(None)
                gift.next += 1
                return
            arrays = self._state.arrays(self._parts[gift.next])
            gift.put(_Part(arrays, self._state.stage(arrays), list(held.versions), 4 * elements(arrays)))
            gift.next += 1
            if self._now() >= until:
                return

    def close(self) -> None:
        """Refuse all from now on: this process leaves, and who takes from it must take from another one."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._gift is not None:
            self._gift.end("the donor leaves")
