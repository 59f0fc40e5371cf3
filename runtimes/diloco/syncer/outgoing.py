"""The queue of messages to one learner. Adding a message never waits, so a slow learner delays no other. The queue is bounded: a newer
broadcast of a fragment replaces an older one, and a newer pull of it an older pull.

See docs/decisions/0072-threads-and-event-loops.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from diloco.algorithm.codec import Coding
from diloco.protocol.diloco_pb2 import Chunk, Pull, ToLearner
from diloco.protocol.framing import split

type Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a fragment, coded once for all learners. The buffers are shared and never written to."""

    fragment: int
    t: int
    base: int
    """Version that `delta` is against."""
    coding: Coding
    payload: Buffer = field(repr=False)
    full: Callable[[], Buffer] = field(repr=False)
    """Makes the payload in FLOAT32, for learners that do not hold the base."""


@dataclass(frozen=True, slots=True)
class _Transfer:
    header: Chunk
    payload: Buffer = field(repr=False)


class Outgoing:
    """Two lanes. Urgent messages overtake, also between two chunks. Pulls, broadcasts and the last message keep their order, because the
    base of a push must arrive before the pull."""

    def __init__(self) -> None:
        self._urgent: deque[ToLearner] = deque()
        self._ordered: deque[ToLearner | _Transfer] = deque()
        self._held: dict[int, int] = {}
        self._wake = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._urgent) + len(self._ordered)

    def holds(self, fragment: int, version: int) -> None:
        """The learner has this version already."""
        self._held[fragment] = version

    def held(self, fragment: int) -> int | None:
        """The version that the learner holds once everything is delivered; None: no version."""
        return self._held.get(fragment)

    def urgent(self, message: ToLearner) -> None:
        """Send `message` as soon as possible."""
        self._urgent.append(message)
        self._wake.set()

    def post(self, message: ToLearner) -> None:
        """Send `message` after everything that `post`, `pull` and `broadcast` have added before."""
        self._ordered.append(message)
        self._wake.set()

    def pull(self, fragment: int, t: int) -> None:
        """Ask for a fragment. Replaces a pull of it that still waits: its exchange is over."""
        stale = next((m for m in self._ordered if isinstance(m, ToLearner) and m.HasField("pull") and m.pull.fragment == fragment), None)
        if stale is not None:
            self._ordered.remove(stale)
        self.post(ToLearner(pull=Pull(fragment=fragment, t=t)))

    def broadcast(self, version: Version) -> None:
        """Send a version: as a delta if the learner will hold its base, else in FLOAT32."""
        waiting = next((x for x in self._ordered if isinstance(x, _Transfer) and x.header.fragment == version.fragment), None)
        if waiting is not None:
            self._ordered.remove(waiting)
        header = Chunk(kind=Chunk.BROADCAST, fragment=version.fragment, t=version.t)
        if version.coding.delta and waiting is None and self._held.get(version.fragment) == version.base:
            header.coding, header.base = version.coding.value, version.base  # type: ignore[assignment]
            self._ordered.append(_Transfer(header, version.payload))
        else:
            header.coding = Chunk.FLOAT32
            self._ordered.append(_Transfer(header, version.full()))
        self._held[version.fragment] = version.t
        self._wake.set()

    def close(self, last: ToLearner | None = None, *, at_once: bool = False) -> None:
        """End the stream after the queued messages and `last`. `at_once`: drop the queued messages."""
        if self._closed:
            return
        if at_once:
            self._urgent.clear()
            self._ordered.clear()
        if last is not None:
            self._ordered.append(last)
        self._closed = True
        self._wake.set()

    async def messages(self) -> AsyncIterator[ToLearner]:
        """The messages to send, in order, until closed. For one reader."""
        while True:
            while self._urgent:
                yield self._urgent.popleft()
            if self._ordered:
                item = self._ordered.popleft()
                if isinstance(item, ToLearner):
                    yield item
                    continue
                for chunk in split(item.header, item.payload):
                    yield ToLearner(chunk=chunk)
                    while self._urgent:
                        yield self._urgent.popleft()
                continue
            if self._closed:
                return
            self._wake.clear()
            await self._wake.wait()
