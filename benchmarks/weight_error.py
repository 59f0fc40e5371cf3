"""[weight-error] The weights of the merges are proportional to tokens^2/steps within 1 %.

Learners of different speeds and batch sizes run on virtual time against the real core. For each learner the benchmark makes a count of its
own: the batches between adopting a fragment and being asked for it. For every merge it computes the shares of `steps * (tokens/step)^2`
from this count. It compares them with the shares in the merged value, and with the shares that the core reports. The value is the median
over the runs of a run's largest relative error, in percent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from builders.core import InlineCore, SimulatedLearner, Simulation, a_job, a_layout, a_push, a_seeded_core
from diloco.algorithm import codec
from diloco.algorithm.effects import Effect, Merged, Pull
from diloco.contract import Grace

from benchmarks.figure import Figure

LIMIT_PERCENT = 1.0
FRAGMENTS = 8
LEARNERS = {"v5p": (0.05, 4096), "v6e": (0.08, 4096), "h100": (0.06, 8192), "old": (0.21, 1024)}
"""Seconds per step, and mean tokens per batch. Batches vary around the mean by a tenth."""


class Learner(SimulatedLearner):
    """A learner with steps, batches and answers that vary."""

    def __init__(self, unit: str, index: int, step_seconds: float, batch: int, rng: np.random.Generator) -> None:
        self.index, self.batch, self.rng = index, batch, rng
        self.batches: list[list[int]] = [[] for _ in range(FRAGMENTS)]
        """For each fragment, the tokens of each batch since it was adopted. This is the benchmark's own count."""
        super().__init__(unit, step_seconds, start=0.3 * index * step_seconds)

    def next_step(self) -> float:
        return self.step_seconds * self.rng.uniform(0.95, 1.05)

    def next_answer(self) -> float:
        return self.rng.uniform(0.001, 0.04)

    def train(self) -> None:
        super().train()
        tokens = int(self.batch * self.rng.uniform(0.9, 1.1))
        for batches in self.batches:
            batches.append(tokens)

    def adopt(self, fragment: int) -> None:
        super().adopt(fragment)
        self.batches[fragment].clear()

    def trained(self) -> tuple[int, ...]:
        return tuple(sum(batches) for batches in self.batches)


@dataclass(frozen=True, slots=True)
class Size:
    runs: int
    seconds: float
    """Virtual time of a run."""
    least_compared: int
    """How many shares a run must compare. With fewer, nothing was measured."""


FULL = Size(runs=5, seconds=600.0, least_compared=1000)
SMOKE = Size(runs=1, seconds=30.0, least_compared=1)


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    errors = [_largest_error(seed, size) for seed in range(size.runs)]
    worst = max(errors)
    yield Figure("weight-error", float(np.median(errors)), "%", LIMIT_PERCENT, worst <= LIMIT_PERCENT, size.runs, {"worst": worst})


def _largest_error(seed: int, size: Size) -> float:
    """The largest error of one run, in percent. NaN if the run compared too few shares."""
    # Every tensor has one element for each learner. A learner pushes the syncer's value with its own element changed by 1.
    layout = a_layout(FRAGMENTS, len(LEARNERS))
    core = a_seeded_core(a_job(sync_interval=FRAGMENTS, fragments=FRAGMENTS, overlap_steps=2, grace=Grace()), layout)
    learners = [Learner(unit, index, *args, np.random.default_rng([seed, index])) for index, (unit, args) in enumerate(LEARNERS.items())]
    run = _Run(core, learners).run(until=size.seconds)
    if run.compared < size.least_compared:
        return float("nan")
    return 100 * run.worst


class _Run(Simulation[Learner]):
    def __init__(self, core: InlineCore, learners: Iterable[Learner]) -> None:
        super().__init__(core, learners)
        self.worst, self.compared = 0.0, 0
        self._expected: dict[tuple[int, str], float] = {}
        self._values = [core.value(p) for p in range(FRAGMENTS)]

    def _answer(self, learner: Learner, pull: Pull, steps: int | None = None) -> None:
        batches = learner.batches[pull.fragment]
        if not batches:
            return
        value = self.core.value(pull.fragment).copy()
        value[learner.index] += -1.0 if value[learner.index] > 0 else 1.0  # back and forth, so that float32 keeps its precision
        payload = codec.encode(self.core.coding, value)
        self._expected[pull.t, learner.unit] = len(batches) * (sum(batches) / len(batches)) ** 2
        self._push(learner, a_push(self.core, pull, steps=len(batches), tokens=sum(batches), payload=payload))

    def _carry_out(self, action: Effect) -> None:
        if isinstance(action, Merged):
            self._compare(action)
        super()._carry_out(action)

    def _compare(self, merged: Merged) -> None:
        """Compare the count with the shares that the merge had, which are how far each learner's element moved, and with those it
        reports."""
        expected = {unit: self._expected.pop((merged.t, unit)) for unit in merged.units}
        total, reported = sum(expected.values()), sum(merged.weights.values())
        before, after = self._values[merged.fragment], self.core.value(merged.fragment)
        self._values[merged.fragment] = after
        for unit, weight in expected.items():
            share = weight / total
            place = self.learners[unit].index
            moved = abs(float(after[place]) - float(before[place]))
            self.worst = max(self.worst, abs(moved / share - 1), abs(merged.weights[unit] / reported / share - 1))
            if len(expected) > 1:
                self.compared += 1
