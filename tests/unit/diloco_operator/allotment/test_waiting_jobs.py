"""Many jobs that wait: how often slices are allotted anew, over how many jobs, and that this changes nothing of who gets what."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from builders.allotted_jobs import SimplePool, World, a_pool, ended, result_of
from builders.exploration import examples
from builders.jobs import Obj
from builders.nodes import a_gpu_node, a_tpu_node
from diloco_operator.allotment import NOTHING_ALLOTTED, allotment
from diloco_operator.allotment.decision import Steps
from diloco_operator.allotment.flow import integers
from diloco_operator.allotment.flow_problem import NamedProblem, ProblemBuilder
from diloco_operator.allotment.waiting import only_waits
from diloco_operator.fleet import Shape, project_node
from diloco_operator.fleet.resources import Resources
from hypothesis import given, settings
from hypothesis import strategies as st

GPUS = "nvidia-h100-80gb"


def tpus(count: int) -> list[Obj]:
    return [a_tpu_node(f"tpu-{index}") for index in range(count)]


@contextmanager
def counted_allotments() -> Iterator[list[int]]:
    """The number of jobs in each allotment made meanwhile."""
    sizes: list[int] = []
    build = ProblemBuilder.build

    def counted(self: ProblemBuilder, component: int) -> Generator[None, object, NamedProblem]:
        problem = yield from build(self, component)
        sizes.append(len(problem.flow.jobs))
        return problem

    with patch.object(ProblemBuilder, "build", counted):
        yield sizes


def crowd(world: World, count: int, pool: SimplePool, prefix: str = "crowd") -> None:
    for index in range(count):
        world.job(f"{prefix}-{index:04d}", pool)
        world.allotment.refresh()


def test_jobs_that_come_behind_equal_ones_without_a_chance_cause_no_allotment() -> None:
    world = World(*tpus(2))
    with counted_allotments() as sizes:
        crowd(world, 500, a_pool(max=1))
    # Two of them can get a slice, and one more is looked at: only the first three cause an allotment, of all jobs that are there then.
    assert sizes == [1, 2, 3]


def test_an_allotment_over_many_equal_jobs_looks_at_those_that_can_get_slices_and_one_more() -> None:
    world = World(*tpus(2))
    crowd(world, 500, a_pool(max=1))
    with counted_allotments() as sizes:
        world.fleet.update_node(project_node(a_tpu_node("tpu-2")))
        world.allotment.refresh()
    assert sizes == [4]  # three slices are free


def test_jobs_that_go_from_behind_cause_no_allotment_and_one_that_was_looked_at_does() -> None:
    world = World(*tpus(2))
    crowd(world, 20, a_pool(max=1))
    with counted_allotments() as sizes:
        for index in range(19, 9, -1):
            world.delete(f"crowd-{index:04d}")
            world.allotment.refresh()
        assert sizes == []
        world.delete("crowd-0000")
        world.allotment.refresh()
    assert sizes == [3]
    assert [name for name in sorted(world.jobs) if world.allotment.of(name).nodes] == ["crowd-0001", "crowd-0002"]


def test_an_older_job_that_registers_late_goes_before_equal_ones() -> None:
    world = World(*tpus(1))
    world.job("old", a_pool(max=1))
    world.allotment.remove("old")
    crowd(world, 20, a_pool(max=1))
    assert world.allotment.of("crowd-0000").nodes
    world.allotment.update(world.jobs["old"].request())  # the creation decides, not when the operator hears of it
    assert world.allotment.refresh() == {"old"}
    assert not world.allotment.of("crowd-0000").nodes


def test_every_slice_that_becomes_free_goes_to_the_oldest_that_waits() -> None:
    world = World(*tpus(2))
    crowd(world, 30, a_pool(max=1))
    world.settle()
    for index in range(28):
        world.delete(f"crowd-{index:04d}")
        world.settle()
        assert sorted(name for name, count in world.counts().items() if count) == [f"crowd-{index + 1:04d}", f"crowd-{index + 2:04d}"]


def test_a_scavenger_gives_way_to_a_crowd_one_unit_for_each_slice() -> None:
    world = World(*tpus(3)).job("scavenger", a_pool(max=3, scavenged=True), min=0).settle()
    crowd(world, 30, a_pool(max=1))
    assert len(world.allotment.of("scavenger").revoked) == 3
    world.settle()
    assert sorted(name for name, count in world.counts().items() if count) == ["crowd-0000", "crowd-0001", "crowd-0002"]


def test_every_job_whose_pods_may_be_refused_is_looked_at_where_units_would_leave_for_it() -> None:
    world = World(*tpus(2)).job("old", a_pool(max=2), min=0).settle()
    crowd(world, 9, a_pool(max=1, admitted=False))
    # Two units may leave, so of equal jobs three would be looked at. But a dry run may refuse these and admit a later one.
    assert all(world.allotment.of(f"crowd-{index:04d}").checks for index in range(9))
    assert not world.allotment.of("old").revoked
    world.settle()
    assert world.counts()["old"] == 2


# --- the same as with all jobs looked at ---------------------------------------------------------------------------------------
WHOLE, HALF, ONE, PAIR = (Shape(GPUS, "", chips, hosts) for chips, hosts in ((8, 1), (4, 1), (1, 1), (8, 2)))
NEEDS = Resources(pods=1)


@st.composite
def kinds(draw: st.DrawFn) -> tuple[Sequence[SimplePool], int, int]:
    """Pools, minimum and priority of a job; many jobs are made of each."""
    if draw(st.booleans()):
        shapes = st.sampled_from([WHOLE, HALF, ONE, PAIR])
        one = st.builds(
            SimplePool, shape=shapes, min=st.integers(0, 1), max=st.integers(1, 3), needs=st.just(NEEDS), admitted=st.booleans()
        )
    else:
        selectors = st.sampled_from([(), (("x", "1"),)])
        one = st.builds(
            SimplePool, min=st.integers(0, 1), max=st.integers(1, 3), selector=selectors, scavenged=st.booleans(), admitted=st.booleans()
        )
    pools = draw(st.lists(one, min_size=1, max_size=2))
    return pools, draw(st.integers(0, sum(pool.max for pool in pools))), draw(st.integers(0, 1))


@settings(max_examples=examples(40))
@given(st.data())
def test_who_gets_what_is_as_if_every_job_was_looked_at(data: st.DataObject) -> None:
    nodes = [a_tpu_node(f"tpu-{i}", labels={"x": "1"} if data.draw(st.booleans()) else {}) for i in range(data.draw(st.integers(0, 3)))]
    gpus = [a_gpu_node(f"gpu-{i}") for i in range(data.draw(st.integers(0, 2)))]
    world, everyone = World(*nodes, *gpus), World(*nodes, *gpus)
    found = data.draw(st.lists(kinds(), min_size=1, max_size=3))
    for number in range(data.draw(st.integers(1, 14))):
        pools, least, priority = data.draw(st.sampled_from(found))
        acts = data.draw(st.booleans())
        for each, waits in ((world, only_waits), (everyone, lambda _: False)):
            with patch.object(allotment, "only_waits", waits):
                each.job(f"job-{number:02d}", *pools, min=least, priority=priority)
                each.allotment.refresh()
                if acts:
                    each.act(f"job-{number:02d}")
        check_same(world, everyone)
    world.settle()
    with patch.object(allotment, "only_waits", lambda _: False):
        everyone.settle()
    assert world.counts() == everyone.counts()


def check_same(world: World, other: World) -> None:
    for name in world.jobs:
        assert world.allotment.of(name) == other.allotment.of(name)


# --- in steps -------------------------------------------------------------------------------------------------------------------
def distinct(world: World, count: int) -> None:
    """Jobs of which no two are equal, and which all compete."""
    for index in range(count):
        world.job(f"job-{index:03d}", a_pool(max=1 + index))


def in_steps(world: World) -> Steps[set[str]]:
    (component,) = world.allotment.unsettled()
    return world.allotment.in_steps(component)


def test_an_allotment_over_many_different_jobs_is_left_for_steps() -> None:
    world = World(*tpus(3))
    distinct(world, 11)
    assert world.allotment.refresh(10) == set()
    assert world.allotment.unfinished
    steps = in_steps(world)
    assert ended(steps)[1] >= 11  # a step for each job at least
    assert not world.allotment.unfinished
    assert [name for name in sorted(world.jobs) if world.allotment.of(name).nodes] == ["job-000", "job-001", "job-002"]


def test_a_minimum_that_is_not_found_in_time_keeps_waiting_and_is_decided_on_again() -> None:
    world = World(*(a_gpu_node(f"gpu-{index}") for index in range(3))).job("single", a_pool(max=2, shape=WHOLE)).settle()
    world.job("pair", a_pool(max=1, shape=replace(WHOLE, hosts=2)))
    with patch.object(integers, "SECONDS", 0.0):
        result_of(in_steps(world))
    assert (world.allotment.of("pair"), world.allotment.of("single").revoked) == (NOTHING_ALLOTTED, {})
    assert world.allotment.unfinished
    assert result_of(in_steps(world)) == {"pair", "single"}
    assert not world.allotment.unfinished


def test_what_concerns_few_jobs_is_not_left_for_steps() -> None:
    world = World(*tpus(1), a_gpu_node("gpu-0"))
    distinct(world, 11)
    world.job("other", a_pool(max=1, shape=WHOLE))
    assert world.allotment.refresh(10) == {"other"}


def test_one_allotment_in_steps_serves_all_jobs_that_came() -> None:
    world = World(*tpus(3))
    with counted_allotments() as sizes:
        for index in range(40):
            world.job(f"job-{index:03d}", a_pool(max=1 + index))
            world.allotment.refresh(10)
        world.allotment.refresh(10)
        before = len(sizes)
        result_of(in_steps(world))
    assert (before, sizes[before:]) == (10, [40])  # one for each of the first ten, and one for all


def test_until_the_last_step_the_former_allotment_stands_and_changes_count_after_it() -> None:
    world = World(*tpus(1))
    distinct(world, 3)
    world.allotment.refresh()
    before = {name: world.allotment.of(name) for name in world.jobs}
    world.fleet.update_node(project_node(a_tpu_node("tpu-8")))
    steps = in_steps(world)
    next(steps)
    world.fleet.update_node(project_node(a_tpu_node("tpu-9")))
    world.job("late", a_pool(max=1), priority=5)
    assert world.allotment.refresh() == set()
    assert world.allotment.knows("late")
    world.allotment.remove("job-000")
    assert {name: world.allotment.of(name) for name in world.jobs} == {**before, "late": NOTHING_ALLOTTED}
    assert result_of(steps) == {"job-001"}
    assert not world.allotment.knows("job-000")
    del world.jobs["job-000"]
    world.allotment.refresh()
    fresh = world.restarted()
    assert {name: world.allotment.of(name) for name in world.jobs} == {name: fresh.of(name) for name in world.jobs}
    assert world.allotment.of("late").nodes


def test_jobs_that_compete_for_other_slices_do_not_wait_for_the_end_of_the_steps() -> None:
    world = World(*tpus(1), a_gpu_node("gpu-0"))
    distinct(world, 3)
    steps = in_steps(world)
    next(steps)
    world.job("other", a_pool(max=2, shape=WHOLE))
    assert world.allotment.refresh() == {"other"}
    world.fleet.update_node(project_node(a_gpu_node("gpu-1")))
    assert world.allotment.refresh() == {"other"}
    world.act("other")
    assert world.counts()["other"] == 2
    world.allotment.remove("other")
    assert not world.allotment.knows("other")
    assert result_of(steps) == {"job-000"}


def test_a_job_that_wants_slices_of_both_waits_for_the_end_of_the_steps() -> None:
    world = World(*tpus(1), a_gpu_node("gpu-0"))
    distinct(world, 3)
    steps = in_steps(world)
    next(steps)
    world.job("both", a_pool(max=1), a_pool(max=1, shape=WHOLE), min=2, priority=5)
    assert world.allotment.refresh() == set()
    result_of(steps)
    world.allotment.refresh()
    assert len(world.allotment.of("both").nodes) == 2


def test_a_slice_that_a_job_takes_during_the_steps_is_offered_to_no_other() -> None:
    world = World(*tpus(1))
    world.job("first", a_pool(max=1)).job("second", a_pool(max=2))
    world.allotment.refresh()
    world.job("urgent", a_pool(max=1), priority=9)
    steps = in_steps(world)
    next(steps)
    assert world.act("first")  # by the allotment that stands
    result_of(steps)
    assert world.allotment.of("urgent").nodes  # it was free at the beginning
    assert not world.act("urgent")
    assert world.counts() == {"first": 1, "second": 0, "urgent": 0}


def test_a_unit_that_moved_during_the_steps_does_not_leave_what_it_has_now() -> None:
    world = World(*tpus(2)).job("old", a_pool(max=2), min=0).settle()
    world.job("young", a_pool(max=1))
    steps = in_steps(world)
    next(steps)
    old = world.jobs["old"]
    (first, second) = sorted(old.units)
    old.units[first], old.units[second] = old.units[second], old.units[first]
    world.allotment.update(old.request())
    result_of(steps)
    assert world.allotment.of("old").revoked == {}
    world.allotment.refresh()
    assert len(world.allotment.of("old").revoked) == 1


def test_steps_that_are_given_up_leave_the_allotment_usable() -> None:
    world = World(*tpus(1))
    distinct(world, 3)
    steps = in_steps(world)
    next(steps)
    steps.close()
    assert not world.allotment.unfinished
    assert world.allotment.refresh() == {"job-000"}
