"""One job of real processes over loopback, without an operator: a syncer and its learners, started as the contract says.

The learners join together, when the slowest of them is ready (`gated_learner`).
"""

from __future__ import annotations

import json
import os
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

_HOST = "127.0.0.1"
_POLL = 0.2


class JobFailed(RuntimeError):
    """A process of the job ended with another status than 0, or the job took too long. The message holds the end of its log."""


@dataclass(frozen=True)
class Learner:
    """One learner unit: its name, its program and how fast its simulated node is."""

    unit: str
    module: str
    arguments: Sequence[str]
    relative_speed: float = 1.0


@dataclass(frozen=True)
class JobResult:
    """The syncer's result, and the last line that each learner printed, by unit."""

    result: contract.Result
    learners: dict[str, dict[str, Any]]


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
            learners={unit: json.loads(text.splitlines()[-1]) for unit, text in outputs.items()},
        )

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
        self._start("syncer", ["-m", "diloco.syncer"], common | own)
        for learner in self._learners:
            own = {
                contract.ENV_TLS_DIR: str(self._certificates.learner(learner.unit).folder),
                contract.ENV_UNIT: learner.unit,
                contract.ENV_ATTEMPT: "1",
                contract.ENV_POOL: learner.unit,
                contract.ENV_HOST: "0",
                contract.ENV_HOSTS: "1",
                contract.ENV_SYNCER_ADDRESS: f"{_HOST}:{self._port}",
                contract.ENV_RELATIVE_SPEED: str(learner.relative_speed),
            }
            self._start(
                learner.unit,
                ["-m", "benchmarks.gated_learner", str(self._folder), learner.unit, learner.module, *learner.arguments],
                common | own,
            )

    def _start(self, name: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
        with (self._folder / f"{name}.out").open("wb") as out, (self._folder / f"{name}.log").open("wb") as log:
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
        """Wait until every process has ended with 0; the first that does not ends the wait."""
        waiting = dict(self._processes)
        while waiting:
            for name, process in list(waiting.items()):
                if process.poll() is None:
                    continue
                if process.returncode:
                    raise JobFailed(f"{name} ended with status {process.returncode}:\n{self._log_end(name)}")
                del waiting[name]
            if time.monotonic() > deadline:
                name = next(iter(waiting))
                raise JobFailed(
                    f"the job takes too long; still running: {', '.join(waiting)}; the log of {name} ends with:\n{self._log_end(name)}"
                )
            time.sleep(_POLL)

    def _log_end(self, name: str, lines: int = 15) -> str:
        return "\n".join((self._folder / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])
