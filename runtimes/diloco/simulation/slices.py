"""Slices that fail, are reclaimed, become slow and come back, and the units that run on them.

This module does not decide which unit runs where: it asks `Placer` whenever something has changed.

See docs/decisions/0209-simulator.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from numpy.random import Generator

from diloco.simulation.failures import ReturnDelay
from diloco.simulation.job import SimulatedJob
from diloco.simulation.unit import Hardware, SimulatedUnit

DAY: Final = 86_400.0
"""Seconds."""
GRACE: Final = 30.0
"""Seconds that a unit has to end its step when it must leave for better slices: the termination grace of its pods."""


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that come and go together: the hosts of a TPU slice, or one other host."""

    name: str
    spot: bool = False
    """The cloud may take the group away."""


@dataclass(frozen=True, slots=True)
class PlacedUnit:
    accelerators: int
    speed: float
    """Relative to others of the fleet, above 0."""
    groups: tuple[str, ...]
    """Names of all groups that the unit needs."""
    processes: int = 1
    """Processes on all hosts together."""
    places: tuple[tuple[str, ...], ...] = ()
    """For each host its zone and its region, as far as they are known."""


class Placer(Protocol):
    """Decides which unit runs where. In `diloco simulate` this is the operator's own code."""

    def advance(self, now: float) -> None:
        """Set the time, in seconds. Called before any other call at that time."""
        ...

    def units(self) -> Mapping[str, PlacedUnit | None]:
        """Each unit that the job wants now, and where it is; None if it waits for a slice."""
        ...

    @property
    def leaving(self) -> Collection[str]:
        """Units that must leave their slices because better ones are free. They are still there."""
        ...

    def due(self) -> float:
        """When the passing of time alone may change where units are, in seconds; infinity if it never does."""
        ...

    def trains(self, unit: str) -> None:
        """The unit has begun to train where it is."""
        ...

    def left(self, unit: str) -> None:
        """A unit in `leaving` has left."""
        ...

    def gone(self, group: str) -> None:
        """The group is out, and its units have ended. Place none there until it is back."""
        ...

    def back(self, group: str) -> None:
        """The group is back."""
        ...


@dataclass(frozen=True, slots=True)
class Reclaims:
    """How the cloud takes spot capacity away. Durations are in seconds."""

    per_day: float = 0.0
    """Reclaims a day of one group while it is there; 0 for none. The time until the next one is exponential."""
    notice: float = 30.0
    away: float = 1800.0
    """Mean time until the group is back; exponential as well."""
    together: bool = False
    """All spot groups go and come back together, as when a zone runs out of capacity. Otherwise each goes by itself."""


@dataclass(frozen=True, slots=True)
class Slowdowns:
    """How groups become slow for a while. Durations are in seconds."""

    per_day: float = 0.0
    """Slowdowns a day of one group; 0 for none."""
    factor: float = 2.0
    """How many times as long a step takes meanwhile."""
    seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class GroupEvents:
    """What happens to groups beside failures, which units have."""

    repairs: ReturnDelay
    """Time until a group that failed is back."""
    reclaims: Reclaims
    slowdowns: Slowdowns
    joining: Mapping[str, float]
    """As in `Conditions`."""


class FleetSlices:
    """Implements `unit.Slices` for the units of one job."""

    def __init__(
        self,
        job: SimulatedJob,
        placer: Placer,
        groups: Sequence[Group],
        hardware: Callable[[PlacedUnit], Hardware],
        events: GroupEvents,
        random: Generator,
    ) -> None:
        """`hardware`: makes the hardware of a unit from its place."""
        self.reclaimed = 0
        """Units that had to leave because their slices were taken away."""
        self.moved = 0
        """Units that left their slices for better ones."""
        self._job = job
        self._placer = placer
        self._groups = groups
        self._hardware = hardware
        self._events = events
        self._random = random
        self._fates = dict(zip((group.name for group in groups), random.spawn(len(groups)), strict=True))
        """Random numbers of each group, so that its fate does not depend on the units."""
        self._out: Counter[str] = Counter()
        """For how many reasons a group is out: it may fail while it is away."""
        self._slow: Counter[str] = Counter()
        self._places: dict[str, PlacedUnit] = {}
        """The places of the units that have one."""
        self._moving: set[str] = set()
        """Units in `_places` that are leaving for better slices."""
        self._due = math.inf
        """When to ask the placer again, if nothing happens before."""

    def begin(self) -> None:
        """Place the first units, and plan the first reclaims and slowdowns."""
        for name, when in self._events.joining.items():
            self._out[name] += 1
            self._placer.gone(name)
            self._job.timeline.at(when, partial(self._back, [name]))
        self._place()
        spot = [group.name for group in self._groups if group.spot]
        if self._events.reclaims.together and spot:
            self._plan_reclaim(spot)
        else:
            for name in spot:
                self._plan_reclaim([name])
        for group in self._groups:
            self._plan_slowdown(group.name)

    # --- what units say -----------------------------------------------------------------------------------------------

    def failed(self, unit: SimulatedUnit) -> None:
        """One accelerator of the unit has failed, and the unit has ended."""
        groups = self._places.pop(unit.name).groups
        broken = groups[int(self._random.integers(len(groups)))]
        self._gone(broken)
        self._job.timeline.at(self._job.timeline.now + self._events.repairs.draw(self._random), partial(self._back, [broken]))
        self._place()

    def trains(self, unit: SimulatedUnit) -> None:
        """The unit has the parameters and begins to train."""
        place = self._places.get(unit.name)
        if place is not None and unit.name not in self._moving and not any(self._out[group] for group in place.groups):
            self._placer.advance(self._job.timeline.now)
            self._placer.trains(unit.name)
            self._place()

    def slowdown(self, unit: SimulatedUnit) -> float:
        """How many times as long the unit's next step takes; 1 if the unit is not slow."""
        slow = any(self._slow[group] for group in self._places[unit.name].groups)
        return self._events.slowdowns.factor if slow else 1.0

    # --- what happens to groups ---------------------------------------------------------------------------------------

    def _plan_reclaim(self, groups: Sequence[str]) -> None:
        self._after(groups[0], self._events.reclaims.per_day, partial(self._reclaim, groups))

    def _after(self, group: str, per_day: float, do: Callable[[], None]) -> None:
        if per_day > 0:
            timeline = self._job.timeline
            timeline.at(timeline.now + float(self._fates[group].exponential(DAY / per_day)), do)

    def _reclaim(self, groups: Sequence[str]) -> None:
        """The cloud gives notice. Units end their steps and leave, at the latest when the notice ends."""
        timeline = self._job.timeline
        deadline = timeline.now + self._events.reclaims.notice
        on_them = [name for name, place in self._places.items() if set(place.groups) & set(groups)]
        self.reclaimed += len(on_them)
        self._placer.advance(timeline.now)
        for group in groups:  # from now on nothing starts there
            self._out[group] += 1
            if self._out[group] == 1:
                self._placer.gone(group)
        for name in on_them:
            self._job.units[name].leave(deadline, partial(self._left, name))
        timeline.at(deadline + float(self._fates[groups[0]].exponential(self._events.reclaims.away)), partial(self._return, groups))
        self._place()

    def _left(self, name: str) -> None:
        self._places.pop(name, None)
        self._place()

    def _return(self, groups: Sequence[str]) -> None:
        self._back(groups)
        self._plan_reclaim(groups)

    def _gone(self, group: str) -> None:
        """The group is out at once, with all units on it."""
        self._placer.advance(self._job.timeline.now)
        self._out[group] += 1
        if self._out[group] == 1:
            self._placer.gone(group)
        for name in [name for name, place in self._places.items() if group in place.groups]:
            del self._places[name]
            self._job.units[name].lost()

    def _back(self, groups: Sequence[str]) -> None:
        self._placer.advance(self._job.timeline.now)
        for group in groups:
            self._out[group] -= 1
            if not self._out[group]:
                self._placer.back(group)
        self._place()

    def _plan_slowdown(self, group: str) -> None:
        self._after(group, self._events.slowdowns.per_day, partial(self._become_slow, group))

    def _become_slow(self, group: str) -> None:
        self._slow[group] += 1
        self._job.timeline.at(self._job.timeline.now + self._events.slowdowns.seconds, partial(self._end_slowdown, group))
        self._plan_slowdown(group)

    def _end_slowdown(self, group: str) -> None:
        self._slow[group] -= 1

    def _place(self) -> None:
        """Start units where the placer says. A unit that still drains stays where it is until it has left."""
        self._placer.advance(self._job.timeline.now)
        for name in [name for name in self._placer.leaving if name in self._places and name not in self._moving]:
            self.moved += 1
            self._moving.add(name)
            self._job.units[name].leave(self._job.timeline.now + GRACE, partial(self._has_moved_out, name))
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
        self._look_again()

    def _has_moved_out(self, name: str) -> None:
        self._moving.discard(name)
        self._placer.advance(self._job.timeline.now)
        self._placer.left(name)
        self._left(name)

    def _look_again(self) -> None:
        """Plan to ask the placer again at its `due` time."""
        due = self._placer.due()
        if due < self._due or self._due <= self._job.timeline.now:
            self._due = due
            if not math.isinf(due):
                self._job.timeline.at(due, partial(self._place_at, due))

    def _place_at(self, due: float) -> None:
        """Ask the placer again, unless another time was planned since."""
        if self._due == due:
            self._place()
