"""[int4-feedback] Small steady gradients beside large noisy ones, with int4. The value is the distance of the parameters with small
gradients to their optimum after 200 cycles; it is 1 at the beginning.

Learners on virtual time descend a quadratic bowl with the real core, and code their pushes as a learner does. Every second value of a block
has a steady gradient, the others have noise twenty times as large. In a cycle the former change by less than half a level of their block,
so each push alone rounds them to nothing. `uncoded` is the same without compression. `without` is the same without feedback: a push forgets
the remainders of the pushes before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from builders.core import InlineCore, SimulatedLearner, Simulation, a_job, a_layout, a_push, a_seeded_core
from diloco.algorithm.codec import Coding
from diloco.algorithm.effects import Broadcast, Effect, Merged, Pull
from diloco.learner.arrays import ArrayStore
from diloco.learner.push_coding import push_chunks
from diloco.learner.remainders import Remainders
from diloco.learner.store import Float32Array
from diloco.protocol.diloco_pb2 import Chunk

from benchmarks.figure import Figure

LIMIT = 0.1
LEARNERS = 4
CYCLE = 10
"""Outer steps in a cycle, and about as many local steps."""
BLOCKS = 4
RATE = 5e-4
"""One local step goes this share of the distance to the optimum."""
NOISE = 0.03
"""Standard deviation of a noisy parameter's move in one local step."""
BACK = 0.1
"""One local step takes a noisy parameter back by this share of its distance to the optimum, so that it stays near."""


@dataclass(frozen=True, slots=True)
class Size:
    cycles: int
    runs: int


FULL = Size(cycles=200, runs=3)
SMOKE = Size(cycles=3, runs=1)


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    distances = {how: [_distance(seed, size.cycles, *how_args) for seed in range(size.runs)] for how, how_args in HOW.items()}
    worst = {how: round(max(each), 4) for how, each in distances.items()}
    value = worst.pop("with")
    yield Figure("int4-feedback", value, "of the distance at the beginning", LIMIT, value <= LIMIT, size.runs, dict(worst))


type Compression = Literal["None", "Int4"]

HOW: dict[str, tuple[Compression, bool]] = {"uncoded": ("None", True), "without": ("Int4", False), "with": ("Int4", True)}
"""Name -> compression, and whether a push adds the remainders of the pushes before it."""


def _distance(seed: int, cycles: int, compression: Compression, feedback: bool) -> float:
    job = a_job(
        sync_interval=CYCLE,
        fragments=1,
        compression=compression,
        quorum=LEARNERS,
        outer_optimizer={"learning_rate": 0.7, "momentum": 0.9},
    )
    core = a_seeded_core(job, a_layout(1, 256 * BLOCKS), value=1.0)
    learners = [Learner(f"u-{index}", core.value(0), np.random.default_rng([seed, index]), feedback) for index in range(LEARNERS)]
    _Run(core, learners).run(steps=cycles * CYCLE)
    return float(np.linalg.norm(core.value(0)[::2]) / np.linalg.norm(np.ones(128 * BLOCKS)))


class Learner(SimulatedLearner):
    """A learner whose optimum is 0 everywhere."""

    def __init__(self, unit: str, value: Float32Array, rng: np.random.Generator, feedback: bool) -> None:
        self.rng, self.feedback = rng, feedback
        self.theta = value.copy()
        self.store, self.remainders = ArrayStore({"w0": self.theta}), Remainders()
        super().__init__(unit, step_seconds=1.0)

    def train(self) -> None:
        super().train()
        self.theta[::2] *= np.float32(1 - RATE)
        noisy = self.theta[1::2]
        noisy *= np.float32(1 - BACK)
        noisy += NOISE * self.rng.standard_normal(noisy.size, dtype=np.float32)

    def payload(self, core: InlineCore, t: int) -> bytes:
        header = Chunk(kind=Chunk.PUSH, t=t, coding=Chunk.INT4_DELTA if core.coding is Coding.INT4_DELTA else Chunk.FLOAT32)
        remainders = self.remainders if self.feedback else Remainders()
        staged = self.store.stage(["w0"])
        chunks = push_chunks(header, staged, lambda: (core.version(0), core.value(0)), self.store, ["w0"], remainders)
        coded = b"".join(chunk.data for chunk in chunks)
        staged.release()
        return coded


class _Run(Simulation[Learner]):
    def __init__(self, core: InlineCore, learners: Iterable[Learner]) -> None:
        super().__init__(core, learners)
        self._merged: dict[str, int] = {}

    def _answer(self, learner: Learner, pull: Pull, steps: int | None = None) -> None:
        steps = learner.steps[0]
        if steps:
            self._push(learner, a_push(self.core, pull, steps=steps, tokens=100 * steps, payload=learner.payload(self.core, pull.t)))

    def _carry_out(self, action: Effect) -> None:
        if isinstance(action, Merged):
            self._merged |= dict.fromkeys(action.units, action.t)
        super()._carry_out(action)

    def _adopts(self, learner: Learner, broadcast: Broadcast) -> None:
        super()._adopts(learner, broadcast)
        learner.theta[...] = self.core.value(0)
        learner.remainders.received(0, broadcast.t, self._merged.get(learner.unit, 0))
