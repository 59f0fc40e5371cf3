"""Scaling up and down, changing and suspending while training."""

from __future__ import annotations

import pytest
from builders.jobs import a_job, template
from builders.nodes import a_gpu_node, a_tpu_node
from builders.stage import Stage


def trained(count: int, *, min: int = 1) -> Stage:
    job = a_job().with_learners(min, count).with_pool(max=8)
    return Stage(job, *(a_tpu_node(f"tpu-{i}") for i in range(4))).train()


def test_raised_maximum_adds_units_without_touching_the_others() -> None:
    stage = trained(2)
    stage.scale(max=4)
    plan = stage.step()
    assert [c.obj["metadata"]["name"] for c in plan.creates] == ["bytes-lm-v5p-2-a1-0", "bytes-lm-v5p-3-a1-0"]
    assert plan.deletes == ()


def test_maximum_above_what_the_pools_may_have_fills_the_pools_and_is_no_lack() -> None:
    stage = trained(2)
    pool = stage.job["spec"]["pools"][0]
    stage.edit(pools=[{**pool, "learners": {"min": 0, "max": 3}}])
    stage.scale(max=100)
    stage.settle()
    stage.kubelets_start()
    stage.all_contribute()
    stage.settle()
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "Training", "v5p-2": "Training"}
    assert stage.status["learners"]["desired"] == 3
    assert stage.condition("Degraded")["status"] == "False"


@pytest.mark.slow
def test_lowered_maximum_drains_the_newest_units() -> None:
    stage = trained(4)
    stage.scale(max=2)
    plan = stage.step()
    assert {d.name for d in plan.deletes} == {"bytes-lm-v5p-2-a1-0", "bytes-lm-v5p-3-a1-0"}
    assert all(d.grace_seconds is None for d in plan.deletes)
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "Training", "v5p-2": "Draining", "v5p-3": "Draining"}
    stage.settle()
    assert stage.states()["v5p-1"] == "Training"  # those that drain push no other unit out
    stage.kubelets_finish_deletions()
    stage.settle()
    assert stage.unit("v5p-3") | {"since": ""} == stage.unit("v5p-3") | {
        "since": "",
        "state": "Pending",
        "reason": "ScaledDown",
        "slice": "",
    }
    assert stage.plans[-1].reservations.nodes == {"tpu-0", "tpu-1"}


@pytest.mark.slow
def test_units_that_do_not_contribute_go_first() -> None:
    stage = trained(3)
    stage.scale(max=4)
    stage.settle()
    stage.learner_exits("v5p-0", 1, 1)
    stage.settle()
    stage.scale(max=2)
    stage.step()
    assert stage.states()["v5p-1"] == "Training"
    assert stage.states()["v5p-2"] == "Training"
    assert stage.states()["v5p-0"] in ("Draining", "Pending")


def test_draining_is_no_failure_and_no_restart() -> None:
    stage = trained(2)
    stage.scale(max=1)
    stage.step()
    stage.learner_exits("v5p-1", 1, 143)
    stage.settle()
    unit = stage.unit("v5p-1")
    assert (unit["state"], unit["restarts"], unit["failures"]) == ("Pending", 0, [])


def test_unit_that_comes_back_has_a_higher_attempt() -> None:
    stage = trained(2)
    stage.scale(max=1)
    stage.settle()
    stage.kubelets_finish_deletions()
    stage.settle()
    stage.scale(max=2)
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a1-0", "bytes-lm-v5p-1-a2-0"]


def test_unit_asked_back_while_it_drains_waits_for_its_own_end() -> None:
    stage = trained(2)
    stage.scale(max=1)
    stage.step()
    stage.scale(max=2)
    stage.settle()
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "Draining"}
    stage.kubelets_finish_deletions()
    stage.settle()
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "Starting"}


def test_pool_minimum_takes_the_place_of_another_pools_surplus() -> None:
    job = a_job().with_learners(1, 2).with_pool(max=2).with_gpu_pool(max=2)
    stage = Stage(job, a_tpu_node("tpu-0"), a_tpu_node("tpu-1"), a_gpu_node("gpu-0")).train()
    v5p, h100 = stage.job["spec"]["pools"]
    stage.edit(pools=[v5p, {**h100, "learners": {"min": 1, "max": 2}}])
    stage.step()
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "Draining", "h100-0": "Starting"}


def test_units_of_a_removed_pool_drain_and_leave_status() -> None:
    job = a_job().with_learners(1, 3).with_pool(max=2).with_gpu_pool(max=1)
    stage = Stage(job, a_tpu_node("tpu-0"), a_gpu_node("gpu-0")).train()
    stage.edit(pools=stage.job["spec"]["pools"][:1])
    stage.step()
    assert stage.states() == {"v5p-0": "Training", "h100-0": "Draining"}
    stage.kubelets_finish_deletions()
    stage.settle()
    assert stage.states() == {"v5p-0": "Training"}


def test_units_of_a_renamed_pool_start_while_the_old_ones_drain() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1), a_tpu_node("tpu-0"), a_tpu_node("tpu-1")).train()
    stage.edit(pools=[{**stage.job["spec"]["pools"][0], "name": "new"}])
    stage.step()
    assert stage.states() == {"v5p-0": "Draining", "new-0": "Starting"}


@pytest.mark.slow
def test_changed_template_replaces_units_one_after_the_other() -> None:
    stage = trained(3)
    pool = stage.job["spec"]["pools"][0]
    stage.edit(pools=[{**pool, "template": template(terminationGracePeriodSeconds=45)}])
    order = []
    for _ in range(3):
        stage.settle()
        draining = [name for name, state in stage.states().items() if state == "Draining"]
        order += draining
        assert len(draining) == 1
        stage.kubelets_finish_deletions()
        stage.settle()
        assert "Draining" not in stage.states().values()  # the next waits until this one contributes again
        stage.kubelets_start()
        stage.all_contribute()
    stage.settle()
    assert order == ["v5p-0", "v5p-1", "v5p-2"]
    assert stage.learner_pods() == [f"bytes-lm-v5p-{i}-a2-0" for i in range(3)]
    assert all(unit["restarts"] == 0 for unit in stage.status["units"])


def test_changed_template_replaces_units_that_do_not_contribute_at_once() -> None:
    stage = Stage(a_job().with_learners(1, 2).with_pool(max=2), a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    stage.settle()
    pool = stage.job["spec"]["pools"][0]
    stage.edit(pools=[{**pool, "template": template(terminationGracePeriodSeconds=45)}])
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a2-0", "bytes-lm-v5p-1-a2-0"]


def test_suspend_drains_learners_then_the_syncer_and_frees_every_slice() -> None:
    stage = trained(2)
    stage.edit(suspend=True)
    assert {d.name for d in stage.step().deletes} == {"bytes-lm-v5p-0-a1-0", "bytes-lm-v5p-1-a1-0"}
    assert stage.condition("Suspended")["reason"] == "Suspending"
    stage.kubelets_finish_deletions()
    assert [d.name for d in stage.step().deletes] == ["bytes-lm-syncer"]
    stage.kubelets_finish_deletions()
    stage.settle()
    assert stage.true() == {"Accepted", "Suspended"}
    assert stage.pods == {}
    assert stage.plans[-1].reservations.nodes == frozenset()
    assert set(stage.states().values()) == {"Pending"}
    assert set(stage.children) == {"ConfigMap", "Service", "PersistentVolumeClaim"}
    assert set(stage.secrets) == {"bytes-lm-ca", "bytes-lm-syncer-tls", "bytes-lm-learners-v5p-0"}


@pytest.mark.slow
def test_resume_goes_on_with_higher_attempts() -> None:
    stage = trained(2)
    stage.edit(suspend=True)
    for _ in range(3):
        stage.settle()
        stage.kubelets_finish_deletions()
    stage.edit(suspend=False)
    stage.settle()
    stage.kubelets_start()
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a2-0", "bytes-lm-v5p-1-a2-0"]
    assert "Suspended" not in stage.true()


def test_job_that_is_created_suspended_makes_nothing() -> None:
    stage = Stage(a_job().with_pool().with_spec(suspend=True), a_tpu_node("tpu-0"))
    stage.settle()
    assert stage.pods == {}
    assert stage.true() == {"Accepted", "Suspended"}


def test_growth_keeps_to_the_slices_that_units_have() -> None:
    stage = trained(2)
    before = {unit["name"]: unit["slice"] for unit in stage.status["units"]}
    stage.set_node(a_tpu_node("a-better-one"))
    stage.scale(max=4)
    stage.settle()
    after = {unit["name"]: unit["slice"] for unit in stage.status["units"]}
    assert before.items() <= after.items()


def on_two_pools() -> Stage:
    job = a_job().with_learners(1, 4).with_pool(max=2).with_gpu_pool(max=2)
    nodes = (a_tpu_node("tpu-0"), a_tpu_node("tpu-1"), a_gpu_node("gpu-0"), a_gpu_node("gpu-1"))
    return Stage(job, *nodes).train()


def switch(stage: Stage, pool: int, max: int) -> None:
    """Set learners.max of one pool."""
    pools = list(stage.job["spec"]["pools"])
    pools[pool] = {**pools[pool], "learners": {"min": 0, "max": max}}
    stage.edit(pools=pools)


def test_pool_that_is_switched_off_drains_and_returns_with_its_maximum() -> None:
    stage = on_two_pools()
    switch(stage, 1, 0)
    plan = stage.step()
    assert {delete.name for delete in plan.deletes} == {"bytes-lm-h100-0-a1-0", "bytes-lm-h100-1-a1-0"}
    unit = stage.unit("h100-0")
    assert (unit["state"], unit["reason"], unit["message"]) == (
        "Draining",
        "ScaledDown",
        "pool h100 is switched off: its learners.max is 0",
    )
    stage.kubelets_finish_deletions()
    stage.all_contribute()
    stage.settle()
    [_, pool] = stage.status["pools"]
    assert (pool["placed"], pool["reason"], pool["message"]) == (0, "SwitchedOff", "pool h100 is switched off: its learners.max is 0")
    assert stage.plans[-1].reservations.nodes == {"tpu-0", "tpu-1"}
    assert stage.status["learners"] == {"desired": 2, "placed": 2, "contributing": 2, "min": 1, "max": 4}
    assert stage.condition("Placed")["reason"] == "AllPlaced"
    switch(stage, 1, 1)
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-h100-0-a2-0", "bytes-lm-v5p-0-a1-0", "bytes-lm-v5p-1-a1-0"]
    assert [unit["restarts"] for unit in stage.status["units"]] == [0, 0, 0, 0]


@pytest.mark.slow
def test_units_given_up_in_a_pool_that_is_switched_off_take_no_room_from_other_pools() -> None:
    stage = on_two_pools()
    for attempt in (1, 2, 3):
        stage.learner_exits("h100-0", attempt, 68)  # for which no host is to blame
        stage.settle()
        stage.kubelets_start()
        stage.settle()
    assert stage.states()["h100-0"] == "Failed"
    switch(stage, 1, 0)
    stage.step()
    stage.kubelets_finish_deletions()
    stage.settle()
    assert stage.status["learners"]["desired"] == 2  # those of the other pool


def test_job_short_of_slices_says_which_pool_is_switched_off() -> None:
    job = a_job().with_learners(2, 4).with_pool(max=2).with_gpu_pool(max=0)
    stage = Stage(job, a_tpu_node("tpu-0"), a_gpu_node("gpu-0"))
    stage.settle()
    placed = stage.condition("Placed")
    assert (placed["status"], placed["reason"]) == ("False", "InsufficientCapacity")
    assert "pool h100 is switched off: its learners.max is 0" in placed["message"]


def test_job_whose_other_pools_failed_waits_while_a_pool_is_switched_off() -> None:
    job = a_job().with_learners(1, 2).with_restarts(0).with_pool(max=1).with_gpu_pool(max=0)
    stage = Stage(job, a_tpu_node("tpu-0"), a_gpu_node("gpu-0")).train()
    stage.learner_exits("v5p-0", 1, 1)
    stage.settle()
    assert stage.states() == {"v5p-0": "Failed"}
    assert "Failed" not in stage.true()
    switch(stage, 1, 1)
    stage.settle()
    stage.kubelets_start()
    stage.all_contribute()
    stage.settle()
    assert stage.states() == {"v5p-0": "Failed", "h100-0": "Training"}


def test_a_pools_minimum_that_is_not_met_is_shown_though_that_of_the_job_is() -> None:
    job = a_job().with_learners(1, 2).with_pool("a", min=1, max=1).with_gpu_pool("b", min=1, max=1)
    stage = Stage(job, a_tpu_node("tpu-0")).train()
    assert stage.states() == {"a-0": "Training", "b-0": "Pending"}
