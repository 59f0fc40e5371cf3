"""Scavenged pools take free slices, and give them back when another job needs them."""

from __future__ import annotations

from builders.jobs import a_job
from builders.nodes import a_tpu_node
from builders.stage import Stage
from diloco_operator.fleet import Resources, Shape
from diloco_operator.placement.matching import SliceRequirements

V5P = Shape("tpu-v5p", "2x2x1", 4)
ANY = SliceRequirements(V5P, "")
RESERVED = SliceRequirements(V5P, "Reserved")


def scavenging_job(count: int = 3, capacity: str = "Scavenged") -> Stage:
    job = a_job().with_learners(1, count).with_pool(max=count, capacity=capacity)
    return Stage(job, *(a_tpu_node(f"tpu-{index}") for index in range(count))).train()


def test_as_many_units_leave_as_the_demand_needs_the_last_first_and_it_does_not_count() -> None:
    stage = scavenging_job()
    stage.reclaims = {ANY: 1}
    stage.settle()
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "Training", "v5p-2": "Draining"}
    assert (stage.unit("v5p-2")["reason"], stage.plans[-1].reclaimable) != ("", ())
    stage.settle()  # the one that leaves is the one that was asked for
    assert list(stage.states().values()).count("Draining") == 1
    stage.kubelets_finish_deletions()
    stage.settle()
    unit = stage.unit("v5p-2")
    assert (unit["state"], unit["reason"], unit["slice"], unit["restarts"]) == ("Pending", "GaveWay", "", 0)
    assert stage.inventory.reservations(stage.observed().job.key) == {"tpu-0", "tpu-1"}


def test_slice_in_demand_is_not_taken_again_before_the_demand_ends() -> None:
    stage = scavenging_job()
    stage.reclaims = {ANY: 1}
    stage.settle()
    stage.kubelets_finish_deletions()
    stage.reclaims = {ANY: 0}  # what is free suffices, but it is not for us
    stage.settle()
    assert len(stage.learner_pods()) == 2
    stage.reclaims = {}
    stage.settle()
    assert len(stage.learner_pods()) == 3


def test_all_go_if_all_are_wanted_whatever_the_minimum_is() -> None:
    stage = scavenging_job()
    stage.reclaims = {ANY: 7}
    stage.settle()
    assert set(stage.states().values()) == {"Draining"}


def test_unit_on_a_slice_that_does_not_fit_the_want_stays() -> None:
    stage = scavenging_job()  # on-demand nodes
    stage.reclaims = {RESERVED: 3}
    stage.settle()
    assert set(stage.states().values()) == {"Training"}


def test_unit_without_processes_leaves_before_one_that_trains() -> None:
    job = a_job().with_learners(1, 2).with_restarts(5, initial="1m").with_pool(max=2, capacity="Scavenged")
    stage = Stage(job, a_tpu_node("tpu-0"), a_tpu_node("tpu-1")).train()
    stage.learner_exits("v5p-0", 1, 1)
    stage.settle()
    stage.reclaims = {ANY: 1}
    stage.step()
    stage.reclaims = {ANY: 0}  # as what it gave is free now
    stage.settle()
    assert stage.states() == {"v5p-0": "BackingOff", "v5p-1": "Training"}
    assert stage.unit("v5p-0")["slice"] == ""


def test_pool_that_is_not_scavenged_gives_no_slice_back() -> None:
    stage = scavenging_job(capacity="OnDemand")
    stage.reclaims = {ANY: 3}
    stage.settle()
    assert set(stage.states().values()) == {"Training"}
    assert stage.plans[-1].reclaimable == ()


def test_job_reports_its_demand_but_not_for_scavenged_pools() -> None:
    job = a_job().with_learners(1, 3).with_pool("a", max=2).with_pool("b", max=1, capacity="Scavenged")
    stage = Stage(job, a_tpu_node("tpu-0"))
    stage.settle()
    assert stage.plans[-1].demand == {ANY._replace(needs=Resources(pods=1, devices=(("google.com/tpu", 4),))): 1}
