"""Properties of every allotment: no slice twice, no minimum starves, the same from nothing as step by step, and an end to all moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from builders.allotted_jobs import SimplePool, World, result_of
from builders.exploration import examples
from builders.jobs import Obj
from builders.nodes import a_gpu_node, a_tpu_node, an_inventory
from diloco_operator.allotment import Allotment
from diloco_operator.fleet import Shape, project_node
from hypothesis import given, settings
from hypothesis import strategies as st

LABELS: dict[str, dict[str, str]] = {
    "": {},
    "Reserved": {"cloud.google.com/reservation-name": "r"},
    "Spot": {"cloud.google.com/gke-spot": "true"},
}
ONE, PAIR = Shape("nvidia-h100-80gb", "", 8, 1), Shape("nvidia-h100-80gb", "", 8, 2)


@st.composite
def tpu_nodes(draw: st.DrawFn) -> list[Obj]:
    """Up to eight slices: of three capacities, each with or without the label x."""
    found = []
    for index in range(draw(st.integers(0, 8))):
        labels = {**LABELS[draw(st.sampled_from(sorted(LABELS)))], **({"x": "1"} if draw(st.booleans()) else {})}
        found.append(a_tpu_node(f"tpu-{index}", labels=labels))
    return found


@st.composite
def tpu_pools(draw: st.DrawFn) -> SimplePool:
    most = draw(st.integers(1, 4))
    return SimplePool(
        min=draw(st.integers(0, 1)),
        max=most,
        capacity=draw(st.sampled_from(["", "", "Reserved", "Spot"])),
        selector=(("x", "1"),) if draw(st.booleans()) else (),
        scavenged=draw(st.integers(0, 4)) == 0,
    )


@st.composite
def gpu_pools(draw: st.DrawFn) -> SimplePool:
    return SimplePool(shape=draw(st.sampled_from([ONE, PAIR])), min=draw(st.integers(0, 1)), max=draw(st.integers(1, 3)))


def add_job(world: World, data: st.DataObject, pools: st.SearchStrategy[SimplePool], name: str) -> None:
    chosen = data.draw(st.lists(pools, min_size=1, max_size=2))
    most = sum(pool.max for pool in chosen)
    world.job(name, *chosen, min=data.draw(st.integers(0, most)), priority=data.draw(st.integers(0, 1)))


def check_no_slice_held_twice(world: World) -> None:
    held = [node for job in world.jobs.values() for node in job.nodes()]
    assert len(held) == len(set(held)), "two units on one slice"


def check_no_slice_twice(world: World) -> None:
    check_no_slice_held_twice(world)
    held = [node for job in world.jobs.values() for node in job.nodes()]
    granted = [node for name in world.jobs for node in world.allotment.of(name).nodes]
    assert len(granted) == len(set(granted)), "one slice granted to two jobs"
    assert not set(granted) & set(held), "a slice in use is granted"


def check_as_from_nothing(world: World) -> None:
    """An operator that starts now decides the same."""
    fresh = world.restarted()
    for name in world.jobs:
        now, then = world.allotment.of(name), fresh.of(name)
        assert {shape: len(slices) for shape, slices in now.granted.items()} == {s: len(slices) for s, slices in then.granted.items()}
        assert len(now.revoked) == len(then.revoked)


def check_occupancy(world: World) -> None:
    """Who has which slice follows from the requests alone: where nothing is reserved, the same slices are taken, and nothing changes."""
    fleet = an_inventory()
    for name in sorted(world.fleet._nodes):
        view = world.fleet.node(name)
        assert view is not None
        fleet.update_node(view)
    found = Allotment(fleet)
    for job in world.jobs.values():
        found.update(job.request())
    found.refresh()
    for name in world.jobs:
        allotted = found.of(name)
        assert not allotted.revoked
        assert not allotted.nodes, f"{name} gets a slice although nothing has changed"
        assert not allotted.kept_for_minimum & {node for each in world.jobs.values() for node in each.nodes()}, (
            "a slice in use is kept for a job"
        )


def check_minima(world: World) -> None:
    """A job below its minimum finds no slice that is free, or on which surplus runs, and that fits it."""
    for job in world.jobs.values():
        short = [
            index
            for index, pool in enumerate(job.pools)
            if not pool.scavenged and sum(unit.startswith(f"{index}-") for unit in job.units) < pool.max
        ]
        if world.may_be_passed_over(job):
            continue
        if not short or len(job.units) >= job.max or sum(not job.pools[int(u[0])].scavenged for u in job.units) >= job.min:
            continue
        wants = [pool.requirements for (index, _), pool in zip(job._ordered(), job.request().pools, strict=True) if index in short]
        for want in wants:
            assert not any(want.fits(slice_) for slice_ in world.fleet.free(want.shape)), f"{job.name} waits beside a free slice"
            for other in world.jobs.values():
                firm = [unit for unit in other.units if not other.pools[int(unit[0])].scavenged]
                for unit, slices in other.units.items():
                    pool = other.pools[int(unit[0])]
                    surplus = len(firm) > other.min and sum(u[0] == unit[0] for u in firm) > pool.min
                    if pool.scavenged or surplus:
                        assert other is job or not want.suits(slices[0]), f"{job.name} waits for its minimum beside surplus of {other.name}"


def play(
    world: World,
    data: st.DataObject,
    pools: st.SearchStrategy[SimplePool],
    a_new_node: Obj,
    check: Callable[[World], None] = check_no_slice_twice,
) -> None:
    """A few events, in any order, with jobs that act at any time."""
    for _ in range(data.draw(st.integers(1, 8))):
        event = data.draw(st.sampled_from(["job", "job", "act", "act", "end", "node", "lose", "delete"]))
        names = sorted(world.jobs)
        if event == "job" and len(names) < 4:
            add_job(world, data, pools, f"job-{world.made}")
        elif event == "act" and names:
            world.act(data.draw(st.sampled_from(names)))
        elif event == "end":
            world.units_end()
        elif event == "node":
            world.fleet.update_node(project_node(a_new_node))
        elif event == "lose":
            free = [n for n in sorted(world.fleet._nodes) if not world.fleet.reserved_by(n)]
            if free:
                world.fleet.remove_node(data.draw(st.sampled_from(free)))
        elif event == "delete" and names:
            world.delete(data.draw(st.sampled_from(names)))
        world.allotment.refresh()
        check(world)


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(tpu_nodes(), st.data())
def test_slices_of_one_host(nodes: list[Obj], data: st.DataObject) -> None:
    world = World(*nodes)
    add_job(world, data, tpu_pools(), "job-a")
    add_job(world, data, tpu_pools(), "job-b")
    play(world, data, tpu_pools(), a_tpu_node("tpu-new"))
    check_as_from_nothing(world)
    world.settle()
    check_no_slice_twice(world)
    check_minima(world)
    check_as_from_nothing(world)
    check_occupancy(world)
    assert not any(world.allotment.of(name).nodes or world.allotment.of(name).revoked for name in world.jobs), "something is left to do"


@pytest.mark.slow
@settings(max_examples=examples(80))
@given(st.integers(0, 7), st.data())
def test_units_of_one_and_two_hosts(hosts: int, data: st.DataObject) -> None:
    world = World(*(a_gpu_node(f"gpu-{index}", pool=f"np-{index % 2}") for index in range(hosts)))
    add_job(world, data, gpu_pools(), "job-a")
    add_job(world, data, gpu_pools(), "job-b")
    play(world, data, gpu_pools(), a_gpu_node("gpu-new"))
    world.settle()
    check_no_slice_twice(world)
    assert not any(world.allotment.of(name).nodes or world.allotment.of(name).revoked for name in world.jobs), "something is left to do"


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(tpu_nodes(), st.integers(0, 4), st.data())
def test_whatever_changes_while_an_allotment_is_made_in_steps_counts(nodes: list[Obj], hosts: int, data: st.DataObject) -> None:
    world = World(*nodes, *(a_gpu_node(f"gpu-{index}") for index in range(hosts)))
    either = st.one_of(tpu_pools(), gpu_pools())
    add_job(world, data, either, "job-a")
    add_job(world, data, either, "job-b")
    for _ in range(data.draw(st.integers(1, 3))):
        for component in world.allotment.unsettled():
            steps = world.allotment.in_steps(component)
            next(steps, None)
            # What is granted may have been taken meanwhile by what stood before; then it is not free, and not offered.
            play(world, data, either, a_tpu_node("tpu-new"), check_no_slice_held_twice)
            result_of(steps)
        play(world, data, either, a_gpu_node("gpu-new"), check_no_slice_held_twice)
    check_no_slice_twice(world)
    check_as_from_nothing(world)
    world.settle()
    check_minima(world)
    check_as_from_nothing(world)
    check_occupancy(world)
