"""[loop-lag] How late the syncer's event loop is while eight learners join a job with a large model. The first one sends the model, the
others get it.

On this loop run the leases, the pulls and the reports of learners that are training already. The learners hold no model (`light_learners`).
`without_waiting` is the same percentile without the time in which the loop's thread could have run and had no core: the threads of gRPC and
the process of the learners want the same cores.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.exchange_rig import ExchangeRig, Workload
from benchmarks.figure import Figure, percentile
from benchmarks.sizes.light_learners import light_learners
from benchmarks.sizes.own_process import in_own_process

LIMIT_MS = 20.0


@dataclass(frozen=True, slots=True)
class Size:
    workload: Workload
    learners: int


FULL = Size(Workload(mebibytes=1024, step_seconds=0.5), learners=8)
SMOKE = Size(Workload(mebibytes=4, step_seconds=0.05), learners=2)


async def joins(rig: ExchangeRig, size: Size) -> tuple[float, float]:
    """Return (when the first learner began to join, when the last one had joined), seconds of CLOCK_MONOTONIC."""
    began = time.monotonic()
    async with light_learners(rig, size.learners):
        return began, time.monotonic()


@dataclass(frozen=True, slots=True)
class Tick:
    """Seconds."""

    lag: float
    waited: float
    """For a core."""


def ticks_of_joins(size: Size) -> list[Tick]:
    """Return every tick during the joins."""
    with tempfile.TemporaryDirectory() as directory, ExchangeRig(Path(directory) / "job", size.workload) as rig:
        found = Path(directory) / "lags"
        rig.start_syncer("-m", "benchmarks.sizes.watched_syncer", str(found))
        began, ended = asyncio.run(joins(rig, size))
        ticks = (line.split() for line in found.read_text(encoding="ascii").splitlines()[:-1])
        return [Tick(float(lag), float(waited)) for due, lag, waited in ticks if began <= float(due) <= ended]


def measure(*, smoke: bool) -> Iterator[Figure]:
    ticks = in_own_process(ticks_of_joins, SMOKE if smoke else FULL)
    p50, p99, longest = (1000 * percentile([tick.lag for tick in ticks], share) for share in (0.5, 0.99, 1.0))
    own = 1000 * percentile([max(0.0, tick.lag - tick.waited) for tick in ticks], 0.99)
    more = {"ticks": len(ticks), "p50": round(p50, 2), "longest": round(longest, 2), "without_waiting": round(own, 2)}
    yield Figure("loop-lag", p99, "ms", LIMIT_MS, p99 <= LIMIT_MS, 1, more)
