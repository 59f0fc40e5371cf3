"""A learner of the engine simulation: the plans of a real unit, on virtual time, with a record of its local steps in place of a model."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from diloco.algorithm.codec import Coding, encode
from diloco.algorithm.fragments import make_fragments
from diloco.algorithm.layout import FrozenTensor, Layout, TensorSpec
from diloco.algorithm.pieces import Piece, portion, whole
from diloco.contract import Training
from diloco.learner.ahead import StagedAhead
from diloco.learner.exchanged_model import ExchangedModel
from diloco.learner.heartbeat_state import HeartbeatState
from diloco.learner.inbox import Inbox, Leased, PullWanted, Received, Welcomed
from diloco.learner.member import MemberParts
from diloco.learner.peers import Peers
from diloco.learner.solo import SoloMember
from diloco.learner.store import Float32Array, Ready, Staged
from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import Bye, Chunk, Evaluation, Hello, Progress, Tensor, ToLearner, Welcome
from diloco.protocol.framing import Transfer, is_last
from diloco.syncer.job.engine import Engine
from diloco.syncer.streams.learner_stream import (
    WITHOUT_SLOT,
    ByeReceived,
    EvaluationReceived,
    HelloReceived,
    LearnerStream,
    ProgressReported,
    SeedReceived,
    StreamEvent,
    StreamLost,
    WorkRequested,
)

STEP_SECONDS = 1.0
PLACES = 4096
"""Local steps that a run can hold."""


@dataclass(frozen=True, slots=True)
class UnitSpeed:
    """How long a unit's steps and transfers take."""

    step_seconds: float
    jitter: float = 0.2
    """How much each step varies, in parts of it."""
    wire_seconds: float = 2.5 * STEP_SECONDS
    """The longest transfer of a push."""


@dataclass(slots=True)
class Steps:
    """What the learners trained, step by step, as they count it."""

    numbers: list[tuple[int, ...]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    t: list[int] = field(default_factory=list)
    """The outer step at which each ended."""

    def add(self, numbers: tuple[int, ...], tokens: int, t: int) -> int:
        """The place of a new step."""
        self.numbers.append(numbers)
        self.tokens.append(tokens)
        self.t.append(t)
        assert len(self.numbers) <= PLACES, "the run is longer than the model has places"
        return len(self.numbers) - 1


class Surroundings(Protocol):
    """What a learner shares with the others."""

    random: random.Random
    training: Training
    layout: Layout
    steps: Steps
    engine: Engine | None
    answered_ahead: int

    @property
    def t(self) -> int:
        """Outer steps taken."""
        ...


class _Record:
    """A `ParameterStore` whose values are the steps of the session so far. Nothing of it is ever overwritten."""

    def __init__(self, layout: Layout) -> None:
        self.places: list[int] = []
        self.staged = 0
        """Copies that were not released."""
        self._layout = layout

    def specs(self) -> Sequence[TensorSpec]:
        return self._layout.tensors

    def frozen(self) -> Sequence[FrozenTensor]:
        return self._layout.frozen

    def dtypes(self) -> Mapping[str, str]:
        return {spec.name: "float32" for spec in self._layout.tensors}

    def owned(self) -> Sequence[Piece]:
        return [whole(spec) for spec in self._layout.tensors]

    @property
    def lent(self) -> bool:
        return False

    def reclaim(self) -> None:
        pass

    def warm_up(self, groups: Sequence[Sequence[str]]) -> None:
        pass

    def stage(self, names: Sequence[str]) -> _Copy:
        self.staged += 1
        return _Copy(self, list(self.places))

    def prepare(self, names: Sequence[str], values: Float32Array) -> Ready:
        return Ready(tuple(names), ())

    def apply(self, ready: Ready) -> None:
        pass

    def fill(self, names: Sequence[str]) -> None:
        pass

    def rounded(self, names: Sequence[str], values: Float32Array) -> Float32Array:
        return values


class _Copy:
    def __init__(self, record: _Record, places: list[int]) -> None:
        self._record = record
        self._places = places
        self._released = False

    def wait(self) -> Float32Array:
        assert not self._released
        held = np.zeros(PLACES, np.float32)
        held[self._places] = 1.0
        return held

    def release(self) -> None:
        self._record.staged -= not self._released
        self._released = True


class Learner:
    """One process of a learner. It trains without waiting for anything but work. It is its own connection."""

    def __init__(self, world: Surroundings, unit: str, attempt: int, speed: UnitSpeed | None) -> None:
        self._world = world
        self._random = world.random
        self._speed = speed or UnitSpeed(STEP_SECONDS * self._random.uniform(0.7, 1.4))
        self._batch = self._random.randint(1, 4)
        self._hello = Hello(
            job_uid="uid",
            unit=unit,
            attempt=attempt,
            session=self._random.randbytes(16),
            framework="simulated",
            tensors=[Tensor(name=x.name, shape=x.shape) for x in world.layout.tensors],
            fingerprint=world.layout.fingerprint,
        )
        training = world.training
        fragments = make_fragments(world.layout, training.fragments)
        self._names = [[tensor.name for tensor in fragment.tensors] for fragment in fragments]
        self._inbox = Inbox(training.overlap_steps)
        self.heartbeat = HeartbeatState()
        self.record = self._record = _Record(world.layout)
        owned = self._record.owned()
        model = ExchangedModel(self._record, [portion(one, owned) for one in fragments], lambda: None, None)
        self._member = SoloMember(MemberParts(unit, training, model, self._inbox, self, Peers()))  # type: ignore[arg-type]
        self._ahead = StagedAhead()
        self._versions: dict[int, int] = {}
        """Per fragment the version that has come."""
        self._incarnation = b""
        self._generation = self._leased = 0
        self._stream: LearnerStream | None = None
        self._link: asyncio.Task[None] | None = None
        self._seeding: asyncio.Task[None] | None = None
        self._over = False
        self.most_ahead = 0
        """The most answers that it kept for pulls to come."""

    async def run(self) -> None:
        training = asyncio.create_task(self._train())
        try:
            while not self._over:
                if self._world.engine is not None:
                    self._link = asyncio.create_task(self._exchange(self._world.engine))
                    await asyncio.wait([self._link])
                await asyncio.sleep(self._random.uniform(0.05, 2.0))
        finally:
            training.cancel()
            self.cut()

    def cut(self) -> None:
        """The connection breaks."""
        if self._link is not None:
            self._link.cancel()

    async def drain(self) -> None:
        """As SIGTERM does."""
        self._over = True
        self._ahead.clear()
        engine, stream = self._world.engine, self._stream
        if engine is not None and stream is not None:
            await _submit(engine, stream, ByeReceived(stream, Bye(drained=True)))
            await asyncio.sleep(0.5)

    # --- the connection -----------------------------------------------------------------------------------------------

    async def _exchange(self, engine: Engine) -> None:
        stream = engine.connect()
        hello = Hello()
        hello.CopyFrom(self._hello)
        hello.incarnation, hello.samples_leased = self._incarnation, self._leased
        if self._versions:
            hello.versions.extend(self._versions.get(p, -1) for p in range(len(self._names)))
        try:
            await _submit(engine, stream, HelloReceived(stream, hello))
            async for message in stream.outgoing.messages():
                await asyncio.sleep(self._random.uniform(0.0, 0.02))
                await self._hear(engine, stream, message)
        finally:
            self._stream = None
            engine.submit(StreamLost(stream, "cut"))

    async def _hear(self, engine: Engine, stream: LearnerStream, message: ToLearner | DataChunk) -> None:
        if isinstance(message, DataChunk):
            if is_last(message):
                p, header = message.header.fragment, message.header
                assert header.coding == Chunk.FLOAT32 or self._versions[p] == header.base, "a delta without its base"
                self._versions[p] = header.t
                self._ahead.received(p)
                self._inbox.put(Received(p, header.t, self._record.prepare(self._names[p], np.empty(0, np.float32))))
            return
        match message.WhichOneof("message"):
            case "welcome":
                self._welcomed(stream, message.welcome)
            case "pull":
                p, t = message.pull.fragment, message.pull.t
                if (kept := self._ahead.take(p, t, self._versions[p])) is not None:
                    self._world.answered_ahead += 1
                    self.push(self._generation, *kept)
                self._inbox.put(PullWanted(self._generation, p, t, kept is not None))
            case "work":
                self._leased += message.work.end - message.work.start
                self._inbox.put(Leased(message.work.start, message.work.end))
            case "done":
                self._over = True
                self._ahead.clear()
                await _submit(engine, stream, EvaluationReceived(stream, Evaluation(held_out_loss=1.0, tokens=1, t=message.done.t)))
                await _submit(engine, stream, ByeReceived(stream, Bye()))
            case "refused":
                raise AssertionError(message.refused.message)

    def _welcomed(self, stream: LearnerStream, welcome: Welcome) -> None:
        if not welcome.resumed:
            self._generation += 1
            self._leased = 0
            self._ahead.clear()
        self._incarnation = welcome.incarnation
        self._stream = stream
        self._inbox.put(Welcomed(self._generation, welcome.t, welcome.steps, welcome.seed_wanted, 0))

    # --- what plans ask of it -----------------------------------------------------------------------------------------

    def push(self, generation: int, header: Chunk, staged: Staged) -> None:
        engine, stream = self._world.engine, self._stream
        if engine is not None and stream is not None and generation == self._generation:
            header.base = self._versions[header.fragment]
            transfer = Transfer(header, memoryview(encode(Coding(header.coding), staged.wait())))
            wire = self._random.uniform(0.0, self._speed.wire_seconds)
            asyncio.get_running_loop().call_later(wire, lambda: self._arrive(engine, stream, transfer))
        staged.release()

    def keep_only(self, fragments: Collection[int]) -> None:
        self._ahead.keep_only(fragments)

    def keep(self, generation: int, header: Chunk, staged: Staged) -> None:
        if self._stream is not None and generation == self._generation and not self._over:
            self._ahead.keep(header, staged)
        else:
            staged.release()

    def seed(self, generation: int, values: Sequence[Float32Array]) -> None:
        engine, stream = self._world.engine, self._stream
        self._versions = dict.fromkeys(range(len(self._names)), 0)
        if engine is not None and stream is not None and generation == self._generation:
            self._seeding = asyncio.ensure_future(self._send_seed(engine, stream))

    async def _send_seed(self, engine: Engine, stream: LearnerStream) -> None:
        for p in range(len(self._names)):
            payload = memoryview(bytes(4 * PLACES))
            await _submit(engine, stream, SeedReceived(stream, Transfer(Chunk(kind=Chunk.SEED, fragment=p, coding=Chunk.FLOAT32), payload)))

    def received(self) -> None:
        pass

    def progress(self, generation: int, progress: Progress) -> None:
        engine, stream = self._world.engine, self._stream
        if engine is None or stream is None or generation != self._generation:
            return
        waiting = stream.progress is not None
        stream.progress = progress
        if not waiting:
            engine.submit(ProgressReported(stream))

    # --- training -----------------------------------------------------------------------------------------------------

    async def _train(self) -> None:
        while not self._over:
            await self._ask_for_work()
            if self._member.state.missing or (numbers := self._member.take(self._batch)) is None:
                await asyncio.sleep(0.1 * STEP_SECONDS)
                self._boundary()
                continue
            seconds = self._speed.step_seconds * self._random.uniform(1 - self._speed.jitter, 1 + self._speed.jitter)
            await asyncio.sleep(seconds)
            [(generation, _)] = self._member.state.in_hand
            # A batch of a session that ended counts for nothing, but its tokens and the step do.
            counted = tuple(numbers.tolist()) if generation == self._member.state.generation else ()
            tokens = sum(self._random.randint(10, 30) for _ in range(self._batch))
            self._record.places.append(self._world.steps.add(counted, tokens, self._world.t))
            self._member.stepped(tokens, 1.0, seconds, 1)
            self._boundary()
            self.most_ahead = max(self.most_ahead, len(self._ahead))

    async def _ask_for_work(self) -> None:
        if self._member._work.remaining < 4 * self._batch and self._stream is not None and self._world.engine is not None:
            await _submit(self._world.engine, self._stream, WorkRequested(self._stream, 12 * self._batch))

    def _boundary(self) -> None:
        generation = self._member.state.generation
        self._member.boundary()
        if self._member.state.generation != generation:
            self._record.places = []  # nothing of the session before counts

    def _arrive(self, engine: Engine, stream: LearnerStream, transfer: Transfer) -> None:
        """After its time on the wire, unless the connection broke."""
        if stream is self._stream:
            task = asyncio.ensure_future(engine.push(stream, transfer))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())


async def _submit(engine: Engine, stream: LearnerStream, event: StreamEvent) -> None:
    if not isinstance(event, WITHOUT_SLOT):
        await stream.slots.acquire()
    engine.submit(event)
