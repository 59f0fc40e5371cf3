"""Runs a job of ours, or a data-parallel group, with a learner in each region of a network. All processes end with the benchmark."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final, Protocol

from diloco import contract

from benchmarks.exchange_rig import ExchangeRig, Workload
from benchmarks.process_rig import durations
from benchmarks.wan.network import DEVICE

_SYNCER_REGION: Final = 0
_PORT_OF_GROUP: Final = 29500
"""A fixed port, because every port is free in our own namespaces."""
_POLL: Final = 0.1


@dataclass(frozen=True, slots=True)
class Reported:
    """A report of the syncer."""

    at: float
    """When it came: seconds of the monotonic clock."""
    t: int
    """The number of outer steps."""
    tokens: int
    """The number of committed tokens."""
    merges: int
    """The number of merges that had a contribution."""
    contributions: Mapping[str, int]
    """Unit -> the number of its contributions that were merged."""


class Places(Protocol):
    """Where the processes of a region run: in a `WideNetwork`, or all in one place."""

    def address(self, region: int, /) -> str:
        """The address that all processes in a region share."""

    def entering(self, region: int, /) -> Callable[[], None]:
        """The `preexec_fn` with which a new process enters a region."""


class WideRig(ExchangeRig):
    """A rig in which unit `u<i>`, or rank i of a group, runs in region `regions[i]`. The syncer runs in region 0."""

    def __init__(
        self,
        directory: Path,
        workload: Workload,
        network: Places,
        regions: Sequence[int],
        training: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(directory, workload, training)
        self._network = network
        self._region_of = {f"u{index}": region for index, region in enumerate(regions)}
        self._reports = directory / "reports.jsonl"

    @property
    def units(self) -> list[str]:
        return list(self._region_of)

    @property
    def address(self) -> str:
        """Where the syncer listens."""
        return f"{self._network.address(_SYNCER_REGION)}:{self._port}"

    def start_job(self) -> None:
        """Start the syncer, all learners, and the process that writes down the syncer's reports."""
        self.start_syncer()
        for unit in self.units:
            self.start_program(unit, "benchmarks.wan.learner")
        self.start_watch()

    def start_watch(self) -> None:
        """Start the process that writes down the syncer's reports."""
        files = self.certificates.operator()
        watch = ["-m", "benchmarks.wan.watch", str(self.job_file), str(files.folder), self.address, str(self._reports)]
        self._start("watch", watch, {})

    def start_group(self) -> None:
        """Start the ranks of a data-parallel group."""
        shared = {
            "MASTER_ADDR": self._network.address(self._region_of["u0"]),
            "MASTER_PORT": str(_PORT_OF_GROUP),
            "WORLD_SIZE": str(len(self.units)),
            "GLOO_SOCKET_IFNAME": DEVICE,
        }
        for rank, unit in enumerate(self.units):
            command = ["-m", "benchmarks.wan.learner", str(self.times(unit)), "--mebibytes", str(self.workload.mebibytes)]
            command += ["--step-seconds", str(self.workload.step_seconds), "--data-parallel"]
            self._start(unit, command, {**shared, "RANK": str(rank)})

    def reported(self) -> Reported | None:
        """The newest report. None if there is none yet."""
        if not self._reports.exists():
            return None
        # The last line may still be written.
        whole = [line for line in self._reports.read_text(encoding="ascii").splitlines(keepends=True) if line.endswith("\n")]
        return Reported(**json.loads(whole[-1])) if whole else None

    def wait_until(self, condition: Callable[[Reported], bool], seconds: float, what: str) -> Reported:
        """Wait for a report that fulfils `condition`, and return it. Raises RuntimeError with the logs if none does within `seconds`, or if
        a process ends."""
        deadline = time.monotonic() + seconds
        while True:
            report = self.reported()
            if report is not None and condition(report):
                return report
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                raise RuntimeError(f"{what}: not within {seconds:.0f} s\n{self.logs()}")
            time.sleep(_POLL)

    def wait_for_all(self, more: int, seconds: float) -> Reported:
        """Wait until `more` further contributions of each unit have been merged. Returns the report that says so."""
        before = self.reported()
        merged_before = dict(before.contributions) if before is not None else {}

        def merged(found: Reported) -> bool:
            return all(found.contributions.get(unit, 0) - merged_before.get(unit, 0) >= more for unit in self.units)

        return self.wait_until(merged, seconds, f"each unit has {more} more contributions in merges")

    def median_step(self, start: float, end: float) -> float:
        """The median of the steps of all units between two moments, seconds."""
        return median(step for ends in self.steps_until(self.units, end) for step in durations(ends, start, end))

    def _start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], *, python: Path | None = None
    ) -> subprocess.Popen[bytes]:
        address = {contract.ENV_POD_IP: self._network.address(self._region(name))}
        return super()._start(name, command, {**address, **environment}, python=python)

    def _entering(self, name: str) -> Callable[[], None]:
        return self._network.entering(self._region(name))

    def _region(self, name: str) -> int:
        return self._region_of.get(name, _SYNCER_REGION)
