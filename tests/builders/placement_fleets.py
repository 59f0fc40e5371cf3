"""Random fleets and jobs for the flow, from seeds."""

from __future__ import annotations

import random
from dataclasses import replace

from diloco_operator.allotment.flow import FlowClass, FlowHeld, FlowJob, FlowPool, FlowProblem


def a_small_problem(seed: int, *, sizes: tuple[int, ...] = (1,)) -> FlowProblem:
    """Up to 5 kinds in up to 2 domains and up to 7 jobs, some of which run; units of these sizes."""
    draw, starts = random.Random(seed), random.Random(f"starts {seed}")
    hubs = [f"kind-{index}" for index in range(draw.randint(1, 5))]
    room = 6 * max(sizes)
    classes = [FlowClass(f"{hub}/zone-{zone}", hub, draw.randint(0, room)) for hub in hubs for zone in range(draw.randint(1, 2))]
    left = {class_.name: class_.room for class_ in classes}
    jobs = []
    for index in range(draw.randint(1, 7)):
        pools = [_a_pool(draw, starts, f"pool-{number}", hubs, classes, left, draw.choice(sizes)) for number in range(draw.randint(1, 3))]
        has = sum(pool.has for pool in pools)
        most = max(has, draw.randint(1, 10))
        least = draw.randint(0, most)
        pools = _within(pools, least)
        order = draw.choice([0, 0, 0, 1, 2]), float(draw.randint(0, 3))
        jobs.append(FlowJob(f"job-{index}", least, most, tuple(pools), *order, draw.random() < 0.2, fits=starts.random() < 0.8))
    return FlowProblem(tuple(classes), tuple(jobs))


def _a_pool(
    draw: random.Random, starts: random.Random, name: str, hubs: list[str], classes: list[FlowClass], left: dict[str, int], size: int
) -> FlowPool:
    chosen = draw.sample(hubs, draw.randint(1, min(2, len(hubs))))
    values = {hub: draw.randint(200, 2500) for hub in chosen}
    held = []
    for class_ in classes:
        if class_.hub in chosen and left[class_.name] >= size and draw.random() < 0.4:
            units = draw.randint(1, left[class_.name] // size)
            left[class_.name] -= units * size
            settling = draw.choice([0, 0, 0, 0, 1, units])
            held.append(FlowHeld(class_.name, units, values[class_.hub] + draw.choice([0, 200, 400]), settling))
    scavenged = draw.random() < 0.15
    has = sum(each.units for each in held)
    found = FlowPool(
        name,
        values,
        draw.randint(0, 6),
        0 if scavenged else draw.choice([0, 0, 0, 1, 2]),
        size,
        tuple(held),
        scavenged,
        draw.choice([0, 0, 0, has]),
        draw.random() < 0.85,
    )
    return replace(found, keeps_for_minimum=found.displaces or starts.random() < 0.5)


def _within(pools: list[FlowPool], least: int) -> list[FlowPool]:
    """Pool minima of which the job's minimum is not smaller, as the API asks for."""
    found = []
    for pool in pools:
        found.append(replace(pool, min=min(pool.min, least)))
        least -= found[-1].min
    return found


def a_large_problem(seed: int, slices: int, jobs: int, *, kinds: int = 8, domains: int = 4, sizes: tuple[int, ...] = (1,)) -> FlowProblem:
    """So many slices and jobs: kinds in three capacity types and some domains, of which jobs want a quarter more than there is. Two jobs of
    three run."""
    draw = random.Random(seed)
    hubs = [[f"kind-{kind:02d} {capacity}" for capacity in ("OnDemand", "Reserved", "Spot")] for kind in range(kinds)]
    names = [(f"{hub}/zone-{zone}", hub) for group in hubs for hub in group for zone in range(domains)]
    rooms = [slices // len(names) + (index < slices % len(names)) for index in range(len(names))]
    classes = [FlowClass(name, hub, room) for (name, hub), room in zip(names, rooms, strict=True)]
    left = {class_.name: class_.room for class_ in classes}
    speed = [draw.lognormvariate(0, 0.6) for _ in range(kinds)]
    found = []
    for index in range(jobs):
        chosen = draw.sample(range(kinds), draw.randint(1, min(4, kinds)))
        speeds = {kind: speed[kind] * draw.lognormvariate(0, 0.2) for kind in chosen}
        mean = sum(speeds.values()) / len(speeds)
        most = max(2, round(draw.lognormvariate(0, 0.8) * slices / jobs * 0.9))
        runs = draw.random() < 0.67
        pools, has = [], 0
        for number, kind in enumerate(chosen):
            values = {hub: max(2, round(1000 * speeds[kind] / mean)) for hub in draw.sample(hubs[kind], draw.randint(1, 3))}
            size = draw.choice(sizes)
            held: list[FlowHeld] = []
            for class_ in draw.sample(classes, len(classes)) if runs else ():
                if class_.hub in values and left[class_.name] >= size and has < most and len(held) < 3:
                    units = min(draw.randint(1, 12), left[class_.name] // size, most - has)
                    left[class_.name] -= units * size
                    has += units
                    held.append(FlowHeld(class_.name, units, values[class_.hub] * 6 // 5))
            wanted = draw.randint(1, most)
            pools.append(FlowPool(f"pool-{number}", values, wanted, 0, size, tuple(held), draw.random() < 0.1))
        found.append(FlowJob(f"job-{index:04d}", draw.randint(0, most // 2), most, tuple(pools), draw.choice([0, 0, 0, 1]), float(index)))
    return FlowProblem(tuple(classes), tuple(found))


def a_problem_of_groups(seed: int) -> FlowProblem:
    """As `a_small_problem`, with units of 1, 2 and 4 hosts, which are worth as much for each host, and equal priorities."""
    problem = a_small_problem(seed, sizes=(1, 2, 4))
    return replace(problem, jobs=tuple(_of_hosts(job) for job in problem.jobs))


def _of_hosts(job: FlowJob) -> FlowJob:
    pools = []
    for pool in job.pools:
        held = tuple(replace(each, value=each.value * pool.size) for each in pool.held)
        pools.append(replace(pool, values={hub: value * pool.size for hub, value in pool.values.items()}, held=held, scavenged=False))
    return replace(job, priority=0, pools=tuple(pools))
