"""A job on a fleet: what it would yield where accelerators fail, spot capacity is reclaimed, and hosts become slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from numpy.random import default_rng

from diloco.contract import Checkpoint, Training
from diloco.simulation.failures import YEAR, ReturnDelay
from diloco.simulation.job import Outcome, SimulatedJob
from diloco.simulation.slices import FleetSlices, Group, PlacedUnit, Placer, Reclaims, Slowdowns
from diloco.simulation.unit import Hardware


@dataclass(frozen=True, slots=True)
class Conditions:
    """What no job file says. Durations in seconds."""

    failures_per_year: float
    """Of one accelerator; 0: none fails. A failure takes the host or TPU slice out, and ends all units on it."""
    step_seconds: float
    """Of a unit of speed 1."""
    start_seconds: float
    """From the moment when a unit has its slice until its program runs."""
    compile_seconds: float
    """From then until its first step."""
    detect_seconds: float
    """From a failure until its unit starts again elsewhere."""
    repair_seconds: float
    """Until what failed is back, in the mean."""
    reclaims: Reclaims = field(default_factory=Reclaims)
    slowdowns: Slowdowns = field(default_factory=Slowdowns)


def simulate(training: Training, placer: Placer, groups: Sequence[Group], conditions: Conditions, seconds: float, seed: int) -> Outcome:
    """The outcome of the units of `placer` over so many virtual seconds. Quorum, grace and fragments are those of `training`, but the job
    does not end."""
    between = YEAR / conditions.failures_per_year if conditions.failures_per_year else float("inf")
    repairs = ReturnDelay.with_mean(conditions.repair_seconds)

    def hardware(place: PlacedUnit) -> Hardware:
        return Hardware(
            slices=1,
            chips_per_slice=place.accelerators,
            chip_seconds_between_failures=between,
            step_seconds=conditions.step_seconds / place.speed,
            down_seconds=conditions.detect_seconds + conditions.start_seconds + conditions.compile_seconds,
            up_seconds=0.0,
            returns=repairs,
            elastic=False,
            start_seconds=conditions.start_seconds,
            compile_seconds=conditions.compile_seconds,
            detect_seconds=conditions.detect_seconds,
        )

    endless = training.model_copy(update={"steps": 10**9, "tokens": None, "checkpoint": Checkpoint(every_steps=10**9)})
    random = default_rng([seed, sum(place is not None for place in placer.units().values())])
    job = SimulatedJob(endless, (), random)
    fate = default_rng(seed)  # whatever the number of units
    job.slices = slices = FleetSlices(job, placer, groups, hardware, repairs, conditions.reclaims, conditions.slowdowns, fate)
    slices.begin()
    return replace(job.run(seconds), reclaimed=slices.reclaimed)
