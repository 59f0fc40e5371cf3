"""The compared systems, each as a group of learners over one loopback: ours, GradientMail, torchft, and the loop without an exchange."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from benchmarks import ROOT
from benchmarks.exchange_rig import Workload
from benchmarks.peers.loopback import ADDRESS, Loopback
from benchmarks.peers.setting import (
    OUTER_MOMENTUM,
    OUTER_RATE,
    SYNC_INTERVAL,
    TOKENS,
    contribution,
)
from benchmarks.process_rig import ProcessRig
from benchmarks.wan.rig import WideRig

ENDLESS = 10_000_000
"""Steps of a run that is ended from outside."""
PATIENCE = 600.0
"""Most seconds of a wait. Only a failure takes this long."""
_WORKLOAD = Workload(mebibytes=5, step_seconds=0.1)
"""Roughly what a learner does. The limits of waits follow from it."""
_STORE_PORT, _LIGHTHOUSE_PORT = 9000, 29510
"""Fixed ports: in a network namespace of our own every port is free."""


class Group(Protocol):
    """Learners of one system."""

    system: str

    @property
    def units(self) -> list[str]:
        """The names of the learners."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def start(self) -> None:
        """Start all learners, and before them what they need."""

    @property
    def victim(self) -> str:
        """The learner to kill: one that serves no other."""

    def kill(self, unit: str) -> None:
        """End a learner by SIGKILL."""

    def relaunch(self, unit: str) -> Callable[[], float | None]:
        """Start a learner again. The returned function says when it contributed again, or None if it has not yet."""

    def step_ends(self, unit: str) -> list[float]:
        """When each step ended."""

    def steps_until(self, units: list[str], end: float) -> list[list[float]]:
        """Wait until all steps that began before `end` have ended, and return for each unit when its steps ended."""

    def wait_for_steps(self, units: list[str], count: int, timeout: float | None = None) -> None:
        """Wait until each learner has taken `count` steps."""

    def wait_for_exchange(self) -> None:
        """Wait until a contribution of each learner was merged."""

    def loss(self) -> float:
        """Wait for the end, and return the held-out loss of the parameters that all share."""

    def logs(self) -> str:
        """The end of each log."""


def noted_at(text: str, what: str, name: str) -> list[float]:
    """When a learner noted `what` about the attempt `name`. A last line that is still being written is left out."""
    whole = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [float(at) for at, *noted in whole if noted == [what, name]]


class _Learners(ProcessRig):
    """The part of a group that handles the processes of its learners."""

    units: list[str]

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._attempts: Counter[str] = Counter()
        self._of_unit: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def victim(self) -> str:
        return self.units[-1]

    def kill(self, unit: str) -> None:
        process = self._of_unit[unit]
        process.kill()
        process.wait()
        self.forget(process)

    def loss(self) -> float:
        """Wait for the end, and return the held-out loss of the first learner that has written it."""
        # The first is enough: a replica of torchft whose peer has ended finds no quorum for its last exchange, and fails.
        files = [self._directory / f"{unit}.loss" for unit in self.units]
        wait(lambda: any(file.exists() for file in files), "a held-out loss", self)
        return float(next(file for file in files if file.exists()).read_text(encoding="ascii"))


class NotingGroup(_Learners):
    """A group whose learners themselves note which contributions were merged."""

    system = ""
    _module = ""

    def __init__(self, folder: Path, loopback: Loopback, learners: int, steps: int = ENDLESS) -> None:
        """`steps`: steps of each learner."""
        super().__init__(folder, _WORKLOAD.timeout)
        self.units = [f"u{rank}" for rank in range(learners)]
        self._loopback = loopback
        self._steps = steps

    def start(self) -> None:
        for unit in self.units:
            self._launch(unit)

    def _environment(self) -> Mapping[str, str]:
        return {}

    def _python(self) -> Path:
        return Path(sys.executable)

    def _launch(self, unit: str) -> None:
        self._attempts[unit] += 1
        command = ["-m", self._module, str(self._directory), unit, "--rank", unit[1:], "--learners", str(len(self.units))]
        command += ["--attempt", str(self._attempts[unit]), "--steps", str(self._steps)]
        self._of_unit[unit] = self._start(unit, command, self._environment(), python=self._python())

    def relaunch(self, unit: str) -> Callable[[], float | None]:
        self._launch(unit)
        return lambda: self._contributed(unit)

    def _contributed(self, unit: str) -> float | None:
        name = contribution(unit, self._attempts[unit])
        return min((at for text in self._notes().values() for at in noted_at(text, "merged", name)), default=None)

    def _notes(self) -> dict[str, str]:
        return {file.stem: file.read_text(encoding="ascii") for file in self._directory.glob("*.notes")}

    def wait_for_exchange(self) -> None:
        wait(lambda: all(self._contributed(unit) is not None for unit in self.units), "each learner contributes", self)

    def _entering(self, _name: str) -> Callable[[], None]:
        return self._loopback.entering(0)


class Alone(NotingGroup):
    """The loops of all learners, side by side, without an exchange."""

    system = "alone"
    _module = "benchmarks.peers.learner_alone"

    def wait_for_exchange(self) -> None:
        """Does nothing, since there is no exchange."""


class GradientMail(NotingGroup):
    """Learners, and a server in place of S3. Some learners also close rounds."""

    system = "gradientmail"
    _module = "benchmarks.peers.learner_gradientmail"

    def __init__(self, folder: Path, loopback: Loopback, learners: int, python: Path, steps: int = ENDLESS) -> None:
        """`python`: the Python of the peer's environment."""
        super().__init__(folder, loopback, learners, steps)
        self._of_peer = python

    def start(self) -> None:
        self._start("store", ["-m", "moto.server", "-H", ADDRESS, "-p", str(_STORE_PORT)], {}, python=self._of_peer)
        super().start()

    @property
    def victim(self) -> str:
        """A learner that does not close rounds. To kill the one that does would be another measurement."""
        notes = self._notes()
        return next(unit for unit in self.units if not noted_at(notes.get(unit, ""), "closed", contribution(unit, self._attempts[unit])))

    def _python(self) -> Path:
        return self._of_peer

    def _environment(self) -> Mapping[str, str]:
        store = {"PEERS_STORE": f"http://{ADDRESS}:{_STORE_PORT}", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        return {**store, "AWS_DEFAULT_REGION": "us-east-1", "PYTHONPATH": f"{ROOT}:{ROOT / 'runtimes'}"}


class TorchFT(NotingGroup):
    """Replicas, and their lighthouse with the flags that its README gives. `flags`: further flags."""

    system = "torchft"
    _module = "benchmarks.peers.learner_torchft"

    def __init__(self, folder: Path, loopback: Loopback, learners: int, steps: int = ENDLESS, flags: tuple[str, ...] = ()) -> None:
        super().__init__(folder, loopback, learners, steps)
        self._flags = ("--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000", *flags)

    def start(self) -> None:
        lighthouse = str(Path(sys.executable).with_name("torchft_lighthouse"))
        self._start("lighthouse", [lighthouse, *self._flags, "--bind", f"{ADDRESS}:{_LIGHTHOUSE_PORT}"], {})
        super().start()

    def _environment(self) -> Mapping[str, str]:
        return {"TORCHFT_LIGHTHOUSE": f"http://{ADDRESS}:{_LIGHTHOUSE_PORT}"}


class Ours(_Learners, WideRig):
    """A job of ours: a syncer, learners, and a process that follows the syncer's reports."""

    system = "ours"

    def __init__(self, folder: Path, loopback: Loopback, learners: int, steps: int = ENDLESS) -> None:
        outer = {"learningRate": OUTER_RATE, "momentum": OUTER_MOMENTUM}
        training = {"steps": ENDLESS, "syncInterval": SYNC_INTERVAL, "compression": "BFloat16", "outerOptimizer": outer}
        if steps != ENDLESS:  # the last H steps are only partly in the model and are not counted, so leave room for them
            training["tokens"] = learners * (steps - SYNC_INTERVAL) * TOKENS
        super().__init__(folder, _WORKLOAD, loopback, [0] * learners, training)

    def start(self) -> None:
        self.start_syncer()
        for unit in self.units:
            self._launch(unit)
        self.start_watch()

    def _launch(self, unit: str) -> None:
        self._attempts[unit] += 1
        command = ["-m", "benchmarks.peers.learner_diloco", str(self._directory), unit, "--steps", str(ENDLESS)]
        self._of_unit[unit] = self._start(unit, command, self._of_learner(unit, self.address, self._attempts[unit]))

    def relaunch(self, unit: str) -> Callable[[], float | None]:
        before = self.reported()
        had = before.contributions.get(unit, 0) if before else 0
        self._launch(unit)

        def contributed() -> float | None:
            reported = self.reported()
            return reported.at if reported is not None and reported.contributions.get(unit, 0) > had else None

        return contributed

    def wait_for_exchange(self) -> None:
        self.wait_for_all(1, PATIENCE)


def wait(condition: Callable[[], object], what: str, group: ProcessRig) -> None:
    """Wait until `condition()` holds. Raises RuntimeError with the logs after `PATIENCE` seconds. `what`: for the message."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {PATIENCE:.0f} s\n{group.logs()}")
        time.sleep(0.05)
