"""[loop-lag] The lag of the syncer's event loop while eight learners join a job with a large model, over the lag of the loop of a bare gRPC
server that moves the same bytes. The first learner sends the model, the others get it.

This loop also handles leases, pulls and reports of learners that train already. The learners hold no model (`light_learners`). An idle loop
would be no measure: it sleeps most of the time, so it gets a core at once, while the syncer's busy loop waits for one. The bare loop waits
for the same work, in the same minutes: both take turns, `runs` times each.

Both are 99th percentiles of the lags, without the time in which the loop's thread could have run but had no core: the threads of gRPC and
the learners' process want the same cores, and that wait is due to the machine. The limit is for how long the syncer's loop holds on between
two turns. `lags_ms` has the lags with the wait and without.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.exchange_rig import ExchangeRig, Workload
from benchmarks.figure import Figure, percentile, rounded
from benchmarks.sizes import bare_joins
from benchmarks.sizes.light_learners import light_learners
from benchmarks.sizes.own_process import in_own_process

LIMIT = 0.75


@dataclass(frozen=True, slots=True)
class Size:
    workload: Workload
    learners: int
    runs: int


FULL = Size(Workload(mebibytes=1024, step_seconds=0.5), learners=8, runs=2)
SMOKE = Size(Workload(mebibytes=4, step_seconds=0.05), learners=2, runs=1)


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick of the loop. Times are in seconds."""

    lag: float
    waited: float
    """Time of the lag in which the loop's thread had no core."""

    @property
    def own(self) -> float:
        return max(0.0, self.lag - self.waited)


def ticks(lags: Path, began: float) -> list[Tick]:
    """All ticks from `began`, seconds of CLOCK_MONOTONIC, until now."""
    ended = time.monotonic()
    lines = (line.split() for line in lags.read_text(encoding="ascii").splitlines()[:-1])
    return [Tick(float(lag), float(waited)) for due, lag, waited in lines if began <= float(due) <= ended]


def ticks_of_joins(size: Size) -> list[Tick]:
    """All ticks of the syncer during the joins."""
    with tempfile.TemporaryDirectory() as directory, ExchangeRig(Path(directory) / "job", size.workload) as rig:
        lags = Path(directory) / "lags"
        rig.start_syncer("-m", "benchmarks.sizes.watched_syncer", str(lags))

        async def join() -> list[Tick]:
            began = time.monotonic()
            async with light_learners(rig, size.learners):
                return ticks(lags, began)

        return asyncio.run(join())


def ticks_of_bare_joins(size: Size) -> list[Tick]:
    """All ticks of the bare server while as many bytes go to as many clients."""
    with tempfile.TemporaryDirectory() as directory, ExchangeRig(Path(directory) / "job", size.workload) as rig:
        lags = Path(directory) / "lags"
        messages = [str(number) for number in bare_joins.messages(size.workload.mebibytes)]
        address = rig.start_bare("-m", "benchmarks.sizes.bare_joins", str(lags), *messages)
        began = time.monotonic()
        asyncio.run(bare_joins.joins(rig, address, size.learners))
        return ticks(lags, began)


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    runs = [(in_own_process(ticks_of_joins, size), in_own_process(ticks_of_bare_joins, size)) for _ in range(size.runs)]
    of_syncer, of_bare = ([tick for run in side for tick in run] for side in zip(*runs, strict=True))
    own, bare_own = (percentile([tick.own for tick in side], 0.99) for side in (of_syncer, of_bare))
    value = own / bare_own
    details = {
        "lags_ms": {"syncer": lags_ms(of_syncer), "bare": lags_ms(of_bare)},
        "ratios": rounded([percentile([t.own for t in a], 0.99) / percentile([t.own for t in b], 0.99) for a, b in runs], 2),
    }
    yield Figure("loop-lag", value, "lag of the loop ÷ of a bare gRPC server's", LIMIT, value <= LIMIT, size.runs, details)


def lags_ms(found: list[Tick]) -> dict[str, float]:
    """Percentiles, in ms."""
    p50, p99, longest = (1000 * percentile([tick.lag for tick in found], share) for share in (0.5, 0.99, 1.0))
    own = 1000 * percentile([tick.own for tick in found], 0.99)
    return {"p50": round(p50, 2), "p99": round(p99, 2), "longest": round(longest, 2), "without_waiting": round(own, 2)}
