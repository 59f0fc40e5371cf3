"""Random fleets on which jobs come one after the other, from seeds: units of several sizes that share hosts. Each settles or raises."""

from __future__ import annotations

import random
from collections.abc import Mapping

from builders.allotted_jobs import SimplePool, World, a_pool
from builders.jobs import Obj
from builders.nodes import a_gpu_node
from diloco_operator.api.spec import Locality
from diloco_operator.fleet import Shape

ZONE = "topology.kubernetes.io/zone"


def gpus(count: int, hosts: int = 1, *, alone: bool = False) -> Shape:
    return Shape("nvidia-h100-80gb", "", count, hosts, alone=alone)


PARTS = [gpus(1), gpus(2), gpus(3), gpus(4), gpus(6), gpus(8), gpus(8, alone=True), gpus(8, 2), gpus(4, 2)]


def of_parts(seed: int) -> World:
    """Up to five hosts, units of parts of one, and of two; some scavenge. Sometimes the first job ends."""
    draw = random.Random(seed)
    world = World(*(a_gpu_node(f"gpu-{index}") for index in range(draw.randint(1, 5))))
    for job in range(draw.randint(2, 4)):
        pools = [
            a_pool(shape=draw.choice(PARTS), min=draw.choice([0, 0, 0, 1]), max=draw.randint(1, 5), scavenged=draw.random() < 0.1)
            for _ in range(draw.randint(1, 2))
        ]
        world.job(f"job-{job}", *pools, min=draw.randint(0, 4), priority=draw.choice([0, 0, 1]))
        if draw.random() < 0.7:
            world.settle()
    world.settle()
    if draw.random() < 0.5:
        world.delete("job-0")
    return world.settle()


def of_two_zones(seed: int) -> World:
    """Up to eight hosts, some with a label that some pools ask for; units of one, two and three hosts of one zone."""
    draw = random.Random(seed)
    world = World(*_in_zones(draw, draw.randint(0, 8)))
    for job in range(draw.randint(2, 4)):
        _add(world, f"job-{job}", draw, parts=False)
    return world


def of_two_zones_and_parts(seed: int) -> World:
    """As `of_two_zones`, also with units of parts of a host, and pools that scavenge."""
    draw = random.Random(seed)
    world = World(*_in_zones(draw, draw.randint(1, 6)))
    for job in range(draw.randint(2, 4)):
        _add(world, f"job-{job}", draw, parts=True)
    return world


def _in_zones(draw: random.Random, hosts: int) -> list[Obj]:
    found = []
    for index in range(hosts):
        label: Mapping[str, str] = {"x": "1"} if draw.random() < 0.5 else {}
        found.append(a_gpu_node(f"gpu-{index}", labels={ZONE: draw.choice(["z1", "z2"]), **label}))
    return found


def _add(world: World, name: str, draw: random.Random, *, parts: bool) -> None:
    pools: list[SimplePool] = []
    for _ in range(2):
        hosts = draw.choice([1, 1, 2, 3])
        count = draw.choice([2, 4, 8]) if parts and hosts == 1 else 8
        most = draw.randint(1, 3)
        selector = (("x", "1"),) if hosts == 1 and draw.random() < 0.5 else ()
        scavenged = parts and draw.random() < 0.15
        pools.append(a_pool(shape=gpus(count, hosts), locality=Locality.ZONE, max=most, selector=selector, scavenged=scavenged))
    least = min(draw.randint(0, 4), sum(pool.max for pool in pools))
    world.job(name, *pools, min=least, priority=draw.randint(0, 1)).settle()
