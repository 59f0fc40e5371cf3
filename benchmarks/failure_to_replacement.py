"""[failure-to-replacement] How long a failed unit is without a successor, at 100 jobs of 16 units.

From the write that marks a learner's pod Failed to the operator's call that creates a pod of the next attempt, with a restart
back-off of 0: the API's watch, the cache, the queue, reconcile, placement. Failures come at a steady rate, job by job.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator

from diloco_operator.api import names
from diloco_operator.kube.client import PatchType
from diloco_operator.kube.memory import MemoryApi

from benchmarks.report import emit, percentile
from benchmarks.simulated_cluster import UNITS, InstantKubelet, job, new_api, operating

BENCH = "failure-to-replacement"
JOBS = 100
FAILURES = 400
EVERY = 0.05
"""Seconds between two failures."""
LIMIT_P50 = 0.050
LIMIT_P99 = 0.250


def _finished() -> dict[str, object]:
    ended = {"exitCode": 1, "reason": "Error", "finishedAt": "2026-01-01T00:00:00Z"}
    container = {"name": names.LEARNER_CONTAINER, "ready": False, "restartCount": 0, "state": {"terminated": ended}}
    return {"status": {"phase": "Failed", "containerStatuses": [container]}}


async def measure() -> list[float]:
    """Seconds from each failure to the create call for its successor."""
    api = await new_api(JOBS * UNITS)
    failed_at: dict[str, float] = {}
    """By name of the successor."""
    took: list[float] = []

    def on_create(name: str, at: float) -> None:
        if name in failed_at:
            took.append(at - failed_at.pop(name))

    async with operating(api, kubelet=True, on_create=on_create) as kubelet:
        for index in range(JOBS):
            await api.create(names.DILOCO_JOBS, job(f"job-{index}"))
        while sum(len(pods) for pods in kubelet.running.values()) < JOBS * UNITS:  # noqa: ASYNC110 -- a bench, not a waiter
            await asyncio.sleep(0.1)
        victims = _victims()
        for _ in range(FAILURES):
            await _fail_one(api, kubelet, next(victims), failed_at)
            await asyncio.sleep(EVERY)
        deadline = time.perf_counter() + 30
        while failed_at:
            if time.perf_counter() > deadline:
                raise RuntimeError(f"no successor within 30 s: {', '.join(sorted(failed_at)[:5])}")
            await asyncio.sleep(0.1)
    return took


def _victims() -> Iterator[tuple[str, int]]:
    """Job by job, and in each job unit by unit."""
    for turn in range(1 << 30):
        yield f"job-{turn % JOBS}", (turn // JOBS) % UNITS


async def _fail_one(api: MemoryApi, kubelet: InstantKubelet, victim: tuple[str, int], failed_at: dict[str, float]) -> None:
    name, index = victim
    unit = f"v6e-{index}"
    pods = kubelet.running[("default", name)]
    pod, attempt = next((pod, attempt) for pod, (of, attempt) in pods.items() if of == unit)
    failed_at[names.learner_pod_name(name, unit, attempt + 1, 0)] = time.perf_counter()
    await api.patch(names.PODS, "default", pod, _finished(), type=PatchType.MERGE, subresource="status")


def main() -> bool:
    """p50 is the value; p99 has its own limit."""
    took = asyncio.run(measure())
    p50, p99 = percentile(took, 0.5), percentile(took, 0.99)
    ok = p50 <= LIMIT_P50 and p99 <= LIMIT_P99 and len(took) == FAILURES
    extra = {"p99": round(p99 * 1e3, 3), "p99_limit": LIMIT_P99 * 1e3, "mean": round(statistics.fmean(took) * 1e3, 3)}
    return emit(BENCH, p50 * 1e3, "ms", LIMIT_P50 * 1e3, ok, len(took), jobs=JOBS, units=UNITS, **extra)
