"""[mass-failure] 500 pods fail at once: how long until every successor exists, in units of the time in which a bare client POSTs 500 pods.

The time runs from the first write that marks a pod Failed until a watch has seen the last successor. `reported_ratios`: the same when
the failures come through the API server, one request each, of which 500 alone take longer than the bare client's.
"""

from __future__ import annotations

import asyncio
import statistics

from diloco_operator.api import names

from benchmarks.kube.rig import Rig, bare_seconds, job, rig, running, watching
from benchmarks.kube.storm import Storm, storm
from benchmarks.report import emit

BENCH = "mass-failure"
UNITS = 500
LIMIT = 3.0
RUNS = 5
REPORTED_RUNS = 3


async def one_run(bench: Rig, run: int, *, reported: bool) -> tuple[Storm, float]:
    """What happened, and the bare client's seconds."""
    namespace = await bench.namespace(f"failing-{run}")
    async with watching(bench.client, namespace) as watch:
        await bench.client.create(names.DILOCO_JOBS, job("mass", namespace, UNITS))
        await watch.until(lambda: len(watch.added) == UNITS, "every learner pod made")
    pods = await bench.pods(namespace)
    await bench.mark(pods, running)
    async with storm(bench, namespace, reported=reported) as raging:
        found = await raging
    bare_namespace = await bench.namespace(f"bare-{run}")
    bare = await asyncio.to_thread(bare_seconds, bench.plane, pods, bare_namespace)
    await bench.clear(bare_namespace, lambda: True)
    return found, bare


async def measure() -> list[tuple[Storm, float]]:
    found = []
    async with rig() as bench:
        await bench.add_slices(UNITS)
        with bench.operator() as operator:
            for run in range(RUNS + REPORTED_RUNS):
                found.append(await one_run(bench, run, reported=run >= RUNS))
                await bench.clear(f"failing-{run}", lambda: operator.metric("diloco_job_units") == 0)
    return found


def main() -> bool:
    """Median of the runs' ratios."""
    measured = asyncio.run(measure())
    found = measured[:RUNS]
    ratios = [(seen.last - seen.begun) / bare for seen, bare in found]
    value = statistics.median(ratios)
    extra = {
        "ratios": [round(each, 3) for each in ratios],
        "operator_seconds": [round(seen.last - seen.begun, 3) for seen, _ in found],
        "of_these_until_all_had_failed": [round(seen.all_failed - seen.begun, 3) for seen, _ in found],
        "bare_seconds": [round(bare, 3) for _, bare in found],
        "reported_ratios": [round((seen.last - seen.begun) / bare, 3) for seen, bare in measured[RUNS:]],
        "reported_until_all_had_failed": [round(seen.all_failed - seen.begun, 3) for seen, _ in measured[RUNS:]],
    }
    return emit(BENCH, value, "ratio", LIMIT, value <= LIMIT, RUNS, units=UNITS, **extra)
