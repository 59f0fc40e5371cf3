"""Units of several jobs on parts of the same hosts."""

from __future__ import annotations

import itertools

import pytest
from builders.allotted_jobs import SimplePool, World, a_pool
from builders.exploration import examples
from builders.jobs import Obj
from builders.nodes import GPU, a_gpu_node
from diloco_operator.fleet import PodUse, Resources, Shape, project_node
from diloco_operator.fleet.resources import amount_of
from diloco_operator.placement import place
from hypothesis import given, settings
from hypothesis import strategies as st


def gpus(count: int, hosts: int = 1, *, alone: bool = False) -> Shape:
    return Shape("nvidia-h100-80gb", "", count, hosts, alone=alone)


def two_hosts() -> World:
    return World(a_gpu_node("a"), a_gpu_node("b"))


def where(world: World) -> dict[str, list[str]]:
    """Node -> the units there."""
    found: dict[str, list[str]] = {}
    for job in world.jobs.values():
        for unit, slices in job.units.items():
            for host in (host for each in slices for host in each.hosts):
                found.setdefault(host.node, []).append(f"{job.name}/{unit}")
    return {node: sorted(units) for node, units in sorted(found.items())}


def test_four_units_of_two_accelerators_share_one_host_and_the_other_stays_whole() -> None:
    world = two_hosts().job("small", a_pool(shape=gpus(2), max=4)).settle()
    assert where(world) == {"a": ["small/0-0", "small/0-1", "small/0-2", "small/0-3"]}
    world.job("large", a_pool(shape=gpus(8), max=1)).settle()
    assert world.counts() == {"small": 4, "large": 1}


def test_units_of_different_jobs_and_sizes_share_a_host() -> None:
    world = World(a_gpu_node("a")).job("four", a_pool(shape=gpus(4), max=1)).job("two", a_pool(shape=gpus(2), max=1)).settle()
    world.job("one", a_pool(shape=gpus(1), max=4)).settle()
    assert world.counts() == {"four": 1, "two": 1, "one": 2}  # 8 = 4 + 2 + 2 * 1


def test_a_unit_takes_the_host_on_which_least_is_left() -> None:
    world = two_hosts().job("six", a_pool(shape=gpus(6), max=1)).settle()
    world.job("two", a_pool(shape=gpus(2), max=1)).settle()
    assert where(world) == {"a": ["six/0-0", "two/0-0"]}


def test_units_need_processors_and_memory_of_their_host_too() -> None:
    node = a_gpu_node("a", resources={"cpu": "20", "memory": "100Gi", "pods": "110"})
    needs = Resources(cpu=8000, pods=1)
    world = World(node).job("small", a_pool(shape=gpus(1), max=8, needs=needs)).settle()
    assert world.counts() == {"small": 2}  # 20 CPU are two times 8


def test_a_unit_of_several_hosts_and_one_that_stands_alone_take_whole_hosts() -> None:
    world = World(a_gpu_node("a"), a_gpu_node("b"), a_gpu_node("c"))
    world.job("pair", a_pool(shape=gpus(4, hosts=2), max=1)).job("alone", a_pool(shape=gpus(4, alone=True), max=1)).settle()
    world.job("small", a_pool(shape=gpus(1), max=1)).settle()
    assert world.counts() == {"pair": 1, "alone": 1, "small": 0}


def test_what_pods_of_others_leave_of_a_host_is_used() -> None:
    world = World(a_gpu_node("a"))
    world.fleet.replace_use(None, PodUse("team", "notebook", "a", Resources(pods=1, devices=((GPU, 3),))))
    world.job("small", a_pool(shape=gpus(2), max=4)).job("large", a_pool(shape=gpus(8), max=1)).settle()
    assert world.counts() == {"small": 2, "large": 0}  # 5 are left


def test_a_pod_of_others_that_comes_later_evicts_no_unit_and_takes_the_place_of_new_ones() -> None:
    world = World(a_gpu_node("a")).job("small", a_pool(shape=gpus(2), max=2), min=2).settle()
    world.fleet.replace_use(None, PodUse("team", "notebook", "a", Resources(pods=1, devices=((GPU, 3),))))
    world.job("more", a_pool(shape=gpus(2), max=1)).job("one", a_pool(shape=gpus(1), max=1), priority=1).settle()
    assert world.counts() == {"small": 2, "more": 0, "one": 1}  # 8 - 2 * 2 - 3 = 1


def test_a_host_that_shrinks_below_what_units_have_takes_no_more_and_grows_back() -> None:
    world = World(a_gpu_node("a")).job("small", a_pool(shape=gpus(4), max=2)).settle()
    shrunk = a_gpu_node("a")
    shrunk["status"]["allocatable"] = {GPU: "6"}
    world.fleet.update_node(project_node(shrunk))
    world.job("one", a_pool(shape=gpus(1), max=2)).settle()
    assert world.counts() == {"small": 2, "one": 0}
    del world.jobs["small"].units["0-1"]
    world.settle()
    assert world.counts() == {"small": 1, "one": 2}  # 6 = 4 + 2 * 1; the second unit of 4 has no room
    world.fleet.update_node(project_node(a_gpu_node("a")))
    world.job("more", a_pool(shape=gpus(2), max=1)).settle()
    assert world.counts() == {"small": 1, "one": 2, "more": 1}


def test_surplus_on_part_of_a_host_leaves_for_a_minimum_and_only_as_much_as_is_needed() -> None:
    world = World(a_gpu_node("a")).job("greedy", a_pool(shape=gpus(2), max=4), min=1).settle()
    world.job("poor", a_pool(shape=gpus(4), max=1), min=1).settle()
    assert world.counts() == {"greedy": 2, "poor": 1}


def test_a_minimum_of_a_whole_host_gets_the_one_that_surplus_has_in_parts() -> None:
    world = two_hosts().job("greedy", a_pool(shape=gpus(2), max=8), min=1).settle()
    world.job("poor", a_pool(shape=gpus(8), max=1), min=1).settle()
    assert world.counts() == {"greedy": 4, "poor": 1}


def test_a_host_that_units_of_several_jobs_must_leave_stays_chosen_while_they_leave_one_after_the_other() -> None:
    world = World(*(a_gpu_node(f"gpu-{index}") for index in range(4)))
    for name in ("one", "two", "three", "four"):
        world.job(name, a_pool(shape=gpus(1), max=8), min=1)
    world.settle().job("late", a_pool(shape=gpus(8), max=1), min=1).settle()
    assert (world.counts()["late"], sum(world.counts().values()), world.left) == (1, 25, 8)  # 24 of 32 units stay, 8 leave


def test_no_part_of_a_host_is_left_for_a_pool_whose_pods_have_not_been_admitted() -> None:
    for size in (4, 8):
        world = two_hosts().job("greedy", a_pool(shape=gpus(2), max=8), min=1).settle()
        world.job("poor", a_pool(shape=gpus(size), max=1, admitted=False), min=1).settle()
        assert (world.counts(), world.left) == ({"greedy": 8, "poor": 0}, 0)
        assert world.allotment.of("poor").checks == {"0"}


def test_whole_hosts_and_parts_of_equal_priority_share_by_hosts() -> None:
    world = two_hosts().job("parts", a_pool(shape=gpus(4), max=4), min=0).settle()
    world.job("whole", a_pool(shape=gpus(8), max=2), min=0).settle()
    assert world.counts() == {"parts": 2, "whole": 1}


def test_eight_units_revoke_one_unit_of_eight_accelerators_and_not_eight() -> None:
    world = two_hosts().job("large", a_pool(shape=gpus(8), max=2), min=0).settle()
    world.job("small", a_pool(shape=gpus(1), max=8), min=8, priority=1).settle()
    assert (world.counts(), world.left) == ({"large": 1, "small": 8}, 1)


def test_a_decision_that_is_taken_again_before_anything_is_reserved_places_the_same_units() -> None:
    world = two_hosts().job("small", a_pool(shape=gpus(2), max=4)).job("six", a_pool(shape=gpus(6), max=1)).settle()
    world.job("late", a_pool(shape=gpus(2), max=2), min=2)
    world.allotment.refresh()
    job = world.jobs["late"]
    asked = job.request()
    assigned = place(asked, world.allotment.view("late")).assigned
    first = {each.unit: each.slice for each in assigned}
    job.units.update({each.unit: each.slices for each in assigned})
    world.allotment.update(job.request())
    world.allotment.refresh()
    again = place(asked, world.allotment.view("late"))
    assert len(first) == 1  # 16 - 4 * 2 - 6 are free
    assert first == {each.unit: each.slice for each in again.assigned}


def test_a_pool_says_where_accelerators_are_left_and_who_has_the_others() -> None:
    world = two_hosts().job("six", a_pool(shape=gpus(6), max=2), min=2).settle()
    world.fleet.replace_use(None, PodUse("team", "notebook", "b", Resources(pods=1, devices=((GPU, 1),))))
    world.job("late", a_pool(shape=gpus(4), max=1))
    world.allotment.refresh()
    found = place(world.jobs["late"].request(), world.allotment.view("late")).pools[0].message
    assert found == (
        "pool 0 needs 1 more slice of nvidia-h100-80gb, 1 host with 4 accelerators; the fleet has 16 accelerators on 2 hosts: "
        "12 held by job six (none surplus); 1 used by other pods: team/notebook; "
        "3 free, but a unit needs 4 on one host (a: 2, b: 1). "
        # Without the notebook b has 2 left, which are too few.
        "What would help: wait until job six ends, or suspend it; a pool with acceleratorsPerHost 2 or less; more nodes"
    )


@pytest.mark.slow
def test_the_cost_of_dividing_hosts_grows_with_the_units_that_get_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with units times hosts: of hosts of which as much is left, one is looked at."""
    looked = 0
    fits = Resources.fits

    def counted(needs: Resources, room: Resources) -> bool:
        nonlocal looked
        looked += 1
        return fits(needs, room)

    def cost(hosts: int) -> int:
        nonlocal looked
        world = World(*(a_gpu_node(f"gpu-{index:03d}") for index in range(hosts)))
        world.job("ones", a_pool(shape=gpus(1), max=4 * hosts), min=0).job("halves", a_pool(shape=gpus(4), max=hosts), min=0)
        looked = 0
        world.allotment.refresh()
        return looked

    monkeypatch.setattr(Resources, "fits", counted)
    assert cost(40) < 2.5 * cost(20)


# --- properties --------------------------------------------------------------------------------------------------------------
@st.composite
def pools(draw: st.DrawFn) -> SimplePool:
    shape = draw(st.sampled_from([gpus(1), gpus(2), gpus(3), gpus(4), gpus(8), gpus(4, hosts=2)]))
    needs = Resources(cpu=draw(st.sampled_from([0, 0, 3000])), pods=1)
    return SimplePool(
        shape=shape, min=draw(st.integers(0, 1)), max=draw(st.integers(1, 5)), scavenged=draw(st.integers(0, 5)) == 0, needs=needs
    )


def add_job(world: World, data: st.DataObject, name: str) -> None:
    chosen = data.draw(st.lists(pools(), min_size=1, max_size=2))
    most = sum(pool.max for pool in chosen)
    world.job(name, *chosen, min=data.draw(st.integers(0, most)), priority=data.draw(st.integers(0, 1)))


def check_room(world: World) -> None:
    """No host has more units than it has room, and none beside a unit that takes all of it."""
    taken: dict[str, list[Resources]] = {}
    whole: list[str] = []
    for job in world.jobs.values():
        for (node, _), part in job.parts().items():
            taken.setdefault(node, []).append(part)
        for unit, slices in (*job.units.items(), *job.leaving.items()):
            if not job.pools[int(unit[0])].shape.divides:
                whole += [host.node for each in slices for host in each.hosts]
    assert len(whole) == len(set(whole)), "two units on one whole host"
    assert not set(whole) & taken.keys(), "a part of a host beside a unit that takes all of it"
    for node, parts in taken.items():
        view = world.fleet.node(node)
        assert view is not None
        used = sum(amount_of(use.requests, GPU) for use in world.fleet.uses(node))
        assert sum(amount_of(part, GPU) for part in parts) <= amount_of(view.allocatable, GPU) - used, f"too many accelerators of {node}"
        assert sum(part.cpu for part in parts) <= view.allocatable.cpu, f"too many CPUs of {node}"


def check_nothing_idle(world: World) -> None:
    """No unit of a part of a host waits beside a host that has room for it."""
    for job in world.jobs.values():
        for index, pool in enumerate(job.pools):
            have = sum(unit.startswith(f"{index}-") for unit in job.units)
            if world.may_be_passed_over(job):
                continue
            if not pool.shape.divides or have >= pool.max or len(job.units) >= job.max:
                continue
            for slice_ in world.fleet.free(pool.shape):
                want = next(each.requirements for each in job.request().pools if each.requirements.shape == pool.shape)
                assert not want.suits(slice_), f"{job.name} waits for {pool.shape} beside {slice_}"


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(st.integers(1, 4), st.data())
def test_any_jobs_on_shared_hosts(hosts: int, data: st.DataObject) -> None:
    nodes: list[Obj] = [a_gpu_node(f"gpu-{index}", resources={"cpu": "16"}) for index in range(hosts)]
    world = World(*nodes)
    serial = itertools.count()
    for step in range(data.draw(st.integers(2, 9))):
        event = data.draw(st.sampled_from(["job", "job", "act", "act", "act", "end", "use", "delete", "node"]))
        names = sorted(world.jobs)
        if event == "job" and len(names) < 4:
            add_job(world, data, f"job-{step}")
        elif event == "act" and names:
            world.act(data.draw(st.sampled_from(names)))
        elif event == "end":
            world.units_end()
        elif event == "use":
            free = [n for n in sorted(world.fleet._nodes) if not world.fleet.reserved_by(n)]
            if free:
                devices = ((GPU, data.draw(st.integers(1, 8))),)
                world.fleet.replace_use(
                    None, PodUse("t", f"p{next(serial)}", data.draw(st.sampled_from(free)), Resources(0, 0, 1, devices))
                )
        elif event == "delete" and names:
            world.delete(data.draw(st.sampled_from(names)))
        elif event == "node":
            world.fleet.update_node(project_node(a_gpu_node("gpu-new", resources={"cpu": "16"})))
        world.allotment.refresh()
        check_room(world)
    world.settle()
    check_room(world)
    check_nothing_idle(world)
    fresh = world.restarted()
    for name in world.jobs:
        for allotted in (world.allotment.of(name), fresh.of(name)):  # the second: an operator that has just started
            assert (allotted.nodes, dict(allotted.revoked)) == (frozenset(), {}), "something is left to do"


# --- an end to all moves ---------------------------------------------------------------------------------------------------------
def test_jobs_with_units_of_two_sizes_exchange_no_parts_of_hosts_for_ever() -> None:
    world = World(*(a_gpu_node(f"gpu-{index}") for index in range(3)))
    world.job("a", a_pool(shape=gpus(1)), a_pool(shape=gpus(8, hosts=2)), min=2)
    world.job("b", a_pool(shape=gpus(2)), a_pool(shape=gpus(1)), min=1)
    world.settle()
    left = world.left
    world.settle()
    assert world.left == left, "nothing changed, and yet a unit left"


SIZES = st.sampled_from([gpus(1), gpus(2), gpus(4), gpus(8), gpus(8, alone=True), gpus(8, hosts=2)])


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(st.integers(1, 4), st.lists(st.tuples(SIZES, SIZES, st.integers(0, 4), st.integers(0, 1)), min_size=2, max_size=4))
def test_jobs_with_units_of_two_sizes_come_to_rest(hosts: int, jobs: list[tuple[Shape, Shape, int, int]]) -> None:
    world = World(*(a_gpu_node(f"gpu-{index}") for index in range(hosts)))
    for index, (one, other, least, priority) in enumerate(jobs):
        world.job(f"job-{index}", a_pool(shape=one), a_pool(shape=other), min=least, priority=priority)
        world.settle()  # it raises if something still moves
    check_room(world)
    left = world.left
    world.settle()
    assert world.left == left, "nothing changed, and yet a unit left"
