"""Scavenged units that really come and go, beside 0.5 + 0.5 / (1 + x): Table 4 of Decoupled DiLoCo with processes.

Two units have a number of tokens to merge. When a quarter of them is merged, others come, x times as many. When three quarters are merged,
the others get SIGKILL. So they take part in half of the work.
"""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from diloco.contract import Checkpoint, Training
from diloco.simulation.job import SimulatedJob
from diloco.simulation.unit import TOKENS, Hardware
from numpy.random import default_rng

from benchmarks.evidence.table4 import ideal
from benchmarks.exchange_rig import Workload
from benchmarks.truth.learner import TOKENS as TOKENS_OF_A_STEP
from benchmarks.truth.settings import ONE_PLACE
from benchmarks.truth.simulated import Calibration, TapedSlices
from benchmarks.wan.network import WideNetwork
from benchmarks.wan.rig import Reported, WideRig

UNITS: Final = 2
COME: Final = 0.25
"""Share of the tokens after which the others come."""
GO: Final = 0.75
"""Share of the tokens after which the others are killed."""
LIMIT: Final = 0.05
_POLL: Final = 0.05
_TRAINING: Final = {"syncInterval": 6, "fragments": 6, "overlapSteps": 1}
"""A small H: a unit that leaves loses up to H steps, which must be few beside the hundreds that it takes."""
_SEED: Final = 4


@dataclass(frozen=True, slots=True)
class Size:
    """How much is trained."""

    extra: tuple[float, ...]
    """Extra compute, relative to that of the two units. The first is 0."""
    step_seconds: float
    steps: int
    """Steps of each of the two units alone."""
    most_seconds: float = 600.0
    """Limit of the whole run. Only a failure takes this long."""


FULL: Final = Size((0.0, 0.5, 1.0, 3.0), 0.1, 1000)
SMOKE: Final = Size((0.0, 0.5), 0.05, 60)


@dataclass(frozen=True, slots=True)
class Row:
    """A job with extra compute."""

    extra: float
    time: float
    """Relative to the time without extra compute."""

    @property
    def error(self) -> float:
        """Relative error against the law."""
        return self.time / ideal(self.extra) - 1.0


def worst(rows: Sequence[Row]) -> float:
    """The largest relative error."""
    return max(abs(row.error) for row in rows)


def rows_of(seconds: Mapping[float, float]) -> list[Row]:
    """The rows of jobs. `seconds`: extra compute -> time of the job; it must have 0."""
    return [Row(extra, each / seconds[0.0]) for extra, each in seconds.items()]


class _Job(WideRig):
    """One job. Call `tend` until it returns True."""

    def __init__(self, directory: Path, size: Size, extra: float, network: WideNetwork) -> None:
        count = UNITS + round(extra * UNITS)
        super().__init__(directory, Workload(1, size.step_seconds), network, [0] * count, _TRAINING)
        self._begin: Reported | None = None
        self._tokens = UNITS * size.steps * TOKENS_OF_A_STEP
        self._others: list[subprocess.Popen[bytes]] = []
        self._came = self._gone = False
        self.seconds = math.nan
        """Time that the job took."""

    def start(self) -> None:
        """Start the syncer and the two units."""
        self.start_syncer()
        self.start_watch()
        for index in range(UNITS):
            self._start_unit(index)

    def tend(self) -> bool:
        """Let the others come or go if it is time. True if all tokens are merged."""
        reported = self.reported()
        if reported is None or not reported.tokens:
            return False
        if self._begin is None:
            self._begin = reported
        share = (reported.tokens - self._begin.tokens) / self._tokens
        if share >= COME and not self._came:
            self._came = True
            self._others = [self._start_unit(index) for index in range(UNITS, len(self.units))]
        if share >= GO and not self._gone:
            self._gone = True
            for process in self._others:
                process.kill()
                process.wait()
                self.forget(process)
        if ended := [process for process in self._processes if process.poll() is not None]:
            raise RuntimeError(f"a process has ended with status {ended[0].returncode}\n{self.logs()}")
        self.seconds = reported.at - self._begin.at
        return share >= 1.0

    def _start_unit(self, index: int) -> subprocess.Popen[bytes]:
        return self.start_program(
            f"u{index}", "benchmarks.truth.learner", "--variation", "0.1", "--seed", str(_SEED + index), "--attempt", "1"
        )


def measured_times(folder: Path, size: Size) -> dict[float, float]:
    """Run all jobs side by side: extra compute -> seconds that the job took."""
    with ExitStack() as stack:
        network = stack.enter_context(WideNetwork(ONE_PLACE))
        jobs = {extra: stack.enter_context(_Job(folder / f"extra-{extra}", size, extra, network)) for extra in size.extra}
        for job in jobs.values():
            job.start()
        left = dict(jobs)
        deadline = time.monotonic() + size.most_seconds
        while left:
            time.sleep(_POLL)
            left = {extra: job for extra, job in left.items() if not job.tend()}
            if time.monotonic() > deadline:
                raise RuntimeError(f"not all is merged in {size.most_seconds:.0f} s\n{next(iter(left.values())).logs()}")
        return {extra: job.seconds for extra, job in jobs.items()}


def simulated_times(size: Size, calibration: Calibration) -> dict[float, float]:
    """Simulate the same jobs: extra compute -> time relative to that without."""
    return {row.extra: row.time for row in rows_of({extra: _simulated(size, extra, calibration) for extra in size.extra})}


def _simulated(size: Size, extra: float, calibration: Calibration) -> float:
    training = Training.model_validate({"steps": 10**9, "checkpoint": Checkpoint(every_steps=10**9), **_TRAINING})
    hardware = Hardware(
        step_seconds=size.step_seconds + calibration.overhead_seconds,
        step_variation=0.1,
        start_seconds=calibration.start_seconds,
    )
    job = SimulatedJob(training, (), default_rng([_SEED, round(1000 * extra)]))
    others = round(extra * UNITS)
    job.slices = TapedSlices(job, {f"u{index}": () for index in range(UNITS + others)}, calibration.start_seconds)
    job.add([hardware] * UNITS)
    begin = job.run(tokens=TOKENS)
    tokens = UNITS * size.steps * TOKENS
    job.run(tokens=begin.merged + COME * tokens)
    job.add([hardware] * others)
    job.run(tokens=begin.merged + GO * tokens)
    for index in range(UNITS, UNITS + others):
        job.units[f"u{index}"].leave(0.0, lambda: None)
    return job.run(tokens=begin.merged + tokens).seconds - begin.seconds
