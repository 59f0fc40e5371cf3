"""Syncers and learners for tests: in this process (threads, loopback) or as real processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import grpc
import numpy as np
from builders.certificates import JobCertificates
from builders.ports import held_port
from builders.wire import watch
from diloco import contract
from diloco.algorithm.core import Core
from diloco.contract import JobFile, Training
from diloco.learner.arrays import ArrayStore
from diloco.learner.connection import Connection
from diloco.learner.leave import Leave
from diloco.learner.solo import SoloMember
from diloco.learner.store import ParameterStore
from diloco.protocol.diloco_pb2 import Report, UnitReport, WatchRequest
from diloco.session.session import Session
from diloco.start.source import StartError
from diloco.syncer.config import SyncerConfig, Timeouts
from diloco.syncer.fences import FencesError
from diloco.syncer.job.engine import RunOutcome
from diloco.syncer.job.restore import BadState
from diloco.syncer.main import ListenError, SyncerServer

JOB_UID = "11111111-2222-3333-4444-555555555555"
PROGRAMS = Path(__file__).parents[1] / "programs"
WAIT_TIMEOUT = 180.0
"""How long a test waits for a condition before it fails, seconds: longer than a machine ten times as slow needs."""


def training(steps: int = 24, **changes: Any) -> Training:
    """A small job: two fragments, a sync of each every second step."""
    usual: dict[str, Any] = {"steps": steps, "sync_interval": 2, "fragments": 2, "overlap_steps": 1, "quorum": 1}
    return Training(**(usual | changes))


def job_file(training_: Training | None = None, uid: str = JOB_UID) -> JobFile:
    return JobFile(name="job", namespace="default", uid=uid, training=training_ or training())


def weights(scale: float = 0.0, tensors: int = 4) -> dict[str, np.ndarray]:
    """A model of `tensors` tensors of unlike sizes, the first of which is the embedding."""
    shapes = [(16, 8), *((4 + i, 8) for i in range(tensors - 1))]
    return {f"w{i}": np.full(shape, scale, np.float32) for i, shape in enumerate(shapes)}


def same_bytes(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def until(condition: Callable[[], Any], what: str, timeout: float = WAIT_TIMEOUT) -> Any:
    """Wait for `condition` to be true, and return its value."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:.0f} s without success for: {what}")
        pause.wait(0.01)
    return value


@dataclass
class Place:
    """A job's directory: job file, certificates, the syncer's volume. Its authority is its own: a learner that searches its syncer
    cannot find another test's on a port that was given out again."""

    directory: Path
    job: JobFile = field(default_factory=job_file)
    certificates: JobCertificates = field(init=False)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.write()
        self.certificates = JobCertificates(self.directory / "tls", self.job)

    def write(self) -> None:
        (self.directory / "job.json").write_text(self.job.model_dump_json(by_alias=True))

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def result(self) -> contract.Result | None:
        log = self.directory / "termination-log"
        return contract.Result.model_validate_json(log.read_bytes()) if log.exists() else None

    def final(self) -> contract.Result:
        """The result of a job that has ended."""
        result = self.result
        assert result is not None, "the syncer has written no result"
        return result

    def environment(self) -> dict[str, str]:
        return {
            contract.ENV_JOB_FILE: str(self.directory / "job.json"),
            contract.ENV_POD_IP: "127.0.0.1",
        }

    def of_learner(self, address: str, unit: str, attempt: int = 1, **more: str) -> dict[str, str]:
        return self.environment() | {
            contract.ENV_TLS_DIR: str(self.certificates.learner(unit, attempt).folder),
            contract.ENV_UNIT: unit,
            contract.ENV_ATTEMPT: str(attempt),
            contract.ENV_SYNCER_ADDRESS: address,
            **more,
        }

    def of_syncer(self, port: int) -> dict[str, str]:
        return self.environment() | {
            contract.ENV_TLS_DIR: str(self.certificates.syncer().folder),
            contract.ENV_STATE_DIR: str(self.state),
            contract.ENV_LISTEN_PORT: str(port),
            contract.ENV_TERMINATION_LOG: str(self.directory / "termination-log"),
        }


class LocalSyncer:
    """A syncer in a thread of this process, with an event loop of its own."""

    def __init__(self, place: Place, timeouts: Timeouts | None = None, port: int = 0) -> None:
        self.place = place
        self._config = SyncerConfig(
            job=place.job,
            tls=place.certificates.syncer(),
            host="127.0.0.1",
            port=port,
            state_dir=place.state,
            termination_log=place.directory / "termination-log",
            # A session is not forgotten because a busy machine was slow to connect again; a test of that brings a window of its own.
            # And that of a job that is done waits for a learner that was cut at the very end.
            timeouts=timeouts or Timeouts(reconnect_window=WAIT_TIMEOUT, farewell=WAIT_TIMEOUT, final_retry=0.1),
        )
        self._started: Future[SyncerServer] = Future()
        self._loop = asyncio.new_event_loop()
        self.outcome: RunOutcome | None = None
        self.failure: StartError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.syncer = self._started.result(WAIT_TIMEOUT)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        return self.syncer.address

    def stop(self) -> RunOutcome | None:
        """As SIGTERM does; waits for the end."""
        with contextlib.suppress(RuntimeError):  # its job is complete, and the loop has just been closed
            self._loop.call_soon_threadsafe(self.syncer.engine.stop)
        return self.wait()

    def wait(self) -> RunOutcome | None:
        self._thread.join(WAIT_TIMEOUT)
        assert not self._thread.is_alive(), "the syncer does not come to an end"
        return self.outcome

    def report(self) -> Report:
        report: Report = self.call(self.syncer.engine.report)
        return report

    def unit(self, name: str) -> UnitReport:
        """What is reported of the unit; an empty report of one that has never joined."""
        return unit_in(self.report(), name)

    @property
    def core(self) -> Core:
        """The state machine of a job that has a layout."""
        core = self.syncer.engine.exchanges.core
        assert core is not None, "no learner has brought a layout"
        return core

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run `function` in the syncer's thread, between two of its events."""

        async def run() -> Any:
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(WAIT_TIMEOUT)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        syncer = SyncerServer(self._config)
        try:
            await syncer.start()
        except (BadState, ListenError, FencesError, StartError) as error:
            self._started.set_exception(error)
            return
        self._started.set_result(syncer)
        try:
            self.outcome = await syncer.run()
        except StartError as error:
            self.failure = error


class LocalLearner:
    """A learner in a thread of this process. Each step adds a tenth of the distance to `goal`, so that training has a direction. Its loss
    is the square of the distance."""

    def __init__(
        self,
        place: Place,
        address: str,
        unit: str,
        attempt: int = 1,
        *,
        arrays: dict[str, np.ndarray] | None = None,
        store: ParameterStore | None = None,
        goal: float | None = 1.0,
        step_seconds: float | Callable[[int], float] = 0.002,
        batch: int = 2,
        spoil: Callable[[int, dict[str, np.ndarray]], None] | None = None,
        embeddings: Collection[str] = ("w0",),
        **environment: str,
    ) -> None:
        """`store`: of other parameters than arrays. `goal`: None trains nothing. `step_seconds`: of each step, or by its number from 1."""
        self.unit = unit
        self.arrays = arrays if arrays is not None else weights()
        self._store = store or ArrayStore(self.arrays, embeddings=embeddings)
        self.joined_with: dict[str, np.ndarray] | None = None
        self.numbers: list[int] = []
        self.session: Session | None = None
        self.left: Leave | None = None
        self.failure: BaseException | None = None
        self._environment = place.of_learner(address, unit, attempt, **environment)
        self._goal, self._step_seconds, self._batch, self._spoil = goal, step_seconds, batch, spoil
        self._drain = threading.Event()
        self._pause = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> LocalLearner:
        self._thread.start()
        return self

    def drain(self) -> None:
        """As SIGTERM does: a learner that rests ends as well."""
        self._drain.set()
        if self.session is not None:
            self.session._drain(signal.SIGTERM, None)

    def wait(self) -> LocalLearner:
        self._thread.join(WAIT_TIMEOUT)
        assert not self._thread.is_alive(), f"learner {self.unit} does not come to an end"
        if self.failure is not None:
            raise self.failure
        return self

    def leaves(self) -> Leave:
        """Wait for its end, which is not that of the job: why it has left."""
        self.wait()
        assert self.left is not None, f"learner {self.unit} has trained to the end of the job"
        return self.left

    @property
    def steps(self) -> int:
        return self.session.step_count if self.session else 0

    def _run(self) -> None:
        try:
            self._train()
        except Leave as leave:
            self.left = leave
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            self.failure = error

    def _train(self) -> None:
        with Session.join(self._store, framework="numpy", environment=self._environment) as session:
            self.session = session
            self.joined_with = {name: array.copy() for name, array in self.arrays.items()}
            for numbers in session.batches(lambda numbers: numbers, self._batch):
                self._train_step()
                if self._spoil is not None:
                    self._spoil(session.step_count + 1, self.arrays)
                seconds = self._step_seconds
                self._pause.wait(seconds(session.step_count + 1) if callable(seconds) else seconds)
                session.step(tokens=8 * len(numbers), loss=self._loss())
                self.numbers.extend(numbers.tolist())
                if self._drain.is_set():
                    session._drain(signal.SIGTERM, None)
            if session.done:
                session.evaluate(0.5, 100)

    def _train_step(self) -> None:
        if self._goal is not None:
            with np.errstate(invalid="ignore"):  # a spoiled model trains on
                for array in self.arrays.values():
                    array += np.float32(0.1) * (np.float32(self._goal) - array)

    def _loss(self) -> float:
        if self._goal is None:
            return 1.0
        return float(np.square(np.float32(self._goal) - next(iter(self.arrays.values()))).mean())


def connection_of(session: Session) -> Connection:
    """The connection of a session that has joined a job."""
    return session._link


def solo(session: Session) -> SoloMember:
    """What a session of a unit of one process does in the job."""
    assert isinstance(session._member, SoloMember)
    return session._member


# --- real processes -----------------------------------------------------------------------------------------------------


class Program:
    """A real process; killed at the end of the test if it still runs."""

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            quiet = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
            self.process = subprocess.Popen(command, env={**os.environ, **quiet, **environment}, stdout=output, stderr=output)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = WAIT_TIMEOUT) -> int:
        """Exit status; negative: the signal that ended it. Where it does not end, its log gets the stack of each thread."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            self.signal(signal.SIGABRT)
            self.process.wait()
            raise AssertionError(f"{self.process.args!r} did not end within {timeout} s:\n{self.text[-8000:]}") from error

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


@dataclass
class Processes:
    """The processes of one job."""

    place: Place
    port: int = field(default_factory=held_port)
    started: list[Program] = field(default_factory=list)
    python: str = sys.executable

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def syncer(self, *arguments: str) -> Program:
        return self._start([self.python, "-m", "diloco.syncer", *arguments], self.place.of_syncer(self.port), "syncer")

    def learner(self, unit: str, attempt: int = 1, program: str = "quadratic_learner.py", **environment: str) -> Program:
        command = [self.python, str(PROGRAMS / program)]
        return self._start(command, self.place.of_learner(self.address, unit, attempt, **environment), f"{unit}-a{attempt}")

    def reports(self, interval: float = 0.1) -> Iterator[Report]:
        """The syncer's reports, as the operator gets them, from as soon as it answers."""
        deadline = time.monotonic() + WAIT_TIMEOUT
        while True:
            try:
                with self.place.certificates.channel(self.address, self.place.certificates.operator()) as channel:
                    # Longer than `report` waits, which then says what it has waited for.
                    yield from watch(channel)(WatchRequest(interval_seconds=interval), timeout=2 * WAIT_TIMEOUT)
            except grpc.RpcError:
                if time.monotonic() > deadline:
                    raise
                threading.Event().wait(0.05)
            else:
                return

    def report(self, condition: Callable[[Report], bool], what: str) -> Report:
        """The first report that fulfils `condition`."""
        deadline = time.monotonic() + WAIT_TIMEOUT
        last = None
        for last in self.reports():
            if condition(last):
                return last
            if time.monotonic() > deadline:
                break
        raise AssertionError(f"no report fulfils: {what}; the last was {last}")

    def end(self) -> None:
        for program in self.started:
            program.end()

    def _start(self, command: list[str], environment: Mapping[str, str], name: str) -> Program:
        program = Program(command, environment, self.place.directory / f"{name}.log")
        self.started.append(program)
        return program


def unit_in(report: Report, name: str) -> UnitReport:
    """Return an empty report for a unit that has never joined."""
    return next((one for one in report.units if one.unit == name), UnitReport())


def traced(path: Path) -> list[dict[str, Any]]:
    """What quadratic learners traced."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
