"""Measures systems in the same way, and compares a peer with ours. Runs of both take turns."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median

from benchmarks.figure import Figure
from benchmarks.peers.loopback import Loopback
from benchmarks.peers.setting import SYNC_INTERVAL, TOKENS
from benchmarks.peers.systems import ENDLESS, PATIENCE, Alone, Group, Ours
from benchmarks.process_rig import durations, durations_before

LEARNERS = 2
"""One for each core of the machine that measures."""
OURS = "ours"
LIMIT = 1.0
"""Our survivor is not delayed more than the peer's."""

type Make = Callable[[Path, Loopback, int, int], Group]
"""Makes a group from a folder, a loopback, the number of learners, and the number of steps of each."""


@dataclass(frozen=True, slots=True)
class Size:
    runs: int
    warm_up_steps: int
    seconds: float
    """Time before the kill, and time from the kill until the killed learner is started again."""
    steps: int
    """Steps of each learner in the run for the held-out loss."""


FULL = Size(runs=3, warm_up_steps=2 * SYNC_INTERVAL, seconds=10.0, steps=10 * SYNC_INTERVAL)
SMOKE = Size(runs=1, warm_up_steps=4, seconds=2.0, steps=2 * SYNC_INTERVAL)


@dataclass(frozen=True, slots=True)
class RunResult:
    """Results of one run of a system."""

    tokens_of_alone: float
    """Tokens per second of all learners, over the tokens per second of the same loops, side by side, without an exchange."""
    kilobytes: float
    """Kilobytes over loopback, with headers, for each learner and step."""
    longest: float
    """Longest step of the survivors after the kill ÷ their median step before it."""
    longest_before: float
    """Their longest step in an equally long time before the kill ÷ their median step before it."""
    longest_seconds: float
    back_seconds: float
    """Time from the start of the killed learner's new process to its first contribution that is merged."""


def rate(step_ends: Sequence[Sequence[float]], start: float, end: float) -> float:
    """Tokens per second of all learners."""
    return TOKENS * sum(start < at <= end for ends in step_ends for at in ends) / (end - start)


def gap(step_ends: Sequence[Sequence[float]], start: float, killed: float, end: float) -> tuple[float, float, float]:
    """(longest step after the kill, longest step before it, median step before it), in seconds, of the survivor with the longest step after
    the kill."""
    survivors = [(list(ends), max(durations(list(ends), killed, end))) for ends in step_ends]
    ends, longest = max(survivors, key=lambda survivor: survivor[1])
    before = durations_before(ends, start, killed)
    return longest, max(before), median(before)


def settled(group: Group, size: Size) -> None:
    """Start the learners, and wait until all train and contribute."""
    group.start()
    group.wait_for_steps(group.units, size.warm_up_steps, PATIENCE)
    group.wait_for_exchange()


def alone_rate(folder: Path, size: Size) -> float:
    """Tokens per second of the loops without an exchange."""
    with Loopback() as loopback, Alone(folder, loopback, LEARNERS) as group:
        settled(group, size)
        start = time.monotonic()
        time.sleep(size.seconds)
        end = time.monotonic()
        return rate(group.steps_until(group.units, end), start, end)


def measured_run(folder: Path, size: Size, make: Make, alone: float) -> RunResult:
    """Measure one run of a system. `alone`: tokens per second without an exchange."""
    with Loopback() as loopback, make(folder, loopback, LEARNERS, ENDLESS) as group:
        settled(group, size)
        sent_before, start = loopback.sent_bytes(), time.monotonic()
        time.sleep(size.seconds)
        sent_at_kill, killed = loopback.sent_bytes(), time.monotonic()
        all_ends = [group.step_ends(unit) for unit in group.units]
        victim = group.victim
        group.kill(victim)
        time.sleep(size.seconds)
        end = time.monotonic()
        longest, before, usual = gap(group.steps_until([unit for unit in group.units if unit != victim], end), start, killed, end)
        relaunched = time.monotonic()
        contributed = group.relaunch(victim)
        while (at := contributed()) is None:
            if time.monotonic() > relaunched + PATIENCE:
                raise RuntimeError(f"{victim} does not contribute again within {PATIENCE:.0f} s\n{group.logs()}")
            time.sleep(0.02)
    tokens = rate(all_ends, start, killed)
    kilobytes = (sent_at_kill - sent_before) / 1e3 / (tokens / TOKENS * (killed - start))
    return RunResult(tokens / alone, kilobytes, longest / usual, before / usual, longest, at - relaunched)


def held_out_loss(folder: Path, size: Size, make: Make) -> float:
    """Let each learner take `size.steps` steps, and return the held-out loss of the parameters that all share at the end."""
    with Loopback() as loopback, make(folder, loopback, LEARNERS, size.steps) as group:
        group.start()
        return group.loss()


def medians(runs: Sequence[RunResult]) -> dict[str, float]:
    """The median of each field."""
    return {field.name: round(median(getattr(run, field.name) for run in runs), 4) for field in fields(RunResult)}


def compared(size: Size, peers: Mapping[str, Make], version: str) -> Iterator[Figure]:
    """Run ours and the peers in turns. A peer's figure is our survivors' longest step after the kill, in medians, ÷ the peer's."""
    systems: dict[str, Make] = {OURS: Ours, **peers}
    runs: dict[str, list[RunResult]] = {system: [] for system in systems}
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        for run in range(size.runs):
            alone = alone_rate(folder / f"alone-{run}", size)
            for system, make in systems.items():
                runs[system].append(measured_run(folder / f"{system}-{run}", size, make, alone))
        losses = {system: held_out_loss(folder / f"{system}-loss", size, make) for system, make in systems.items()}
    by_system = {system: {**medians(each), "held_out_loss": round(losses[system], 4)} for system, each in runs.items()}
    for name in peers:
        value = by_system[OURS]["longest"] / by_system[name]["longest"]
        details = {
            "ours": by_system[OURS],
            "theirs": by_system[name],
            "ours_by_run": [asdict(run) for run in runs[OURS]],
            "theirs_by_run": [asdict(run) for run in runs[name]],
            "steps_for_loss": size.steps,
            "version": version,
        }
        yield Figure(name, value, "longest step ÷ theirs, both in medians", LIMIT, value <= LIMIT, size.runs, details)
