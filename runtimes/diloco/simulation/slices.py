"""Slices that fail, are reclaimed, become slow and come back, and the units that run on them.

Which unit runs where is not decided here: `Placer` is asked whenever something has changed.

See docs/decisions/0228-reclaims-in-the-simulator.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from numpy.random import Generator

from diloco.simulation.failures import ReturnDelay
from diloco.simulation.job import SimulatedJob
from diloco.simulation.unit import Hardware, SimulatedUnit

DAY: Final = 86_400.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that come and go together: the hosts of a TPU slice, or one other host."""

    name: str
    spot: bool = False
    """The cloud may take it away."""


@dataclass(frozen=True, slots=True)
class PlacedUnit:
    """Where a unit is."""

    accelerators: int
    speed: float
    """Relative to others of the fleet, above 0."""
    groups: tuple[str, ...]
    """Names of all that it needs."""


class Placer(Protocol):
    """Says which unit runs where: in `diloco simulate` that is the operator's own code."""

    def units(self) -> Mapping[str, PlacedUnit | None]:
        """Each unit that the job wants now, and where it is; None: it waits for a slice. Units that are somewhere stay there."""
        ...

    def gone(self, group: str) -> None:
        """No unit can be on this group until it is back; those that were there have ended."""
        ...

    def back(self, group: str) -> None:
        """The group is there again."""
        ...


@dataclass(frozen=True, slots=True)
class Reclaims:
    """How the cloud takes spot capacity away. Durations in seconds."""

    per_day: float = 0.0
    """Of one group, while it is there; the time until the next one is exponential. 0: none is."""
    notice: float = 30.0
    away: float = 1800.0
    """Until the group is back, in the mean; exponential as well."""
    together: bool = False
    """All spot groups go at once and come back at once, as when a zone runs out of them. False: each by itself."""


@dataclass(frozen=True, slots=True)
class Slowdowns:
    """How groups become slow for a while. Durations in seconds."""

    per_day: float = 0.0
    """Of one group; 0: none does."""
    factor: float = 2.0
    """Of the length of a step meanwhile."""
    seconds: float = 600.0


class FleetSlices:
    """Implements `unit.Slices` for the units of one job."""

    def __init__(
        self,
        job: SimulatedJob,
        placer: Placer,
        groups: Sequence[Group],
        hardware: Callable[[PlacedUnit], Hardware],
        repairs: ReturnDelay,
        reclaims: Reclaims,
        slowdowns: Slowdowns,
        random: Generator,
    ) -> None:
        """`hardware`: of a unit on such slices. `repairs`: until a group with a failure is back."""
        self.reclaimed = 0
        """Units that had to leave because their slices were taken away."""
        self._job = job
        self._placer = placer
        self._groups = groups
        self._hardware = hardware
        self._repairs = repairs
        self._reclaims = reclaims
        self._slowdowns = slowdowns
        self._random = random
        self._fates = dict(zip((group.name for group in groups), random.spawn(len(groups)), strict=True))
        """Of each group, so that what happens to it does not depend on the units."""
        self._out: Counter[str] = Counter()
        """Why a group is out, how often: it may fail while it is away."""
        self._slow: Counter[str] = Counter()
        self._places: dict[str, PlacedUnit] = {}
        """Of the units that have one."""

    def begin(self) -> None:
        """Place the first units, and let fate begin."""
        self._place()
        spot = [group.name for group in self._groups if group.spot]
        for together in [spot] if self._reclaims.together and spot else [[name] for name in spot]:
            self._plan_reclaim(together)
        for group in self._groups:
            self._plan_slowdown(group.name)

    # --- what units say -----------------------------------------------------------------------------------------------

    def failed(self, unit: SimulatedUnit) -> None:
        """One accelerator of the unit has failed, and the unit has ended."""
        groups = self._places.pop(unit.name).groups
        broken = groups[int(self._random.integers(len(groups)))]
        self._gone(broken)
        self._job.timeline.at(self._job.timeline.now + self._repairs.draw(self._random), partial(self._back, [broken]))
        self._place()

    def slowdown(self, unit: SimulatedUnit) -> float:
        """By what the unit's next step is longer; 1: it is not slow."""
        slow = any(self._slow[group] for group in self._places[unit.name].groups)
        return self._slowdowns.factor if slow else 1.0

    # --- what happens to groups ---------------------------------------------------------------------------------------

    def _plan_reclaim(self, groups: Sequence[str]) -> None:
        self._after(groups[0], self._reclaims.per_day, partial(self._reclaim, groups))

    def _after(self, group: str, per_day: float, do: Callable[[], None]) -> None:
        if per_day > 0:
            timeline = self._job.timeline
            timeline.at(timeline.now + float(self._fates[group].exponential(DAY / per_day)), do)

    def _reclaim(self, groups: Sequence[str]) -> None:
        """The cloud gives notice. Units end their steps and leave; at the end of the notice nothing of them runs."""
        timeline = self._job.timeline
        deadline = timeline.now + self._reclaims.notice
        on_them = [name for name, place in self._places.items() if set(place.groups) & set(groups)]
        self.reclaimed += len(on_them)
        for group in groups:  # nothing starts there any more
            self._out[group] += 1
            if self._out[group] == 1:
                self._placer.gone(group)
        for name in on_them:
            self._job.units[name].leave(deadline, partial(self._left, name))
        timeline.at(deadline + float(self._fates[groups[0]].exponential(self._reclaims.away)), partial(self._return, groups))
        self._place()

    def _left(self, name: str) -> None:
        self._places.pop(name, None)
        self._place()

    def _return(self, groups: Sequence[str]) -> None:
        self._back(groups)
        self._plan_reclaim(groups)

    def _gone(self, group: str) -> None:
        """At once, with all units on it."""
        self._out[group] += 1
        if self._out[group] == 1:
            self._placer.gone(group)
        for name in [name for name, place in self._places.items() if group in place.groups]:
            del self._places[name]
            self._job.units[name].lost()

    def _back(self, groups: Sequence[str]) -> None:
        for group in groups:
            self._out[group] -= 1
            if not self._out[group]:
                self._placer.back(group)
        self._place()

    def _plan_slowdown(self, group: str) -> None:
        self._after(group, self._slowdowns.per_day, partial(self._become_slow, group))

    def _become_slow(self, group: str) -> None:
        self._slow[group] += 1
        self._job.timeline.at(self._job.timeline.now + self._slowdowns.seconds, partial(self._end_slowdown, group))
        self._plan_slowdown(group)

    def _end_slowdown(self, group: str) -> None:
        self._slow[group] -= 1

    def _place(self) -> None:
        """Start units where the placer says. One that still drains stays where it is until it has left."""
        wanted = self._placer.units()
        for name, place in wanted.items():
            if name in self._places:
                continue
            unit = self._job.units.get(name)
            if place is None:
                if unit is not None:
                    unit.wait(wanted=True)
                continue
            self._places[name] = place
            if unit is None:
                self._job.add_unit(name, self._hardware(place))
            else:
                unit.place(self._hardware(place))
        for name, unit in self._job.units.items():
            if name not in wanted and name not in self._places:
                unit.wait(wanted=False)
