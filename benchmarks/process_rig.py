"""Programs that a benchmark starts and whose steps it watches. All of them end with the benchmark, even when it is killed."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Self

from builders.child_processes import die_with_parent

from benchmarks import ROOT


class ProcessRig:
    """Programs with logs and notes of their steps in one directory."""

    def __init__(self, directory: Path, timeout: Callable[[int], float]) -> None:
        """Make the directory; `timeout`: how long processes may take to come up and take so many steps, seconds."""
        self._directory = directory
        self._timeout = timeout
        directory.mkdir(parents=True)
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()

    def kill_all(self) -> None:
        """Let all processes die at once."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        self._processes.clear()

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        """Note that this process has ended, as it should."""
        self._processes.remove(process)

    def step_ends(self, unit: str) -> list[float]:
        """Return when each of the unit's steps ended, seconds of the monotonic clock."""
        return [float(fields[0]) for fields in self.noted(unit)]

    def noted(self, unit: str) -> list[list[str]]:
        """Return what the unit's program noted, one list of fields for each step so far."""
        path = self.times(unit)
        whole = path.read_text(encoding="ascii").splitlines(keepends=True) if path.exists() else []
        return [line.split() for line in whole if line.endswith("\n")]

    def wait_for_steps(self, units: list[str], count: int, timeout: float | None = None) -> None:
        """Wait until each unit has taken `count` steps. Raises RuntimeError with the logs when a process ends or takes longer than
        `timeout`, seconds; None: than the rig's own."""
        timeout = self._timeout(count) if timeout is None else timeout
        deadline = time.monotonic() + timeout
        while any(len(self.step_ends(unit)) < count for unit in units):
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                raise RuntimeError(f"the learners do not take {count} steps in {timeout:.0f} s\n{self.logs()}")
            time.sleep(0.1)

    def steps_until(self, units: Collection[str], end: float) -> list[list[float]]:
        """Return the `step_ends` of each unit, with those of all steps that have begun before `end`: waits for the last of them, which a
        busy machine stretches. Raises RuntimeError with the logs when it takes too long."""
        timeout = self._timeout(1)
        deadline = time.monotonic() + timeout
        while not all((found := self.step_ends(unit)) and found[-1] >= end for unit in units):
            if time.monotonic() > deadline:
                raise RuntimeError(f"a step takes longer than {timeout:.0f} s\n{self.logs()}")
            time.sleep(0.05)
        return [self.step_ends(unit) for unit in units]

    def logs(self) -> str:
        """Return the end of every process's log."""
        return "\n".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in sorted(self._directory.glob("*.log")))

    def times(self, unit: str) -> Path:
        """Return the file in which the unit's program notes its steps."""
        return self._directory / f"{unit}.times"

    def _start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], *, python: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program of this environment, or of that of another `python`."""
        quiet = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with (self._directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [python or sys.executable, *command],
                env={**os.environ, **quiet, **environment},
                cwd=ROOT,
                stdout=log,
                stderr=log,
                preexec_fn=self._entering(name),
            )
        self._processes.append(process)
        return process

    def _entering(self, _name: str) -> Callable[[], None]:
        """Return what the process of this name does first."""
        return die_with_parent


def durations(step_ends: Sequence[float], start: float, end: float) -> list[float]:
    """Return the durations of all steps that touch the time from `start` to `end`, seconds."""
    return [later - earlier for earlier, later in itertools.pairwise(step_ends) if later > start and earlier < end]


def durations_before(step_ends: Sequence[float], start: float, moment: float) -> list[float]:
    """Return the durations of the steps since `start` that were over at this moment, seconds. The step in which it falls is none of them:
    what happens then may have delayed it."""
    return durations([at for at in step_ends if at <= moment], start, moment)


def longest_after(step_ends: Sequence[float], start: float, moment: float, end: float) -> float:
    """Return the longest step from a moment on ÷ the longest one before it, since `start`."""
    return max(durations(step_ends, moment, end)) / max(durations_before(step_ends, start, moment))
