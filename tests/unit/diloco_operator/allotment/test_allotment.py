"""Which job gets which slices, and which units must leave theirs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders.allotted_jobs import V5P, World, a_pool
from builders.jobs import Obj
from builders.nodes import a_gpu_node, a_tpu_node
from diloco_operator.fleet import Shape, project_node
from diloco_operator.placement import HeldUnit, place

PAIR = Shape("nvidia-h100-80gb", "", 8, 2)
ONE_GPU_HOST = Shape("nvidia-h100-80gb", "", 8, 1)


def tpus(count: int, **fields: object) -> list[Obj]:
    return [a_tpu_node(f"tpu-{index}", **fields) for index in range(count)]  # type: ignore[arg-type]


# --- minima -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("priority", [0, 1_000_000])
def test_a_younger_job_gets_its_minimum_from_the_surplus_of_one_that_has_all(priority: int) -> None:
    world = World(*tpus(4)).job("old", a_pool(max=10)).settle()
    assert world.counts() == {"old": 4}
    world.job("young", a_pool(max=1), priority=priority).settle()
    assert world.counts() == {"old": 3, "young": 1}
    assert world.left == 1


def test_no_unit_leaves_for_a_pool_whose_pods_have_not_been_admitted_and_the_allotment_asks_for_that() -> None:
    world = World(*tpus(4)).job("old", a_pool(max=10)).settle()
    world.job("young", a_pool(max=1, admitted=False)).settle()
    assert (world.counts(), world.left) == ({"old": 4, "young": 0}, 0)
    assert world.allotment.of("young").checks == {"0"}
    assert world.restarted().of("young").checks == {"0"}


def test_no_unit_leaves_for_a_job_before_what_its_units_share_is_there_and_only_the_one_that_would_win_gets_ready() -> None:
    world = World(*tpus(4)).job("old", a_pool(max=10), min=3).settle()
    for name in ("first", "second"):  # one unit of `old` may leave
        world.job(name, a_pool(max=1, ready=False)).settle()
    assert world.counts() == {"old": 4, "first": 0, "second": 0}
    assert {name: world.allotment.of(name).prepares for name in ("first", "second")} == {"first": True, "second": False}
    assert not world.allotment.of("first").checks
    assert world.restarted().of("first").prepares
    world.job("first", a_pool(max=1), priority=1).settle()
    assert world.counts() == {"old": 3, "first": 1, "second": 0}
    assert not any(world.allotment.of(name).prepares for name in ("first", "second"))


def test_a_job_that_is_not_ready_takes_what_is_free() -> None:
    world = World(*tpus(1)).job("new", a_pool(max=1, ready=False)).settle()
    assert world.counts() == {"new": 1}
    assert not world.allotment.of("new").prepares


def test_a_pool_whose_pods_have_not_been_admitted_takes_what_is_free() -> None:
    world = World(*tpus(4)).job("new", a_pool(max=3, admitted=False)).settle()
    assert world.counts() == {"new": 3}
    assert not world.allotment.of("new").checks


def test_only_as_many_units_leave_as_a_job_with_spares_has_room_for() -> None:
    world = World(*tpus(2), *(a_gpu_node(f"g-{index}") for index in range(4)))
    world.job("old", a_pool(max=4, shape=ONE_GPU_HOST)).settle()
    world.job("new", a_pool(max=2, spares=2), a_pool(max=4, shape=ONE_GPU_HOST), max=3, priority=1).settle()
    assert (world.counts(), world.left) == ({"old": 3, "new": 3}, 1)


def test_a_spare_counts_in_the_share_of_its_job_after_the_units() -> None:
    """Of six slices the older job has three, two beyond its minimum. Its spare would be the third, the other's unit the second."""
    world = World(*tpus(6)).job("old", a_pool(max=3, spares=1)).settle()
    assert len(world.allotment.spares("old")["0"]) == 1
    world.job("young", a_pool(max=10)).settle()
    assert (world.counts(), world.allotment.spares("old")) == ({"old": 3, "young": 3}, {})


def test_a_unit_that_has_just_got_its_slice_does_not_leave_and_another_may() -> None:
    world = World(*tpus(2)).job("old", a_pool(max=2)).settle()
    request = world.jobs["old"].request()
    [pool] = request.pools
    first, second = pool.units

    def settling(*units: HeldUnit) -> None:
        held = tuple(unit._replace(settling=unit in units) for unit in pool.units)
        world.allotment.update(replace(request, pools=(replace(pool, units=held),)))
        world.allotment.refresh()

    world.job("young", a_pool(max=1))
    settling(first, second)
    assert not world.allotment.of("old").revoked
    settling(second)
    assert world.allotment.of("old").revoked == {first.name: "young"}


def test_the_allotment_does_not_ask_where_no_unit_would_leave() -> None:
    world = World(*tpus(4)).job("old", a_pool(max=4), min=4).settle()
    world.job("young", a_pool(max=1, admitted=False), priority=9).settle()
    assert not world.allotment.of("young").checks


def test_a_new_slice_goes_to_the_waiting_minimum_not_to_surplus() -> None:
    world = World(*tpus(1)).job("old", a_pool(max=10)).settle()
    world.job("young", a_pool(max=1)).settle()
    assert world.counts() == {"old": 1, "young": 0}
    world.fleet.update_node(project_node(a_tpu_node("tpu-9")))
    world.settle()
    assert world.counts() == {"old": 1, "young": 1}
    assert world.left == 0


def test_minima_come_in_the_order_of_priority_then_age() -> None:
    world = World(*tpus(3))
    world.job("old", a_pool(max=2), min=2).job("middle", a_pool(max=2), min=2).job("urgent", a_pool(max=1), priority=5).settle()
    assert world.counts() == {"old": 2, "middle": 0, "urgent": 1}


def test_a_minimum_that_is_held_is_not_revoked_even_for_a_minimum_of_higher_priority() -> None:
    world = World(*tpus(2)).job("old", a_pool(max=2), min=2).settle()
    world.job("urgent", a_pool(max=1), priority=1_000_000).settle()
    assert world.counts() == {"old": 2, "urgent": 0}


def test_the_minimum_of_a_pool_is_part_of_the_minimum_of_its_job() -> None:
    reserved = a_pool(min=1, max=2, capacity="Reserved")
    spot = a_pool(max=4, capacity="Spot")
    nodes = [
        a_tpu_node("r-0", labels={"cloud.google.com/reservation-name": "r"}),
        *(a_tpu_node(f"s-{i}", labels={"cloud.google.com/gke-spot": "true"}) for i in range(3)),
    ]
    world = World(*nodes).job("wide", a_pool(max=4)).settle()
    world.job("picky", spot, reserved, min=1).settle()
    assert [unit.split("-")[0] for unit in world.jobs["picky"].units].count("1") == 1


def test_a_slice_that_a_unit_leaves_is_kept_for_the_minimum_it_was_revoked_for() -> None:
    world = World(*tpus(3)).job("old", a_pool(max=10)).settle()
    world.job("claimant", a_pool(max=1))
    world.allotment.refresh()
    world.act("old")
    world.job("thief", a_pool(max=9), priority=0)
    world.allotment.refresh()
    world.units_end()
    assert world.allotment.of("claimant").granted
    world.act("thief")
    world.act("claimant")
    assert world.counts()["claimant"] == 1


def test_no_more_units_leave_than_are_needed_and_none_while_one_is_leaving_already() -> None:
    world = World(*tpus(4)).job("old", a_pool(max=10)).settle()
    world.job("young", a_pool(max=1))
    world.allotment.refresh()
    world.act("old")
    assert world.left == 1
    world.act("old")
    world.act("young")
    assert world.left == 1


def test_a_free_slice_is_taken_before_any_unit_leaves_also_when_another_grant_must_move_for_it() -> None:
    nodes = [a_tpu_node("x", labels={"x": "1"}), a_tpu_node("y")]
    world = World(*nodes).job("either", a_pool(max=1))
    world.job("only-x", a_pool(max=1, selector=(("x", "1"),))).settle()
    assert world.counts() == {"either": 1, "only-x": 1}
    assert world.left == 0


# --- surplus --------------------------------------------------------------------------------------------------------------
def test_surplus_goes_to_the_higher_priority() -> None:
    world = World(*tpus(6)).job("low", a_pool(max=9)).job("high", a_pool(max=3), priority=1).settle()
    assert world.counts() == {"low": 3, "high": 3}


def test_equal_priorities_get_equal_shares_of_surplus_whoever_came_first() -> None:
    world = World(*tpus(9)).job("first", a_pool(max=9)).settle()
    assert world.counts() == {"first": 9}
    world.job("second", a_pool(max=9)).settle()
    assert world.counts() == {"first": 5, "second": 4}
    world.job("third", a_pool(max=2)).settle()
    counts = world.counts()
    assert (sum(counts.values()), counts["third"]) == (9, 2)
    assert abs(counts["first"] - counts["second"]) <= 1  # 2 and 3 units beyond the minimum are worth the same: one segment
    left = world.left
    world.settle()
    assert world.left == left, "nothing changed, and yet a unit left"


def test_shares_are_counted_beyond_the_minimum() -> None:
    world = World(*tpus(8)).job("big", a_pool(max=9), min=4).job("small", a_pool(max=9), min=0).settle()
    assert world.counts() == {"big": 6, "small": 2}


def test_one_slice_of_difference_moves_nobody() -> None:
    world = World(*tpus(3)).job("first", a_pool(max=3), min=0).settle()
    world.job("second", a_pool(max=3), min=0).settle()
    assert world.counts() == {"first": 2, "second": 1}
    assert world.left == 1


def test_what_a_job_leaves_is_shared_by_the_others() -> None:
    world = World(*tpus(6)).job("a", a_pool(max=6)).job("b", a_pool(max=6)).job("c", a_pool(max=6)).settle()
    assert world.counts() == {"a": 2, "b": 2, "c": 2}
    left = world.left
    world.delete("c")
    world.settle()
    assert (world.counts(), world.left) == ({"a": 3, "b": 3}, left)


# --- Scavenged ------------------------------------------------------------------------------------------------------------
def test_scavenged_pools_give_way_to_any_other_demand_down_to_zero() -> None:
    world = World(*tpus(3)).job("scavenger", a_pool(max=3, scavenged=True), min=2).settle()
    assert world.counts() == {"scavenger": 3}
    world.job("paid", a_pool(max=9), min=0, priority=-5).settle()
    assert world.counts() == {"scavenger": 0, "paid": 3}


def test_scavenged_units_leave_before_other_surplus() -> None:
    world = World(*tpus(4)).job("scavenger", a_pool(max=2, scavenged=True)).job("paid", a_pool(max=2)).settle()
    world.job("claimant", a_pool(max=1)).settle()
    assert world.counts() == {"scavenger": 1, "paid": 2, "claimant": 1}


def test_scavengers_share_what_is_left() -> None:
    world = World(*tpus(4)).job("one", a_pool(max=4, scavenged=True)).settle()
    world.job("two", a_pool(max=4, scavenged=True)).settle()
    assert world.counts() == {"one": 2, "two": 2}


# --- units of several slices ----------------------------------------------------------------------------------------------
def test_a_gang_gets_all_its_hosts_or_none() -> None:
    world = World(*(a_gpu_node(f"g-{i}") for i in range(3))).job("gangs", a_pool(max=2, shape=PAIR)).settle()
    assert world.counts() == {"gangs": 1}
    world.job("single", a_pool(max=1, shape=ONE_GPU_HOST)).settle()
    assert world.counts() == {"gangs": 1, "single": 1}


def test_single_hosts_leave_for_the_minimum_of_a_gang_only_if_that_suffices() -> None:
    world = World(*(a_gpu_node(f"g-{i}") for i in range(3))).job("singles", a_pool(max=3, shape=ONE_GPU_HOST), min=2).settle()
    world.job("gang", a_pool(max=1, shape=PAIR)).settle()
    assert world.counts() == {"singles": 3, "gang": 0}
    world.fleet.update_node(project_node(a_gpu_node("g-9")))
    world.settle()
    assert world.counts() == {"singles": 2, "gang": 1}


def test_the_hosts_of_a_gang_are_of_one_zone() -> None:
    zones = [("g-0", "a"), ("g-1", "b"), ("g-2", "b")]
    nodes = [a_gpu_node(name, labels={"topology.kubernetes.io/zone": zone}) for name, zone in zones]
    world = World(*nodes).job("single", a_pool(max=1, shape=ONE_GPU_HOST)).job("gang", a_pool(max=1, shape=PAIR)).settle()
    assert world.counts() == {"single": 1, "gang": 1}
    assert {s.name for s in world.jobs["gang"].units["0-0"]} == {"g-1", "g-2"}


# --- who is woken ----------------------------------------------------------------------------------------------------------
def test_a_free_slice_wakes_only_the_job_that_gets_it() -> None:
    world = World(*tpus(2))
    for name in ("a", "b", "c"):
        world.job(name, a_pool(max=1))
    world.settle()
    world.woken.clear()
    world.fleet.update_node(project_node(a_tpu_node("tpu-9")))
    assert world.allotment.refresh() == {"c"}
    assert world.allotment.refresh() == set()


def test_a_change_concerns_only_jobs_that_could_use_the_slice() -> None:
    world = World(*tpus(2), a_gpu_node("g-0")).job("tpu", a_pool(max=4)).job("gpu", a_pool(max=4, shape=ONE_GPU_HOST)).settle()
    before = world.allotment.of("gpu")
    world.fleet.update_node(project_node(a_tpu_node("tpu-9")))
    assert world.allotment.refresh() == {"tpu"}
    assert world.allotment.of("gpu") is before


def test_slices_without_any_job_that_wants_them_are_granted_to_nobody() -> None:
    world = World(*tpus(2)).job("one", a_pool(max=1)).settle()
    assert list(world.allotment.view("one").free(V5P, "0")) == []
    assert [kept for _, kept in world.allotment.view("one").kept(V5P, "0")] == [""]


# --- what users read ---------------------------------------------------------------------------------------------------------
def test_the_message_of_a_pool_says_for_which_job_free_slices_are_kept() -> None:
    world = World(a_gpu_node("g-0"), a_gpu_node("g-1")).job("ns/single/1", a_pool(max=1, shape=ONE_GPU_HOST), min=0).settle()
    world.job("ns/gang/2", a_pool(max=1, shape=PAIR)).job("ns/late/3", a_pool(max=1, shape=ONE_GPU_HOST), min=0)
    world.allotment.refresh()
    world.act("ns/single/1")
    found = place(world.jobs["ns/late/3"].request(), world.allotment.view("ns/late/3"))
    assert "1 free, but kept for job ns/gang (1)" in found.pools[0].message


def test_the_message_of_a_gang_counts_free_hosts_that_are_too_few_for_it() -> None:
    world = World(a_gpu_node("g-0")).job("gang", a_pool(max=1, shape=PAIR)).settle()
    found = place(world.jobs["gang"].request(), world.allotment.view("gang"))
    assert "1 free, but a unit needs 2" in found.pools[0].message


def said(world: World, job: str) -> str:
    """What holds the slices that the first pool of this job lacks, and what would help after it."""
    message = place(world.jobs[job].request(), world.allotment.view(job)).pools[0].message
    return message.partition("; the fleet has ")[2]


BY_RIGHT = ". What would help: raise learners.min or the priority of this job; more nodes"
MORE_NODES = ". What would help: more nodes"


def test_the_message_of_a_pool_names_the_holders_with_most_slices_first_and_their_surplus() -> None:
    world = World(*tpus(9)).job("ns/mine/0", a_pool(max=5))
    world.job("ns/a/1", a_pool(max=3), min=1, priority=7).job("ns/b/2", a_pool(max=2), min=2, priority=7)
    world.job("ns/c/3", a_pool(max=1), priority=7).job("ns/d/4", a_pool(max=1), priority=7).job(
        "ns/e/5", a_pool(max=1), priority=7
    ).settle()
    assert said(world, "ns/mine/0") == (
        "9: 1 of this job; 8 held by 5 jobs: 3 by ns/a (2 of them surplus, beyond its minimum; its priority is 7, this job's 0), "
        f"2 by ns/b (none surplus), 1 by ns/c (none surplus), 2 by 2 more{BY_RIGHT}"
    )


def test_the_message_of_a_pool_says_how_equal_jobs_share_their_surplus() -> None:
    world = World(*tpus(4)).job("ns/one/1", a_pool(max=9), min=0).job("ns/two/2", a_pool(max=9), min=0).settle()
    assert said(world, "ns/one/1") == (
        f"4: 2 of this job; 2 held by job ns/two (all surplus, beyond its minimum; equal priority){BY_RIGHT}"
    )


def test_the_message_of_a_pool_says_which_slices_are_being_left_for_it() -> None:
    world = World(*tpus(2)).job("ns/old/1", a_pool(max=9)).settle()
    world.job("ns/young/2", a_pool(max=1))
    world.allotment.refresh()
    assert said(world, "ns/young/2") == "2: 2 held by job ns/old (it leaves 1; none surplus). What would help: more nodes"
    world.act("ns/old/1")
    assert said(world, "ns/young/2") == "2: 2 held by job ns/old (it leaves 1; none surplus). What would help: more nodes"


def test_units_of_a_scavenged_pool_are_surplus_and_the_minimum_of_a_pool_is_not() -> None:
    world = World(*tpus(4)).job("ns/wide/1", a_pool(min=1, max=2), a_pool(max=2, scavenged=True), min=0, priority=3).settle()
    world.job("ns/late/2", a_pool(max=1, capacity="Spot"))
    assert said(world, "ns/late/2") == (
        # By its priority it would get some of them, and they are not Spot.
        f"4: 4 held by job ns/wide (3 of them surplus, beyond its minimum; its priority is 3, this job's 0){MORE_NODES}"
    )


def test_slices_of_another_shape_are_no_surplus_of_this_one() -> None:
    world = World(*tpus(1), a_gpu_node("g-0")).job("ns/both/1", a_pool(max=1), a_pool(max=1, shape=ONE_GPU_HOST), min=1).settle()
    world.job("ns/late/2", a_pool(max=1, capacity="Spot"))
    assert said(world, "ns/late/2") == f"1: 1 held by job ns/both (surplus, beyond its minimum; equal priority){MORE_NODES}"


# --- values ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("may_move", "worth", "moves"), [(0, 2000, False), (1, 1150, False), (1, 2000, True)])
def test_surplus_moves_to_a_kind_that_is_worth_clearly_more_if_its_job_may_move(may_move: int, worth: int, moves: bool) -> None:
    fast = Shape("tpu-v6e", "2x2", 4)
    world = World(*tpus(1)).job("one", a_pool(max=1), a_pool(max=1, shape=fast), min=0, max=1).settle()
    world.fleet.update_node(project_node(a_tpu_node("fast", kind="tpu-v6e-slice", topology="2x2")))
    request = world.jobs["one"].request()
    slow_pool, fast_pool = request.pools
    units = tuple(unit._replace(leaving_cost=200) for unit in slow_pool.units)
    pools = (replace(slow_pool, units=units, values={"tpu-v5p": 1000}), replace(fast_pool, values={"tpu-v6e": worth}))
    world.allotment.update(replace(request, pools=pools, may_move=may_move))
    world.allotment.refresh()
    allotted = world.allotment.of("one")
    assert (dict(allotted.revoked), "1" in allotted.granted) == (({"0-0": "one"}, True) if moves else ({}, False))
