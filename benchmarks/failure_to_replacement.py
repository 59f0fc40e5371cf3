"""[failure-to-replacement] How long a failed unit is without a successor, with 100 jobs of 16 units.

The time runs from the write that marks a learner's pod Failed to the operator's call that creates a pod of the next attempt. The restart
back-off is 0. The time covers the API's watch, the cache, the queue, reconcile and placement. Failures come at a steady rate, job by job.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

from builders.pods import ended_status
from diloco_local.memory import MemoryApi
from diloco_operator.api import names

from benchmarks.figure import Figure, percentile
from benchmarks.reference import pace
from benchmarks.simulated_cluster import NAMESPACE, POOL, UNITS, InstantKubelet, job, new_api, operating

INTERVAL = 0.05
"""Usual seconds between two failures: a slow machine gets as much time for each as it needs."""
LIMIT_P50 = 50.0
LIMIT_P99 = 250.0
"""Usual milliseconds, like `LIMIT_P50`."""
FAILED_AT = "2026-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Size:
    jobs: int
    failures: int


FULL = Size(jobs=100, failures=400)
SMOKE = Size(jobs=2, failures=4)


async def replacement_times(size: Size, interval: float) -> list[float]:
    """Seconds from each failure to the call that creates the successor."""
    api = await new_api(size.jobs * UNITS)
    failed_at: dict[str, float] = {}
    """Name of the successor -> time of the failure."""
    took: list[float] = []

    def on_create(name: str, at: float) -> None:
        if name in failed_at:
            took.append(at - failed_at.pop(name))

    async with operating(api, kubelet=True, on_create=on_create) as kubelet:
        for index in range(size.jobs):
            await api.create(names.DILOCO_JOBS, job(f"job-{index}"))
        while sum(len(pods) for pods in kubelet.running.values()) < size.jobs * UNITS:  # noqa: ASYNC110 -- the kubelet has no event for it
            await asyncio.sleep(0.1)
        victims = _victims(size.jobs)
        for _ in range(size.failures):
            await _fail_one(api, kubelet, next(victims), failed_at)
            await asyncio.sleep(interval)
        deadline = time.perf_counter() + 120
        while failed_at:
            if time.perf_counter() > deadline:
                raise RuntimeError(f"no successor within 120 s: {', '.join(sorted(failed_at)[:5])}")
            await asyncio.sleep(0.1)
    return took


def _victims(jobs: int) -> Iterator[tuple[str, str]]:
    """Yield job and unit for ever: the first unit of each job, then the second of each, and so on."""
    turn = 0
    while True:
        yield f"job-{turn % jobs}", f"{POOL}-{turn // jobs % UNITS}"
        turn += 1


async def _fail_one(api: MemoryApi, kubelet: InstantKubelet, victim: tuple[str, str], failed_at: dict[str, float]) -> None:
    name, unit = victim
    running = kubelet.running[(NAMESPACE, name)]
    pod_name, attempt = next((pod, attempt) for pod, (of, attempt) in running.items() if of == unit)
    pod = await api.get(names.PODS, NAMESPACE, pod_name)
    failed_at[names.learner_pod_name(name, unit, attempt + 1, 0)] = time.perf_counter()
    status = {"status": ended_status(pod, 1, FAILED_AT)}
    await api.patch(names.PODS, NAMESPACE, pod_name, status, subresource="status")


def measure(*, smoke: bool) -> Iterator[Figure]:
    """Yield p50 as the value. p99 has a limit of its own."""
    size = SMOKE if smoke else FULL
    at = pace()
    took = [1e3 * at * seconds for seconds in asyncio.run(replacement_times(size, INTERVAL / at))]
    p50, p99 = percentile(took, 0.5), percentile(took, 0.99)
    within = p50 <= LIMIT_P50 and p99 <= LIMIT_P99 and len(took) == size.failures
    details = {"p99": p99, "p99_limit": LIMIT_P99, "mean": statistics.fmean(took), "jobs": size.jobs, "units": UNITS, "pace": at}
    yield Figure("failure-to-replacement", p50, "usual ms", LIMIT_P50, within, len(took), details)
