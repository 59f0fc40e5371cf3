"""[stability] Measured speeds that vary by 10 % move no unit, but a gain of 30 % moves one.

Each round measures the speed of each job on each kind anew, up to 10 % off the true one. Leaving a slice costs a fifth of the unit's value
there. A unit moves if the flow makes it leave its slice.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace

from builders.flow_problems import a_job, a_pool, a_problem, carried_out
from builders.placement_fleets import a_large_problem
from diloco_operator.allotment.flow import FlowJob, FlowPlan, FlowProblem, solve
from diloco_operator.allotment.flow.problem import MEAN

from benchmarks.figure import Figure

NOISE = 0.1
FULL, SMOKE = 1000, 3
"""Rounds."""
SETTLING = 100
"""Rounds before these, in which units go from their first slices, which are chance, to slices that noise does not make them leave."""
GAIN_ROUNDS = 10
"""A unit must have moved for a gain of 30 % after at most this number of rounds."""


def kind_of(hub: str) -> str:
    """The kind of a hub, without the capacity type, which does not matter for speed."""
    return hub.partition(" ")[0]


def measured(job: FlowJob, speeds: Mapping[str, float], hubs: Mapping[str, str], draw: random.Random) -> FlowJob:
    """The job with values as one round measures them. `speeds`: kind -> true speed; `hubs`: class -> hub."""
    seen = {kind: speed * draw.uniform(1 - NOISE, 1 + NOISE) for kind, speed in sorted(speeds.items())}
    mean = sum(seen.values()) / len(seen)
    values = {kind: max(2, round(MEAN * speed / mean)) for kind, speed in seen.items()}
    pools = []
    for pool in job.pools:
        held = tuple(replace(each, value=values[kind_of(hubs[each.class_])] * 6 // 5) for each in pool.held)
        pools.append(replace(pool, values={hub: values[kind_of(hub)] for hub in pool.values}, held=held))
    return replace(job, pools=tuple(pools))


def moves(problem: FlowProblem, plan: FlowPlan) -> int:
    """The number of units that must leave their slices."""
    return sum(pool.has - sum(plan.pools[job.key, pool.name].staying.values()) for job in problem.jobs for pool in job.pools)


def moves_by_noise(rounds: int, seed: int) -> tuple[int, int]:
    """Moves in the first `SETTLING` rounds of a fleet, and in `rounds` rounds after them. Each round's plan is carried out."""
    draw = random.Random(seed)
    problem = a_large_problem(seed, 150, 12)
    hubs = {class_.name: class_.hub for class_ in problem.classes}
    speeds = {job.key: {kind_of(hub): float(value) for pool in job.pools for hub, value in pool.values.items()} for job in problem.jobs}
    moves_by_round = []
    for _ in range(SETTLING + rounds):
        noisy = replace(problem, jobs=tuple(measured(job, speeds[job.key], hubs, draw) for job in problem.jobs))
        plan = solve(noisy)
        moves_by_round.append(moves(noisy, plan))
        problem = carried_out(noisy, plan)
    return sum(moves_by_round[:SETTLING]), sum(moves_by_round[SETTLING:])


def rounds_to_a_gain(seed: int) -> int:
    """Rounds until a unit leaves for a free slice on which it is 30 % faster. `GAIN_ROUNDS` + 1 if it does not."""
    draw = random.Random(seed)
    job = a_job("job", a_pool({"slow": 1000, "fast": 1000}, 1, {"slow/a": 1}), max=1)
    problem = a_problem({"slow/a": 1, "fast/a": 1}, job)
    hubs = {class_.name: class_.hub for class_ in problem.classes}
    for count in range(1, GAIN_ROUNDS + 1):
        noisy = replace(problem, jobs=(measured(job, {"slow": 1.0, "fast": 1.3}, hubs, draw),))
        if moves(noisy, solve(noisy)):
            return count
    return GAIN_ROUNDS + 1


def measure(*, smoke: bool) -> Iterator[Figure]:
    rounds = SMOKE if smoke else FULL
    first, moved = moves_by_noise(rounds, 0)
    taken = max(rounds_to_a_gain(seed) for seed in range(20))
    details = {"before": first, "rounds_to_a_gain": taken}
    yield Figure("stability", moved, f"moves in {rounds} rounds of 10 % noise", 0, moved == 0 and taken <= GAIN_ROUNDS, 1, details)
