"""[competing-classes] One placement of 5,000 units onto 5,000 slices, for which three pools compete.

The first pool can use every slice and is placed first; the other two can use a part each. So the first pool's units must move aside for
most units of the others, one augmenting path for each.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator

from builders.nodes import a_tpu_node, an_inventory
from diloco_operator.fleet import Inventory, Shape
from diloco_operator.placement import JobRequest, PlacementRequest, PoolRequest, UnitRequest, place

from benchmarks.figure import Figure

LIMIT_SECONDS = 1.0
FULL, SMOKE = 5000, 60
"""Slices and units."""
RUNS = 5
SHAPE = Shape("tpu-v5p", "2x2x1", 4)


def a_fleet(slices: int) -> Inventory:
    """Half of the slices have label x, a third label y, a sixth both, and a third neither."""
    labels = [{"x": "1", "y": "1"}, {}, {"x": "1"}, {"y": "1"}, {"x": "1"}, {}]
    return an_inventory(*(a_tpu_node(f"tpu-{index:05d}", labels=labels[index % len(labels)]) for index in range(slices)))


def a_pool(name: str, units: int, **fields: object) -> PoolRequest:
    return PoolRequest(name, SHAPE, 0, units, tuple(UnitRequest(f"{name}-{index}") for index in range(units)), **fields)  # type: ignore[arg-type]


def measure(*, smoke: bool) -> Iterator[Figure]:
    count = SMOKE if smoke else FULL
    fleet = a_fleet(count)
    pools = (
        a_pool("any", count // 2),
        a_pool("x", count // 2, node_selector={"x": "1"}),
        a_pool("y", count // 3, node_selector={"y": "1"}),
    )
    request = PlacementRequest((JobRequest("bench/job", 1, count, pools),), fleet)
    taken = []
    for _ in range(RUNS):
        gc.collect()
        begin = time.perf_counter()
        placement = place(request)
        taken.append(time.perf_counter() - begin)
        if len(placement.assigned) < count * 9 // 10:
            raise RuntimeError(f"{len(placement.assigned)} of {count} slices are used")
    value = statistics.median(taken)
    yield Figure("competing-classes", value, f"s, {count} slices and units, 3 pools", LIMIT_SECONDS, value <= LIMIT_SECONDS, RUNS)
