"""A job of ours, or a group of data parallel, with a learner in each region of a network. All processes end with the benchmark."""

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
"""In namespaces of our own every port is free."""
_POLL: Final = 0.1


@dataclass(frozen=True, slots=True)
class Reported:
    """What the syncer has said at some moment."""

    at: float
    """Seconds of the monotonic clock."""
    t: int
    """Outer steps."""
    tokens: int
    """Committed."""
    merges: int
    """With a contribution."""
    contributions: Mapping[str, int]
    """That were merged, by unit."""


class Places(Protocol):
    """Where processes of a region run: a `WideNetwork`, or one place for all."""

    def address(self, region: int, /) -> str:
        """Return the address of all processes in a region."""

    def entering(self, region: int, /) -> Callable[[], None]:
        """Return what a new process of a region does first."""


class WideRig(ExchangeRig):
    """Unit `u<i>`, or rank i of a group, is in the region that `regions` says; the syncer is in region 0."""

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
        """Names of all units."""
        return list(self._region_of)

    @property
    def address(self) -> str:
        """Return the address of the syncer."""
        return f"{self._network.address(_SYNCER_REGION)}:{self._port}"

    def start_job(self) -> None:
        """Start the syncer, all learners, and who listens to the syncer's reports."""
        self.start_syncer()
        for unit in self.units:
            self.start_program(unit, "benchmarks.wan.learner")
        self.start_watch()

    def start_watch(self) -> None:
        """Start who listens to the syncer's reports."""
        files = self.certificates.operator()
        watch = ["-m", "benchmarks.wan.watch", str(self.job_file), str(files.folder), self.address, str(self._reports)]
        self._start("watch", watch, {})

    def start_group(self) -> None:
        """Start the ranks of a group of data parallel."""
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
        """Return the newest report; None: there is none yet."""
        if not self._reports.exists():
            return None
        whole = [line for line in self._reports.read_text(encoding="ascii").splitlines(keepends=True) if line.endswith("\n")]
        return Reported(**json.loads(whole[-1])) if whole else None

    def wait_until(self, condition: Callable[[Reported], bool], seconds: float, what: str) -> Reported:
        """Return the first report that fulfils `condition`. Raises RuntimeError with the logs if none does within so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.reported()
            if found is not None and condition(found):
                return found
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                raise RuntimeError(f"{what}: not within {seconds:.0f} s\n{self.logs()}")
            time.sleep(_POLL)

    def wait_for_all(self, more: int, seconds: float) -> Reported:
        """Return a report by which each unit has had so many more contributions merged."""
        before = self.reported()
        had = dict(before.contributions) if before is not None else {}

        def merged(found: Reported) -> bool:
            return all(found.contributions.get(unit, 0) - had.get(unit, 0) >= more for unit in self.units)

        return self.wait_until(merged, seconds, f"each unit has {more} more contributions in merges")

    def median_step(self, start: float, end: float) -> float:
        """Return the median of all steps of all units between two moments, seconds."""
        return median(step for ends in self.steps_until(self.units, end) for step in durations(ends, start, end))

    def _start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], *, python: Path | None = None
    ) -> subprocess.Popen[bytes]:
        at = {contract.ENV_POD_IP: self._network.address(self._region(name))}
        return super()._start(name, command, {**at, **environment}, python=python)

    def _entering(self, name: str) -> Callable[[], None]:
        return self._network.entering(self._region(name))

    def _region(self, name: str) -> int:
        return self._region_of.get(name, _SYNCER_REGION)
