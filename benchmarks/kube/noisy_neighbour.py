"""[noisy-neighbour] While 1,000 units of one tenant fail at once, how long does the job of another wait for a successor?

The value is p99 of that job's failure-to-successor time while the operator makes the 1,000 successors, over p99 without such a burst. The
time runs from the answer to the status write that marks a pod Failed until a watch sees its successor. A separate process makes the
failures and counts their successors, so that the measuring process does not spend its time on it. A replacement that begins before the
first successor waits for an API server that takes in a thousand changed pods at once; such figures stand apart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

from diloco_operator.api import names
from diloco_operator.kube.client import Obj

from benchmarks.figure import Figure, percentile, rounded
from benchmarks.kube.failure_burst import FailureBurst, failure_burst
from benchmarks.kube.rig import PodWatch, Rig, failed, job, jobs, rig, running, watching
from benchmarks.simulated_cluster import POOL

LIMIT = 2.0
INTERVAL = 0.1
"""Seconds between a successor and the next failure of the quiet job."""


@dataclass(frozen=True, slots=True)
class Size:
    noisy_units: int
    quiet_units: int
    bursts: int
    quiet_failures: int
    pause: float
    """Seconds to wait until the operator is at rest."""


FULL = Size(noisy_units=1000, quiet_units=16, bursts=5, quiet_failures=300, pause=5.0)
SMOKE = Size(noisy_units=32, quiet_units=2, bursts=1, quiet_failures=2, pause=0.5)


@dataclass(frozen=True, slots=True)
class Wait:
    """One replacement of the quiet job, on `time.perf_counter`'s clock."""

    begun: float
    ended: float

    @property
    def ms(self) -> float:
        return (self.ended - self.begun) * 1e3


class Neighbour:
    """Fails one unit of the quiet job after the other, and notes how long each waits."""

    def __init__(self, bench: Rig, watch: PodWatch, job: str, namespace: str, units: int) -> None:
        self._bench = bench
        self._job = job
        self._namespace = namespace
        self._watch = watch
        self._units = units
        self._current: dict[str, Obj] = {}
        self._turn = 0

    async def begin(self) -> None:
        pods = await self._bench.pods(self._namespace)
        await self._bench.mark(pods, running)
        self._current = {pod["metadata"]["labels"][names.LABEL_UNIT]: pod for pod in pods}

    async def fail_one(self) -> Wait:
        unit = f"{POOL}-{self._turn % self._units}"
        self._turn += 1
        pod = self._current[unit]
        attempt = int(pod["metadata"]["labels"][names.LABEL_ATTEMPT])
        successor = names.learner_pod_name(self._job, unit, attempt + 1, 0)
        await self._bench.mark([pod], failed)
        begun = time.perf_counter()
        await self._watch.until(lambda: successor in self._watch.added, f"{successor} made")
        ended = self._watch.added[successor]
        self._current[unit] = await self._bench.client.get(names.PODS, self._namespace, successor)
        await self._bench.mark([self._current[unit]], running)
        await asyncio.sleep(INTERVAL)
        return Wait(begun, ended)


async def replacements(size: Size) -> tuple[list[Wait], list[Wait], list[FailureBurst]]:
    """The quiet job's replacements without a burst of failures of the other tenant, those during bursts, and the bursts."""
    async with rig() as bench:
        await bench.add_slices(size.noisy_units + size.quiet_units)
        for namespace in ("noisy", "quiet"):
            await bench.namespace(namespace)
        with bench.operator():
            async with watching(bench.client, "quiet") as watch:
                await bench.client.create(names.DILOCO_JOBS, job("quiet", "quiet", size.quiet_units))
                await watch.until(lambda: len(watch.added) == size.quiet_units, "the quiet job's pods made")
                async with watching(bench.client, "noisy") as noisy:
                    for each in jobs("noisy", "noisy", size.noisy_units):
                        await bench.client.create(names.DILOCO_JOBS, each)
                    await noisy.until(lambda: len(noisy.added) == size.noisy_units, "the noisy jobs' pods made")
                neighbour = Neighbour(bench, watch, "quiet", "quiet", size.quiet_units)
                await neighbour.begin()
                await asyncio.sleep(size.pause)  # the operator comes to rest
                calm = [await neighbour.fail_one() for _ in range(size.quiet_failures)]
                waits, bursts = [], []
                for _ in range(size.bursts):
                    async with failure_burst(bench, "noisy") as burst:
                        while not burst.done():
                            waits.append(await neighbour.fail_one())
                    bursts.append(burst.result())
                    await asyncio.sleep(size.pause)
                return calm, waits, bursts


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    calm, waits, bursts = asyncio.run(replacements(size))
    quiet = [wait.ms for wait in calm]
    making = [wait.ms for wait in waits if any(burst.first <= wait.begun <= burst.last for burst in bursts)]
    failing = [wait.ms for wait in waits if any(burst.begun <= wait.begun <= burst.first for burst in bursts)]
    value = percentile(making, 0.99) / percentile(quiet, 0.99)
    details = {
        "noisy_units": size.noisy_units,
        "quiet_p50_ms": percentile(quiet, 0.5),
        "quiet_p99_ms": percentile(quiet, 0.99),
        "burst_p50_ms": percentile(making, 0.5),
        "burst_p90_ms": percentile(making, 0.9),
        "burst_p99_ms": percentile(making, 0.99),
        "burst_samples": len(making),
        "before_the_first_successor_p50_ms": percentile(failing, 0.5),
        "before_the_first_successor_p99_ms": percentile(failing, 0.99),
        "burst_seconds": rounded([burst.seconds for burst in bursts], 2),
    }
    yield Figure("noisy-neighbour", value, "ratio", LIMIT, value <= LIMIT, size.bursts, details)
