"""[mixed-sizes] How long does a tenant's unit wait for its successor while another tenant edits a dozen jobs with units of six sizes?

12 jobs of 3 pools each, with units of 1, 2, 3, 5, 7 and 11 hosts, want more than the 100 GPU hosts of the fleet. Every 2 s one job gets
another `learners.max`, so all jobs are allotted again. Meanwhile units of the neighbour's job fail, one after the other, on slices of their
own. The value is the longest wait, as a person would notice it. The line also has the median without edits.

See docs/decisions/0210-units-of-several-sizes.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from builders.jobs import JobBuilder
from builders.nodes import a_gpu_node
from diloco_operator.api import names
from diloco_operator.kube.client import Obj

from benchmarks.figure import Figure, percentile
from benchmarks.kube.noisy_neighbour import Neighbour
from benchmarks.kube.rig import Rig, job, rig, side_by_side, watching
from benchmarks.reference import usual_figure
from benchmarks.simulated_cluster import STEPS

LIMIT = 1000.0
"""Milliseconds."""
SIZES = (1, 2, 3, 5, 7, 11)
"""Hosts of a unit, from pool to pool."""
MIXED, QUIET = "mixed", "quiet"
"""Namespaces. The second is also the name of the job in it."""
EVERY = 2.0
"""Seconds between two edits."""


@dataclass(frozen=True, slots=True)
class Size:
    hosts: int
    jobs: int
    edits: int
    quiet_units: int
    failures: int
    """Failures of the neighbour's units before the edits begin."""


FULL = Size(hosts=100, jobs=12, edits=30, quiet_units=4, failures=30)
SMOKE = Size(hosts=12, jobs=2, edits=1, quiet_units=2, failures=2)


def a_mixed_job(draw: random.Random, index: int) -> Obj:
    """A job with three pools, whose units have different sizes."""
    builder = JobBuilder(f"mix-{index}").in_namespace(MIXED).with_learners(1, 8).with_training(steps=STEPS)
    for number, hosts in enumerate(draw.sample(SIZES, 3)):
        builder = builder.with_gpu_pool(f"h100-{number}", hosts=hosts, min=0, max=draw.randint(1, 4))
    built = builder.build()
    built["spec"]["learners"]["timeouts"] = {"schedule": "24h"}  # no scheduler runs
    return built


async def edits(bench: Rig, draw: random.Random, size: Size) -> None:
    """Change `learners.max` of one job after the other."""
    for turn in range(size.edits):
        learners = {"spec": {"learners": {"max": draw.randint(2, 8)}}}
        await bench.client.patch(names.DILOCO_JOBS, MIXED, f"mix-{turn % size.jobs}", learners)
        await asyncio.sleep(EVERY)


async def waits(size: Size) -> tuple[list[float], list[float]]:
    """Milliseconds that the neighbour's units waited before the edits, and during them."""
    draw = random.Random(1)
    async with rig() as bench:
        await bench.add_slices(size.quiet_units)
        nodes = [a_gpu_node(f"gpu-{index:03d}") for index in range(size.hosts)]
        await side_by_side([partial(bench.client.create, names.NODES, node) for node in nodes])
        for namespace in (MIXED, QUIET):
            await bench.namespace(namespace)
        with bench.operator():
            async with watching(bench.client, QUIET) as watch, watching(bench.client, MIXED) as mixed:
                await bench.client.create(names.DILOCO_JOBS, job(QUIET, QUIET, size.quiet_units))
                await watch.until(lambda: len(watch.added) == size.quiet_units, "the neighbour's pods made")
                neighbour = Neighbour(bench, watch, QUIET, QUIET, size.quiet_units)
                await neighbour.begin()
                calm = [(await neighbour.fail_one()).ms for _ in range(size.failures)]
                for index in range(size.jobs):
                    await bench.client.create(names.DILOCO_JOBS, a_mixed_job(draw, index))
                await mixed.until(lambda: bool(mixed.added), "the first of the mixed units' pods made")
                editing = asyncio.create_task(edits(bench, draw, size))
                during = [(await neighbour.fail_one()).ms]
                while not editing.done():
                    during.append((await neighbour.fail_one()).ms)
                editing.result()
                return calm, during


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    calm, during = asyncio.run(waits(size))
    times = {
        "calm_p50_ms": percentile(calm, 0.5),
        "calm_longest_ms": max(calm),
        "p50_ms": percentile(during, 0.5),
        "p99_ms": percentile(during, 0.99),
    }
    yield usual_figure("mixed-sizes", max(during), f"ms, the longest of {len(during)} waits", LIMIT, times=times)
