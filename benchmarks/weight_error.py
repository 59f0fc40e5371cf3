"""[weight-error] The weights of the merges are proportional to tokens^2/steps within 1 %.

Learners of different speeds and batch sizes run on virtual time against the real core. The benchmark counts for each, independently, the
batches that it trains between adopting a fragment and being asked for it. For every merge it compares the shares of
`steps * (tokens/step)^2` by this count with the shares that the merge had, read from the merged value, and with those that the core
reports. The value is the largest relative error of a run in percent, the median over the runs.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from diloco.algorithm import codec
from diloco.algorithm.core import Core
from diloco.algorithm.events import Broadcast, Merged, Metadata, Offer, Pull, Push
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.contract import Merge, OuterOptimizer, Training

from benchmarks.figure import Figure

LIMIT_PERCENT = 1.0
FRAGMENTS = 8
LEARNERS = {"v5p": (0.05, 4096), "v6e": (0.08, 4096), "h100": (0.06, 8192), "old": (0.21, 1024)}
"""Seconds a step, and mean tokens of a batch: batches vary around it by a tenth."""


@dataclass
class Learner:
    index: int
    step_seconds: float
    batch: int
    rng: np.random.Generator
    local_step: int = 0
    batches: list[list[int]] = field(default_factory=lambda: [[] for _ in range(FRAGMENTS)])
    """Per fragment the tokens of each batch since it was adopted: the independent count."""


@dataclass(frozen=True, slots=True)
class Size:
    runs: int
    seconds: float
    """Of virtual time in a run."""
    least_compared: int
    """Shares that a run must compare; with fewer, nothing was measured."""


FULL = Size(runs=5, seconds=600.0, least_compared=1000)
SMOKE = Size(runs=1, seconds=30.0, least_compared=1)


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    errors = [_largest_error(seed, size) for seed in range(size.runs)]
    worst = max(errors)
    yield Figure("weight-error", float(np.median(errors)), "%", LIMIT_PERCENT, worst <= LIMIT_PERCENT, size.runs, {"worst": worst})


def _largest_error(seed: int, size: Size) -> float:
    """Of one run on virtual time, in percent."""
    # One place for each learner in every tensor: it pushes the syncer's value, changed by 1 at its own place.
    layout = Layout(TensorSpec(f"w{p}", (len(LEARNERS),)) for p in range(FRAGMENTS))
    training = Training(
        steps=10**6,
        sync_interval=FRAGMENTS,
        fragments=FRAGMENTS,
        overlap_steps=2,
        merge=Merge(method="Average", embeddings="Average"),
        outer_optimizer=OuterOptimizer(learning_rate=1.0, momentum=0.0),
        compression="None",
    )
    core = Core(layout, training)
    core.seed([np.zeros(f.size, np.float32) for f in core.fragments])
    learners = {u: Learner(i, *of, np.random.default_rng([seed, i])) for i, (u, of) in enumerate(LEARNERS.items())}
    run = _Run(core, learners)
    run.until(size.seconds)
    if run.compared < size.least_compared:
        return float("nan")
    return 100 * run.worst


class _Run:
    def __init__(self, core: Core, learners: dict[str, Learner]) -> None:
        self.core, self.learners = core, learners
        self.now, self.worst, self.compared = 0.0, 0.0, 0
        self._queue: list[tuple[float, int, Any]] = []
        self._order = itertools.count()
        self._expected: dict[tuple[int, str], float] = {}
        self._values = [core.value(p) for p in range(FRAGMENTS)]
        for unit, learner in learners.items():
            core.join(unit, 0.0)
            self._at(learner.step_seconds * (1 + 0.3 * learner.index), unit)

    def until(self, end: float) -> None:
        while self._queue[0][0] < end:
            wake = self.core.wake_at(self.now)
            if wake is not None and wake < self._queue[0][0]:
                self.now = wake
            else:
                self.now, _, what = heapq.heappop(self._queue)
                if isinstance(what, str):
                    self._step(what)
                else:
                    self._answer(*what)
            for action in self.core.advance(self.now):
                self._carry_out(action)

    def _at(self, when: float, what: Any) -> None:
        heapq.heappush(self._queue, (when, next(self._order), what))

    def _step(self, unit: str) -> None:
        learner = self.learners[unit]
        learner.local_step += 1
        tokens = int(learner.batch * learner.rng.uniform(0.9, 1.1))
        for batches in learner.batches:
            batches.append(tokens)
        steps, totals = tuple(len(b) for b in learner.batches), tuple(sum(b) for b in learner.batches)
        self.core.progress(unit, Metadata(learner.local_step, steps, totals, learner.step_seconds), self.now)
        self._at(self.now + learner.step_seconds * learner.rng.uniform(0.95, 1.05), unit)

    def _answer(self, unit: str, pull: Pull) -> None:
        batches = self.learners[unit].batches[pull.fragment]
        if not batches:
            return
        value, place = self.core.value(pull.fragment).copy(), self.learners[unit].index
        value[place] += -1.0 if value[place] > 0 else 1.0  # back and forth, so that float32 keeps its precision
        payload = codec.encode(codec.Coding.FLOAT32, value)
        push = Push(Offer(pull.fragment, pull.t, codec.Coding.FLOAT32, -1, len(batches), sum(batches)), payload)
        if self.core.push(unit, push, self.now) is None:
            self._expected[pull.t, unit] = len(batches) * (sum(batches) / len(batches)) ** 2

    def _carry_out(self, action: Any) -> None:
        if isinstance(action, Pull):
            for unit in action.units:
                self._at(self.now + self.learners[unit].rng.uniform(0.001, 0.04), (unit, action))
        if isinstance(action, Merged):
            self._compare(action)
        if isinstance(action, Broadcast):
            for learner in self.learners.values():
                learner.batches[action.fragment].clear()

    def _compare(self, merged: Merged) -> None:
        """Compare the shares that the merge had (how far each learner's place moved) and those it reports with the count."""
        expected = {unit: self._expected.pop((merged.t, unit)) for unit in merged.units}
        total, reported = sum(expected.values()), sum(merged.weights.values())
        before, after = self._values[merged.fragment], self.core.value(merged.fragment)
        self._values[merged.fragment] = after
        for unit, weight in expected.items():
            share = weight / total
            place = self.learners[unit].index
            moved = abs(float(after[place]) - float(before[place]))
            self.worst = max(self.worst, abs(moved / share - 1), abs(merged.weights[unit] / reported / share - 1))
            self.compared += len(expected) > 1
