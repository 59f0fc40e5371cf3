"""[competing-classes] The first placement of a job with 5,000 units on 5,000 slices, for which its three pools compete.

The first pool comes first and can use every slice; each of the other two can use a part. So the first must leave to the others most of the
slices that they can use.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator
from typing import Any

from builders.nodes import a_tpu_node, an_inventory
from builders.slice_requests import a_pool_request
from diloco_operator.allotment import Allotment
from diloco_operator.fleet import Inventory, Shape
from diloco_operator.placement import JobRequest, PoolRequest, place

from benchmarks.figure import Figure
from benchmarks.reference import usual_figure

LIMIT_SECONDS = 1.0
FULL, SMOKE = 5000, 60
"""Number of slices, and of units."""
RUNS = 5
SHAPE = Shape("tpu-v5p", "2x2x1", 4)


def a_fleet(slices: int) -> Inventory:
    """Make a fleet: half of the slices have label x, a third label y, a sixth both, and a third neither."""
    labels = [{"x": "1", "y": "1"}, {}, {"x": "1"}, {"y": "1"}, {"x": "1"}, {}]
    return an_inventory(*(a_tpu_node(f"tpu-{index:05d}", labels=labels[index % len(labels)]) for index in range(slices)))


def a_pool(name: str, units: int, **fields: Any) -> PoolRequest:
    return a_pool_request(name, SHAPE, units, wanted=units, **fields)


def measure(*, smoke: bool) -> Iterator[Figure]:
    count = SMOKE if smoke else FULL
    fleet = a_fleet(count)
    pools = (
        a_pool("any", count // 2),
        a_pool("x", count // 2, node_selector={"x": "1"}),
        a_pool("y", count // 3, node_selector={"y": "1"}),
    )
    job = JobRequest("bench/job", min=1, max=count, pools=pools)
    taken = []
    for _ in range(RUNS):
        allotment = Allotment(fleet)
        allotment.refresh()
        gc.collect()
        begin = time.perf_counter()
        allotment.update(job)
        allotment.refresh()
        placement = place(job, allotment.view(job.job))
        taken.append(time.perf_counter() - begin)
        if len(placement.assigned) < count * 9 // 10:
            raise RuntimeError(f"{len(placement.assigned)} of {count} slices are used")
    yield usual_figure("competing-classes", statistics.median(taken), f"s, {count} slices and units, 3 pools", LIMIT_SECONDS, RUNS)
