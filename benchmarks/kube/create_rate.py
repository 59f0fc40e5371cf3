"""[create-rate] How fast the operator makes 2,000 units, against a client that only POSTs the same pods to the same API server.

There are eight jobs of 250 single-host units (a job has at most 256). The operator's time runs from the first job's POST to the moment when
a watch has seen the last learner pod. It covers everything: watch, reconcile, placement, status, and 2,000 certificates, which the bare
client does not make. The bare client's time runs from its first POST to its last answer, with as many requests at once. Its pods are
watched as well, so that both pay for being measured. The limit is a guard against regressions.

[writes-per-unit] All of the operator's writes, from the first job's POST until every unit trains, divided by the number of units.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

from diloco_operator.api import names
from diloco_operator.api.status import UnitState

from benchmarks.figure import Figure, rounded
from benchmarks.kube.rig import Rig, bare_seconds, job, rig, running, watching, writes_of
from benchmarks.kube.simulated_syncer import simulated_syncer

JOBS = 8
LIMIT = 0.6
WRITES_LIMIT = 3.0


@dataclass(frozen=True, slots=True)
class Size:
    units: int
    """Units of each job."""
    runs: int
    pause: float
    """Seconds to wait after the deletion of pods. Otherwise operator and API server would still work on it during the next measurement."""


FULL = Size(units=250, runs=5, pause=3.0)
SMOKE = Size(units=2, runs=1, pause=0.1)


async def operator_seconds(bench: Rig, namespace: str, units: int) -> float:
    """Seconds from the POST of the first job until the last pod was seen."""
    async with watching(bench.client, namespace) as watch:
        begun = time.perf_counter()
        for index in range(JOBS):
            await bench.client.create(names.DILOCO_JOBS, job(f"rate-{index}", namespace, units))
        await watch.until(lambda: len(watch.added) == JOBS * units, "every learner pod made")
        return max(watch.added.values()) - begun


async def until_all_train(bench: Rig, namespace: str, units: int) -> None:
    """Make all pods run and syncers report all units as contributing, and wait until the status of the jobs shows all as training."""
    await bench.mark(await bench.pods(namespace), running)
    async with AsyncExitStack() as syncers:
        for index in range(JOBS):
            await syncers.enter_async_context(simulated_syncer(bench, namespace, f"rate-{index}", f"127.77.0.{index + 1}"))
        async with asyncio.timeout(240):
            training = 0
            while training < JOBS * units:
                await asyncio.sleep(0.5)
                jobs = await bench.client.list(names.DILOCO_JOBS, namespace)
                training = sum(unit["state"] == UnitState.TRAINING for job in jobs.items for unit in job.get("status", {}).get("units", ()))


async def compare(size: Size) -> tuple[list[tuple[float, float]], list[float]]:
    """For each run (operator's seconds, bare client's seconds), and for each run the operator's writes per unit."""
    seconds, writes = [], []
    pods_wanted = JOBS * size.units
    async with rig() as bench:
        await bench.add_slices(pods_wanted)
        with bench.operator() as operator:
            for run in range(size.runs):
                namespace = await bench.namespace(f"operator-{run}")
                before = await writes_of(operator)
                operator_s = await operator_seconds(bench, namespace, size.units)
                pods = await bench.pods(namespace)
                await until_all_train(bench, namespace, size.units)
                writes.append((await writes_of(operator) - before) / pods_wanted)
                bare_namespace = await bench.namespace(f"bare-{run}")
                await bench.clear(namespace, lambda: operator.total("diloco_job_units") == 0)
                await asyncio.sleep(size.pause)
                async with watching(bench.client, bare_namespace) as watch:
                    bare_s = await asyncio.to_thread(bare_seconds, bench.plane, pods, bare_namespace)
                    await watch.until(lambda: len(watch.added) == pods_wanted, "every pod of the bare client seen")
                seconds.append((operator_s, bare_s))
                await bench.clear(bare_namespace, lambda: True)
                await asyncio.sleep(size.pause)
    return seconds, writes


def measure(*, smoke: bool) -> Iterator[Figure]:
    """Yield the medians of the runs."""
    size = SMOKE if smoke else FULL
    seconds, writes = asyncio.run(compare(size))
    units = JOBS * size.units
    within = min(writes) >= 1.0 and max(writes) <= WRITES_LIMIT  # without a write there is no pod
    yield Figure("writes-per-unit", statistics.median(writes), "writes", WRITES_LIMIT, within, size.runs, {"units": units})
    ratios = [bare_s / operator_s for operator_s, bare_s in seconds]
    value = statistics.median(ratios)
    details = {
        "units": units,
        "ratios": rounded(ratios, 4),
        "operator_units_per_second": rounded([units / operator_s for operator_s, _ in seconds], 1),
        "bare_pods_per_second": rounded([units / bare_s for _, bare_s in seconds], 1),
    }
    yield Figure("create-rate", value, "ratio", LIMIT, value >= LIMIT, size.runs, details)
