"""One job of real processes over loopback, without an operator: a syncer and its learners, started as the contract says.

The learners join together, when the slowest of them is ready (`gated_learner`). A learner may have deaths: its process gets SIGKILL after a
given step, and starts later as the next attempt of its unit. A learner that does not train again when the syncer ends is ended, as the
operator would do.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders.certificates import JobCertificates
from builders.child_processes import die_with_parent
from builders.ports import held_port
from diloco import contract

from benchmarks import ROOT
from benchmarks.gated_learner import DIES_AFTER

_HOST = "127.0.0.1"
_SYNCER = "syncer"
_POLL = 0.05


class JobFailed(RuntimeError):
    """A process of the job ended with another status than 0, or the job took too long. The message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Death:
    """The end of one attempt of a unit."""

    after_steps: int
    """Completed steps of this attempt."""
    out_seconds: float
    """Time until its process is started again."""


@dataclass(frozen=True)
class Learner:
    """One learner unit: its name, its program and how fast its simulated node is."""

    unit: str
    module: str
    arguments: Sequence[str]
    relative_speed: float = 1.0
    deaths: Sequence[Death] = ()
    """In order. Deaths after the job's end do not happen."""


@dataclass(frozen=True)
class JobResult:
    """The syncer's result, and the last line that each learner printed, by unit."""

    result: contract.Result
    learners: dict[str, dict[str, Any]]
    """Learners that were out at the end are missing."""
    deaths: dict[str, int]
    """Unit -> how often it died."""
    goodput: float
    """The share of the units' time in which they trained. The time of all units runs from the first step of the first one to the end; a
    unit trains from the first step of an attempt to the end of that attempt. The time that first attempts take to start does not count: a
    job of five minutes would lose a tenth by that, a job of weeks nothing."""


def run_job(training: contract.Training, learners: Sequence[Learner], timeout: float) -> JobResult:
    """Train to the end and collect the results. Every process started here has ended when this returns or raises JobFailed."""
    with tempfile.TemporaryDirectory(prefix="diloco-bench-") as folder:
        return _LocalJob(Path(folder), training, learners).run(time.monotonic() + timeout)


class _LocalJob:
    def __init__(self, folder: Path, training: contract.Training, learners: Sequence[Learner]) -> None:
        self._folder = folder
        self._learners = learners
        job = contract.JobFile(name="bench", namespace="default", uid=str(uuid.uuid4()), training=training)
        (folder / "job.json").write_text(job.model_dump_json(by_alias=True))
        self._certificates = JobCertificates(folder / "tls", job)
        self._port = held_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._left = {learner.unit: list(learner.deaths) for learner in learners}
        self._returns: dict[str, float] = {}
        """Unit that has died -> when it starts again."""
        self._ended: dict[str, list[float]] = {learner.unit: [] for learner in learners}
        """Unit -> when its attempts ended that had a first step."""
        self._died = dict.fromkeys(self._left, 0)

    def run(self, deadline: float) -> JobResult:
        try:
            self._start_all()
            self._wait_until_ready(deadline)
            (self._folder / "go").touch()
            self._wait(deadline)
        finally:
            for process in self._processes.values():
                process.kill()
                process.wait()
        outputs = {learner.unit: (self._folder / f"{learner.unit}.out").read_text() for learner in self._learners}
        return JobResult(
            result=contract.Result.model_validate_json((self._folder / "result.json").read_bytes()),
            learners={unit: json.loads(text.splitlines()[-1]) for unit, text in outputs.items() if text},
            deaths=dict(self._died),
            goodput=self._goodput(),
        )

    def _goodput(self) -> float:
        trained = [span for unit, ended in self._ended.items() for span in zip(self._first_steps(unit), ended, strict=True)]
        whole = max(end for _, end in trained) - min(start for start, _ in trained)
        return sum(end - start for start, end in trained) / (len(self._ended) * whole)

    def _first_steps(self, unit: str) -> list[float]:
        """When the attempts of a unit took their first step. Attempts without a step are missing."""
        file = self._folder / f"{unit}.began"
        return [float(line) for line in file.read_text(encoding="ascii").splitlines()] if file.exists() else []

    def _start_all(self) -> None:
        common = os.environ | {
            contract.ENV_JOB_FILE: str(self._folder / "job.json"),
            contract.ENV_POD_IP: _HOST,
        }
        state = self._folder / "state"
        state.mkdir()
        own = {
            contract.ENV_TLS_DIR: str(self._certificates.syncer().folder),
            contract.ENV_STATE_DIR: str(state),
            contract.ENV_LISTEN_PORT: str(self._port),
            contract.ENV_TERMINATION_LOG: str(self._folder / "result.json"),
        }
        self._start(_SYNCER, ["-m", "diloco.syncer"], common | own)
        self._common = common
        for learner in self._learners:
            self._begin(learner)

    def _begin(self, learner: Learner) -> None:
        """Start the next attempt of a unit."""
        attempt = self._died[learner.unit] + 1
        own = {
            contract.ENV_TLS_DIR: str(self._certificates.learner(learner.unit, attempt).folder),
            contract.ENV_UNIT: learner.unit,
            contract.ENV_ATTEMPT: str(attempt),
            contract.ENV_POOL: learner.unit,
            contract.ENV_HOST: "0",
            contract.ENV_HOSTS: "1",
            contract.ENV_SYNCER_ADDRESS: f"{_HOST}:{self._port}",
            contract.ENV_RELATIVE_SPEED: str(learner.relative_speed),
        }
        if left := self._left[learner.unit]:
            own[DIES_AFTER] = str(left[0].after_steps)
        self._start(
            learner.unit,
            ["-m", "benchmarks.gated_learner", str(self._folder), learner.unit, learner.module, *learner.arguments],
            self._common | own,
        )

    def _start(self, name: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
        with (self._folder / f"{name}.out").open("wb") as out, (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, *arguments], cwd=ROOT, env=environment, stdout=out, stderr=log, preexec_fn=die_with_parent
            )

    def _wait_until_ready(self, deadline: float) -> None:
        """Wait until every learner is about to join, so that all begin together."""
        while not all((self._folder / f"{learner.unit}.ready").exists() for learner in self._learners):
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise JobFailed(f"{name} ended with status {process.returncode} before the job began:\n{self._log_end(name)}")
            if time.monotonic() > deadline:
                raise JobFailed("the learners take too long to start")
            time.sleep(_POLL)

    def _wait(self, deadline: float) -> None:
        """Wait until every process has ended with status 0. Planned deaths are followed by the next attempt; any other end raises
        JobFailed."""
        by_unit = {learner.unit: learner for learner in self._learners}
        waiting = dict(self._processes)
        while waiting or self._returns:
            for name, process in list(waiting.items()):
                if process.poll() is None:
                    continue
                if name in by_unit:
                    self._ended[name].append(time.monotonic())
                del waiting[name]
                if process.returncode == -signal.SIGKILL and self._left.get(name):
                    self._died[name] += 1
                    self._returns[name] = time.monotonic() + self._left[name].pop(0).out_seconds
                elif process.returncode:
                    raise JobFailed(f"{name} ended with status {process.returncode}:\n{self._log_end(name)}")
            for name in [name for name, at in self._returns.items() if time.monotonic() >= at]:
                del self._returns[name]
                self._begin(by_unit[name])
                waiting[name] = self._processes[name]
            if _SYNCER not in waiting:
                # The job is over: start no learner again, and kill the learners whose present attempt has not taken a step yet.
                self._returns.clear()
                for name in [name for name in waiting if len(self._first_steps(name)) == len(self._ended[name])]:
                    waiting.pop(name).kill()
            if time.monotonic() > deadline:
                name = next(iter(waiting), _SYNCER)
                raise JobFailed(
                    f"the job takes too long; still running: {', '.join(waiting)}; the log of {name} ends with:\n{self._log_end(name)}"
                )
            time.sleep(_POLL)

    def _log_end(self, name: str, lines: int = 15) -> str:
        return "\n".join((self._folder / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])
