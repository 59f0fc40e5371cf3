"""A job on a fleet: what it would yield where accelerators fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from numpy.random import default_rng

from diloco.contract import Checkpoint, Training
from diloco.simulation.failures import YEAR, ReturnDelay
from diloco.simulation.job import Outcome, SimulatedJob
from diloco.simulation.unit import Hardware


@dataclass(frozen=True, slots=True)
class PlacedUnit:
    """A unit with its hardware. A failure of one accelerator ends the unit, and it starts again on a spare slice."""

    pool: str
    """Names the kind of slice: units of one name share spares."""
    accelerators: int
    speed: float = 1.0
    """Relative to others of the fleet, above 0."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What no job file says. Durations in seconds."""

    failures_per_year: float
    """Of one accelerator; 0: none fails."""
    step_seconds: float
    """Of a unit of speed 1."""
    start_seconds: float
    """From the moment when a unit has its slice until its program runs."""
    compile_seconds: float
    """From then until its first step."""
    detect_seconds: float
    """From a failure until its unit starts again elsewhere."""
    repair_seconds: float
    """Until a slice that failed is back, in the mean."""


def simulate(
    training: Training, units: Sequence[PlacedUnit], spares: Mapping[str, int], conditions: Conditions, seconds: float, seed: int
) -> Outcome:
    """The outcome of the units over so many virtual seconds. Quorum, grace and fragments are those of `training`, but the job does not
    end."""
    between = YEAR / conditions.failures_per_year if conditions.failures_per_year else float("inf")
    returns = ReturnDelay.with_mean(conditions.repair_seconds)
    hardware = [
        Hardware(
            slices=1,
            chips_per_slice=unit.accelerators,
            chip_seconds_between_failures=between,
            step_seconds=conditions.step_seconds / unit.speed,
            down_seconds=conditions.detect_seconds + conditions.start_seconds + conditions.compile_seconds,
            up_seconds=0.0,
            returns=returns,
            elastic=False,
            pool=unit.pool,
            start_seconds=conditions.start_seconds,
            compile_seconds=conditions.compile_seconds,
        )
        for unit in units
    ]
    endless = training.model_copy(update={"steps": 10**9, "tokens": None, "checkpoint": Checkpoint(every_steps=10**9)})
    random = default_rng([seed, len(units)])
    return SimulatedJob(endless, hardware, random, spares={unit.pool: 0 for unit in units} | dict(spares)).run(seconds)
