"""Simulates the week on virtual time: jobs come, slices go and come back, a rule decides, units train.

A unit trains once it has started. A job merges the training of its units while its quorum trains. If a unit loses its slice, its training
since the last exchange is lost. After the week no more jobs come, and the remaining jobs run until they are complete.

See docs/decisions/0209-simulator.md.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from diloco.simulation.timeline import Timeline

from benchmarks.trace.inputs import START, Outage, Slice, TraceJob, fleet, jobs, outages
from benchmarks.trace.scene import Orders, Present, Scene

EXCHANGE = 60.0
"""Seconds between two exchanges of a unit. On average half of them are lost with a slice."""
GAP = 300.0
"""Least seconds between two decisions."""
LONGEST = 10
"""Number of weeks for which outages are drawn. Jobs that remain after the first week are complete long before the end."""


@dataclass(frozen=True, slots=True)
class Week:
    """The events that are the same under every rule."""

    slices: tuple[Slice, ...]
    outages: tuple[Outage, ...]
    jobs: tuple[TraceJob, ...]
    seconds: float
    """Time in which jobs come."""

    @classmethod
    def of(cls, slices: int, load: float, seconds: float, seed: int) -> Week:
        """Draw a week. Its outages do not depend on the load."""
        fleet_ = fleet(slices)
        away = outages(fleet_, LONGEST * seconds, random.Random(f"outages {seed}"))
        return cls(tuple(fleet_), tuple(away), tuple(jobs(fleet_, load, seconds, random.Random(f"jobs {seed}"))), seconds)


@dataclass(frozen=True, slots=True)
class Rule:
    """How slices are given to jobs, and how many units a job needs to merge."""

    decide: Callable[[Scene], Orders]
    quorum: Callable[[TraceJob], int] = lambda job: job.min


@dataclass(slots=True)
class Ran:
    """Results of a week."""

    tokens: float = 0.0
    """Tokens merged in the week."""
    completions: dict[str, float] = field(default_factory=dict)
    """Job -> seconds from its arrival to its end."""
    job_seconds: float = 0.0
    """Sum of the seconds that each job spent in the week."""
    moves: int = 0
    """Units that left a slice because the rule ordered it."""
    below_minimum: int = 0
    """Jobs that the rule took below their minimum."""
    decisions: list[float] = field(default_factory=list)
    """Processor time of each decision, seconds."""


@dataclass(eq=False, slots=True)
class _Unit:
    job: _Run
    slice: int
    began: float
    trains: bool = False


@dataclass(eq=False, slots=True)
class _Run:
    """A job that has arrived and is not complete."""

    job: TraceJob
    units: list[_Unit] = field(default_factory=list)
    merged: float = 0.0
    rate: float = 0.0
    at: float = 0.0
    """The time for which `merged` is valid."""
    changes: int = 0
    admitted: bool = False
    measured: set[str] = field(default_factory=set)


def simulate(week: Week, rule: Rule) -> Ran:
    return _World(week, rule).run()


class _World:
    def __init__(self, week: Week, rule: Rule) -> None:
        self._week = week
        self._rule = rule
        self._time = Timeline()
        self._available = [True] * len(week.slices)
        self._units: list[_Unit | None] = [None] * len(week.slices)
        self._runs: dict[str, _Run] = {}
        """The oldest first."""
        self._ran = Ran()
        self._deciding = False
        self._decided = -GAP

    def run(self) -> Ran:
        for job in self._week.jobs:
            self._time.at(job.created, partial(self._arrive, job))
        for outage in self._week.outages:
            self._time.at(outage.begin, partial(self._vanish, outage.slice))
            self._time.at(outage.end, partial(self._return, outage.slice))
        self._time.at(self._week.seconds, self._end_week)
        while len(self._ran.completions) < len(self._week.jobs) or self._time.now < self._week.seconds:
            self._time.step()
        return self._ran

    # --- what happens -------------------------------------------------------------------------------------------------------------
    def _arrive(self, job: TraceJob) -> None:
        self._runs[job.key] = _Run(job, at=self._time.now)
        self._change()

    def _vanish(self, slice_: int) -> None:
        self._available[slice_] = False
        unit = self._units[slice_]
        if unit is not None:
            lost = EXCHANGE / 2 * self._speed(unit) if unit.trains and unit.job.rate else 0.0
            self._remove(unit)
            unit.job.merged = max(0.0, unit.job.merged - lost)
            self._set_rate(unit.job)
        self._change()

    def _return(self, slice_: int) -> None:
        self._available[slice_] = True
        self._change()

    def _begin(self, unit: _Unit) -> None:
        if self._units[unit.slice] is unit:
            unit.trains = True
            unit.job.measured.add(self._week.slices[unit.slice].kind)
            self._set_rate(unit.job)
            self._change()

    def _complete(self, run: _Run, changes: int) -> None:
        if run.changes != changes:
            return  # the rate has changed since this event was scheduled, and another event stands for the end
        self._merge(run)
        for unit in list(run.units):
            self._remove(unit)
        del self._runs[run.job.key]
        self._ran.completions[run.job.key] = self._time.now - run.job.created
        if self._time.now <= self._week.seconds:
            self._ran.tokens += run.job.tokens
        self._ran.job_seconds += max(0.0, min(self._time.now, self._week.seconds) - run.job.created)
        self._change()

    def _end_week(self) -> None:
        for run in self._runs.values():
            self._merge(run)
            self._ran.tokens += run.merged

    # --- units --------------------------------------------------------------------------------------------------------------------
    def _speed(self, unit: _Unit) -> float:
        return unit.job.job.speeds[self._week.slices[unit.slice].kind]

    def _remove(self, unit: _Unit) -> None:
        self._merge(unit.job)
        self._units[unit.slice] = None
        unit.job.units.remove(unit)

    def _merge(self, run: _Run) -> None:
        run.merged += run.rate * (self._time.now - run.at)
        run.at = self._time.now

    def _set_rate(self, run: _Run) -> None:
        self._merge(run)
        training = [unit for unit in run.units if unit.trains]
        run.rate = sum(map(self._speed, training)) if len(training) >= self._rule.quorum(run.job) else 0.0
        run.changes += 1
        if run.rate:
            self._time.at(self._time.now + (run.job.tokens - run.merged) / run.rate, partial(self._complete, run, run.changes))

    # --- decisions ----------------------------------------------------------------------------------------------------------------
    def _change(self) -> None:
        """Note a change. A decision follows, which also takes up all other changes until then."""
        if not self._deciding:
            self._deciding = True
            self._time.at(self._decided + GAP, self._decide)

    def _decide(self) -> None:
        self._deciding, self._decided = False, self._time.now
        scene = self._scene()
        began = time.process_time()
        orders = self._rule.decide(scene)
        self._ran.decisions.append(time.process_time() - began)
        self._leave(orders)
        self._take(orders)

    def _scene(self) -> Scene:
        free: dict[str, int] = {}
        for slice_, available, unit in zip(self._week.slices, self._available, self._units, strict=True):
            if available and unit is None:
                free[slice_.kind] = free.get(slice_.kind, 0) + 1
        return Scene(free, tuple(map(self._present, self._runs.values())))

    def _present(self, run: _Run) -> Present:
        held: dict[str, int] = {}
        settling: dict[str, int] = {}
        for unit in run.units:
            kind = self._week.slices[unit.slice].kind
            held[kind] = held.get(kind, 0) + 1
            if not unit.trains:
                settling[kind] = settling.get(kind, 0) + 1
        return Present(run.job, held, settling, run.admitted, frozenset(run.measured))

    def _leave(self, orders: Orders) -> None:
        """Let the ordered units leave: of each kind the youngest that train."""
        leaving_units: dict[str, int] = {}
        for (key, kind), units in sorted(orders.leave.items()):
            run = self._runs[key]
            of_kind = [unit for unit in run.units if self._week.slices[unit.slice].kind == kind]
            leaving = sorted(of_kind, key=lambda unit: (unit.trains, unit.began), reverse=True)[:units]
            leaving_units[key] = leaving_units.get(key, 0) + len(leaving)
            for unit in leaving:
                self._remove(unit)
            self._ran.moves += len(leaving)
        for key, units in sorted(leaving_units.items()):
            run = self._runs[key]
            if len(run.units) < min(run.job.min, len(run.units) + units):
                self._ran.below_minimum += 1
            self._set_rate(run)
            self._change()

    def _take(self, orders: Orders) -> None:
        """Start the ordered units. Raises ValueError if a slice is not free: a rule must not give one twice."""
        for (key, kind), units in sorted(orders.take.items()):
            run = self._runs[key]
            free = [index for index, each in enumerate(self._week.slices) if each.kind == kind and self._free(index)]
            if len(free) < units:
                raise ValueError(f"{key} gets {units} slices of {kind}, of which {len(free)} are free")
            for index in free[:units]:
                unit = self._units[index] = _Unit(run, index, self._time.now)
                run.units.append(unit)
                self._time.at(self._time.now + START, partial(self._begin, unit))
            run.admitted = True

    def _free(self, index: int) -> bool:
        return self._available[index] and self._units[index] is None
