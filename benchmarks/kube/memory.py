"""[memory-per-1000-pods] What the operator's process holds: at rest, and for every 1,000 pods in its cache.

4,000 pods of four jobs. The value is that of an operator that starts and finds them. `made_by_itself` is that of the operator that created
them, whose passes also built 4,000 manifests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from builders.operator_process import OperatorReplica
from diloco_operator.api import names

from benchmarks.figure import Figure
from benchmarks.kube.rig import job, rig, running, watching, writes_of

LIMIT = 5.0
BASE_LIMIT = 150.0
"""MiB."""


@dataclass(frozen=True, slots=True)
class Size:
    jobs: int
    units: int
    """Units of each job."""
    quiet: float
    """Seconds without a write after which the operator is at rest."""


FULL = Size(jobs=4, units=1000, quiet=3.0)
SMOKE = Size(jobs=1, units=8, quiet=0.5)


async def at_rest(operator: OperatorReplica, quiet: float) -> float:
    """Return MiB, once the operator has written nothing for so many seconds."""
    checks, unchanged, writes = 3, 0, -1
    while unchanged < checks:
        await asyncio.sleep(quiet / checks)
        now = await writes_of(operator)
        unchanged = unchanged + 1 if now == writes else 0
        writes = now
    return operator.resident_mib


async def resident(size: Size) -> tuple[float, float, float]:
    """Return (base, with the pods it found, with the pods it made), MiB."""
    async with rig() as bench:
        await bench.add_slices(size.jobs * size.units)
        with bench.operator() as operator:
            base = await at_rest(operator, size.quiet)
            namespace = await bench.namespace("memory")
            async with watching(bench.client, namespace) as watch:
                for index in range(size.jobs):
                    await bench.client.create(names.DILOCO_JOBS, job(f"memory-{index}", namespace, size.units))
                await watch.until(lambda: len(watch.added) == size.jobs * size.units, "every learner pod made")
            await bench.mark(await bench.pods(namespace), running)
            made = await at_rest(operator, size.quiet)
        with bench.operator() as operator:
            return base, await at_rest(operator, size.quiet), made


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    base, found, made = asyncio.run(resident(size))
    pods = size.jobs * size.units
    value = (found - base) / (pods / 1000)
    details = {
        "base_mib": round(base, 1),
        "base_limit": BASE_LIMIT,
        "made_by_itself": round((made - base) / (pods / 1000), 2),
        "pods": pods,
        "nodes": pods,
    }
    yield Figure("memory-per-1000-pods", value, "MiB", LIMIT, value <= LIMIT and base <= BASE_LIMIT, 1, details)
