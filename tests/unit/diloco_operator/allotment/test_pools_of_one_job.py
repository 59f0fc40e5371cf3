"""Pools of one job that want the same slices: the flow gives each what the others can do without, and placement hands it out."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from builders.allotted_jobs import SimplePool, World, a_pool
from builders.exploration import examples
from builders.jobs import Obj
from builders.nodes import a_gpu_node, a_tpu_node
from diloco_operator.api.spec import Locality
from diloco_operator.fleet import Shape
from diloco_operator.fleet.slices import Slice
from hypothesis import given, settings
from hypothesis import strategies as st

RESERVED = {"cloud.google.com/reservation-name": "r"}
LABELS: dict[str, dict[str, str]] = {"Reserved": RESERVED, "Spot": {"cloud.google.com/gke-spot": "true"}, "OnDemand": {}}
ZONE = "topology.kubernetes.io/zone"


def gpus(hosts: int) -> Shape:
    return Shape("nvidia-h100-80gb", "", 8, hosts)


def nodes_of(world: World, job: str = "job") -> dict[str, list[str]]:
    """Unit, "<index of the pool>-<number>" -> its nodes."""
    return {unit: [host.node for each in slices for host in each.hosts] for unit, slices in sorted(world.jobs[job].units.items())}


def test_unit_that_fits_anywhere_leaves_the_slice_to_one_that_fits_nowhere_else() -> None:
    world = World(a_tpu_node("tpu-0", labels=RESERVED), a_tpu_node("tpu-1"))
    world.job("job", a_pool(min=1, max=1), a_pool(min=1, max=1, capacity="Reserved"), min=2).settle()
    assert nodes_of(world) == {"0-0": ["tpu-1"], "1-0": ["tpu-0"]}


def test_chain_of_moves_is_found() -> None:
    """The first pool fits 0 and 1, the second 1 and 2, the third 0 only: it can be served only if the first has 1 and the second 2."""
    nodes = [a_tpu_node(f"tpu-{i}", labels={f"fits-{p}": "yes" for p in fits}) for i, fits in enumerate(("ac", "ab", "b"))]
    pools = [a_pool(min=1, max=1, selector=((f"fits-{p}", "yes"),)) for p in "abc"]
    assert nodes_of(World(*nodes).job("job", *pools, min=3).settle()) == {"0-0": ["tpu-1"], "1-0": ["tpu-2"], "2-0": ["tpu-0"]}


def test_small_units_come_first_where_large_ones_would_miss_the_minimum() -> None:
    hosts = [a_gpu_node(f"g-{i}") for i in range(3)]
    pools = (a_pool(max=1, shape=gpus(2)), a_pool(max=3, shape=gpus(1)))
    assert sorted(nodes_of(World(*hosts).job("job", *pools, min=3).settle())) == ["1-0", "1-1", "1-2"]
    assert sorted(nodes_of(World(*hosts).job("job", *pools, min=1).settle())) == ["0-0", "1-0"]


def test_single_hosts_are_in_other_zones_than_a_unit_that_fits_only_in_one() -> None:
    zones = {"a": "z1", "b": "z1", "c": "z2", "d": "z3"}
    world = World(*(a_gpu_node(name, labels={ZONE: zone}) for name, zone in zones.items()))
    world.job("job", a_pool(min=2, max=2, shape=gpus(1)), a_pool(min=1, max=1, shape=gpus(2), locality=Locality.ZONE), min=3).settle()
    found = nodes_of(world)
    assert sorted(found["1-0"]) == ["a", "b"]
    assert sorted(found["0-0"] + found["0-1"]) == ["c", "d"]


# --- for every fleet ----------------------------------------------------------------------------------------------------------
@st.composite
def fleets(draw: st.DrawFn) -> list[Obj]:
    """Up to six slices: of three capacities, each with or without the label x, some unusable."""
    found = []
    for index in range(draw(st.integers(0, 6))):
        labels = {**LABELS[draw(st.sampled_from(sorted(LABELS)))], **({"x": "1"} if draw(st.booleans()) else {})}
        found.append(a_tpu_node(f"tpu-{index}", labels=labels, ready=draw(st.integers(0, 5)) > 0))
    return found


@st.composite
def pools(draw: st.DrawFn) -> SimplePool:
    most = draw(st.integers(1, 3))
    selector = (("x", "1"),) if draw(st.booleans()) else ()
    return a_pool(min=draw(st.integers(0, most)), max=most, capacity=draw(st.sampled_from(["", *sorted(LABELS)])), selector=selector)


def fits(pool: SimplePool, part: Slice) -> bool:
    return (not pool.capacity or part.capacity == pool.capacity) and all(part.labels.get(key) == value for key, value in pool.selector)


def best_possible(chosen: list[SimplePool], slices: list[Slice], most: int) -> int:
    """By trying everything: the most units that any assignment has that meets all minima of pools; -1 if none does."""
    found = -1
    for choice in itertools.product(range(len(chosen) + 1), repeat=len(slices)):
        counts = Counter(choice)
        if any(c < len(chosen) and not fits(chosen[c], part) for c, part in zip(choice, slices, strict=True)):
            continue
        if any(not pool.min <= counts[i] <= pool.max for i, pool in enumerate(chosen)):
            continue
        total = sum(counts[i] for i in range(len(chosen)))
        if total <= most:
            found = max(found, total)
    return found


@pytest.mark.slow
@settings(max_examples=examples(120))
@given(fleets(), st.lists(pools(), min_size=1, max_size=3), st.integers(1, 4), st.integers(0, 3))
def test_a_job_has_as_many_units_as_any_assignment_allows_or_waits_for_its_minimum(
    nodes: list[Obj], chosen: list[SimplePool], least: int, more: int
) -> None:
    least = max(least, sum(pool.min for pool in chosen))
    world = World(*nodes)
    best = best_possible(chosen, list(world.fleet.free(chosen[0].shape)), least + more)
    world.job("job", *chosen, min=least, max=least + more).settle()
    counts = Counter(unit.partition("-")[0] for unit in world.jobs["job"].units)
    reachable = min(least, sum(pool.max for pool in chosen))  # what all its pools together may have
    assert counts.total() == (best if best >= reachable else 0)
    if counts:
        assert all(counts[str(index)] >= pool.min for index, pool in enumerate(chosen))


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), min_size=1, max_size=3), st.integers(0, 6))
def test_minima_of_groups_of_hosts_are_met_if_there_are_hosts_enough(sizes: list[tuple[int, int]], hosts: int) -> None:
    """Hosts of one kind are interchangeable: the minima can be met exactly if they need no more hosts than there are."""
    world = World(*(a_gpu_node(f"g-{i}", pool=f"np-{i % 2}") for i in range(hosts)))
    least = sum(count for _, count in sizes)
    world.job("job", *(a_pool(min=count, max=count, shape=gpus(size)) for size, count in sizes), min=max(1, least)).settle()
    needed = sum(size * count for size, count in sizes)
    assert len(world.jobs["job"].units) == (least if needed <= hosts else 0)
