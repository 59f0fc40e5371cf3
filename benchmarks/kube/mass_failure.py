"""[mass-failure] 500 pods of two jobs fail at once: the time until every successor exists, over the time in which a bare client POSTs as
many pods.

The time runs from the first write that marks a pod Failed until a watch has seen the last successor. `reported_ratios` is the same if the
failures come through the API server, one request each. Those 500 requests alone take longer than the bare client's.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from diloco_operator.api import names

from benchmarks.figure import Figure, rounded
from benchmarks.kube.failure_burst import FailureBurst, failure_burst
from benchmarks.kube.rig import Rig, bare_seconds, jobs, rig, running, watching

LIMIT = 3.0


@dataclass(frozen=True, slots=True)
class Size:
    units: int
    runs: int
    reported_runs: int


FULL = Size(units=500, runs=5, reported_runs=3)
SMOKE = Size(units=8, runs=1, reported_runs=1)


async def one_run(bench: Rig, run: int, units: int, *, reported: bool) -> tuple[FailureBurst, float]:
    """The times of the burst, and the bare client's seconds."""
    namespace = await bench.namespace(f"failing-{run}")
    async with watching(bench.client, namespace) as watch:
        for job in jobs("mass", namespace, units):
            await bench.client.create(names.DILOCO_JOBS, job)
        await watch.until(lambda: len(watch.added) == units, "every learner pod made")
    pods = await bench.pods(namespace)
    await bench.mark(pods, running)
    async with failure_burst(bench, namespace, reported=reported) as burst:
        times = await burst
    bare_namespace = await bench.namespace(f"bare-{run}")
    bare = await asyncio.to_thread(bare_seconds, bench.plane, pods, bare_namespace)
    await bench.clear(bare_namespace, lambda: True)
    return times, bare


async def all_runs(size: Size) -> list[tuple[FailureBurst, float]]:
    runs = []
    async with rig() as bench:
        await bench.add_slices(size.units)
        with bench.operator() as operator:
            for run in range(size.runs + size.reported_runs):
                runs.append(await one_run(bench, run, size.units, reported=run >= size.runs))
                await bench.clear(f"failing-{run}", lambda: operator.total("diloco_job_units") == 0)
    return runs


def measure(*, smoke: bool) -> Iterator[Figure]:
    """Yield the median of the runs' ratios."""
    size = SMOKE if smoke else FULL
    measured = asyncio.run(all_runs(size))
    direct, reported = measured[: size.runs], measured[size.runs :]
    ratios = [burst.seconds / bare for burst, bare in direct]
    value = statistics.median(ratios)
    details = {
        "units": size.units,
        "ratios": rounded(ratios, 3),
        "operator_seconds": rounded([burst.seconds for burst, _ in direct], 3),
        "of_these_until_all_had_failed": rounded([burst.failing_seconds for burst, _ in direct], 3),
        "bare_seconds": rounded([bare for _, bare in direct], 3),
        "reported_ratios": rounded([burst.seconds / bare for burst, bare in reported], 3),
        "reported_until_all_had_failed": rounded([burst.failing_seconds for burst, _ in reported], 3),
    }
    yield Figure("mass-failure", value, "ratio", LIMIT, value <= LIMIT, size.runs, details)
