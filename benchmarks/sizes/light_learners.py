"""Learners that hold no model: they drop what they receive, and answer every pull with the same bytes. Like real ones they acknowledge
chunks and keep to their transfer window. All of them run in one event loop. They are for figures of a syncer alone, on a machine whose
memory does not hold the models of many learners."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import numpy as np
from diloco import contract
from diloco.algorithm.codec import Coding, coding_for, encode
from diloco.algorithm.fragments import Fragment, make_fragments
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.protocol.channel import Keepalive, client_options
from diloco.protocol.chunks import DataChunk, divide
from diloco.protocol.diloco_pb2 import Chunk, FromLearner, Hello, Progress, Tensor, Welcome, WorkWanted
from diloco.protocol.framing import is_last, split
from diloco.protocol.rpc import exchange
from diloco.protocol.window import Receipts, Window

from benchmarks.exchange_rig import ExchangeRig
from benchmarks.fixed_step_learner import BATCH, shapes

TOKENS = BATCH * 128
"""Tokens in a step."""
AHEAD = 64
"""Steps for which work is leased in advance."""


class Payloads:
    """The payloads that all learners send. They are made once, from one vector of normal numbers."""

    def __init__(self, fragments: Sequence[Fragment], coding: Coding) -> None:
        self.fragments = fragments
        self.coding = coding
        values = np.random.default_rng(0).standard_normal(max(fragment.size for fragment in fragments), dtype=np.float32)
        values *= np.float32(1e-3)
        self._seed = encode(Coding.FLOAT32, values)
        self._pushes = {size: encode(coding, values[:size]) for size in {fragment.size for fragment in fragments}}

    def seed(self, p: int) -> memoryview:
        return self._seed[: 4 * self.fragments[p].size]

    def push(self, p: int) -> memoryview:
        return self._pushes[self.fragments[p].size]


class LightLearner:
    """One stream of a unit's first attempt."""

    def __init__(self, rig: ExchangeRig, unit: str, layout: Layout, payloads: Payloads) -> None:
        self._rig = rig
        self._unit = unit
        self._layout = layout
        self._payloads = payloads
        self._held: dict[int, int] = {}
        """Fragment -> the version that came last."""
        self._steps = [0] * len(payloads.fragments)
        """For each fragment, steps since its last version came."""
        self._taken = 0
        self._leased = 0
        self._wanted = 0
        self._call: Any
        self._writing = asyncio.Lock()
        self._transfers: asyncio.Queue[tuple[Chunk, memoryview]] = asyncio.Queue()
        self._window = Window()
        self._opened = asyncio.Event()
        """Set when the window may have opened."""
        self._receipts = Receipts()
        self.complete = asyncio.Event()
        """Set once the learner has received every fragment."""
        self.contributions = 0

    async def run(self) -> None:
        """Join and train until the stream ends, which is an error, or this is cancelled."""
        rig = self._rig
        options = client_options(Keepalive(), contract.syncer_host_name(rig.job.name, rig.job.namespace))
        credentials = rig.certificates.learner(self._unit).read().channel_credentials()
        async with grpc.aio.secure_channel(rig.address, credentials, options=options) as channel:
            self._call = exchange(channel)(wait_for_ready=True)
            await self._say(FromLearner(hello=self._hello()))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read())
                tasks.create_task(self._write())
                tasks.create_task(self._train())

    def _hello(self) -> Hello:
        return Hello(
            job_uid=self._rig.job.uid,
            unit=self._unit,
            attempt=1,
            session=self._unit.encode(),
            framework="none",
            tensors=[Tensor(name=x.name, shape=x.shape, embedding=x.embedding) for x in self._layout.tensors],
            fingerprint=self._layout.fingerprint,
            acknowledges=True,
        )

    async def _say(self, message: FromLearner | DataChunk) -> None:
        async with self._writing:
            await self._call.write(message)

    async def _read(self) -> None:
        async for message in self._call:
            if isinstance(message, DataChunk):
                await self._receive(message)
                continue
            match message.WhichOneof("message"):
                case "welcome":
                    self._begin(message.welcome)
                case "taken":
                    self._window.taken(message.taken, time.monotonic())
                    self._opened.set()
                case "work":
                    self._leased += message.work.end - message.work.start
                case "pull":
                    self._push(message.pull.fragment, message.pull.t)
        raise RuntimeError(f"the syncer has ended the stream of unit {self._unit}: {message}")

    def _begin(self, welcome: Welcome) -> None:
        if welcome.acknowledges:
            self._window.limit()
        if welcome.seed_wanted:
            self._seed()

    async def _receive(self, chunk: DataChunk) -> None:
        self._receipts.take(len(chunk.data), time.monotonic(), more=not is_last(chunk))
        if is_last(chunk):
            self._holds(chunk.header.fragment, chunk.header.t)
        if (now := time.monotonic()) >= self._receipts.due_at:
            await self._say(FromLearner(taken=self._receipts.tell(now)))

    def _holds(self, p: int, version: int) -> None:
        self._held[p] = version
        self._steps[p] = 0
        if len(self._held) == len(self._steps):
            self.complete.set()

    def _seed(self) -> None:
        for p in range(len(self._steps)):
            self._transfers.put_nowait((Chunk(kind=Chunk.SEED, fragment=p, coding=Chunk.FLOAT32), self._payloads.seed(p)))
            self._holds(p, 0)

    def _push(self, p: int, t: int) -> None:
        if not self._steps[p]:
            return  # a real learner that is pulled right after the broadcast answers after its next step
        header = Chunk(
            kind=Chunk.PUSH,
            fragment=p,
            t=t,
            coding=self._payloads.coding.value,  # type: ignore[arg-type]
            base=self._held[p] if self._payloads.coding.delta else 0,
            steps=self._steps[p],
            tokens=self._steps[p] * TOKENS,
            samples_done=self._taken * BATCH,
            tokens_done=self._taken * TOKENS,
            steps_done=self._taken,
        )
        self._transfers.put_nowait((header, self._payloads.push(p)))
        self.contributions += 1

    async def _write(self) -> None:
        while True:
            header, payload = await self._transfers.get()
            for piece in split(header, payload):
                rest: DataChunk | None = piece
                while rest is not None:
                    while not self._window.is_open(time.monotonic()):
                        self._opened.clear()
                        await self._opened.wait()
                    chunk, rest = divide(rest, self._window.chunk_bytes(time.monotonic()))
                    self._window.sent(len(chunk.data), time.monotonic())
                    await self._say(chunk)

    async def _train(self) -> None:
        await self.complete.wait()
        while True:
            await asyncio.sleep(self._rig.workload.step_seconds)
            if (wanted := (self._taken + AHEAD) * BATCH - self._wanted) > AHEAD * BATCH // 2:
                self._wanted += wanted
                await self._say(FromLearner(work_wanted=WorkWanted(samples=wanted)))
            if (self._taken + 1) * BATCH > self._leased:
                continue
            self._taken += 1
            self._steps = [steps + 1 for steps in self._steps]
            await self._say(FromLearner(progress=self._progress()))

    def _progress(self) -> Progress:
        return Progress(
            local_step=self._taken,
            steps=self._steps,
            tokens=[steps * TOKENS for steps in self._steps],
            step_seconds=self._rig.workload.step_seconds,
            loss=1.0,
            samples_done=self._taken * BATCH,
            tokens_done=self._taken * TOKENS,
            t=max(self._held.values()),
        )


@contextlib.asynccontextmanager
async def light_learners(rig: ExchangeRig, count: int, first: int = 0) -> AsyncIterator[list[LightLearner]]:
    """Yield `count` learners that have all parameters. The first one seeds the job, then the others join at once. At the end all leave.
    `first`: number of the first learner, if several processes have learners of one job."""
    layout = Layout(TensorSpec(name, shape) for name, shape in shapes(rig.workload.mebibytes).items())
    payloads = Payloads(make_fragments(layout, rig.job.training.fragments), coding_for(rig.job.training.compression))
    learners = [LightLearner(rig, f"light-{first + index}", layout, payloads) for index in range(count)]
    async with asyncio.TaskGroup() as tasks:
        streams = [tasks.create_task(learners[0].run())]
        await learners[0].complete.wait()
        streams += [tasks.create_task(learner.run()) for learner in learners[1:]]
        for learner in learners:
            await learner.complete.wait()
        yield learners
        for stream in streams:
            stream.cancel()
