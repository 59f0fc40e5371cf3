"""The operator's flow as a rule: a scene becomes a problem, and the plan becomes orders. Pure.

Values are the operator's, too: measured throughput on kinds on which a unit of the job has trained, and a prior on others.

See docs/decisions/0209-simulator.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from diloco_operator.allotment.flow import FlowClass, FlowHeld, FlowJob, FlowPlan, FlowPool, FlowProblem, solve, units_with_successors
from diloco_operator.allotment.flow.problem import MEAN
from diloco_operator.allotment.values import PoolThroughput, exact_values, leaving_cost

from benchmarks.trace.inputs import KINDS, START
from benchmarks.trace.scene import Orders, Present, Scene, Taken

HORIZON = 1800.0
"""`placement.horizon`, seconds: its default."""
MOVING = 1
"""`placement.maxMoving`: its default."""
PEAKS = {kind.name: kind.peak for kind in KINDS}
"""Kind -> peak, as a catalogue has it."""
type Knowledge = Callable[[Present], Mapping[str, int]]
"""Kind -> value of a unit of the job there, in thousandths of its mean."""


def measured(present: Present) -> dict[str, int]:
    """Values from the throughput of the kinds on which a unit of the job has trained."""
    return _values(present, present.measured)


def known(present: Present) -> dict[str, int]:
    """Values as if a unit of the job had trained on all kinds."""
    return _values(present, frozenset(present.job.speeds))


def equal(present: Present) -> dict[str, int]:
    """The same value for all kinds, as if nothing were known."""
    return dict.fromkeys(present.job.speeds, MEAN)


def _values(present: Present, measured_: frozenset[str]) -> dict[str, int]:
    speeds = present.job.speeds
    return exact_values(
        {kind: PoolThroughput(kind, PEAKS.get(kind, 0.0), speed if kind in measured_ else None) for kind, speed in speeds.items()}
    )


def by_flow(scene: Scene, knowledge: Knowledge) -> Orders:
    scene = without_the_rear(scene)
    problem = problem_of(scene, knowledge)
    return orders_of(scene, problem, solve(problem))


def without_the_rear(scene: Scene) -> Scene:
    """The scene without jobs that cannot start yet, which would only cost time. Every job takes every kind, so the first job that does not
    fit keeps all remaining slices for its minimum. Before it, at most as many jobs start as there are slices that no minimum holds."""
    loose = sum(scene.free.values()) + sum(max(0, present.units - present.job.min) for present in scene.jobs if present.admitted)
    rear = {present.job.key for present in [each for each in scene.jobs if not each.admitted][loose + 1 :]}
    return Scene(scene.free, tuple(present for present in scene.jobs if present.job.key not in rear))


def problem_of(scene: Scene, knowledge: Knowledge) -> FlowProblem:
    """The flow's problem, with a class for each kind."""
    jobs = tuple(_job_of(present, knowledge(present)) for present in scene.jobs)
    return FlowProblem(tuple(FlowClass(kind, kind, room) for kind, room in sorted(scene.rooms.items())), jobs)


def _job_of(present: Present, values: Mapping[str, int]) -> FlowJob:
    """The job with a pool for each kind. It prefers kinds of higher value."""
    job, pools = present.job, []
    for kind, value in sorted(values.items(), key=lambda item: (-item[1], item[0])):
        units = present.held.get(kind, 0)
        stays = value + leaving_cost(value, START, HORIZON, averaged=False)
        held = (FlowHeld(kind, units, stays, present.settling.get(kind, 0)),) if units else ()
        pools.append(FlowPool(kind, {kind: value}, job.max, held=held))
    successors = max(0, MOVING - sum(present.settling.values()))
    return FlowJob(job.key, job.min, job.max, tuple(pools), created=job.created, admitted=present.admitted, successors=successors)


def orders_of(scene: Scene, problem: FlowProblem, plan: FlowPlan) -> Orders:
    """Orders as the operator would act on the plan: a unit leaves once the minimum of its job trains without it; jobs that replace units
    take free slices first, and the others take what remains."""
    leave: Taken = {}
    free = dict(scene.free)
    for present in scene.jobs:
        key, job = present.job.key, present.job
        spare = max(0, present.units - sum(present.settling.values()) - job.min)
        for kind, units in sorted(present.held.items()):
            leaving = min(spare, units - plan.pools[key, kind].staying.get(kind, 0))
            spare -= leaving
            if leaving:
                leave[key, kind] = leaving
                free[kind] = free.get(kind, 0) + leaving
    take: Taken = {}
    for flow_job in sorted(problem.jobs, key=lambda job: (not units_with_successors(job, plan), not job.runs, job.order)):
        for pool in flow_job.pools:
            units = min(plan.pools[flow_job.key, pool.name].taken.get(pool.name, 0), free.get(pool.name, 0))
            if units:
                take[flow_job.key, pool.name] = units
                free[pool.name] -= units
    return Orders(leave, take)
