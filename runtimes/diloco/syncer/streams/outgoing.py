"""The queue of messages to one learner. Adding a message never waits, so a slow learner delays no other.

Two lanes:

- Urgent (Welcome, Work, Rest, Taken): in the order in which they were added, also between two chunks. They are small, and a learner without
  work stands still.
- Broadcasts, pulls and ordered messages (Done, Marker, the last message): in the order of `SendOrder`. Done says that every fragment's last
  value was sent, and a Marker that a snapshot is durable; so no broadcast may pass them, in either direction.

Chunks also wait for the transfer window, because a chunk that has left this queue can be neither replaced nor overtaken.

See docs/decisions/0148-driver-and-threads.md. See docs/decisions/0150-transfers.md. See docs/decisions/0283-no-relay-per-region.md.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

from diloco.algorithm.codec import Coding
from diloco.algorithm.cut import cut
from diloco.algorithm.pieces import Portion
from diloco.protocol.chunks import DataChunk, divide, with_acknowledged
from diloco.protocol.diloco_pb2 import Chunk, Pull, Taken, ToLearner
from diloco.protocol.framing import is_last, split
from diloco.protocol.window import Receipts, Window
from diloco.syncer.streams.send_order import SendOrder

type Buffer = bytes | bytearray | memoryview

INLINE_BYTES = 1 << 20
"""Payloads up to this size are cut in the event loop: a thread would cost more."""


@dataclass(frozen=True, slots=True, eq=False)
class CodedVersion:
    """One version of a fragment, coded once for all learners. The buffers are shared and never written to."""

    fragment: int
    t: int
    base: int
    """The version against which `payload` is coded."""
    coding: Coding
    payload: Buffer = field(repr=False)
    whole: memoryview = field(repr=False)
    """The payload in FLOAT32, for learners that do not hold the base."""
    tokens: int = 0
    """The whole job's committed tokens when this version was made."""
    checksum: int = 0
    """Checksum of the whole value, see `MergeDurable`. 0 if it is not known."""


@dataclass(frozen=True, slots=True, eq=False)
class _Queued:
    """A version that waits, as a delta or whole."""

    version: CodedVersion
    delta: bool
    merged: int
    """As in `broadcast`."""

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return memoryview(self.version.payload).nbytes if self.delta else self.version.whole.nbytes

    def transfer(self) -> tuple[Chunk, Buffer]:
        version = self.version
        header = Chunk(kind=Chunk.BROADCAST, fragment=version.fragment, t=version.t, coding=Chunk.FLOAT32)
        header.tokens, header.merged, header.checksum = version.tokens, self.merged, version.checksum
        if not self.delta:
            return header, version.whole
        header.coding, header.base = version.coding.value, version.base  # type: ignore[assignment]
        return header, version.payload


class Outgoing:
    """The messages to one learner."""

    def __init__(self, cutting: Executor | None = None) -> None:
        """`cutting` cuts large payloads. None: the event loop's own threads do."""
        self._cutting = cutting
        self._window = Window()
        self._receipts = Receipts()
        self._acknowledges = False
        self._timer: asyncio.TimerHandle | None = None
        """Lets an acknowledgement go alone if no message comes that it can go with."""
        self.portions: Sequence[Portion] | None = None
        """What this stream gets of each fragment. None: all. A broadcast is cut only when its turn comes, because all streams share what
        waits."""
        self._urgent: deque[ToLearner] = deque()
        self._order: SendOrder[_Queued, ToLearner] = SendOrder()
        self._chunks: Iterator[DataChunk] = iter(())
        self._rest: DataChunk | None = None
        """What is left of the last chunk, which goes before the chunks in `_chunks`."""
        self._held: dict[int, int] = {}
        """For each fragment the version that the learner holds once everything is delivered."""
        self._wake = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        """How many messages wait. A transfer counts as one."""
        return len(self._urgent) + len(self._order)

    @property
    def waiting_bytes(self) -> int:
        """Payload bytes of the broadcasts that wait, before they are cut to portions."""
        return int(self._order.size)

    @property
    def round_trip(self) -> float:
        """As `Window.round_trip`."""
        return self._window.round_trip

    # --- adding -------------------------------------------------------------------------------------------------------

    def holds(self, fragment: int, version: int) -> None:
        """Note that the learner has this version already."""
        self._held[fragment] = version

    def urgent(self, message: ToLearner) -> None:
        """Send `message` as soon as possible."""
        self._urgent.append(message)
        self._wake.set()

    def post(self, message: ToLearner) -> None:
        """Send `message` after all broadcasts and pulls that were added before it, and before all that are added later."""
        self._order.post(message)
        self._wake.set()

    def pull(self, fragment: int, t: int, overlap_steps: int) -> None:
        """Ask for a fragment once the learner has its newest version. `overlap_steps` is tau."""
        self._order.pull(fragment, t, overlap_steps, ToLearner(pull=Pull(fragment=fragment, t=t)))
        self._wake.set()

    def broadcast(self, version: CodedVersion, merged: int = 0) -> None:
        """Send a version, as a delta if the learner will hold its base and all waiting deltas are no larger than a whole value, else whole.

        `merged` is the outer step of the fragment's last merge with a contribution of the learner's session. 0 if there is none.
        """
        p = version.fragment
        follows = version.coding.delta and self._held.get(p) == version.base
        delta = follows and self._order.fits(p, memoryview(version.payload).nbytes, version.whole.nbytes)
        # Without the buffer that is not sent: the queue of a paused learner would keep many versions of every fragment in memory.
        kept = replace(version, whole=memoryview(b"")) if delta else replace(version, payload=b"")
        self._order.add(p, version.t, _Queued(kept, delta, merged), delta=delta)
        self._held[p] = version.t
        self._wake.set()

    def close(self, last: ToLearner | None = None, *, at_once: bool = False) -> None:
        """End the stream after the queued messages and `last`. `at_once` drops the queued messages."""
        if self._closed:
            return
        if at_once:
            self._urgent.clear()
            self._order.clear()
            self._end_transfer()
        if last is not None:
            self._order.post(last)
        self._closed = True
        self._wake.set()

    # --- what the learner says ----------------------------------------------------------------------------------------

    def acknowledges(self, *, beside: bool = False) -> None:
        """Note that the learner acknowledges chunks and understands acknowledgements; with `beside`, also those within other messages."""
        self._acknowledges = True
        self._receipts.go_beside = beside
        self._window.limit()

    def taken(self, acknowledged: Taken) -> int:
        """Note which chunks the learner has acknowledged. Returns how many bytes are new. Raises FramingError if it acknowledges more than
        was sent."""
        before = self._window.under_way
        self._window.taken(acknowledged, time.monotonic())
        self._wake.set()
        return before - self._window.under_way

    def took(self, chunk: DataChunk) -> None:
        now = time.monotonic()
        self._receipts.take(len(chunk.data), now, more=not is_last(chunk))
        if self._acknowledges and now >= self._receipts.due_at:
            self._wake.set()
        elif self._acknowledges and self._timer is None:
            self._wait_for_another_message()

    def _wait_for_another_message(self) -> None:
        """Let an acknowledgement wait until it is due. Until then a message may take it along."""
        self._timer = None
        wait = self._receipts.due_at - time.monotonic()
        if wait <= 0:
            self._wake.set()
        elif wait < math.inf:
            self._timer = asyncio.get_running_loop().call_later(wait, self._wait_for_another_message)

    # --- taking -------------------------------------------------------------------------------------------------------

    async def messages(self) -> AsyncIterator[ToLearner | DataChunk]:
        """Yield the messages to send, in order, until closed. For one reader."""
        while True:
            while (small := self._next_small()) is not None:
                yield self._with_acknowledgement(small)
            if self._order.sending is not None or self._order.has_version:
                if self._window.is_open(time.monotonic()):
                    if self._order.sending is None:
                        await self._begin_transfer()
                    else:
                        yield self._with_acknowledgement(self._next_chunk())
                    continue
            elif (ordered := self._order.next_ordered()) is not None:
                yield self._with_acknowledgement(ordered)
                continue
            elif self._closed:
                return
            self._wake.clear()
            await self._wake.wait()

    def _next_small(self) -> ToLearner | None:
        """Return a message that may go between two chunks."""
        if self._urgent:
            return self._urgent.popleft()
        now = time.monotonic()
        if self._acknowledges and now >= self._receipts.due_at:
            return ToLearner(taken=self._receipts.tell(now))
        return self._order.next_pull()

    def _with_acknowledgement[M: (ToLearner, DataChunk)](self, message: M) -> M:
        return with_acknowledged(message, self._receipts.beside(time.monotonic()))

    async def _begin_transfer(self) -> None:
        """Begin the transfer of the version whose turn it is. There must be one."""
        header, payload = self._order.begin().transfer()
        if self.portions is not None:
            payload = await self._cut(header, payload, self.portions[header.fragment])
        if self._order.sending is not None:  # `close` may have dropped it during the await
            self._chunks = split(header, payload)

    async def _cut(self, header: Chunk, payload: Buffer, portion: Portion) -> Buffer:
        coding = Coding(header.coding)
        if memoryview(payload).nbytes <= INLINE_BYTES:
            return cut(coding, payload, portion)
        return await asyncio.get_running_loop().run_in_executor(self._cutting, cut, coding, payload, portion)

    def _next_chunk(self) -> DataChunk:
        """Return the next chunk of the present transfer, no larger than the window wants."""
        chunk, self._rest = divide(self._rest or next(self._chunks), self._window.chunk_bytes(time.monotonic()))
        self._window.sent(len(chunk.data), time.monotonic())
        if is_last(chunk):
            self._end_transfer()
        return chunk

    def _end_transfer(self) -> None:
        self._order.sending, self._chunks, self._rest = None, iter(()), None
