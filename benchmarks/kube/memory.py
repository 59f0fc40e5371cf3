"""[memory-per-1000-pods] What the operator's process holds for every 1,000 pods in its cache, and at rest.

4,000 pods of four jobs. The value is the growth of an operator that starts and finds them, over that of a bare process that lists the same
pods from the same API server and keeps each as the dict that its JSON is (`decoded_pods`). Both are memory as the kernel counts it, so that
how an allocator and a kernel round it is in both; the bytes of the JSON, in the line as `json_mib`, would leave that in the value. The
limit is for what the operator keeps of a pod: 15 % more than is reached. `mib` is the growth itself, for each 1,000 pods. `made_by_itself`
is that of the operator that created them, whose passes also built 4,000 manifests.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from builders.child_processes import die_with_parent
from builders.operator_process import OperatorReplica
from diloco_operator.api import names

from benchmarks import ROOT
from benchmarks.figure import Figure
from benchmarks.kube.rig import job, rig, running, watching, writes_of

LIMIT = 0.16
BASE_LIMIT = 150.0
"""MiB."""


@dataclass(frozen=True, slots=True)
class Size:
    jobs: int
    units: int
    """Units of each job."""
    quiet: float
    """Seconds without a write after which the operator is at rest."""


FULL = Size(jobs=16, units=250, quiet=3.0)
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


@dataclass(frozen=True, slots=True)
class Resident:
    """MiB."""

    base: float
    """Memory of an operator without pods."""
    found: float
    """Memory of one that found the pods."""
    made: float
    """Memory of the one that made them."""
    decoded: float
    """What a process grows by that keeps them as dicts."""
    json: float
    """Size of the pods as JSON."""


def decoded(kubeconfig: Path, namespace: str) -> tuple[float, float]:
    """Return (growth of a process that keeps the decoded pods, their JSON), MiB."""
    command = [sys.executable, "-m", "benchmarks.kube.decoded_pods", str(kubeconfig), namespace]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, preexec_fn=die_with_parent)
    grown, size = json.loads(done.stdout)
    return grown, size / 2**20


async def resident(size: Size) -> Resident:
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
            found = await at_rest(operator, size.quiet)
        return Resident(base, found, made, *await asyncio.to_thread(decoded, bench.plane.kubeconfig, namespace))


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    mib = asyncio.run(resident(size))
    pods = size.jobs * size.units
    value = (mib.found - mib.base) / mib.decoded
    details = {
        "mib": round(1000 * (mib.found - mib.base) / pods, 3),
        "decoded_mib": round(1000 * mib.decoded / pods, 3),
        "json_mib": round(1000 * mib.json / pods, 3),
        "base_mib": round(mib.base, 1),
        "base_limit": BASE_LIMIT,
        "made_by_itself": round(1000 * (mib.made - mib.base) / pods, 2),
        "pods": pods,
        "nodes": pods,
    }
    within = value <= LIMIT and mib.base <= BASE_LIMIT
    yield Figure("memory-per-1000-pods", value, "growth ÷ of a process that keeps the decoded pods", LIMIT, within, 1, details)
