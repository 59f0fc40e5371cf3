"""Runs a real job of a setting: units die where its tape of failures says, and start again. All processes end with the benchmark."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Final

from benchmarks.exchange_rig import Workload
from benchmarks.truth.settings import SETTLED, Failure, Setting, tape
from benchmarks.truth.simulated import JobResult
from benchmarks.wan.network import WideNetwork
from benchmarks.wan.rig import Reported, WideRig

_HOUR: Final = 3600.0
_POLL: Final = 0.02
_LIMIT: Final = 240.0
"""Most seconds to wait for all units to train. Only a failure takes this long."""


@dataclass(frozen=True, slots=True)
class Step:
    """A completed step, in seconds of the monotonic clock."""

    attempt: int
    began: float
    worked: float
    """When the step's work was done. The session's part comes after that."""


@dataclass(slots=True)
class _Unit:
    """One unit's process."""

    left: list[Failure]
    process: subprocess.Popen[bytes] | None = None
    attempt: int = 0
    starts_at: float | None = None
    """When the unit starts again. None if it runs."""
    started_at: dict[int, float] = field(default_factory=dict)
    """Attempt -> when its process was started."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of a real job."""

    result: JobResult
    start_seconds: float
    """Mean time from the start of a unit's process to its first step, for processes that started in the window."""
    overhead_seconds: float
    """How much longer a step takes than it should, in the mean, because of the session and of other work of the machine. It includes times
    in which units rest."""
    load: float
    """Processes that wanted a core of the machine in the last minute of the run."""


class TruthRig(WideRig):
    """Runs one setting."""

    def __init__(self, directory: Path, setting: Setting, network: WideNetwork, seed: int) -> None:
        regions = [setting.region(index) for index in range(len(setting.units))]
        super().__init__(directory, Workload(setting.mebibytes, max(setting.step_seconds)), network, regions, setting.training)
        self._setting = setting
        self._seed = seed
        self._of = {unit: _Unit(list(failures)) for unit, failures in tape(setting, seed).items()}
        self._fired: list[float] = []

    def run(self) -> Measured:
        """Run the job, and return the measurements of the window."""
        self.start_syncer()
        self.start_watch()
        for unit in self._setting.units:
            self._begin(unit)
        deadline = time.monotonic() + _LIMIT
        while any(len(self.steps_of(unit)) < SETTLED for unit in self._setting.units):
            self._tend()
            if time.monotonic() > deadline:
                raise RuntimeError(f"the units of {self._setting.name} do not train in {_LIMIT:.0f} s\n{self.logs()}")
        begin, before = time.monotonic(), self._report()
        while (now := time.monotonic()) < begin + self._setting.seconds:
            self._tend()
        after = self._report()
        return self._measured(before, after, begin, now)

    def steps_of(self, unit: str) -> list[Step]:
        """The completed steps of a unit so far."""
        return [Step(int(attempt), float(began), float(worked)) for attempt, began, worked in self.noted(unit)]

    def _measured(self, before: Reported, after: Reported, begin: float, end: float) -> Measured:
        steps = {unit: self.steps_of(unit) for unit in self._setting.units}
        pairs = {
            unit: [(step, later) for step, later in itertools.pairwise(of_unit) if step.attempt == later.attempt]
            for unit, of_unit in steps.items()
        }
        own = median(later.began - step.worked for of_unit in pairs.values() for step, later in of_unit)
        longer = [
            mean(later.began - step.began for step, later in pairs[unit]) - seconds
            for unit, seconds in zip(self._setting.units, self._setting.step_seconds, strict=True)
        ]
        trained = sum(max(0.0, min(step.worked + own, end) - max(step.began, begin)) for of_unit in steps.values() for step in of_unit)
        merges = after.merges - before.merges
        merged = sum(after.contributions.values()) - sum(before.contributions.values())
        starts = [seconds for unit in self._setting.units for at, seconds in _starts(self._of[unit].started_at, steps[unit]) if at >= begin]
        result = JobResult(
            100 * trained / (len(steps) * (end - begin)),
            merges * _HOUR / (after.at - before.at),
            merged / merges if merges else 0.0,
            sum(begin <= at <= end for at in self._fired),
        )
        return Measured(result, mean(starts) if starts else 0.0, mean(longer), os.getloadavg()[0])

    def _tend(self) -> None:
        """Start units again whose time has come. Raises RuntimeError if a process has ended that should not."""
        time.sleep(_POLL)
        now = time.monotonic()
        for unit, state in self._of.items():
            if state.starts_at is not None and now >= state.starts_at:
                self._begin(unit)
            elif state.process is not None and state.process.poll() is not None:
                if not state.left or state.process.returncode != -signal.SIGKILL:
                    raise RuntimeError(f"{unit} has ended with status {state.process.returncode}\n{self.logs()}")
                self.forget(state.process)
                self._fired.append(now)
                state.process, state.starts_at = None, now + state.left.pop(0).out_seconds
        if any(process.poll() is not None for process in self._processes if process not in [state.process for state in self._of.values()]):
            raise RuntimeError(f"a process has ended\n{self.logs()}")

    def _begin(self, unit: str) -> None:
        state = self._of[unit]
        state.attempt += 1
        state.starts_at = None
        state.started_at[state.attempt] = time.monotonic()
        index = self._setting.units.index(unit)
        arguments = ["--variation", str(self._setting.variation), "--seed", str(self._seed + index), "--attempt", str(state.attempt)]
        if state.left:
            arguments += ["--dies-in", str(state.left[0].step)]
        state.process = self.start_program(
            unit, "benchmarks.truth.learner", *arguments, attempt=state.attempt, step_seconds=self._setting.step_seconds[index]
        )

    def _report(self) -> Reported:
        report = self.reported()
        if report is None:
            raise RuntimeError(f"the syncer has reported nothing\n{self.logs()}")
        return report


def _starts(started_at: Mapping[int, float], steps: list[Step]) -> list[tuple[float, float]]:
    """(when its process was started, seconds to its first step) for each attempt that has completed a step."""
    first: dict[int, float] = {}
    for step in steps:
        first.setdefault(step.attempt, step.began)
    return [(started_at[attempt], began - started_at[attempt]) for attempt, began in first.items()]
