"""[mass-failure] 500 pods fail at once: how long until every successor exists, in units of the time in which a bare client POSTs 500 pods.

The time runs from the first status write that marks a pod Failed; those 500 writes are within it.
"""

from __future__ import annotations

import asyncio
import statistics
import time

from diloco_operator.api import names

from benchmarks.kube.rig import Rig, bare_seconds, failed, job, rig, running, watching
from benchmarks.report import emit

BENCH = "mass-failure"
UNITS = 500
LIMIT = 3.0
RUNS = 3


async def one_run(bench: Rig, run: int) -> tuple[float, float, float]:
    """(operator's seconds, of which the failures' own writes, bare client's seconds)."""
    namespace = await bench.namespace(f"failing-{run}")
    async with watching(bench.client, namespace) as watch:
        await bench.client.create(names.DILOCO_JOBS, job("mass", namespace, UNITS))
        await watch.until(lambda: len(watch.added) == UNITS, "every learner pod made")
        pods = await bench.pods(namespace)
        await bench.mark(pods, running)
        begun = time.perf_counter()
        await bench.mark(pods, failed)
        marking = time.perf_counter() - begun
        await watch.until(lambda: len(watch.added) == 2 * UNITS, "a successor of every pod made")
        mine = max(watch.added.values()) - begun
    bare_namespace = await bench.namespace(f"bare-{run}")
    bare = await asyncio.to_thread(bare_seconds, bench.plane, pods, bare_namespace)
    await bench.clear(bare_namespace, lambda: True)
    return mine, marking, bare


async def measure() -> list[tuple[float, float, float]]:
    found = []
    async with rig() as bench:
        await bench.add_slices(UNITS)
        with bench.operator() as operator:
            for run in range(RUNS):
                found.append(await one_run(bench, run))
                await bench.clear(f"failing-{run}", lambda: operator.metric("diloco_job_units") == 0)
    return found


def main() -> bool:
    """Median of the runs' ratios."""
    found = asyncio.run(measure())
    ratios = [mine / bare for mine, _, bare in found]
    value = statistics.median(ratios)
    extra = {
        "ratios": [round(each, 3) for each in ratios],
        "operator_seconds": [round(mine, 3) for mine, _, _ in found],
        "of_these_until_all_had_failed": [round(marking, 3) for _, marking, _ in found],
        "bare_seconds": [round(bare, 3) for _, _, bare in found],
    }
    return emit(BENCH, value, "ratio", LIMIT, value <= LIMIT, RUNS, units=UNITS, **extra)
