"""[noisy-neighbour] While 1,000 units of one job fail at once, how long does another job wait for a successor?

p99 of the other job's failure-to-successor time during the storm, against the same without one. The time runs from the answer to the status
write that marks a pod Failed until a watch sees its successor. The storm is written by a process of its own.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time

from diloco_operator.api import names
from diloco_operator.kube.client import Obj

from benchmarks.kube.rig import ROOT, PodWatch, Rig, failed, job, rig, running, watching
from benchmarks.offspring import die_with_parent
from benchmarks.report import emit, percentile

BENCH = "noisy-neighbour"
NOISY_UNITS = 1000
QUIET_UNITS = 16
STORMS = 3
EVERY = 0.1
"""Seconds between two failures of the quiet job."""
QUIET_FAILURES = 100
LIMIT = 2.0


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

    async def fail_one(self) -> float:
        """Seconds until the successor was seen."""
        unit = f"v6e-{self._turn % QUIET_UNITS}"
        self._turn += 1
        pod = self._current[unit]
        attempt = int(pod["metadata"]["labels"][names.LABEL_ATTEMPT])
        successor = names.learner_pod_name("quiet", unit, attempt + 1, 0)
        await self._bench.mark([pod], failed)
        begun = time.perf_counter()
        await self._watch.until(lambda: successor in self._watch.added, f"{successor} made")
        took = self._watch.added[successor] - begun
        self._current[unit] = await self._bench.client.get(names.PODS, "quiet", successor)
        await self._bench.mark([self._current[unit]], running)
        return took


async def storm(bench: Rig, version: int) -> None:
    """Every unit of the noisy job fails at once; returns when all have successors."""
    pods = [pod for pod in await bench.pods("noisy") if pod["metadata"]["labels"][names.LABEL_ATTEMPT] == str(version)]
    if len(pods) != NOISY_UNITS:
        raise RuntimeError(f"{len(pods)} of {NOISY_UNITS} pods of attempt {version}")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(pod["metadata"]["name"] for pod in pods))
        file.flush()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "benchmarks.kube.fail_pods",
            str(bench.plane.kubeconfig),
            "noisy",
            file.name,
            cwd=ROOT,
            preexec_fn=die_with_parent,
        )
        if await process.wait() != 0:
            raise RuntimeError("the process that fails pods failed")


async def measure() -> tuple[list[float], list[float]]:
    """Seconds of the quiet job's replacements: without and with a storm."""
    async with rig() as bench:
        await bench.add_slices(NOISY_UNITS + QUIET_UNITS)
        for namespace in ("noisy", "quiet"):
            await bench.namespace(namespace)
        with bench.operator():
            async with watching(bench.client, "quiet") as watch, watching(bench.client, "noisy") as noisy:
                await bench.client.create(names.DILOCO_JOBS, job("quiet", "quiet", QUIET_UNITS))
                await watch.until(lambda: len(watch.added) == QUIET_UNITS, "the quiet job's pods made")
                await bench.client.create(names.DILOCO_JOBS, job("noisy", "noisy", NOISY_UNITS))
                await noisy.until(lambda: len(noisy.added) == NOISY_UNITS, "the noisy job's pods made")
                neighbour = Neighbour(bench, watch)
                await neighbour.begin()
                await asyncio.sleep(5)  # the operator comes to rest
                calm, stormy = [], []
                for _ in range(QUIET_FAILURES):
                    calm.append(await neighbour.fail_one())
                    await asyncio.sleep(EVERY)
                for round_ in range(1, STORMS + 1):
                    raging = asyncio.create_task(storm(bench, round_))
                    wanted = NOISY_UNITS * (round_ + 1)
                    while len(noisy.added) < wanted:
                        if raging.done():
                            raging.result()
                        if len(noisy.added) > wanted - NOISY_UNITS:  # successors are being made
                            stormy.append(await neighbour.fail_one())
                        await asyncio.sleep(EVERY)
                    await raging
                    await asyncio.sleep(5)
                return calm, stormy


def main() -> bool:
    calm, stormy = asyncio.run(measure())
    quiet_p99, storm_p99 = percentile(calm, 0.99), percentile(stormy, 0.99)
    value = storm_p99 / quiet_p99
    extra = {
        "quiet_p50_ms": round(percentile(calm, 0.5) * 1e3, 1),
        "quiet_p99_ms": round(quiet_p99 * 1e3, 1),
        "storm_p50_ms": round(percentile(stormy, 0.5) * 1e3, 1),
        "storm_p99_ms": round(storm_p99 * 1e3, 1),
        "storm_samples": len(stormy),
    }
    return emit(BENCH, value, "ratio", LIMIT, value <= LIMIT, STORMS, noisy_units=NOISY_UNITS, **extra)
