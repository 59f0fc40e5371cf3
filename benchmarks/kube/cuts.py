"""[cut-gap] What a cut between or within the clusters of one job costs the units that reach the syncer.

A job over two real clusters, each with an operator of its own. The API server of each, the link to the syncer, and each of the operators go
away for some seconds, alone and in pairs. The value is the longest step of a unit that reaches the syncer, from the cut until all units
contribute again, over its longest step in an equally long time before. The figure is the median over all cuts; `worst` is the largest.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from builders.local_jobs import steps_taken
from builders.several_clusters import HOME, LINK, SeveralClusters, seen, several_clusters, units_of
from diloco_operator.report import Report

from benchmarks.figure import Figure
from benchmarks.process_rig import durations, durations_before

LIMIT = 1.2
PART = "tokyo"


@dataclass(frozen=True, slots=True)
class Size:
    step_ms: int
    seconds: float
    """Length of each cut, and of the time before it."""
    most: int
    """How many things are cut at once."""


FULL = Size(step_ms=250, seconds=6.0, most=2)
SMOKE = Size(step_ms=50, seconds=1.0, most=1)


async def gap(scene: SeveralClusters, names: Sequence[str], trace: Path, report: Callable[[], Report], size: Size) -> float:
    """The ratio of the surviving unit that was delayed most."""
    cuts, before = scene.cuts(PART), units_of(report())
    await asyncio.sleep(size.seconds)
    cut = time.monotonic()
    for name in names:
        await asyncio.to_thread(cuts[name][0])
    await asyncio.sleep(size.seconds)
    for name in names:
        await asyncio.to_thread(cuts[name][1])
    await seen(lambda: units_of(report()).items() >= before.items(), f"all units after the cut of {' and '.join(names)}")
    end = time.monotonic()
    ends = {unit: [step["ended"] for step in steps] for (unit, _), steps in steps_taken(trace).items()}
    survivors = [unit for unit in before if LINK not in names or unit == "v5p-0"]
    return max(max(durations(ends[unit], cut, end)) / max(durations_before(ends[unit], cut - size.seconds, cut)) for unit in survivors)


async def gaps(folder: Path, size: Size) -> dict[str, float]:
    """Cut -> its ratio."""
    trace = folder / "trace"
    environment: dict[str, object] = {"QUADRATIC_STEP_MS": size.step_ms, "QUADRATIC_TRACE": str(trace)}
    async with several_clusters(folder, {HOME: 1, PART: 2}, environment) as scene, scene.syncer(PART) as report:
        cuts = [names for count in range(1, size.most + 1) for names in itertools.combinations(scene.cuts(PART), count)]
        return {" and ".join(names): await gap(scene, names, trace, report, size) for names in cuts}


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    with tempfile.TemporaryDirectory() as directory:
        ratios = asyncio.run(gaps(Path(directory), size))
    value = median(ratios.values())
    details = {"worst": round(max(ratios.values()), 3), "ratios": {name: round(ratio, 3) for name, ratio in ratios.items()}}
    yield Figure("cut-gap", value, "ratio", LIMIT, value <= LIMIT, len(ratios), details)
