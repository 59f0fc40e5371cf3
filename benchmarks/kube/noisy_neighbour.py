"""[noisy-neighbour] While 1,000 units of one job fail at once, how long does another job wait for a successor?

p99 of the other job's failure-to-successor time while the operator makes the 1,000 successors, against the same without any. The time
runs from the answer to the status write that marks a pod Failed until a watch sees its successor. Failures are made, and their successors
counted, by a process of its own, so that what is measured is not what it costs to measure. What waits before the first successor waits
for an API server that takes in a thousand changed pods at once; it is told apart.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from diloco_operator.api import names
from diloco_operator.kube.client import Obj

from benchmarks.kube.rig import PodWatch, Rig, failed, job, rig, running, watching
from benchmarks.kube.storm import Storm, storm
from benchmarks.report import emit, percentile

BENCH = "noisy-neighbour"
NOISY_UNITS = 1000
QUIET_UNITS = 16
STORMS = 5
EVERY = 0.1
"""Seconds between a successor and the next failure of the quiet job."""
QUIET_FAILURES = 300
LIMIT = 2.0


@dataclass(frozen=True, slots=True)
class Wait:
    """One replacement of the quiet job, on `time.perf_counter`'s clock."""

    begun: float
    ended: float

    @property
    def ms(self) -> float:
        return (self.ended - self.begun) * 1e3


class Neighbour:
    """The quiet job: fails one unit after the other and notes how long each waits."""

    def __init__(self, bench: Rig, watch: PodWatch) -> None:
        self._bench = bench
        self._watch = watch
        self._current: dict[str, Obj] = {}
        self._turn = 0

    async def begin(self) -> None:
        pods = await self._bench.pods("quiet")
        await self._bench.mark(pods, running)
        self._current = {pod["metadata"]["labels"][names.LABEL_UNIT]: pod for pod in pods}

    async def fail_one(self) -> Wait:
        unit = f"v6e-{self._turn % QUIET_UNITS}"
        self._turn += 1
        pod = self._current[unit]
        attempt = int(pod["metadata"]["labels"][names.LABEL_ATTEMPT])
        successor = names.learner_pod_name("quiet", unit, attempt + 1, 0)
        await self._bench.mark([pod], failed)
        begun = time.perf_counter()
        await self._watch.until(lambda: successor in self._watch.added, f"{successor} made")
        ended = self._watch.added[successor]
        self._current[unit] = await self._bench.client.get(names.PODS, "quiet", successor)
        await self._bench.mark([self._current[unit]], running)
        await asyncio.sleep(EVERY)
        return Wait(begun, ended)


async def measure() -> tuple[list[Wait], list[Wait], list[Storm]]:
    """The quiet job's replacements without and with a storm, and the storms."""
    async with rig() as bench:
        await bench.add_slices(NOISY_UNITS + QUIET_UNITS)
        for namespace in ("noisy", "quiet"):
            await bench.namespace(namespace)
        with bench.operator():
            async with watching(bench.client, "quiet") as watch:
                await bench.client.create(names.DILOCO_JOBS, job("quiet", "quiet", QUIET_UNITS))
                await watch.until(lambda: len(watch.added) == QUIET_UNITS, "the quiet job's pods made")
                async with watching(bench.client, "noisy") as noisy:
                    await bench.client.create(names.DILOCO_JOBS, job("noisy", "noisy", NOISY_UNITS))
                    await noisy.until(lambda: len(noisy.added) == NOISY_UNITS, "the noisy job's pods made")
                neighbour = Neighbour(bench, watch)
                await neighbour.begin()
                await asyncio.sleep(5)  # the operator comes to rest
                calm = [await neighbour.fail_one() for _ in range(QUIET_FAILURES)]
                waits, storms = [], []
                for _ in range(STORMS):
                    async with storm(bench, "noisy") as raging:
                        while not raging.done():
                            waits.append(await neighbour.fail_one())
                    storms.append(raging.result())
                    await asyncio.sleep(5)
                return calm, waits, storms


def main() -> bool:
    calm, waits, storms = asyncio.run(measure())
    quiet = [wait.ms for wait in calm]
    making = [wait.ms for wait in waits if any(storm.first <= wait.begun <= storm.last for storm in storms)]
    failing = [wait.ms for wait in waits if any(storm.begun <= wait.begun <= storm.first for storm in storms)]
    value = percentile(making, 0.99) / percentile(quiet, 0.99)
    extra = {
        "quiet_p50_ms": round(percentile(quiet, 0.5), 1),
        "quiet_p99_ms": round(percentile(quiet, 0.99), 1),
        "storm_p50_ms": round(percentile(making, 0.5), 1),
        "storm_p90_ms": round(percentile(making, 0.9), 1),
        "storm_p99_ms": round(percentile(making, 0.99), 1),
        "storm_samples": len(making),
        "before_the_first_successor_p50_ms": round(percentile(failing, 0.5), 1),
        "before_the_first_successor_p99_ms": round(percentile(failing, 0.99), 1),
        "storm_seconds": [round(storm.last - storm.begun, 2) for storm in storms],
    }
    return emit(BENCH, value, "ratio", LIMIT, value <= LIMIT, STORMS, noisy_units=NOISY_UNITS, **extra)
