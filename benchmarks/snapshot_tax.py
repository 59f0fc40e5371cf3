"""[snapshot-tax-*] What it costs a learner that it stores its state after a snapshot.

A learner trains, whose steps have a fixed length, and stores the state of its AdamW after each snapshot. The longest step from the begin
of a snapshot until the state of its marker is whole, over the longest one in as long a time before.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.exchange_rig import ExchangeRig, Workload
from benchmarks.figure import Figure, rounded
from benchmarks.process_rig import durations

LIMIT = 1.2
UNIT = "a"
PROGRAM = "benchmarks.recovery_learner"
POLL = 0.02


@dataclass(frozen=True, slots=True)
class Size:
    mebibytes: int
    """Size of parameters and moments together."""
    every_steps: int
    """Outer steps between snapshots: longer than twice what a snapshot and its states take."""
    markers: int
    step_seconds: float = 0.05
    least_seconds: float = 2.0
    """The shortest time that is compared: the longest of a few steps says little."""


SIZES = {"4MiB": Size(4, every_steps=120, markers=7), "256MiB": Size(256, every_steps=480, markers=3)}
SMOKE = Size(4, every_steps=48, markers=1, step_seconds=0.02, least_seconds=0.2)


@dataclass(frozen=True, slots=True)
class Marker:
    """Times of the monotonic clock."""

    begun: float
    """A snapshot began."""
    stored: float
    """The state of its marker is whole."""


def markers(rig: ExchangeRig, snapshots: Path, remote: Path, size: Size) -> list[Marker]:
    """Watch the syncer's `snapshots`, and what is stored in `remote`, until so many states are there. The first snapshot is of no
    training, and the first state is not counted: what was before it is the start of the program."""
    found: list[Marker] = []
    while len(found) <= size.markers:
        before = names(snapshots), states(remote)
        wait_for_another(lambda: names(snapshots), before[0], rig, size)
        begun = time.monotonic()
        wait_for_another(lambda: states(remote), before[1], rig, size)
        found.append(Marker(begun, time.monotonic()))
    return found[1:]


def names(folder: Path) -> set[str]:
    """Return the names in a folder, if there is one, also of what is being written."""
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def states(remote: Path) -> set[str]:
    """Return the names of the states that are whole."""
    return {path.parent.name for path in remote.glob(f"*/learners/{UNIT}/*/manifest.json")}


def wait_for_another(found: Callable[[], set[str]], known: set[str], rig: ExchangeRig, size: Size) -> None:
    """Wait for a name besides those known. Raises RuntimeError with the logs when it takes too long."""
    timeout = rig.workload.timeout(size.every_steps)
    deadline = time.monotonic() + timeout
    while not found() - known:
        if time.monotonic() > deadline:
            raise RuntimeError(f"no state is stored within {timeout:.0f} s\n{rig.logs()}")
        time.sleep(POLL)


def rig_of(directory: Path, size: Size) -> ExchangeRig:
    """Return a job whose learner stores its states in `directory`."""
    checkpoint = {"every_steps": size.every_steps, "keep": 1, "learners": "Always", "uri": f"file://{directory}/remote"}
    return ExchangeRig(directory / "run", Workload(size.mebibytes, size.step_seconds), {"checkpoint": checkpoint})


def figure(name: str, size: Size) -> Figure:
    """Measure one run: the median over its markers."""
    with tempfile.TemporaryDirectory() as directory, rig_of(Path(directory), size) as rig:
        rig.start_syncer()
        rig.start_program(UNIT, PROGRAM)
        found = markers(rig, Path(directory) / "run" / "state" / "snapshots", Path(directory) / "remote", size)
        spans = [(one.begun, max(one.stored, one.begun + size.least_seconds)) for one in found]
        (steps,) = rig.steps_until([UNIT], spans[-1][1])
    ratios = [max(durations(steps, begun, end)) / max(durations(steps, begun - (end - begun), begun)) for begun, end in spans]
    value = median(ratios)
    details = {"ratios": rounded(ratios, 4), "seconds": rounded([one.stored - one.begun for one in found], 2)}
    return Figure(name, value, "ratio", LIMIT, value <= LIMIT, len(ratios), details)


def measure(*, smoke: bool) -> Iterator[Figure]:
    for name, size in SIZES.items():
        yield figure(f"snapshot-tax-{name}", SMOKE if smoke else size)
