"""Predicts the results of [wan-*] with the simulator, and with a formula for data parallel: `python -m benchmarks.wan.predicted`.

The job is the coordinator of real jobs, on virtual time. Each unit has its own path to the syncer, with a rate, a latency and losses. Data
parallel sums around the ring of regions, so the slowest path of the ring counts. TCP is assumed to use the whole link except for what is
lost, as BBR does. With `--cubic` the window of `diloco.simulation.path` limits it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from diloco.contract import Checkpoint, Training
from diloco.simulation.fleet import Links as SimulatedLinks
from diloco.simulation.job import SimulatedJob
from diloco.simulation.path import Path
from diloco.simulation.unit import Hardware
from numpy.random import default_rng

from benchmarks.evidence.table13 import ring
from benchmarks.wan.arms import Size
from benchmarks.wan.regions import Links, scaled
from benchmarks.wan.wide_area import FULL

_HEADERS: Final = 1448 / 1514
"""The share of a frame that is TCP's data."""
_SETTLING_STEPS: Final = 400
"""Steps at the beginning that do not count. In these the units get the parameters."""
_STEPS: Final = 2000
_SEED: Final = 1
_GRADIENT_BITS: Final = 16


@dataclass(frozen=True, slots=True)
class Predicted:
    """What is predicted for a job under one rate of loss."""

    compression: str
    loss: float
    units_in_each_merge: float
    merged: float
    """The share of all trained tokens that came into merges, 0..1."""


def of_job(size: Size, links: Links, compression: str, loss: float, *, cubic: bool) -> Predicted:
    """Simulate a job. The unit in the syncer's region is local to it, so its path has no limits."""
    training = Training.model_validate({"steps": 10**9, "compression": compression, "checkpoint": Checkpoint(every_steps=10**9)})
    count = len(links.rates)
    others = range(1, count)
    paths = [Path(local=True), *(_way(links.rates[region], links.delay(0, region), loss, cubic=cubic) for region in others)]
    units = [_hardware(size.workload.step_seconds, path) for path in paths]
    job = SimulatedJob(
        training,
        units,
        default_rng(_SEED),
        sizes=SimulatedLinks(size.parameters).sizes(training),
        syncer_bandwidth=links.rates[0] * _HEADERS,
    )
    settled = job.run(_SETTLING_STEPS * size.workload.step_seconds)
    tokens = sum(unit.tokens for unit in job.units.values())
    outcome = job.run((_SETTLING_STEPS + _STEPS) * size.workload.step_seconds)
    tokens = sum(unit.tokens for unit in job.units.values()) - tokens
    merged = outcome.contributions * outcome.merges - settled.contributions * settled.merges
    steps = outcome.outer_steps - settled.outer_steps
    return Predicted(compression, loss, merged / steps, (outcome.merged - settled.merged) / tokens)


def _way(rate: float, delay: float, loss: float, *, cubic: bool) -> Path:
    return Path(rate * _HEADERS, delay, loss) if cubic else Path(rate * _HEADERS * (1 - loss), delay)


def _hardware(step_seconds: float, path: Path) -> Hardware:
    return Hardware(
        step_seconds=step_seconds,
        path=path,
    )


def step_of_data_parallel(size: Size, links: Links, loss: float, *, cubic: bool) -> float:
    """The seconds of a step of data parallel: first the computation, then the gradients go around the ring. Next to nothing of that is
    hidden behind the computation."""
    count = len(links.rates)
    slowest = math.inf
    for source in range(count):
        destination = (source + 1) % count
        slowest = min(
            slowest, _way(min(links.rates[source], links.rates[destination]), links.delay(source, destination), loss, cubic=cubic).rate
        )
    return size.workload.step_seconds + size.parameters * _GRADIENT_BITS * ring(count) / slowest


def predictions(size: Size, *, cubic: bool) -> Iterator[dict[str, Any]]:
    """One line for each combination of method and loss."""
    links = scaled(size.parameters, size.workload.step_seconds)
    for loss in size.losses:
        step = step_of_data_parallel(size, links, loss, cubic=cubic)
        yield {
            "arm": "data parallel",
            "loss": loss,
            "step_seconds": round(step, 1),
            "steps_of_ours": round(step / size.workload.step_seconds),
        }
    for compression in size.compressions:
        for loss in size.losses:
            predicted = of_job(size, links, compression, loss, cubic=cubic)
            yield {
                "arm": compression,
                "loss": loss,
                "units_in_each_merge": round(predicted.units_in_each_merge, 2),
                "merged": round(predicted.merged, 3),
            }


if __name__ == "__main__":
    for line in predictions(FULL, cubic="--cubic" in sys.argv[1:]):
        sys.stdout.write(json.dumps(line) + "\n")
