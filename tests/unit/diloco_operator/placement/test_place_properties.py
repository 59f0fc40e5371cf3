"""Properties of every placement of one job on what is free."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders.exploration import examples
from builders.nodes import a_tpu_node, an_inventory
from builders.slice_requests import a_pool_request
from diloco_operator.fleet import Inventory, Shape
from diloco_operator.fleet.slices import Slice
from diloco_operator.placement import HeldUnit, JobRequest, PoolRequest, place
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
def jobs(draw: st.DrawFn) -> JobRequest:
    pools = []
    for index in range(draw(st.integers(1, 3))):
        most = draw(st.integers(1, 3))
        pools.append(
            a_pool_request(
                f"p{index}",
                SINGLE,
                most,
                min=draw(st.integers(0, most)),
                capacity=draw(st.sampled_from(CAPACITIES)),
                node_selector={"x": "1"} if draw(st.booleans()) else {},
            )
        )
    least = max(1, sum(pool.min for pool in pools), draw(st.integers(1, 4)))
    return JobRequest("ns/job", min=least, max=least + draw(st.integers(0, 3)), pools=tuple(pools))


def fits(pool: PoolRequest, part: Slice) -> bool:
    asked = pool.requirements
    return (not asked.capacity or part.capacity == asked.capacity) and all(part.labels.get(k) == v for k, v in asked.node_selector)


@pytest.mark.slow
@settings(max_examples=examples(120))
@given(fleets(), jobs(), st.data())
def test_every_placement_is_valid(fleet: Inventory, job: JobRequest, data: st.DataObject) -> None:
    before = place(job, fleet)
    chosen = {(each.pool, each.unit): each.slice for each in before.assigned}
    fleet.set_reservations("ns/job", {host.node for each in before.assigned for host in each.hosts})
    most = data.draw(st.integers(0, job.max))
    pools = tuple(
        replace(
            p,
            min=min(p.min, most),
            units=tuple(HeldUnit(name, (), slice=chosen[p.name, name]) for name in p.new if (p.name, name) in chosen),
            new=tuple(name for name in p.new if (p.name, name) not in chosen),
        )
        for p in job.pools
    )
    placement = place(JobRequest("ns/job", min=min(job.min, most), max=most, pools=pools), fleet)
    taken = [host.node for each in placement.assigned for host in each.hosts]
    assert len(taken) == len(set(taken)), "a host was given twice"
    assert len(placement.assigned) <= most
    for pool in pools:
        in_pool = [each for each in placement.assigned if each.pool == pool.name]
        assert len(in_pool) <= pool.max
        left = {u.unit for u in placement.unplaced if u.pool == pool.name}
        assert {each.unit for each in in_pool} | left == {*(unit.name for unit in pool.units), *pool.new}
        assert not {each.unit for each in in_pool} & left
        assert all(fits(pool, part) for each in in_pool for part in each.slices if (pool.name, each.unit) not in chosen)
    for each in placement.assigned:
        assert chosen.get((each.pool, each.unit), each.slice) == each.slice, "a unit was moved"
    if len(placement.assigned) < most:
        free = [part for part in fleet.free(SINGLE) if part.hosts[0].node not in taken]
        for pool in pools:
            full = sum(each.pool == pool.name for each in placement.assigned) == pool.max
            assert full or not any(fits(pool, part) for part in free), "a unit waits beside a slice that it could have"
