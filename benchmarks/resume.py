"""[resume-*] How long a whole job takes to train again once all of its processes have died.

A syncer and two units start and train; the units store the states of their AdamW. At a random moment all processes get SIGKILL, and start
again. The value is the time from the kill until both units have taken a first step, over the time from the first start to the same.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from builders.wire import watch
from diloco.protocol.diloco_pb2 import Recovery, WatchRequest

from benchmarks.exchange_rig import ExchangeRig, Workload, each_run
from benchmarks.figure import Figure, rounded

LIMIT = 2.0
UNITS = ("a", "b")
PROGRAM = "benchmarks.recovery_learner"
POLL = 0.02


@dataclass(frozen=True, slots=True)
class Size:
    mebibytes: int
    """Size of parameters and moments together."""
    every_steps: int
    """Outer steps between snapshots."""
    runs: int
    step_seconds: float = 0.05


SIZES = {"4MiB": Size(4, every_steps=48, runs=5), "256MiB": Size(256, every_steps=240, runs=3)}
SMOKE = Size(4, every_steps=48, runs=1, step_seconds=0.02)


@dataclass(frozen=True, slots=True)
class Run:
    fresh: float
    """Seconds from the first start until both units have taken a step."""
    resumed: float
    """Seconds from the kill to the same."""
    recoveries: list[Recovery]

    @property
    def ratio(self) -> float:
        return self.resumed / self.fresh


def start_all(rig: ExchangeRig, attempt: int) -> None:
    rig.start_syncer()
    for unit in UNITS:
        rig.start_program(unit, PROGRAM, attempt=attempt)


def one_run(directory: Path, size: Size, draw: random.Random) -> Run:
    remote = directory / "remote"
    checkpoint = {"every_steps": size.every_steps, "keep": 1, "learners": "Always", "uri": f"file://{remote}"}
    with ExchangeRig(directory, Workload(size.mebibytes, size.step_seconds), {"checkpoint": checkpoint}) as rig:
        begun = time.monotonic()
        start_all(rig, attempt=1)
        fresh = last_first_step(rig) - begun
        wait_until_stored(rig, remote)
        time.sleep(draw.uniform(0, size.every_steps * size.step_seconds))
        killed = time.monotonic()
        rig.kill_all()
        for unit in UNITS:
            rig.times(unit).unlink()
        start_all(rig, attempt=2)
        resumed = last_first_step(rig) - killed
        ended_recoveries = recoveries(rig)
        if not all(recovery.unit for recovery in ended_recoveries) or not any(recovery.stored for recovery in ended_recoveries):
            raise RuntimeError(f"units began without a state: {[recovery.why for recovery in ended_recoveries]}\n{rig.logs()}")
    return Run(fresh, resumed, ended_recoveries)


def last_first_step(rig: ExchangeRig) -> float:
    """When the first steps of all units had ended."""
    rig.wait_for_steps([*UNITS], 1)
    return max(rig.step_ends(unit)[0] for unit in UNITS)


def wait_until_stored(rig: ExchangeRig, remote: Path) -> None:
    """Wait until each unit has stored a state below `remote`."""
    deadline = time.monotonic() + rig.workload.timeout(1000)
    while not all(any(remote.glob(f"*/learners/{unit}/*/manifest.json")) for unit in UNITS):
        if time.monotonic() > deadline:
            raise RuntimeError(f"no state is stored\n{rig.logs()}")
        time.sleep(POLL)


def recoveries(rig: ExchangeRig) -> list[Recovery]:
    """How each unit got its state when it began."""
    with rig.certificates.channel(rig.address, rig.certificates.operator()) as channel:
        for report in watch(channel)(WatchRequest(interval_seconds=0.1), timeout=rig.workload.timeout(100)):
            ended = [unit.recovery for unit in report.units if unit.recovery.phase == Recovery.OVER]
            if len(ended) == len(UNITS):
                return ended
    raise RuntimeError(f"the units have not begun\n{rig.logs()}")


def figure(name: str, size: Size) -> Figure:
    """The median of the runs."""
    draw = random.Random(size.mebibytes)
    runs = each_run(size.runs, lambda folder: one_run(folder, size, draw))
    value = median(run.ratio for run in runs)
    details = {
        "ratios": rounded([run.ratio for run in runs], 3),
        "fresh": rounded([run.fresh for run in runs], 2),
        "resumed": rounded([run.resumed for run in runs], 2),
        "copy": rounded([max(recovery.copy_seconds for recovery in run.recoveries) for run in runs], 2),
        "stored": [sum(recovery.stored for recovery in run.recoveries) for run in runs],
    }
    return Figure(name, value, "ratio", LIMIT, value <= LIMIT, size.runs, details)


def measure(*, smoke: bool) -> Iterator[Figure]:
    for name, size in SIZES.items():
        yield figure(f"resume-{name}", SMOKE if smoke else size)
