"""A job on a fleet: what it would yield where accelerators fail, spot capacity is reclaimed, and hosts become slow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from numpy.random import default_rng

from diloco.algorithm.codec import Coding, coding_for, payload_bytes
from diloco.contract import Checkpoint, Training
from diloco.simulation.failures import YEAR, ReturnDelay
from diloco.simulation.job import Outcome, SimulatedJob
from diloco.simulation.network import Sizes
from diloco.simulation.path import Path
from diloco.simulation.slices import FleetSlices, Group, PlacedUnit, Placer, Reclaims, Slowdowns
from diloco.simulation.unit import Hardware


@dataclass(frozen=True, slots=True)
class ByPlace:
    """Something about the links of units, by the zone or region of their hosts."""

    elsewhere: float
    """Where `of` says nothing."""
    of: Mapping[str, float] = field(default_factory=dict)
    """By name of a zone or region. What is nearer to a host counts: its zone before its region."""

    def at(self, unit: PlacedUnit) -> Iterator[float]:
        """Yield it for each host of the unit, once at least."""
        for names in unit.places or ((),):
            yield next((self.of[name] for name in names if name in self.of), self.elsewhere)


@dataclass(frozen=True, slots=True)
class Links:
    """Between units and the syncer, which is in one place. Bandwidths in bits a second, of each direction."""

    parameters: int = 0
    """The parameters of the model; 0: not known, and what is sent has no size."""
    syncer: float = math.inf
    """Bandwidth of the syncer's link, which all units share."""
    bandwidth: ByPlace = ByPlace(math.inf)
    """The bandwidth of each unit's own link."""
    latency: ByPlace = ByPlace(0.0)
    """One way, seconds."""
    loss: ByPlace = ByPlace(0.0)
    """The share of TCP's segments."""

    def path(self, unit: PlacedUnit) -> Path:
        """Return the way between the unit and the syncer: of several hosts' ways the worst."""
        return Path(min(self.bandwidth.at(unit)), max(self.latency.at(unit)), max(self.loss.at(unit)), unit.processes)

    def sizes(self, training: Training) -> Sizes:
        """Return what is sent in a job: fragments of equal size, in the coding of the job, and whole values in float32."""
        values = math.ceil(self.parameters / training.fragments)
        return Sizes(8.0 * payload_bytes(coding_for(training.compression), values), 8.0 * payload_bytes(Coding.FLOAT32, values))


@dataclass(frozen=True, slots=True)
class Conditions:
    """What no job file says. Durations in seconds."""

    failures_per_year: float
    """Failures per year of one accelerator; 0: none fails. A failure takes the host or TPU slice out, and ends all units on it."""
    step_seconds: float
    """Seconds of a step of a unit of speed 1."""
    start_seconds: float
    """From the moment when a unit has its slice until its program runs."""
    compile_seconds: float
    """From then until its first step."""
    detect_seconds: float
    """From a failure until its unit starts again elsewhere."""
    repair_seconds: float
    """Time until what failed is back, in the mean."""
    reclaims: Reclaims = field(default_factory=Reclaims)
    slowdowns: Slowdowns = field(default_factory=Slowdowns)
    links: Links = field(default_factory=Links)
    later: Mapping[str, float] = field(default_factory=dict)
    """Groups that come only so late, seconds from the beginning."""


def simulate(training: Training, placer: Placer, groups: Sequence[Group], conditions: Conditions, seconds: float, seed: int) -> Outcome:
    """Return the outcome of the units of `placer` over so many virtual seconds. Quorum, grace and fragments are those of `training`, but
    the job does not end."""
    between = YEAR / conditions.failures_per_year if conditions.failures_per_year else float("inf")
    repairs, links = ReturnDelay.with_mean(conditions.repair_seconds), conditions.links

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
            path=links.path(place),
        )

    endless = training.model_copy(update={"steps": 10**9, "tokens": None, "checkpoint": Checkpoint(every_steps=10**9)})
    random = default_rng([seed, sum(place is not None for place in placer.units().values())])
    job = SimulatedJob(endless, (), random, sizes=links.sizes(training), syncer_bandwidth=links.syncer)
    fate = default_rng(seed)  # whatever the number of units
    job.slices = slices = FleetSlices(
        job, placer, groups, hardware, repairs, conditions.reclaims, conditions.slowdowns, fate, conditions.later
    )
    slices.begin()
    return replace(job.run(seconds), reclaimed=slices.reclaimed, moved=slices.moved)
