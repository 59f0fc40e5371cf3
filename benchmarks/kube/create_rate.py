"""[create-rate] How fast the operator makes 2,000 units, against a client that only POSTs the same pods to the same API server.

Two jobs of 1,000 single-host units (a job has at most 1,024). The operator's time runs from the first job's POST to the moment when a
watch has seen the last learner pod, and holds everything: watch, reconcile, placement, certificates, status. The bare client's runs from
its first POST to its last answer, with as many requests at once; its pods are watched as well, so that both pay for being measured.

[writes-per-unit] The operator's writes, of every kind, from the first job's POST until every unit trains, for each unit.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack

from diloco_operator.api import names
from diloco_operator.api.job import UnitState

from benchmarks.kube.rig import Rig, bare_seconds, job, rig, running, watching
from benchmarks.kube.simulated_syncer import simulated_syncer
from benchmarks.report import emit

BENCH = "create-rate"
JOBS = 2
UNITS = 1000
LIMIT = 0.8
WRITES_LIMIT = 3.0
RUNS = 5
REST_SECONDS = 3.0
"""After pods by the thousand were deleted, so that their ends are not taken in at the expense of what is measured next."""


async def operator_seconds(rig: Rig, namespace: str) -> float:
    """From the POST of the first job until the last of its pods was seen."""
    async with watching(rig.client, namespace) as watch:
        begun = time.perf_counter()
        for index in range(JOBS):
            await rig.client.create(names.DILOCO_JOBS, job(f"rate-{index}", namespace, UNITS))
        await watch.until(lambda: len(watch.added) == JOBS * UNITS, "every learner pod made")
        return max(watch.added.values()) - begun


async def until_all_train(bench: Rig, namespace: str) -> None:
    """Pods run, a syncer says that all contribute, and the jobs' status says so too."""
    await bench.mark(await bench.pods(namespace), running)
    async with AsyncExitStack() as syncers:
        for index in range(JOBS):
            await syncers.enter_async_context(simulated_syncer(bench, namespace, f"rate-{index}", f"127.77.0.{index + 1}"))
        async with asyncio.timeout(120):
            training = 0
            while training < JOBS * UNITS:
                await asyncio.sleep(0.5)
                jobs = await bench.client.list(names.DILOCO_JOBS, namespace)
                training = sum(unit["state"] == UnitState.TRAINING for job in jobs.items for unit in job.get("status", {}).get("units", ()))


async def measure() -> tuple[list[tuple[float, float]], list[float]]:
    """(operator's seconds, bare client's seconds) of each run, and the operator's writes per unit of each."""
    found, writes = [], []
    async with rig() as bench:
        await bench.add_slices(JOBS * UNITS)
        with bench.operator() as operator:
            for run in range(RUNS):
                namespace = await bench.namespace(f"operator-{run}")
                before = operator.writes
                mine = await operator_seconds(bench, namespace)
                pods = await bench.pods(namespace)
                await until_all_train(bench, namespace)
                writes.append((operator.writes - before) / (JOBS * UNITS))
                bare_namespace = await bench.namespace(f"bare-{run}")
                await bench.clear(namespace, lambda: operator.metric("diloco_job_units") == 0)
                await asyncio.sleep(REST_SECONDS)
                async with watching(bench.client, bare_namespace) as watch:
                    bare = await asyncio.to_thread(bare_seconds, bench.plane, pods, bare_namespace)
                    await watch.until(lambda: len(watch.added) == JOBS * UNITS, "every pod of the bare client seen")
                found.append((mine, bare))
                await bench.clear(bare_namespace, lambda: True)
                await asyncio.sleep(REST_SECONDS)
    return found, writes


def main() -> bool:
    """Medians of the runs."""
    found, writes = asyncio.run(measure())
    ratios = [bare / mine for mine, bare in found]
    value = statistics.median(ratios)
    units = JOBS * UNITS
    kept = emit("writes-per-unit", statistics.median(writes), "writes", WRITES_LIMIT, max(writes) <= WRITES_LIMIT, RUNS, units=units)
    return kept & emit(
        BENCH,
        value,
        "ratio",
        LIMIT,
        value >= LIMIT,
        RUNS,
        units=units,
        ratios=[round(each, 4) for each in ratios],
        operator_units_per_second=[round(units / mine, 1) for mine, _ in found],
        bare_pods_per_second=[round(units / bare, 1) for _, bare in found],
    )
