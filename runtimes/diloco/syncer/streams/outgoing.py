"""The queue of messages to one learner. Adding a message never waits, so a slow learner delays no other.

Four lanes:

- Urgent (Welcome, Work, Rest, Taken): as added, also between two chunks. They are small, and a learner without work stands still.
- Pulls: after everything that waits for the pull's own fragment, because the answer is coded against that base. Other fragments do not
  matter to it, so it may go between two chunks of another one.
- Fragments (BROADCAST): those of one fragment in order, because a delta needs its base. For the order of fragments see `_choose`.
- Ordered (Done, the last message): after all broadcasts and pulls that were added before, and before all that are added later. Done says
  that every fragment's last value was sent.

A marker of a consistent snapshot belongs into the ordered lane: no broadcast passes it, in either direction.

What waits is bounded: of each fragment deltas up to the size of one whole value, or one whole value; and one pull. Chunks wait for the
window besides: what has left this queue can be neither replaced nor overtaken.

See docs/decisions/0148-driver-and-threads.md. See docs/decisions/0150-transfers.md.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from diloco.algorithm.codec import Coding
from diloco.algorithm.cut import cut
from diloco.algorithm.pieces import Portion
from diloco.protocol.chunks import DataChunk, divide
from diloco.protocol.diloco_pb2 import Chunk, Pull, Taken, ToLearner
from diloco.protocol.framing import is_last, split
from diloco.protocol.window import Receipts, Window

type Buffer = bytes | bytearray | memoryview

INLINE_BYTES = 1 << 20
"""Payloads up to this size are cut in the event loop: a thread would cost more."""


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """One version of a fragment, coded once for all learners. The buffers are shared and never written to."""

    fragment: int
    t: int
    base: int
    """Version that `payload` is against."""
    coding: Coding
    payload: Buffer = field(repr=False)
    whole: memoryview = field(repr=False)
    """The payload in FLOAT32, for learners that do not hold the base."""
    tokens: int = 0
    """Committed of the whole job when this version was made."""


@dataclass(frozen=True, slots=True, eq=False)
class _Queued:
    """A version that waits, as a delta or whole."""

    number: int
    """Counts everything that has its place relative to messages of the ordered lane."""
    version: Version
    delta: bool
    merged: int
    """As in `broadcast`."""

    @property
    def bytes(self) -> int:
        """Return the bytes of the payload."""
        return memoryview(self.version.payload).nbytes if self.delta else self.version.whole.nbytes

    def transfer(self) -> tuple[Chunk, Buffer]:
        """Return header and payload."""
        version = self.version
        header = Chunk(kind=Chunk.BROADCAST, fragment=version.fragment, t=version.t, coding=Chunk.FLOAT32)
        header.tokens, header.merged = version.tokens, self.merged
        if not self.delta:
            return header, version.whole
        header.coding, header.base = version.coding.value, version.base  # type: ignore[assignment]
        return header, version.payload


class Outgoing:
    """The messages to one learner. See the table above."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """Begin with `now`: seconds on a clock that never goes back."""
        self._now = now
        self._window = Window()
        self._receipts = Receipts()
        self._acknowledges = False
        self.portions: Sequence[Portion] | None = None
        """Per fragment, what this stream gets of it; None: all. A broadcast is cut when its turn comes: what waits is shared by all."""
        self._urgent: deque[ToLearner] = deque()
        self._fragments: dict[int, list[_Queued]] = {}
        """Per fragment what waits, in order. Ordered by how long the fragment has waited."""
        self._pulls: dict[int, tuple[int, int]] = {}
        """Per fragment (number, outer step) of the pull that waits."""
        self._ordered: deque[tuple[int, ToLearner]] = deque()
        self._added = 0
        self._sending: int | None = None
        """The fragment whose transfer is under way."""
        self._chunks: Iterator[DataChunk] = iter(())
        self._rest: DataChunk | None = None
        """The rest of that transfer: the chunks to come, and what is left of the last one."""
        self._favour = 0
        """Bytes that up-to-date fragments had more than the others, while both waited."""
        self._held: dict[int, int] = {}
        self._wake = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        """Return messages that wait; a transfer counts as one."""
        return len(self._urgent) + len(self._pulls) + len(self._ordered) + sum(len(queue) for queue in self._fragments.values())

    @property
    def waiting_bytes(self) -> int:
        """Payload of the broadcasts that wait, of whole fragments."""
        return sum(one.bytes for queue in self._fragments.values() for one in queue)

    # --- adding -------------------------------------------------------------------------------------------------------

    def holds(self, fragment: int, version: int) -> None:
        """Note that the learner has this version already."""
        self._held[fragment] = version

    def held(self, fragment: int) -> int | None:
        """Return the version that the learner holds once everything is delivered; None: no version."""
        return self._held.get(fragment)

    def urgent(self, message: ToLearner) -> None:
        """Send `message` as soon as possible."""
        self._urgent.append(message)
        self._wake.set()

    def post(self, message: ToLearner) -> None:
        """Send `message` after all broadcasts and pulls that were added before, and before those that will be."""
        self._ordered.append((self._next_number(), message))
        self._wake.set()

    def pull(self, fragment: int, t: int, overlap_steps: int) -> None:
        """Ask for a fragment once the learner has its newest version. Replaces a pull of it that still waits.

        `overlap_steps`: tau. Pulls of steps before t - tau are dropped, as their exchanges are over.
        """
        self._pulls = {p: (number, step) for p, (number, step) in self._pulls.items() if step >= t - overlap_steps}
        self._pulls[fragment] = (self._next_number(), t)
        self._wake.set()

    def broadcast(self, version: Version, merged: int = 0) -> None:
        """Send a version: as a delta if the learner will hold its base and what waits for it is smaller than a whole value, else whole.
        `merged`: the outer step of the last merge of the fragment that had a contribution of the learner's session; 0: none had.

        A whole value that waits is replaced: the learner gets the newest. A pull that waits is dropped, as its exchange is over.
        """
        p = version.fragment
        if p in self._pulls and self._pulls[p][1] <= version.t:
            del self._pulls[p]
        queue = self._fragments.setdefault(p, [])
        delta = version.coding.delta and self._held.get(p) == version.base and all(one.delta for one in queue)
        waiting = sum(one.bytes for one in queue) + memoryview(version.payload).nbytes
        if not delta or waiting > version.whole.nbytes:
            queue.clear()
            delta = False
        # Not to keep alive what is not sent: a learner that is paused would hold back many versions of every fragment.
        kept = replace(version, whole=memoryview(b"")) if delta else replace(version, payload=b"")
        queue.append(_Queued(self._next_number(), kept, delta, merged))
        self._held[p] = version.t
        self._wake.set()

    def close(self, last: ToLearner | None = None, *, at_once: bool = False) -> None:
        """End the stream after the queued messages and `last`. `at_once`: drop the queued messages."""
        if self._closed:
            return
        if at_once:
            self._urgent.clear()
            self._pulls.clear()
            self._fragments.clear()
            self._ordered.clear()
            self._end_transfer()
        if last is not None:
            self._ordered.append((self._next_number(), last))
        self._closed = True
        self._wake.set()

    # --- what the learner says ----------------------------------------------------------------------------------------

    def acknowledges(self) -> None:
        """Note that the learner acknowledges chunks, and understands that this end does."""
        self._acknowledges = True
        self._window.limit()

    def taken(self, total: int) -> None:
        """Note that the learner has taken `total` bytes of this stream's chunks. Raises FramingError if that cannot be."""
        self._window.taken(total, self._now())
        self._wake.set()

    def took(self, count: int) -> None:
        """Note that a chunk of the learner with `count` bytes of data has come."""
        self._receipts.take(count)
        if self._acknowledges and self._receipts.due:
            self._wake.set()

    # --- taking -------------------------------------------------------------------------------------------------------

    async def messages(self) -> AsyncIterator[ToLearner | DataChunk]:
        """Yield the messages to send, in order, until closed. For one reader."""
        while True:
            while (small := self._next_small()) is not None:
                yield small
            if self._sending is not None or self._ready():
                if self._window.is_open(self._now()):
                    if self._sending is None:
                        await self._begin_transfer()
                    else:
                        yield self._next_chunk()
                    continue
            elif self._ordered:
                yield self._ordered.popleft()[1]
                continue
            elif self._closed:
                return
            self._wake.clear()
            await self._wake.wait()

    def _next_number(self) -> int:
        self._added += 1
        return self._added

    @property
    def _limit(self) -> float:
        """What has this number or a larger one waits for a message of the ordered lane."""
        return self._ordered[0][0] if self._ordered else math.inf

    def _next_small(self) -> ToLearner | None:
        """Return a message that may go between two chunks."""
        if self._urgent:
            return self._urgent.popleft()
        if self._acknowledges and self._receipts.due:
            return ToLearner(taken=Taken(bytes=self._receipts.tell()))
        for p, (number, t) in self._pulls.items():
            if number < self._limit and p != self._sending and p not in self._fragments:
                del self._pulls[p]
                return ToLearner(pull=Pull(fragment=p, t=t))
        return None

    async def _begin_transfer(self) -> None:
        """Begin the transfer of the fragment whose turn it is. There must be one."""
        header, payload = self._choose().transfer()
        self._sending = header.fragment
        if self.portions is not None:
            payload = await _cut(header, payload, self.portions[header.fragment])
        if self._sending is not None:  # not dropped meanwhile
            self._chunks = split(header, payload)

    def _next_chunk(self) -> DataChunk:
        """Return the next chunk of the transfer that is under way."""
        chunk, self._rest = divide(self._rest or next(self._chunks), self._window.chunk_bytes(self._now()))
        self._window.sent(len(chunk.data), self._now())
        if is_last(chunk):
            self._end_transfer()
        return chunk

    def _end_transfer(self) -> None:
        self._sending, self._chunks, self._rest = None, iter(()), None

    def _ready(self) -> list[list[_Queued]]:
        """Return the queues of the fragments whose turn has come."""
        return [queue for queue in self._fragments.values() if queue[0].number < self._limit]

    def _choose(self) -> _Queued:
        """Return the next transfer. There must be one.

        A fragment that is one delta behind is cheap to keep up to date, and then takes part in every exchange. One that is further behind,
        or that the learner does not hold yet, costs several times as much. While both wait, each kind gets half of the bytes: on a wide
        enough link what is up to date stays so, and on one that is too narrow no fragment waits for ever.
        """
        ready = self._ready()
        current = [queue for queue in ready if len(queue) == 1 and queue[0].delta]
        behind = [queue for queue in ready if len(queue) > 1 or not queue[0].delta]
        cheap = bool(current) and not (behind and self._favour > 0)
        queue = current[0] if cheap else behind[0]
        chosen = queue.pop(0)
        self._favour = self._favour + (chosen.bytes if cheap else -chosen.bytes) if current and behind else 0
        if not queue:
            del self._fragments[chosen.version.fragment]
        return chosen


async def _cut(header: Chunk, payload: Buffer, portion: Portion) -> Buffer:
    """Return the portion's part of a broadcast."""
    coding = Coding(header.coding)
    if memoryview(payload).nbytes <= INLINE_BYTES:
        return cut(coding, payload, portion)
    return await asyncio.to_thread(cut, coding, payload, portion)
