"""[snapshot-tax-*] What it costs a learner to store its state after a snapshot.

A learner trains with steps of a fixed length, and stores the state of its AdamW after each snapshot. The value is the longest step from the
beginning of a snapshot until the state of its marker is complete, over the longest step in an equally long time before.
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
    """Outer steps between snapshots. They must take more than twice as long as a snapshot and its states."""
    markers: int
    step_seconds: float = 0.05
    least_seconds: float = 2.0
    """At least this time is compared, because the longest of a few steps says little."""


SIZES = {"4MiB": Size(4, every_steps=120, markers=7), "256MiB": Size(256, every_steps=480, markers=3)}
SMOKE = Size(4, every_steps=48, markers=1, step_seconds=0.02, least_seconds=0.2)


@dataclass(frozen=True, slots=True)
class Marker:
    """A snapshot, in times of the monotonic clock."""

    begun: float
    """When the snapshot began."""
    stored: float
    """When the state of its marker was complete."""


def markers(rig: ExchangeRig, snapshots: Path, remote: Path, size: Size) -> list[Marker]:
    """Watch the folders `snapshots`, the syncer's, and `remote` until `size.markers` states are stored. The first state does not count: the
    time before it is the start of the program."""
    noted: list[Marker] = []
    while len(noted) <= size.markers:
        before = names(snapshots), states(remote)
        wait_for_another(lambda: names(snapshots), before[0], rig, size)
        begun = time.monotonic()
        wait_for_another(lambda: states(remote), before[1], rig, size)
        noted.append(Marker(begun, time.monotonic()))
    return noted[1:]


def names(folder: Path) -> set[str]:
    """The names in a folder, including files that are being written. Empty if there is no folder."""
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def states(remote: Path) -> set[str]:
    """The names of the complete states."""
    return {path.parent.name for path in remote.glob(f"*/learners/{UNIT}/*/manifest.json")}


def wait_for_another(found: Callable[[], set[str]], known: set[str], rig: ExchangeRig, size: Size) -> None:
    """Wait until `found()` has a name that is not `known`. Raises RuntimeError with the logs if that takes too long."""
    timeout = rig.workload.timeout(size.every_steps)
    deadline = time.monotonic() + timeout
    while not found() - known:
        if time.monotonic() > deadline:
            raise RuntimeError(f"no state is stored within {timeout:.0f} s\n{rig.logs()}")
        time.sleep(POLL)


def rig_of(directory: Path, size: Size) -> ExchangeRig:
    """A job whose learner stores its states in `directory`/remote."""
    checkpoint = {"every_steps": size.every_steps, "keep": 1, "learners": "Always", "uri": f"file://{directory}/remote"}
    return ExchangeRig(directory / "run", Workload(size.mebibytes, size.step_seconds), {"checkpoint": checkpoint})


def figure(name: str, size: Size) -> Figure:
    """The figure of one run: the median over its markers."""
    with tempfile.TemporaryDirectory() as directory, rig_of(Path(directory), size) as rig:
        rig.start_syncer()
        rig.start_program(UNIT, PROGRAM)
        noted = markers(rig, Path(directory) / "run" / "state" / "snapshots", Path(directory) / "remote", size)
        spans = [(marker.begun, max(marker.stored, marker.begun + size.least_seconds)) for marker in noted]
        (steps,) = rig.steps_until([UNIT], spans[-1][1])
    ratios = [max(durations(steps, begun, end)) / max(durations(steps, begun - (end - begun), begun)) for begun, end in spans]
    value = median(ratios)
    details = {"ratios": rounded(ratios, 4), "seconds": rounded([marker.stored - marker.begun for marker in noted], 2)}
    return Figure(name, value, "ratio", LIMIT, value <= LIMIT, len(ratios), details)


def measure(*, smoke: bool) -> Iterator[Figure]:
    for name, size in SIZES.items():
        yield figure(f"snapshot-tax-{name}", SMOKE if smoke else size)
