"""Learners behind slow uplinks on virtual time: the real core, outboxes and framing; only the wire and the training are simulated."""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from builders.chunks import as_from_learner, data_chunk
from builders.core import a_layout, a_seeded_core
from diloco.algorithm import codec
from diloco.algorithm.codec import Coding
from diloco.algorithm.core import Core
from diloco.algorithm.events import Broadcast, Marks, Merged, Metadata, Offer, Pull, Push
from diloco.contract import Training
from diloco.learner.outbox import Outbox
from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import Chunk, FromLearner, Hello, Progress
from diloco.protocol.framing import Assembler, split
from diloco.protocol.window import Receipts

CHUNKS = 8
"""Chunks of one push."""
VALUES = 64
"""Of a fragment."""
HELD_VALUES = 128 << 10
"""Of a fragment, where the transport holds what it is given: pushes of 512 KiB, eight times the smallest window."""
TOKENS = 100


@dataclass
class LinkedLearner:
    """Takes a step every second and answers pulls after its steps."""

    unit: str
    push_seconds: float
    outbox: Outbox
    assembler: Assembler
    local_step: int = 0
    counters: list[int] = field(default_factory=list)
    wanted: list[Pull] = field(default_factory=list)
    """Pulls to answer after the step under way."""
    sending: bool = False
    most_queued: int = 0
    """Pushes that waited or were under way at a time."""
    receipts: Receipts = field(default_factory=Receipts)
    free_at: float = 0.0
    """When the link has carried what the transport holds."""


class SlowLinks:
    """One job whose mean learner step is one second."""

    def __init__(
        self,
        training: Training,
        push_seconds: Mapping[str, float],
        phases: Mapping[str, float],
        *,
        takes_cancelled: bool = True,
        holds: bool = False,
        acknowledges: bool = False,
    ) -> None:
        """`push_seconds`: per unit, what the transfer of one push takes. `phases`: per unit, when in each second it ends a step.
        `takes_cancelled`: whether the syncer understands cancelled transfers. `holds`: the transport takes all messages at once and holds
        them until the link has carried them, as gRPC and the kernel do. `acknowledges`: the syncer acknowledges chunks."""
        self._values = HELD_VALUES if holds else VALUES
        self._holds, self._acknowledges = holds, acknowledges
        self.core: Core = a_seeded_core(training, a_layout(training.fragments, self._values))
        self.now = 0.0
        self.merges: list[Merged] = []
        self.refused: Counter[str] = Counter()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.learners: dict[str, LinkedLearner] = {}
        for unit, seconds in push_seconds.items():
            outbox = Outbox(FromLearner(hello=Hello()), training.overlap_steps, lambda: self.now)
            if takes_cancelled:
                outbox.may_cancel()
            if acknowledges:
                outbox.acknowledges()
            learner = LinkedLearner(unit, seconds, outbox, Assembler(lambda chunk: 4 * self._values))
            learner.counters = [0] * training.fragments
            self.learners[unit] = learner
            self.core.join(unit, 0.0)
            self._at(1 + phases[unit], functools.partial(self._step, learner))

    def run(self, steps: int) -> SlowLinks:
        """Up to outer step `steps`."""
        while self.core.t < steps:
            wake = self.core.wake_at(self.now)
            following = self._queue[0][0]
            if wake is not None and wake < following:
                self.now = wake
            else:
                self.now, _, do = heapq.heappop(self._queue)
                do()
            self._advance()
        return self

    def share(self, unit: str, after: int) -> float:
        """Of the merges after outer step `after`, those with the unit."""
        merges = [merge for merge in self.merges if merge.t > after]
        return sum(unit in merge.units for merge in merges) / len(merges)

    def _at(self, when: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._order), do))

    def _advance(self) -> None:
        for action in self.core.advance(self.now):
            match action:
                case Pull():
                    for unit in action.units:
                        self.learners[unit].outbox.clock(action.t)
                        self.learners[unit].wanted.append(action)
                case Merged():
                    self.merges.append(action)
                case Broadcast():
                    for learner in self.learners.values():
                        learner.outbox.merged(action.fragment, action.t)
                        learner.counters[action.fragment] = 0

    def _step(self, learner: LinkedLearner) -> None:
        learner.local_step += 1
        learner.counters = [n + 1 for n in learner.counters]
        tokens = [n * TOKENS for n in learner.counters]
        learner.outbox.progress(Progress(local_step=learner.local_step, steps=learner.counters, tokens=tokens, step_seconds=1.0))
        wanted, learner.wanted = learner.wanted, []
        for pull in wanted:
            values = np.full(self._values, learner.local_step, np.float32)
            header = Chunk(
                kind=Chunk.PUSH,
                fragment=pull.fragment,
                t=pull.t,
                coding=Chunk.FLOAT32,
                steps=learner.counters[pull.fragment],
                tokens=tokens[pull.fragment],
            )
            learner.outbox.push(header, self._chunks(header, values), lambda: None)
        learner.most_queued = max(learner.most_queued, learner.outbox.pushes)
        self._at(self.now + 1.0, functools.partial(self._step, learner))
        if not learner.sending:
            self._send(learner)

    def _send(self, learner: LinkedLearner) -> None:
        if self._holds:
            while (held := learner.outbox.take()) is not None:
                learner.outbox.sent()
                message = as_from_learner(held)
                learner.free_at = max(learner.free_at, self.now) + self._seconds(learner, message)
                self._at(learner.free_at, functools.partial(self._delivered, learner, message))
            return
        taken = learner.outbox.take()
        learner.sending = taken is not None
        if taken is not None:
            message = as_from_learner(taken)
            self._at(self.now + self._seconds(learner, message), functools.partial(self._delivered, learner, message))

    def _seconds(self, learner: LinkedLearner, message: FromLearner) -> float:
        """What the message takes on the link."""
        return learner.push_seconds * len(message.chunk.data) / (4 * self._values)

    def _delivered(self, learner: LinkedLearner, message: FromLearner) -> None:
        if message.HasField("progress"):
            said = message.progress
            self.core.progress(learner.unit, Metadata(said.local_step, tuple(said.steps), tuple(said.tokens), said.step_seconds), self.now)
        elif message.HasField("chunk") and (transfer := learner.assembler.add(data_chunk(message.chunk))) is not None:
            head = transfer.header
            offer = Offer(head.fragment, head.t, Coding.FLOAT32, head.base, head.steps, head.tokens, Marks(learner.unit, 0, 0, 0))
            push = Push(offer, transfer.payload)
            if refusal := self.core.push(learner.unit, push, self.now):
                self.refused[refusal.reason] += 1
        if self._acknowledges:
            learner.receipts.take(len(message.chunk.data))
            if learner.receipts.due:
                learner.outbox.taken(learner.receipts.tell())
        self._advance()
        if not self._holds:
            learner.outbox.sent()
        self._send(learner)

    def _chunks(self, header: Chunk, values: np.ndarray) -> Iterator[DataChunk]:
        return split(header, codec.encode(Coding.FLOAT32, values), 4 * self._values // CHUNKS)
