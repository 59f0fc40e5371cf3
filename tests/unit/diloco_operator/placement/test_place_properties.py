"""Properties of every placement; minima are met whenever any assignment meets them."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from builders.nodes import a_gpu_node, a_tpu_node, an_inventory
from diloco_operator.fleet import Inventory, Shape
from diloco_operator.placement import JobRequest, PlacementRequest, PoolRequest, UnitRequest, place
from hypothesis import given, settings
from hypothesis import strategies as st

SINGLE = Shape("tpu-v5p", "2x2x1", 4, 1)
CAPACITIES = ("", "Reserved", "Spot", "OnDemand")
LABELS = {"Reserved": {"cloud.google.com/reservation-name": "r"}, "Spot": {"cloud.google.com/gke-spot": "true"}, "OnDemand": {}}


@st.composite
def fleets(draw: st.DrawFn) -> Inventory:
    """Up to six slices: of three capacities, each with or without the label x, some unusable."""
    nodes = []
    for index in range(draw(st.integers(0, 6))):
        labels = {**LABELS[draw(st.sampled_from(CAPACITIES[1:]))], **({"x": "1"} if draw(st.booleans()) else {})}
        nodes.append(a_tpu_node(f"tpu-{index}", labels=labels, ready=draw(st.integers(0, 5)) > 0))
    return an_inventory(*nodes)


@st.composite
def jobs(draw: st.DrawFn, key: str = "ns/job") -> JobRequest:
    pools = []
    for index in range(draw(st.integers(1, 3))):
        most = draw(st.integers(1, 3))
        pools.append(
            PoolRequest(
                f"p{index}",
                SINGLE,
                min=draw(st.integers(0, most)),
                max=most,
                units=tuple(UnitRequest(f"p{index}-{i}") for i in range(most)),
                capacity=draw(st.sampled_from(CAPACITIES)),
                node_selector={"x": "1"} if draw(st.booleans()) else {},
            )
        )
    least = max(1, sum(pool.min for pool in pools), draw(st.integers(1, 4)))
    return JobRequest(key, least, least + draw(st.integers(0, 3)), tuple(pools))


def fits(pool: PoolRequest, part: object) -> bool:
    return (not pool.capacity or part.capacity == pool.capacity) and all(part.labels.get(k) == v for k, v in pool.node_selector.items())  # type: ignore[attr-defined]


def best_possible(job: JobRequest, fleet: Inventory) -> tuple[bool, int]:
    """By trying everything: whether all pool minima can be met, and the most units in all that any assignment places then."""
    slices = list(fleet.free(SINGLE))
    met, most = False, 0
    for choice in itertools.product(range(len(job.pools) + 1), repeat=len(slices)):
        counts = Counter(choice)
        if any(c < len(job.pools) and not fits(job.pools[c], part) for c, part in zip(choice, slices, strict=True)):
            continue
        if any(counts[i] > pool.max for i, pool in enumerate(job.pools)):
            continue
        total = sum(counts[i] for i in range(len(job.pools)))
        if total > job.max or any(counts[i] < pool.min for i, pool in enumerate(job.pools)):
            continue
        met, most = True, max(most, total)
    return met, most


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(fleets(), jobs())
def test_minima_are_met_and_growth_is_greatest_whenever_any_assignment_allows(fleet: Inventory, job: JobRequest) -> None:
    placement = place(PlacementRequest((job,), fleet))
    met, most = best_possible(job, fleet)
    counts = Counter(each.pool for each in placement.assigned)
    if met:
        assert all(counts[pool.name] >= pool.min for pool in job.pools)
        assert len(placement.assigned) == most


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(fleets(), jobs("ns/one"), jobs("ns/two"), st.data())
def test_every_placement_is_valid(fleet: Inventory, one: JobRequest, two: JobRequest, data: st.DataObject) -> None:
    before = place(PlacementRequest((one,), fleet))
    chosen = {(each.pool, each.unit): each.slice for each in before.assigned}
    fleet.set_reservations("ns/one", {host.node for each in before.assigned for host in each.hosts})
    most = data.draw(st.integers(0, one.max))
    pools = tuple(
        PoolRequest(
            p.name,
            p.shape,
            min(p.min, most),
            p.max,
            tuple(UnitRequest(u.name, chosen.get((p.name, u.name), "")) for u in p.units),
            p.reserved,
            p.capacity,
            p.node_selector,
        )
        for p in one.pools
    )
    jobs_now = (JobRequest("ns/one", min(one.min, most), most, pools), two)
    placement = place(PlacementRequest(jobs_now, fleet))
    taken = [host.node for each in placement.assigned for host in each.hosts]
    assert len(taken) == len(set(taken)), "a host was given twice"
    for job in jobs_now:
        mine = [each for each in placement.assigned if each.job == job.key]
        assert len(mine) <= job.max
        for pool in job.pools:
            in_pool = [each for each in mine if each.pool == pool.name]
            assert len(in_pool) <= pool.max
            left = {u.unit for u in placement.unplaced if (u.job, u.pool) == (job.key, pool.name)}
            assert {each.unit for each in in_pool} | left == {unit.name for unit in pool.units}
            assert not {each.unit for each in in_pool} & left
            assert all(fits(pool, part) for each in in_pool for part in each.slices if (pool.name, each.unit) not in chosen)
    for each in placement.assigned:
        if each.job == "ns/one" and (each.pool, each.unit) in chosen:
            assert each.slice == chosen[each.pool, each.unit], "a unit was moved"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), min_size=1, max_size=3), st.integers(0, 6))
def test_minima_of_gpu_groups_are_met_if_there_are_hosts_enough(pools: list[tuple[int, int]], hosts: int) -> None:
    """Hosts of one kind are interchangeable: the minima can be met exactly if they need no more hosts than there are."""
    fleet = an_inventory(*(a_gpu_node(f"g-{i}", pool=f"np-{i % 2}") for i in range(hosts)))
    requests = tuple(
        PoolRequest(f"p{i}", Shape("nvidia-h100-80gb", "", 8, size), least, least, tuple(UnitRequest(f"p{i}-{n}") for n in range(least)))
        for i, (size, least) in enumerate(pools)
    )
    needed = sum(size * least for size, least in pools)
    placement = place(PlacementRequest((JobRequest("ns/job", 1, 100, requests),), fleet))
    if needed <= hosts:
        assert len(placement.assigned) == sum(least for _, least in pools)
    assert sum(len(each.slices) for each in placement.assigned) <= hosts
