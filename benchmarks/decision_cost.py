"""[decision-cost] What an outer step costs the syncer in decisions, by the number of units.

The real coordinator and guards, without arrays and without a network: in each outer step every unit reports a local step and answers one
pull, and the coordinator decides after each of these. P = H = 24. The value is the milliseconds of one outer step at 512 units. `growth` is
the time for one unit at 4,096 units over that at 512: 1 is linear.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from statistics import median

from builders.core import a_job
from diloco.algorithm.codec import Coding
from diloco.algorithm.coordinator import Coordinator
from diloco.algorithm.events import Close, Metadata, Offer, Order, Pull
from diloco.algorithm.guards import ARMED_AFTER, Guard

from benchmarks.figure import Figure

LIMIT_MS = 5.0
UNITS = (8, 64, 512, 2048, 4096)
AT = 512
H = 24


def measure(*, smoke: bool) -> Iterator[Figure]:
    sizes = (8, 64) if smoke else UNITS
    rounds = H if smoke else 2 * H
    took = {units: outer_step_ms(units, rounds if units <= AT else H) for units in sizes}
    value = took[AT if AT in took else sizes[-1]]
    growth = took[sizes[-1]] / sizes[-1] / (value / (AT if AT in took else sizes[-1]))
    details = {"milliseconds": {str(units): round(ms, 3) for units, ms in took.items()}, "growth": growth}
    yield Figure("decision-cost", value, "ms", LIMIT_MS, value <= LIMIT_MS, rounds, details)


def outer_step_ms(units: int, rounds: int) -> float:
    """The median over `rounds` outer steps, once the guards know the job."""
    job = Decisions(units)
    for _ in range((ARMED_AFTER + 1) * H):
        job.outer_step()
    gc.collect()
    return median(job.outer_step() for _ in range(rounds)) * 1e3


class Decisions:
    """A coordinator whose units do all that they are asked to."""

    def __init__(self, units: int) -> None:
        training = a_job(sync_interval=H, fragments=H, overlap_steps=2)
        self._coordinator = Coordinator(training, Guard([1] * H))
        self._coordinator.begin()
        self._units = [f"u-{number:04}" for number in range(units)]
        self._local_step = 0
        self._adopted = [0] * H
        """Per fragment, the local step of its last adoption."""
        self._now = 0.0
        for unit in self._units:
            self._coordinator.join(unit, 0.0)

    def outer_step(self) -> float:
        """Seconds that the coordinator took."""
        self._local_step += 1
        self._now += 1.0
        steps = tuple(self._local_step - adopted for adopted in self._adopted)
        metadata = Metadata(self._local_step, steps, tuple(100 * n for n in steps), 1.0)
        orders: list[Order] = []
        t = self._coordinator.t
        begin = time.perf_counter()
        for unit in self._units:
            self._coordinator.progress(unit, metadata, self._now)
            orders += self._coordinator.advance(self._now)
        while orders:
            order = orders.pop(0)
            match order:
                case Pull():
                    n = steps[order.fragment]
                    offer = Offer(order.fragment, order.t, Coding.FLOAT32, 0, n, 100 * n)
                    for unit in order.units:
                        assert self._coordinator.admit(unit, offer, self._now) is None
                        assert self._coordinator.contributed(unit, offer, 1.0, self._now) is None
                        orders += self._coordinator.advance(self._now)
                case Close():
                    self._coordinator.applied(order.t, self._now, finite=True)
                    self._adopted[order.fragment] = self._local_step
                    orders += self._coordinator.advance(self._now)
        seconds = time.perf_counter() - begin
        assert self._coordinator.t > t
        return seconds
