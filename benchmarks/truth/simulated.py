"""Simulates a setting on virtual time, with the same units, links and failures. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Final

from diloco.contract import Checkpoint, Training
from diloco.goodput import Use
from diloco.simulation.fleet import Links as SimulatedLinks
from diloco.simulation.job import Outcome, SimulatedJob
from diloco.simulation.network import Sizes
from diloco.simulation.path import FREE, Path
from diloco.simulation.unit import Hardware, SimulatedUnit
from numpy.random import default_rng

from benchmarks.truth.settings import SETTLED, Failure, Setting, tape

HEADERS: Final = 1448 / 1514
"""The share of a frame that is TCP's payload."""
_HOUR: Final = 3600.0
_SEEDS: Final = 4
"""Number of seeds for the lengths of steps, and for where in a step units begin. Failures come from the tape."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """This machine's times, for the simulator."""

    start_seconds: float
    """Time from the start of a unit's process to its first step."""
    overhead_seconds: float
    """How much longer a step takes than it should, because of the session and of other work of the machine."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """Results of a job in its window, real or simulated."""

    goodput: float
    """Time in completed steps, in percent of the time of all units."""
    merges_per_hour: float
    """Outer steps with a merge, per hour."""
    units_in_each_merge: float
    failures: float


class TapedSlices:
    """Makes units fail where the tape says, and starts them again."""

    def __init__(self, job: SimulatedJob, failures: Mapping[str, Sequence[Failure]], start_seconds: float) -> None:
        self.fired = 0
        self._job = job
        self._left = {unit: list(of_unit) for unit, of_unit in failures.items()}
        self._start_seconds = start_seconds
        self._steps = dict.fromkeys(failures, 0)
        """Unit -> steps that its present attempt has begun."""
        self._all_steps = dict.fromkeys(failures, 0)

    @property
    def least_steps(self) -> int:
        """The fewest steps that a unit has begun, over all attempts."""
        return min(self._all_steps.values())

    def slowdown(self, unit: SimulatedUnit) -> float:
        """Called when a step begins. If the unit fails in this step, schedule that for the step's middle."""
        self._steps[unit.name] += 1
        self._all_steps[unit.name] += 1
        left = self._left[unit.name]
        if left and left[0].step == self._steps[unit.name]:
            timeline = self._job.timeline
            timeline.at(timeline.now + unit.hardware.step_seconds / 2, lambda: self._fail(unit))
        return 1.0

    def failed(self, unit: SimulatedUnit) -> None:
        """Never called: hardware does not fail by itself here."""
        raise AssertionError(f"{unit.name} failed, and none of its accelerators may")

    def trains(self, unit: SimulatedUnit) -> None:
        """Nothing to do."""

    def _fail(self, unit: SimulatedUnit) -> None:
        self.fired += 1
        self._steps[unit.name] = 0
        failure = self._left[unit.name].pop(0)
        unit.lost()
        unit.place(replace(unit.hardware, down_seconds=failure.out_seconds + self._start_seconds))


def simulate(setting: Setting, calibration: Calibration, seed: int) -> JobResult:
    """The simulator's results for the window, with the failures of `seed`. They are means over several seeds of all else."""
    runs = [_once(setting, calibration, seed, number) for number in range(_SEEDS)]
    return JobResult(
        mean(run.goodput for run in runs),
        mean(run.merges_per_hour for run in runs),
        mean(run.units_in_each_merge for run in runs),
        mean(run.failures for run in runs),
    )


def _once(setting: Setting, calibration: Calibration, seed: int, number: int) -> JobResult:
    training = Training.model_validate({"steps": 10**9, "checkpoint": Checkpoint(every_steps=10**9), **setting.training})
    job = SimulatedJob(training, (), default_rng([seed, number]), sizes=_sizes(setting, training), syncer_bandwidth=_of_syncer(setting))
    job.slices = slices = TapedSlices(job, tape(setting, seed), calibration.start_seconds)
    job.add(_hardware(setting, calibration, index) for index in range(len(setting.units)))
    begin = 0.0
    while slices.least_steps <= SETTLED:
        begin += max(setting.step_seconds)
        job.run(begin)
    before, fired = job.run(begin), slices.fired
    trained = before.accounts.by_use[Use.TRAINING]
    after = job.run(begin + setting.seconds)
    merges = after.merges - before.merges
    return JobResult(
        100 * (after.accounts.by_use[Use.TRAINING] - trained) / (len(setting.units) * setting.seconds),
        merges * _HOUR / setting.seconds,
        (_all(after) - _all(before)) / merges if merges else 0.0,
        slices.fired - fired,
    )


def _all(outcome: Outcome) -> float:
    """The number of contributions in all merges."""
    return outcome.contributions * outcome.merges


def _sizes(setting: Setting, training: Training) -> Sizes:
    return SimulatedLinks(setting.parameters).sizes(training)


def _of_syncer(setting: Setting) -> float:
    return setting.links.rates[0] * HEADERS if len(setting.links.rates) > 1 else math.inf


def _hardware(setting: Setting, calibration: Calibration, index: int) -> Hardware:
    region = setting.region(index)
    path = Path(setting.links.rates[region] * HEADERS, setting.links.delay(0, region)) if region else FREE
    return Hardware(
        step_seconds=setting.step_seconds[index] + calibration.overhead_seconds,
        step_variation=setting.variation,
        start_seconds=calibration.start_seconds,
        path=path,
    )
