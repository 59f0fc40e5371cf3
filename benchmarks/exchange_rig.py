"""A real syncer and real learners over loopback. All of them end with the benchmark, even if it is killed."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from builders.certificates import JobCertificates
from builders.ports import Port, held_port
from diloco import contract
from diloco.contract import JobFile, Training

from benchmarks.figure import Figure, rounded
from benchmarks.process_rig import ProcessRig, durations


@dataclass(frozen=True, slots=True)
class Workload:
    """What every learner of a rig does."""

    mebibytes: int
    """Size of the model, float32."""
    step_seconds: float

    def timeout(self, steps: int) -> float:
        """Seconds within which processes must start and take this number of steps. Some import torch and transformers, and even a busy
        machine moves 4 MiB/s to each learner."""
        return 240.0 + self.mebibytes / 4 + 5 * steps * self.step_seconds


@dataclass(frozen=True, slots=True)
class RunSize:
    """How much a benchmark measures that watches the steps of learners."""

    workload: Workload
    runs: int
    warm_up_steps: int
    window: float
    """Seconds that a run measures; with a fault, before it and after it."""


def each_run[Result](runs: int, measure: Callable[[Path], Result]) -> list[Result]:
    """What each of the runs has measured, in a folder of its own."""
    with tempfile.TemporaryDirectory() as directory:
        return [measure(Path(directory) / str(run)) for run in range(runs)]


@dataclass(frozen=True, slots=True)
class Taxes:
    """The median step of a program with a session, relative to its step without one."""

    over_bare: float
    """Relative to the step of the same program with a `BareExchange`."""
    over_alone: float
    """Relative to the step of the same program without an exchange."""
    processor_ms: Mapping[str, Mapping[str, float]]
    """Program -> thread -> milliseconds, see `ExchangeRig.processor_ms`."""


def tax_figure(name: str, runs: Sequence[Taxes], limit: float) -> Figure:
    """The figure of several runs: the median of `over_bare`, and details."""
    value = median(run.over_bare for run in runs)
    details = {
        "over_alone": median(run.over_alone for run in runs),
        "ratios": rounded([run.over_bare for run in runs], 4),
        "processor_ms": runs[-1].processor_ms,
    }
    return Figure(name, value, "step ÷ step with a bare exchange", limit, value <= limit, len(runs), details)


class ExchangeRig(ProcessRig):
    """One job in a directory of its own."""

    def __init__(self, directory: Path, workload: Workload, training: Mapping[str, Any] = MappingProxyType({})) -> None:
        """`training`: fields that differ from the usual ones."""
        super().__init__(directory, workload.timeout)
        self.workload = workload
        usual: dict[str, Any] = {"steps": 1_000_000, "checkpoint": {"every_steps": 100, "keep": 1}}
        self.job = JobFile(name="bench", namespace="default", uid="bench", training=Training(**(usual | dict(training))))
        self.job_file = directory / "job.json"
        self.job_file.write_text(self.job.model_dump_json(by_alias=True))
        self.certificates = JobCertificates(directory / "tls", self.job)
        self._port = held_port()
        self._bare_port: Port | None = None
        self._ports_of_ranks: list[Port] = []

    @property
    def address(self) -> str:
        """The syncer's address."""
        return f"127.0.0.1:{self._port}"

    def start_syncer(self, *command: str) -> subprocess.Popen[bytes]:
        """Start the syncer. `command`: arguments of Python that start another program in its place, such as one around it."""
        return self._start(
            "syncer",
            list(command) or ["-m", "diloco.syncer"],
            {
                contract.ENV_STATE_DIR: str(self._directory / "state"),
                contract.ENV_TLS_DIR: str(self.certificates.syncer().folder),
            },
        )

    def start_bare(self, *command: str) -> str:
        """Start a bare server beside the syncer, with the syncer's environment but for the port, and return its address."""
        self._bare_port = held_port()
        environment = {contract.ENV_TLS_DIR: str(self.certificates.syncer().folder), contract.ENV_LISTEN_PORT: str(self._bare_port)}
        self._start("bare-server", list(command), environment)
        return f"127.0.0.1:{self._bare_port}"

    def start_learner(self, unit: str, *, alone: bool = False) -> subprocess.Popen[bytes]:
        return self.start_program(unit, "benchmarks.fixed_step_learner", *(["--alone"] if alone else []))

    def start_program(
        self, unit: str, module: str, *arguments: str, address: str = "", attempt: int = 1, step_seconds: float | None = None
    ) -> subprocess.Popen[bytes]:
        """Start the learner `python -m module TIMES --mebibytes N --step-seconds S` with the further arguments.

        Args:
            address: where the learner finds the syncer, such as a proxy; "" means the syncer itself
            step_seconds: None means the workload's
        """
        workload = self.workload
        seconds = workload.step_seconds if step_seconds is None else step_seconds
        command = ["-m", module, str(self.times(unit))]
        command += ["--mebibytes", str(workload.mebibytes), "--step-seconds", str(seconds), *arguments]
        return self._start(unit, command, self._of_learner(unit, address or self.address, attempt))

    def start_ranks(
        self, unit: str, ranks: int, *arguments: str, address: str = "", module: str = "benchmarks.rank_learner"
    ) -> list[subprocess.Popen[bytes]]:
        """Start a unit of `ranks` torch processes. Rank 0 writes the times of its steps. `address` is as for `start_program`; `module` is
        their program, which gets the further arguments."""
        port = held_port()
        self._ports_of_ranks.append(port)
        of_unit = self._of_learner(unit, address or self.address)
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), **of_unit}
        command = ["-m", module, str(self.times(unit))]
        command += ["--mebibytes", str(self.workload.mebibytes), "--step-seconds", str(self.workload.step_seconds), *arguments]
        return [self._start(f"{unit}-{rank}", command, {**shared, "RANK": str(rank)}) for rank in range(ranks)]

    def learner_environment(self, unit: str) -> dict[str, str]:
        """The environment with which a program in this process calls `join`, as the first attempt of a unit."""
        return self._common() | self._of_learner(unit, self.address)

    def _common(self) -> dict[str, str]:
        return {
            contract.ENV_JOB_FILE: str(self.job_file),
            contract.ENV_POD_IP: "127.0.0.1",
            contract.ENV_LISTEN_PORT: str(self._port),
        }

    def _of_learner(self, unit: str, address: str, attempt: int = 1) -> dict[str, str]:
        return {
            contract.ENV_TLS_DIR: str(self.certificates.learner(unit, attempt).folder),
            contract.ENV_UNIT: unit,
            contract.ENV_ATTEMPT: str(attempt),
            contract.ENV_SYNCER_ADDRESS: address,
        }

    def median_steps(self, units: list[str], warm_up_steps: int, seconds: float) -> list[float]:
        """Let these programs run side by side for `seconds`, and return the median step of each."""
        self.wait_for_steps(units, warm_up_steps)
        start = time.monotonic()
        time.sleep(seconds)
        end = time.monotonic()
        return [median(durations(steps, start, end)) for steps in self.steps_until(units, end)]

    def with_over_without(self, warm_up_steps: int, seconds: float) -> float:
        """Let the programs `with` and `without` run side by side for `seconds`, and return the ratio of their median steps."""
        with_, without = self.median_steps(["with", "without"], warm_up_steps, seconds)
        return with_ / without

    def taxes(self, warm_up_steps: int, seconds: float) -> Taxes:
        """Measure the programs `with`, `bare` and `without` side by side."""
        units = ["with", "bare", "without"]
        with_, bare, without = self.median_steps(units, warm_up_steps, seconds)
        return Taxes(with_ / bare, with_ / without, {unit: self.processor_ms(unit) for unit in units})

    def processor_ms(self, unit: str) -> dict[str, float]:
        """Processor time of a step, in ms, in the thread that trains and in all other threads of its process. It is the mean over the
        second half of the steps. The program must note `processor_times`."""
        noted = [[float(field) for field in fields] for fields in self.noted(unit)]
        half = noted[len(noted) // 2 :]
        thread, process = (1e3 * (half[-1][column] - half[0][column]) / (len(half) - 1) for column in (1, 2))
        return {"training_thread": round(thread, 2), "other_threads": round(process - thread, 2)}

    def snapshots(self) -> list[Path]:
        """The folders of the syncer's complete snapshots."""
        return sorted((self._directory / "state" / "snapshots").glob("snapshot-*"))

    def _start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], *, python: Path | None = None
    ) -> subprocess.Popen[bytes]:
        return super()._start(name, command, {**self._common(), **environment}, python=python)
