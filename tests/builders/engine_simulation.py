"""The syncer's engine on virtual time, with learners that count what they train, and deaths of any process at any moment.

The model is a record. Each local step of a learner has a place of its own in every fragment. A learner's push adds 1 at the places of all
steps of its session so far, and with a plain mean and without momentum nothing is ever taken away. So a fragment holds more than 0 at a
step's place exactly if it has merged a contribution of that session that was read at or after that step: what a commit promises can be
read from the parameters of a snapshot, independently of the ledger in it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from builders.virtual_time import run_virtual
from diloco import contract
from diloco.algorithm.codec import Coding, encode
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.contract import JobFile, Training
from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import Bye, Chunk, Evaluation, Hello, Progress, Tensor, ToLearner, Welcome
from diloco.protocol.framing import Transfer, is_last
from diloco.protocol.tls import TlsFiles
from diloco.syncer.changes import Changes
from diloco.syncer.config import SyncerConfig, Timeouts
from diloco.syncer.engine import Engine, RunOutcome
from diloco.syncer.event_writer import EventWriter
from diloco.syncer.peer import (
    WITHOUT_SLOT,
    ByeReceived,
    EvaluationReceived,
    HelloReceived,
    Peer,
    ProgressReported,
    SeedReceived,
    StreamEvent,
    StreamLost,
    WorkRequested,
)
from diloco.syncer.restore import restore, snapshot_places
from diloco.syncer.snapshot_writer import SnapshotData, SnapshotWriter

STEP_SECONDS = 1.0
PLACES = 4096
"""Local steps that a run can hold."""


@dataclass(slots=True)
class Account:
    """What was compared at every snapshot: the parameters against the ledger."""

    moments: int = 0
    """Snapshots that were compared."""
    compared: int = 0
    """Committed samples in them, summed up."""
    committed_and_missing: int = 0
    """Samples that a ledger has as committed, and that its parameters do not hold in every fragment."""
    missing_and_committed: int = 0
    """Samples that every fragment holds, and that the ledger does not have as committed."""
    trained_twice: int = 0
    """Samples that every fragment holds from two local steps."""
    wrong_tokens: int = 0
    """Difference of the tokens, as the learners count them."""

    @property
    def wrong(self) -> int:
        return self.committed_and_missing + self.missing_and_committed + self.trained_twice + self.wrong_tokens


@dataclass(slots=True)
class Steps:
    """What the learners trained, step by step, as they count it."""

    numbers: list[tuple[int, ...]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def add(self, numbers: tuple[int, ...], tokens: int) -> int:
        """The place of a new step."""
        self.numbers.append(numbers)
        self.tokens.append(tokens)
        assert len(self.numbers) <= PLACES, "the run is longer than the model has places"
        return len(self.numbers) - 1


class _Inline(ThreadPoolExecutor):
    """Does at once what a thread would: virtual time does not pass meanwhile."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*arguments, **keywords))
        except Exception as error:  # noqa: BLE001 -- raised where the result is awaited
            done.set_exception(error)
        return done


class _ComparingWriter(SnapshotWriter):
    """Compares every snapshot that the engine takes."""

    compare: Callable[[SnapshotData], None]

    def begin(self, data: SnapshotData, then: Callable[[], None]) -> None:
        self.compare(data)
        super().begin(data, then)

    async def save(self, data: SnapshotData) -> bool:
        self.compare(data)
        return await super().save(data)


class World:
    """One job: a syncer that may die, learners that may die, and links that may break."""

    def __init__(self, directory: Path, seed: int, training: Training, units: int) -> None:
        self.random = random.Random(seed)
        self.training = training
        self.layout = Layout(TensorSpec(f"w{p}", (PLACES,)) for p in range(training.fragments))
        self.steps = Steps()
        self.account = Account()
        self.engine: Engine | None = None
        self.outcome: RunOutcome | None = None
        self.told: Counter[str] = Counter()
        """What happened to the processes, by kind."""
        self._directory = directory
        self._config = SyncerConfig(
            job=JobFile(name="job", namespace="default", uid="uid", training=training),
            tls=TlsFiles(directory),
            host="127.0.0.1",
            port=0,
            state_dir=directory,
            termination_log=None,
            timeouts=Timeouts(reconnect_window=4 * STEP_SECONDS, farewell=600.0),
        )
        self._engine_task: asyncio.Task[RunOutcome] | None = None
        self._learners: dict[str, Learner] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._units = [f"u-{i}" for i in range(units)]
        self._attempts = dict.fromkeys(self._units, 0)

    async def run(self, trouble: int) -> None:
        """To the end of the job, with `trouble` incidents at random moments."""
        asyncio.get_running_loop().set_default_executor(_Inline())
        self._start_syncer()
        for unit in self._units:
            self._start_learner(unit)
        for _ in range(trouble):
            await asyncio.sleep(self.random.uniform(0.2, self.training.steps * STEP_SECONDS / trouble))
            await self._incident()
        while self.outcome is not RunOutcome.COMPLETE:
            assert self._engine_task is not None
            self.outcome = await self._engine_task
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def compare(self, data: SnapshotData) -> None:
        """The parameters of a snapshot against its ledger."""
        arrays = dict(zip(data.tensors.shapes, data.tensors.arrays(), strict=True))
        held = np.logical_and.reduce([arrays[f"value/w{p}"] > 0 for p in range(self.training.fragments)])
        places = np.flatnonzero(held).tolist()
        merged = Counter(number for place in places for number in self.steps.numbers[place])
        ledger = data.meta["ledger"]
        committed = {number for start, end in ledger["committed"] for number in range(start, end)}
        account = self.account
        account.moments += 1
        account.compared += len(committed)
        account.committed_and_missing += len(committed - merged.keys())
        account.missing_and_committed += len(merged.keys() - committed)
        account.trained_twice += sum(times > 1 for times in merged.values())
        account.wrong_tokens += abs(
            sum(self.steps.tokens[place] for place in places) - sum(tokens for _, tokens, _ in ledger["units"].values())
        )

    # --- processes ----------------------------------------------------------------------------------------------------

    async def _incident(self) -> None:
        if self._engine_task is not None and self._engine_task.done():
            return
        what = self.random.choice(["syncer killed", "syncer stopped", "learner killed", "learner killed", "learner drained", "link cut"])
        self.told[what] += 1
        unit = self.random.choice(self._units)
        match what:
            case "syncer killed" | "syncer stopped":
                await self._end_syncer(stop=what == "syncer stopped")
                await asyncio.sleep(self.random.uniform(0.0, 3.0))
                self._start_syncer()
            case "learner killed":
                self._tasks[unit].cancel()
                await asyncio.sleep(self.random.uniform(0.0, 8.0))
                self._start_learner(unit)
            case "learner drained":
                await self._learners[unit].drain()
                self._tasks[unit].cancel()
                self._start_learner(unit)
            case "link cut":
                self._learners[unit].cut()

    def _start_syncer(self) -> None:
        store, remote = snapshot_places(self._config)
        state = restore(self._config, store, remote)
        changes = Changes()
        writer = _ComparingWriter(store, remote, changes.notify, state.snapshot)
        writer.compare = self.compare
        t = state.core.t if state.core is not None else 0
        events = EventWriter(self._directory / "tensorboard", steps=self.training.steps, t=t, changed=changes.notify)
        incarnation = self.random.randbytes(16)
        self.engine = Engine(self._config, state, writer, events, changes, incarnation, asyncio.get_running_loop().time)
        self._engine_task = asyncio.create_task(self.engine.run())

    async def _end_syncer(self, *, stop: bool) -> None:
        assert self.engine is not None
        assert self._engine_task is not None
        if stop:
            self.engine.stop()
        else:
            self._engine_task.cancel()
        await asyncio.gather(self._engine_task, return_exceptions=True)
        self.engine = None
        for learner in self._learners.values():
            learner.cut()

    def _start_learner(self, unit: str) -> None:
        self._attempts[unit] += 1
        learner = self._learners[unit] = Learner(self, unit, self._attempts[unit])
        self._tasks[unit] = asyncio.create_task(learner.run())


class Learner:
    """One process of a learner. It trains without waiting for anything but work."""

    def __init__(self, world: World, unit: str, attempt: int) -> None:
        self._world = world
        self._random = world.random
        self._count = world.training.fragments
        self._coding = Coding.BFLOAT16_DELTA
        self._step_seconds = STEP_SECONDS * self._random.uniform(0.7, 1.4)
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
        self._incarnation = b""
        self._local_step = 0
        self._peer: Peer | None = None
        self._link: asyncio.Task[None] | None = None
        self._over = False
        self._begin()

    def _begin(self) -> None:
        """A new session: nothing of the one before counts."""
        self._places: list[int] = []
        self._leases: deque[int] = deque()
        self._leased = self._samples = self._tokens = 0
        self._versions: dict[int, int] = {}
        self._adopted: set[int] = set()
        self._pulls: list[tuple[int, int]] = []
        self._fragment_steps = [0] * self._count
        self._fragment_tokens = [0] * self._count

    async def run(self) -> None:
        training = asyncio.create_task(self._train())
        try:
            while not self._over:
                if self._world.engine is not None:
                    self._link = asyncio.create_task(self._stream(self._world.engine))
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
        engine, peer = self._world.engine, self._peer
        if engine is not None and peer is not None:
            await _submit(engine, peer, ByeReceived(peer, Bye(drained=True)))
            await asyncio.sleep(0.5)

    # --- the connection -----------------------------------------------------------------------------------------------

    async def _stream(self, engine: Engine) -> None:
        peer = engine.connect()
        hello = Hello()
        hello.CopyFrom(self._hello)
        hello.incarnation, hello.samples_leased = self._incarnation, self._leased
        if self._versions:
            hello.versions.extend(self._versions.get(p, -1) for p in range(self._count))
        try:
            await _submit(engine, peer, HelloReceived(peer, hello))
            async for message in peer.outgoing.messages():
                await asyncio.sleep(self._random.uniform(0.0, 0.02))
                await self._hear(engine, peer, message)
        finally:
            self._peer = None
            engine.submit(StreamLost(peer, "cut"))

    async def _hear(self, engine: Engine, peer: Peer, message: ToLearner | DataChunk) -> None:
        if isinstance(message, DataChunk):
            if is_last(message):
                p, header = message.header.fragment, message.header
                assert header.coding == Chunk.FLOAT32 or self._versions[p] == header.base, "a delta without its base"
                self._versions[p] = header.t
                self._adopted.add(p)
            return
        match message.WhichOneof("message"):
            case "welcome":
                await self._welcomed(engine, peer, message.welcome)
            case "pull":
                self._pulls.append((message.pull.fragment, message.pull.t))
            case "work":
                self._leases.extend(range(message.work.start, message.work.end))
                self._leased += message.work.end - message.work.start
            case "done":
                self._over = True
                await _submit(engine, peer, EvaluationReceived(peer, Evaluation(held_out_loss=1.0, tokens=1, t=message.done.t)))
                await _submit(engine, peer, ByeReceived(peer, Bye()))
            case "refused":
                raise AssertionError(message.refused.message)

    async def _welcomed(self, engine: Engine, peer: Peer, welcome: Welcome) -> None:
        if not welcome.resumed:
            self._begin()
        self._incarnation = welcome.incarnation
        self._peer = peer
        if welcome.seed_wanted:
            payload = memoryview(bytes(4 * PLACES))
            for p in range(self._count):
                self._versions[p] = 0
                await _submit(engine, peer, SeedReceived(peer, Transfer(Chunk(kind=Chunk.SEED, fragment=p, coding=Chunk.FLOAT32), payload)))

    # --- training -----------------------------------------------------------------------------------------------------

    async def _train(self) -> None:
        while not self._over:
            await asyncio.sleep(self._step_seconds * self._random.uniform(0.8, 1.2))
            if len(self._versions) < self._count:
                continue
            if len(self._leases) < 4 * self._batch and self._peer is not None and self._world.engine is not None:
                await _submit(self._world.engine, self._peer, WorkRequested(self._peer, 12 * self._batch))
            if len(self._leases) >= self._batch:
                self._step()

    def _step(self) -> None:
        numbers = tuple(self._leases.popleft() for _ in range(self._batch))
        tokens = sum(self._random.randint(10, 30) for _ in numbers)
        self._places.append(self._world.steps.add(numbers, tokens))
        self._local_step += 1
        self._samples += len(numbers)
        self._tokens += tokens
        self._fragment_steps = [steps + 1 for steps in self._fragment_steps]
        self._fragment_tokens = [total + tokens for total in self._fragment_tokens]
        self._report()
        pulls, self._pulls = self._pulls, []
        for p, t in pulls:
            if self._fragment_steps[p]:
                self._push(p, t)
            else:
                self._pulls.append((p, t))
        for p in self._adopted:
            self._fragment_steps[p] = self._fragment_tokens[p] = 0
        self._adopted = set()

    def _report(self) -> None:
        engine, peer = self._world.engine, self._peer
        if engine is None or peer is None:
            return
        waiting = peer.progress is not None
        peer.progress = Progress(
            local_step=self._local_step,
            steps=self._fragment_steps,
            tokens=self._fragment_tokens,
            step_seconds=self._step_seconds,
            loss=1.0,
            samples_done=self._samples,
            tokens_done=self._tokens,
        )
        if not waiting:
            engine.submit(ProgressReported(peer))

    def _push(self, p: int, t: int) -> None:
        engine, peer = self._world.engine, self._peer
        if engine is None or peer is None:
            return
        delta = np.zeros(PLACES, np.float32)
        delta[self._places] = 1.0
        header = Chunk(
            kind=Chunk.PUSH,
            fragment=p,
            t=t,
            coding=int(self._coding),  # type: ignore[arg-type]
            base=self._versions[p],
            steps=self._fragment_steps[p],
            tokens=self._fragment_tokens[p],
            samples_done=self._samples,
            tokens_done=self._tokens,
            steps_done=len(self._places),
        )
        transfer = Transfer(header, memoryview(encode(self._coding, delta)))
        asyncio.get_running_loop().call_later(self._random.uniform(0.0, 2.5 * STEP_SECONDS), lambda: self._arrive(engine, peer, transfer))

    def _arrive(self, engine: Engine, peer: Peer, transfer: Transfer) -> None:
        """After its time on the wire, unless the connection broke."""
        if peer is self._peer:
            task = asyncio.ensure_future(engine.push(peer, transfer))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())


async def _submit(engine: Engine, peer: Peer, event: StreamEvent) -> None:
    if not isinstance(event, WITHOUT_SLOT):
        await peer.slots.acquire()
    engine.submit(event)


def a_training(steps: int, *, interval: int, fragments: int, overlap: int) -> Training:
    return Training(
        steps=steps,
        sync_interval=interval,
        fragments=fragments,
        overlap_steps=overlap,
        quorum=1,
        compression="BFloat16",
        merge=contract.Merge(method="Average", embeddings="Average"),
        outer_optimizer=contract.OuterOptimizer(learning_rate=1.0, momentum=0.0),
        checkpoint=contract.Checkpoint(every_steps=3, keep=2),
    )


def simulate(directory: Path, seed: int, *, steps: int = 120, units: int = 3, trouble: int = 12) -> World:
    """A whole job with random H, P and tau, and with deaths at random moments. Deterministic."""
    choice = random.Random(seed)
    interval = choice.choice([2, 4, 6, 9])
    fragments = choice.randint(1, min(4, interval))
    world = World(directory, seed, a_training(steps, interval=interval, fragments=fragments, overlap=choice.randrange(interval)), units)
    run_virtual(world.run(trouble))
    return world
