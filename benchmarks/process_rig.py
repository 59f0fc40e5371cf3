"""Programs that a benchmark starts and whose steps it watches. All of them end with the benchmark, even if it is killed."""

from __future__ import annotations

import itertools
import os
import re
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
        """Makes the directory. `timeout`: number of steps -> seconds within which processes must start and take that many."""
        self._directory = directory
        self._timeout = timeout
        directory.mkdir(parents=True)
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()

    def kill_all(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        self._processes.clear()

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        """Note that this process has ended as planned."""
        self._processes.remove(process)

    def step_ends(self, unit: str) -> list[float]:
        """When each of the unit's steps ended, in seconds of the monotonic clock."""
        return [float(fields[0]) for fields in self.noted(unit)]

    def noted(self, unit: str) -> list[list[str]]:
        """The notes of the unit's program: a list of fields for each step so far."""
        path = self.times(unit)
        whole = path.read_text(encoding="ascii").splitlines(keepends=True) if path.exists() else []
        return [line.split() for line in whole if line.endswith("\n")]

    def wait_for_steps(self, units: list[str], count: int, timeout: float | None = None) -> None:
        """Wait until each unit has taken `count` steps. Raises RuntimeError with the logs if a process ends, or after `timeout` seconds.
        None means the rig's own timeout."""
        timeout = self._timeout(count) if timeout is None else timeout
        deadline = time.monotonic() + timeout
        while any(len(self.step_ends(unit)) < count for unit in units):
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                raise RuntimeError(f"the learners do not take {count} steps in {timeout:.0f} s\n{self.logs()}")
            time.sleep(0.1)

    def steps_until(self, units: Collection[str], end: float) -> list[list[float]]:
        """Wait until all steps that began before `end` have ended, and return the `step_ends` of each unit. A busy machine stretches the
        last step. Raises RuntimeError with the logs if it takes too long."""
        timeout = self._timeout(1)
        deadline = time.monotonic() + timeout
        while True:
            step_ends = [self.step_ends(unit) for unit in units]
            if all(ends and ends[-1] >= end for ends in step_ends):
                return step_ends
            if time.monotonic() > deadline:
                raise RuntimeError(f"a step takes longer than {timeout:.0f} s\n{self.logs()}")
            time.sleep(0.05)

    def logs(self) -> str:
        """The end of every process's log."""
        return "\n".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in sorted(self._directory.glob("*.log")))

    def times(self, unit: str) -> Path:
        """The file in which the unit's program notes its steps."""
        return self._directory / f"{unit}.times"

    def _start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], *, python: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program with this interpreter, or with `python`."""
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
        """The `preexec_fn` of the process of this name."""
        return die_with_parent


def memory_bytes(pid: int, field: str) -> int:
    """Memory of a process, by a field of proc(5): `VmRSS` is what is resident now, `VmHWM` the most so far."""
    match = re.search(rf"^{field}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(encoding="ascii"), re.MULTILINE)
    assert match is not None
    return int(match[1]) << 10


def durations(step_ends: Sequence[float], start: float, end: float) -> list[float]:
    """Durations in seconds of all steps that overlap the time from `start` to `end`."""
    return [later - earlier for earlier, later in itertools.pairwise(step_ends) if later > start and earlier < end]


def durations_before(step_ends: Sequence[float], start: float, moment: float) -> list[float]:
    """Durations in seconds of the steps since `start` that were over at `moment`. The step in which the moment falls does not count: the
    event at that moment may have delayed it."""
    return durations([at for at in step_ends if at <= moment], start, moment)


def longest_after(step_ends: Sequence[float], start: float, moment: float, end: float) -> float:
    """The longest step from `moment` to `end` ÷ the longest one between `start` and `moment`."""
    return max(durations(step_ends, moment, end)) / max(durations_before(step_ends, start, moment))
