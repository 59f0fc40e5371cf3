"""Units of several hosts where a wish of another pool, as for a label, tells the hosts of a domain apart."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from builders.allotted_jobs import SimplePool, World, a_pool
from builders.exploration import examples
from builders.jobs import Obj
from builders.nodes import a_gpu_node
from diloco_operator.api.spec import Locality
from diloco_operator.fleet import Shape
from diloco_operator.fleet.resources import Resources
from diloco_operator.fleet.use import PodUse
from hypothesis import given, settings
from hypothesis import strategies as st

ZONE = "topology.kubernetes.io/zone"
X = (("x", "1"),)


def some(hosts: int, **fields: Any) -> SimplePool:
    """A pool with units of so many hosts, which are in one zone."""
    return a_pool(shape=Shape("nvidia-h100-80gb", "", 8, hosts), locality=Locality.ZONE, **fields)


def a_host(name: str, *, x: bool = False, zone: str = "z1") -> Obj:
    return a_gpu_node(name, labels={ZONE: zone, **({"x": "1"} if x else {})})


def test_a_wish_that_cannot_be_met_keeps_no_group_from_the_hosts_that_it_tells_apart() -> None:
    world = World(a_host("a", x=True), a_host("b")).job("wish", some(1, max=2, selector=X), min=2)
    assert world.job("group", some(2, max=1)).settle().counts() == {"wish": 0, "group": 1}


def test_hosts_that_are_told_apart_make_a_group_only_within_one_zone() -> None:
    world = World(a_host("a", x=True), a_host("b", zone="z2")).job("wish", some(1, max=2, selector=X), min=2)
    world.job("group", some(2, max=1)).settle()
    assert world.counts() == {"wish": 0, "group": 0}


def test_a_wish_that_can_be_met_comes_before_a_group_of_the_hosts_that_it_tells_apart() -> None:
    world = World(a_host("a", x=True), a_host("b")).job("wish", some(1, max=1, selector=X), min=1)
    assert world.job("group", some(2, max=1)).settle().counts() == {"wish": 1, "group": 0}


def test_a_minimum_gets_its_host_from_surplus_that_has_it_with_hosts_that_it_cannot_use() -> None:
    world = World(a_host("a", x=True), a_host("b")).job("old", some(2, max=1), min=0).settle()
    assert world.counts() == {"old": 1}
    world.job("young", some(1, max=1, selector=X)).settle()
    assert (world.counts(), world.left) == ({"old": 0, "young": 1}, 1)


def test_a_minimum_of_more_hosts_than_surplus_has_for_it_makes_none_leave() -> None:
    world = World(a_host("a", x=True), a_host("b")).job("old", some(2, max=1), min=0).settle()
    world.job("young", some(1, max=2, selector=X), min=2).settle()
    assert (world.counts(), world.left) == ({"old": 1, "young": 0}, 0)


def test_a_minimum_of_a_group_gets_hosts_from_surplus_that_would_take_them_back() -> None:
    """The jobs exchanged these hosts for ever: once units of `singles` have left, their pool's wish tells the hosts apart again."""
    nodes = [a_host(f"one-{index}", x=index != 1) for index in range(3)]  # only these three together make a unit
    world = World(*nodes, a_host("two", x=True, zone="z2")).job("singles", some(1, max=4, selector=X)).settle()
    assert world.counts() == {"singles": 3}
    world.job("group", some(3, max=2)).settle()
    assert (world.counts(), world.left) == ({"singles": 1, "group": 1}, 2)


def test_surplus_of_a_group_takes_no_hosts_that_others_would_take_back() -> None:
    world = World(*(a_host(f"gpu-{index}", x=index != 1) for index in range(3))).job("singles", some(1, max=2, selector=X)).settle()
    world.job("group", some(3, max=1), min=0).settle()
    assert (world.counts(), world.left) == ({"singles": 2, "group": 0}, 0)


# --- for every fleet ----------------------------------------------------------------------------------------------------------
@st.composite
def hosts(draw: st.DrawFn) -> list[Obj]:
    """Up to eight, in two zones, with and without the label."""
    count = draw(st.integers(0, 8))
    return [a_host(f"gpu-{index}", x=draw(st.booleans()), zone=draw(st.sampled_from(["z1", "z2"]))) for index in range(count)]


@st.composite
def pools(draw: st.DrawFn) -> SimplePool:
    size = draw(st.sampled_from([1, 1, 2, 3]))
    return some(size, max=draw(st.integers(1, 3)), selector=X if size == 1 and draw(st.booleans()) else ())


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(hosts(), st.lists(st.tuples(pools(), pools(), st.integers(0, 4), st.integers(0, 1)), min_size=2, max_size=4))
def test_any_jobs_come_to_rest_and_no_unit_of_surplus_waits_beside_hosts_that_would_do(
    nodes: list[Obj], jobs: list[tuple[SimplePool, SimplePool, int, int]]
) -> None:
    world = World(*nodes)
    for index, (one, other, least, priority) in enumerate(jobs):
        world.job(f"job-{index}", one, other, min=min(least, one.max + other.max), priority=priority)
        world.settle()  # it raises if something still moves
    left = world.left
    world.settle()
    assert world.left == left, "nothing changed, and yet a unit left"
    taken = {node for job in world.jobs.values() for node in job.nodes()}
    free = [node for node in nodes if node["metadata"]["name"] not in taken]
    for job in world.jobs.values():
        if job.waits or any(world.may_be_passed_over(each) for each in world.jobs.values()):
            continue  # hosts may be kept for a minimum
        for index, pool in enumerate(job.pools):
            has = sum(unit.startswith(f"{index}-") for unit in job.units)
            fit = [node["metadata"]["labels"] for node in free if not pool.selector or "x" in node["metadata"]["labels"]]
            rooms = Counter(labels[ZONE] for labels in fit)
            is_full = has >= pool.max or len(job.units) >= job.max
            assert is_full or max(rooms.values(), default=0) < pool.shape.hosts, f"{job.name} waits beside {rooms} for {pool.shape}"


def test_hosts_of_which_other_pods_leave_different_amounts_are_the_same_to_units_of_several_hosts() -> None:
    """The units that leave have one host and two, and the one that comes takes all three."""
    world = World(*(a_gpu_node(f"g-{index}") for index in range(4)))
    for index in range(4):
        world.fleet.replace_use(None, PodUse("kube-system", f"agent-{index}", f"g-{index}", Resources(cpu=100 * index)))
    free = {slice_.hosts[0].node: slice_ for slice_ in world.fleet.free(Shape("nvidia-h100-80gb", "", 8, 1))}
    old = world.job("old", some(1, max=2), some(2, max=1)).jobs["old"]
    old.units = {"0-0": (free["g-0"],), "0-1": (free["g-1"],), "1-0": (free["g-2"], free["g-3"])}
    world.fleet.set_reservations("old", old.nodes(), old.parts())
    world.allotment.update(old.request())
    world.job("wide", some(3, max=1)).settle()
    assert world.counts() == {"old": 1, "wide": 1}
