"""[memory-per-1000-pods] What the operator's process holds: at rest, and for every 1,000 pods in its cache.

4,000 pods of four jobs. The figure is that of an operator that starts and finds them; the one that made them, whose passes built 4,000
manifests as well, is told beside it.
"""

from __future__ import annotations

import asyncio

from diloco_operator.api import names

from benchmarks.kube.rig import OperatorProcess, job, rig, running, watching
from benchmarks.report import emit

BENCH = "memory-per-1000-pods"
JOBS = 4
UNITS = 1000
LIMIT = 5.0
BASE_LIMIT = 150.0
MIB = 1 << 20


async def at_rest(operator: OperatorProcess) -> float:
    """MiB, once the operator has nothing to do for three looks in a row."""
    quiet = 0
    writes = -1
    while quiet < 3:
        await asyncio.sleep(1.0)
        now = operator.writes
        quiet = quiet + 1 if now == writes else 0
        writes = now
    return operator.resident_bytes / MIB


async def measure() -> tuple[float, float, float]:
    """(base, with the pods it found, with the pods it made), MiB."""
    async with rig() as bench:
        await bench.add_slices(JOBS * UNITS)
        with bench.operator() as operator:
            base = await at_rest(operator)
            namespace = await bench.namespace("memory")
            async with watching(bench.client, namespace) as watch:
                for index in range(JOBS):
                    await bench.client.create(names.DILOCO_JOBS, job(f"memory-{index}", namespace, UNITS))
                await watch.until(lambda: len(watch.added) == JOBS * UNITS, "every learner pod made")
            await bench.mark(await bench.pods(namespace), running)
            made = await at_rest(operator)
        with bench.operator() as operator:
            return base, await at_rest(operator), made


def main() -> bool:
    base, found, made = asyncio.run(measure())
    value = (found - base) / (JOBS * UNITS / 1000)
    extra = {"base_mib": round(base, 1), "base_limit": BASE_LIMIT, "made_by_itself": round((made - base) / (JOBS * UNITS / 1000), 2)}
    return emit(BENCH, value, "MiB", LIMIT, value <= LIMIT and base <= BASE_LIMIT, 1, pods=JOBS * UNITS, nodes=JOBS * UNITS, **extra)
