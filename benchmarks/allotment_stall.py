"""[allotment-stall] [lost-slice] Longest time for which the allotment holds the event loop: 200 jobs that want more than the 5,000 slices,
each with requirements of its own. One slice is lost, and one job comes. And how long after the loss of the slice the allotment has answered
who gets which one for it.

Each job's pools differ from all others by a label that some of the slices have, so no two jobs are interchangeable, and all compete. The
steps are those that the operator takes between two awaits: register a job, refresh after a change of the fleet, one step of an allotment
over many jobs. What a thread solves meanwhile is measured apart, as `solve_ms`. Every job acts on what it gets and gives, until nothing
changes any more.

See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from builders.allotted_jobs import V5P, SimpleJob, SimplePool, World
from builders.nodes import a_tpu_node
from diloco_operator.allotment.decision import Steps
from diloco_operator.allotment.flow import Answer, answer
from diloco_operator.fleet import project_node
from diloco_operator.operator.allotment_refresh import AT_ONCE

from benchmarks.figure import Figure
from benchmarks.reference import usual_figure

LIMIT_MS, LOST_LIMIT_MS = 100.0, 500.0


@dataclass(frozen=True, slots=True)
class Size:
    jobs: int
    slices: int
    """Slices in the fleet. Each job wants a fifth more than its share."""


FULL = Size(jobs=200, slices=5000)
SMOKE = Size(jobs=6, slices=60)


@dataclass(slots=True)
class Stalls:
    longest: float = 0.0
    steps: int = 0
    solve: float = 0.0
    """The longest time that one problem took to solve, outside the loop."""
    by: dict[str, float] = field(default_factory=dict)
    """Kind of step -> the longest one, in seconds."""

    def note[T](self, what: str, step: Callable[[], T]) -> T:
        begin = time.perf_counter()
        result = step()
        took = time.perf_counter() - begin
        self.steps += 1
        self.longest = max(self.longest, took)
        self.by[what] = max(self.by.get(what, 0.0), took)
        return result


def a_world(size: Size) -> World:
    """Make a world in which a third of the slices suits every job. Each other slice has the labels of two jobs, so that jobs compete in a
    ring."""
    nodes = []
    for index in range(size.slices):
        owners = range(size.jobs) if index % 3 == 0 else (index % size.jobs, (index + 1) % size.jobs)
        nodes.append(a_tpu_node(f"tpu-{index:05d}", labels={f"group-{job}": "1" for job in owners}))
    return World(*nodes)


def add(world: World, size: Size, index: int) -> None:
    wanted = size.slices * 6 // (size.jobs * 5)
    pool = SimplePool(shape=V5P, max=wanted, selector=((f"group-{index % size.jobs}", "1"),))
    world.job(f"job-{index:03d}", pool, min=wanted // 4)


def settle(world: World, stalls: Stalls) -> None:
    """Settle as the operator does: reconcile the jobs that a decision concerns, then let leaving units go, until nothing changes."""
    waiting = set(world.jobs)
    while waiting:
        for name in sorted(waiting):
            before = len(world.woken)
            act(world, name, stalls)
            waiting |= set(world.woken[before:])
            waiting.discard(name)
        for job in world.jobs.values():
            if job.leaving:
                job.leaving.clear()
                world.fleet.set_reservations(job.name, job.nodes(), job.parts())
                stalls.note("register", functools.partial(register, world, job))
        waiting |= refresh(world, stalls)


def register(world: World, job: SimpleJob) -> None:
    world.allotment.update(job.request())


def refresh(world: World, stalls: Stalls) -> set[str]:
    """Refresh as the operator does: a few jobs at once, many in steps, with the problems solved outside the loop."""
    concerned = stalls.note("refresh", lambda: world.allotment.refresh(AT_ONCE))
    for component in world.allotment.unsettled():
        concerned |= decide(world.allotment.in_steps(component), stalls)
    return concerned


def decide(steps: Steps[set[str]], stalls: Stalls) -> set[str]:
    solution: Answer | None = None
    while True:
        try:
            problem = stalls.note("step", functools.partial(steps.send, solution))
        except StopIteration as end:
            return set(end.value)
        solution = None
        if problem is not None:
            begin = time.perf_counter()
            solution = answer(problem)
            stalls.solve = max(stalls.solve, time.perf_counter() - begin)


def act(world: World, name: str, stalls: Stalls) -> None:
    """Reconcile once. Only what the allotment does meanwhile is measured."""
    update, at_once = world.allotment.update, world.allotment.refresh
    world.allotment.update = lambda request: stalls.note("register", lambda: update(request))  # type: ignore[method-assign]
    world.allotment.refresh = lambda most=AT_ONCE: stalls.note("refresh", lambda: at_once(most))  # type: ignore[method-assign]
    try:
        world.act(name)
    finally:
        world.allotment.update, world.allotment.refresh = update, at_once  # type: ignore[method-assign]


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    world = a_world(size)
    for index in range(size.jobs):
        add(world, size, index)
    settle(world, Stalls())
    stalls = Stalls()
    gc.collect()
    gc.disable()  # the operator collects rarely, see operator/malloc_tuning.py
    try:
        lost = min(world.jobs["job-001"].units.items())
        node = lost[1][0].hosts[0].node
        world.fleet.remove_node(node)
        del world.jobs["job-001"].units[lost[0]]
        began = time.process_time()
        act(world, "job-001", stalls)
        refresh(world, stalls)
        answered = time.process_time() - began
        settle(world, stalls)
        stalls.note("register", lambda: add(world, size, size.jobs))
        settle(world, stalls)
        world.fleet.update_node(project_node(a_tpu_node(node)))
        settle(world, stalls)
    finally:
        gc.enable()
    stages = stalls.by | {"solve": stalls.solve}
    times = {f"{what}_ms": seconds * 1000 for what, seconds in stages.items()}
    unit = f"ms, {size.jobs} jobs with distinct wants, {size.slices} slices"
    yield usual_figure("allotment-stall", stalls.longest * 1000, unit, LIMIT_MS, stalls.steps, times)
    yield usual_figure("lost-slice", answered * 1000, f"{unit} of processor time until the answer", LOST_LIMIT_MS)
