"""What a job would yield on a fleet whose accelerators fail, spot capacity is reclaimed, and hosts become slow."""

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
from diloco.simulation.slices import FleetSlices, Group, GroupEvents, PlacedUnit, Placer, Reclaims, Slowdowns
from diloco.simulation.unit import Hardware


@dataclass(frozen=True, slots=True)
class ByPlace:
    """A property of units' links, by the zone or region of their hosts."""

    elsewhere: float
    """Value for hosts whose zone and region are not in `of`."""
    of: Mapping[str, float] = field(default_factory=dict)
    """Value by name of a zone or region. The nearer one counts: a host's zone before its region."""

    def at(self, unit: PlacedUnit) -> Iterator[float]:
        """Yield the value for each host of the unit, at least one."""
        for names in unit.places or ((),):
            yield next((self.of[name] for name in names if name in self.of), self.elsewhere)


@dataclass(frozen=True, slots=True)
class Links:
    """The links between units and the syncer. Bandwidths are in bits a second, for each direction."""

    parameters: int = 0
    """Number of the model's parameters; 0 if unknown: then messages have no size."""
    syncer: float = math.inf
    """Bandwidth of the syncer's link, which all units share."""
    bandwidth: ByPlace = ByPlace(math.inf)
    """The bandwidth of each unit's own link."""
    latency: ByPlace = ByPlace(0.0)
    """One way, seconds."""
    loss: ByPlace = ByPlace(0.0)
    """The share of TCP segments that are lost."""

    def path(self, unit: PlacedUnit) -> Path:
        """The path between the unit and the syncer, with the worst values of its hosts."""
        return Path(min(self.bandwidth.at(unit)), max(self.latency.at(unit)), max(self.loss.at(unit)), unit.processes)

    def sizes(self, training: Training) -> Sizes:
        """Sizes of messages: fragments of equal size in the job's coding, and whole values in float32."""
        values = math.ceil(self.parameters / training.fragments)
        return Sizes(8.0 * payload_bytes(coding_for(training.compression), values), 8.0 * payload_bytes(Coding.FLOAT32, values))


@dataclass(frozen=True, slots=True)
class Conditions:
    """Properties of a fleet that no job file has. Durations are in seconds."""

    failures_per_year: float
    """Failures per year of one accelerator; 0 if none fails. A failure takes the host or TPU slice out, and ends all units on it."""
    step_seconds: float
    """A step of a unit of speed 1."""
    start_seconds: float
    """From when a unit has its slice until its program runs."""
    compile_seconds: float
    """From then until the unit's first step."""
    detect_seconds: float
    """From a failure until its unit starts again elsewhere."""
    repair_seconds: float
    """Mean time until a failed host or TPU slice is back."""
    reclaims: Reclaims = field(default_factory=Reclaims)
    slowdowns: Slowdowns = field(default_factory=Slowdowns)
    links: Links = field(default_factory=Links)
    joining: Mapping[str, float] = field(default_factory=dict)
    """When groups come that are not there at the beginning, in seconds, by name."""


def simulate(training: Training, placer: Placer, groups: Sequence[Group], conditions: Conditions, seconds: float, seed: int) -> Outcome:
    """Simulate the units of `placer` for `seconds` virtual seconds. Quorum, grace and fragments are those of `training`, but the job does
    not end by itself."""
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
    fate = default_rng(seed)  # without the number of units, so that the same groups fail whatever it is
    events = GroupEvents(repairs, conditions.reclaims, conditions.slowdowns, conditions.joining)
    job.slices = slices = FleetSlices(job, placer, groups, hardware, events, fate)
    slices.begin()
    return replace(job.run(seconds), reclaimed=slices.reclaimed, moved=slices.moved)
