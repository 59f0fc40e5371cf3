"""Learners behind slow uplinks on virtual time: the real core, outboxes and framing; only the wire and the training are simulated."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from builders.chunks import as_from_learner, data_chunk
from builders.core import Push, SimulatedLearner, Simulation, a_layout, a_seeded_core
from diloco.algorithm import codec
from diloco.algorithm.codec import Coding
from diloco.algorithm.effects import Broadcast, Merged, Pull
from diloco.algorithm.events import Marks, Metadata, Offer
from diloco.contract import Training
from diloco.learner.outbox import Outbox
from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import Chunk, FromLearner, Hello, Progress
from diloco.protocol.framing import Assembler, split
from diloco.protocol.window import Receipts

CHUNKS = 8
"""Chunks of one push."""
VALUES = 64
"""Values of a fragment."""
HELD_VALUES = 128 << 10
"""Values of a fragment where the transport holds what it is given: pushes of 512 KiB, eight times the smallest window."""


@dataclass(kw_only=True)
class LinkedLearner(SimulatedLearner):
    """Takes a step every second and answers pulls after its steps."""

    push_seconds: float
    outbox: Outbox
    assembler: Assembler
    sending: bool = False
    most_queued: int = 0
    """Pushes that waited or were under way at a time."""
    receipts: Receipts = field(default_factory=Receipts)
    free_at: float = 0.0
    """When the link has carried what the transport holds."""


class SlowLinks(Simulation[LinkedLearner]):
    """One job whose mean learner step is one second."""

    def __init__(
        self,
        training: Training,
        push_seconds: Mapping[str, float],
        phases: Mapping[str, float],
        *,
        holds: bool = False,
        acknowledges: bool = False,
    ) -> None:
        """`push_seconds`: per unit, what the transfer of one push takes. `phases`: per unit, when in each second it ends a step.
        `holds`: the transport takes all messages at once and holds them until the link has carried them, as gRPC and the kernel do.
        `acknowledges`: the syncer acknowledges chunks."""
        self._values = HELD_VALUES if holds else VALUES
        self._holds, self._acknowledges = holds, acknowledges
        learners = []
        for unit, seconds in push_seconds.items():
            outbox = Outbox(FromLearner(hello=Hello()), training.overlap_steps, lambda: self.now)
            outbox.may_cancel()
            if acknowledges:
                outbox.acknowledges()
            assembler = Assembler(lambda chunk: 4 * self._values)
            learners.append(
                LinkedLearner(unit, 1.0, phases[unit], between_steps=True, push_seconds=seconds, outbox=outbox, assembler=assembler)
            )
        super().__init__(a_seeded_core(training, a_layout(training.fragments, self._values)), learners)

    def share(self, unit: str, after: int) -> float:
        """Return the share of the merges after outer step `after` that the unit is in."""
        merges = [merge for merge in self.all(Merged) if merge.t > after]
        return sum(unit in merge.units for merge in merges) / len(merges)

    def _pulled(self, learner: LinkedLearner, pull: Pull) -> None:
        learner.outbox.clock(pull.t)
        super()._pulled(learner, pull)

    def _adopts(self, learner: LinkedLearner, broadcast: Broadcast) -> None:
        learner.outbox.merged(broadcast.fragment, broadcast.t)
        super()._adopts(learner, broadcast)

    def _report(self, learner: LinkedLearner, metadata: Metadata) -> None:
        said = Progress(local_step=metadata.local_step, steps=metadata.steps, tokens=metadata.tokens, step_seconds=metadata.step_seconds)
        learner.outbox.progress(said)

    def _reply(self, learner: LinkedLearner, pull: Pull, steps: int | None = None) -> None:
        assert steps is not None, "it answers between its steps"
        values = np.full(self._values, learner.local_step, np.float32)
        header = Chunk(kind=Chunk.PUSH, fragment=pull.fragment, t=pull.t, coding=Chunk.FLOAT32, steps=steps, tokens=steps * learner.tokens)
        learner.outbox.push(header, self._chunks(header, values), lambda: None)

    def _step(self, learner: LinkedLearner) -> None:
        super()._step(learner)
        learner.most_queued = max(learner.most_queued, learner.outbox.pushes)
        if not learner.sending:
            self._send(learner)

    def _send(self, learner: LinkedLearner) -> None:
        if self._holds:
            while (held := learner.outbox.take()) is not None:
                learner.outbox.sent()
                message = as_from_learner(held)
                learner.free_at = max(learner.free_at, self.now) + self._seconds(learner, message)
                self.at(learner.free_at, functools.partial(self._delivered, learner, message))
            return
        taken = learner.outbox.take()
        learner.sending = taken is not None
        if taken is not None:
            message = as_from_learner(taken)
            self.at(self.now + self._seconds(learner, message), functools.partial(self._delivered, learner, message))

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
            self._push(learner, Push(offer, transfer.payload))
        if self._acknowledges:
            learner.receipts.take(len(message.chunk.data), self.now)
            if self.now >= learner.receipts.due_at:
                learner.outbox.taken(learner.receipts.tell(self.now))
        self._advance()
        if not self._holds:
            learner.outbox.sent()
        self._send(learner)

    def _chunks(self, header: Chunk, values: np.ndarray) -> Iterator[DataChunk]:
        return split(header, codec.encode(Coding.FLOAT32, values), 4 * self._values // CHUNKS)
