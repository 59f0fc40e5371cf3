"""[memory-per-1000-pods] What the operator's process holds for every 1,000 pods in its cache, and at rest.

There are 4,000 pods of 16 jobs. The value is the growth of an operator that starts and finds them, over that of a bare process that lists
the same pods from the same API server and keeps each as a dict (`decoded_pods`). Both are resident memory, so that allocator and kernel
round both alike; that would not be so with the bytes of the JSON, which the line has as `json_mib`. The limit is for what the operator
keeps of a pod: 15 % more than is reached. `mib` is the growth itself, for each 1,000 pods. `made_by_itself` is the growth of the operator
that created the pods, whose passes also built 4,000 manifests.
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
"""Limit of an operator without pods, MiB."""


@dataclass(frozen=True, slots=True)
class Size:
    jobs: int
    units: int
    """Units of each job."""
    quiet: float
    """The operator counts as at rest after this many seconds without a write."""


FULL = Size(jobs=16, units=250, quiet=3.0)
SMOKE = Size(jobs=1, units=8, quiet=0.5)


async def at_rest(operator: OperatorReplica, quiet: float) -> float:
    """The operator's resident memory in MiB, once it has written nothing for `quiet` seconds."""
    checks, unchanged, writes = 3, 0, -1
    while unchanged < checks:
        await asyncio.sleep(quiet / checks)
        now = await writes_of(operator)
        unchanged = unchanged + 1 if now == writes else 0
        writes = now
    return operator.resident_mib


@dataclass(frozen=True, slots=True)
class Resident:
    """Memory, in MiB."""

    base: float
    """An operator without pods."""
    found: float
    """An operator that found the pods when it started."""
    made: float
    """The operator that made the pods."""
    decoded: float
    """Growth of a process that keeps the pods as dicts."""
    json: float
    """Size of the pods as JSON."""


def decoded(kubeconfig: Path, namespace: str) -> tuple[float, float]:
    """(growth of a process that keeps the decoded pods, size of their JSON), in MiB."""
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
            with_made_pods = await at_rest(operator, size.quiet)
        with bench.operator() as operator:
            with_found_pods = await at_rest(operator, size.quiet)
        return Resident(base, with_found_pods, with_made_pods, *await asyncio.to_thread(decoded, bench.plane.kubeconfig, namespace))


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
