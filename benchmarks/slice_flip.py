"""[slice-flip] What it costs the operator's event loop that a slice of 512 hosts becomes NotReady and Ready again, host by host.

The kubelets of a slice lose the API server, or restart, at the same time. Each host changes one node, and after each change the operator
looks for free slices, as it does while a job waits for one.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

from builders.nodes import a_tpu_slice, an_inventory
from diloco_operator.fleet import Inventory, NodeView, Shape, project_node

from benchmarks.figure import Figure
from benchmarks.reference import usual_figure

LIMIT_MS = 50.0


@dataclass(frozen=True, slots=True)
class Size:
    topology: str
    hosts: int
    runs: int


FULL = Size("8x16x16", 512, 21)
SMOKE = Size("4x4x4", 16, 3)


def flip(inventory: Inventory, shape: Shape, down: list[NodeView], up: list[NodeView]) -> float:
    """Update the inventory node by node, down and up again, and return the seconds that it took."""
    begun = time.perf_counter()
    for nodes in (down, up):
        for node in nodes:
            inventory.update_node(node)
            offered = sum(1 for _ in inventory.free(shape))
    took = time.perf_counter() - begun
    if offered != 1:
        raise RuntimeError("the slice is not free again")
    return took


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    hosts = a_tpu_slice("np-0", size.hosts, topology=size.topology)
    inventory = an_inventory(*hosts)
    up = [project_node(host) for host in hosts]
    down = [project_node(host) for host in a_tpu_slice("np-0", size.hosts, topology=size.topology, ready=False)]
    shape = Shape("tpu-v5p", size.topology, 4, size.hosts)
    gc.collect()
    taken = statistics.median(flip(inventory, shape, down, up) for _ in range(size.runs)) * 1000
    yield usual_figure("slice-flip", taken, f"ms for {size.hosts} hosts, there and back", LIMIT_MS, size.runs)
