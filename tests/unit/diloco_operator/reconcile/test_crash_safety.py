"""An operator may die between any two of its writes; the next one reaches the same end."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from builders.jobs import a_job
from builders.nodes import a_tpu_node, a_tpu_slice
from builders.stage import Stage
from diloco_operator.api import names
from diloco_operator.reconcile import reservations


def trained() -> Stage:
    job = a_job().with_learners(2, 2).with_restarts(3).with_pool(max=2, topology="2x2x2")
    return Stage(job, *a_tpu_slice("np-0", 2), *a_tpu_slice("np-1", 2)).train()


def recover(stage: Stage) -> Stage:
    stage.restart_operator()
    for _ in range(3):
        stage.settle()
        stage.kubelets_finish_deletions()
        stage.kubelets_start()
    stage.all_contribute()
    stage.settle()
    return stage


@pytest.mark.slow
@pytest.mark.parametrize("writes", range(8))
def test_failure_is_counted_once_wherever_the_operator_dies(writes: int) -> None:
    stage = trained()
    for host in (0, 1):
        stage.learner_exits("v5p-1", 1, 1, host=host)
    stage.step(crash_after=writes)
    recover(stage)
    unit = stage.unit("v5p-1")
    assert (unit["state"], unit["attempt"], unit["restarts"], len(unit["failures"])) == ("Training", 2, 1, 1)
    # Those of the attempt that failed stay for their logs.
    assert stage.learner_pods() == [f"bytes-lm-v5p-{u}-a{a}-{h}" for u, a in ((0, 1), (1, 1), (1, 2)) for h in (0, 1)]


@pytest.mark.parametrize("units", [1, 2])
def test_slice_of_an_attempt_that_status_does_not_know_is_reserved_before_the_pod_is_bound(units: int) -> None:
    nodes = [a_tpu_node(f"tpu-{index}") for index in range(units + 1)]
    stage = Stage(a_job().with_learners(1, units).with_pool(max=units), *nodes).train()
    lost = stage.unit("v5p-0")["slice"]
    stage.lose_node(lost)
    plan = stage.reconcile_only()
    [successor] = [create.obj for create in plan.creates if create.resource == names.PODS]
    stage.step(crash_after=len(plan.patches) + len(plan.certificates) + len(plan.creates))
    assert successor["metadata"]["name"] in stage.pods
    assert stage.unit("v5p-0")["attempt"] == 1, "the operator died before it wrote status"
    stage.restart_operator()
    observed = stage.observed()
    node = successor["metadata"]["annotations"][names.ANNOTATION_NODE]
    assert node in reservations(observed.job, observed.pods, observed.fleet).nodes


def of_the_earlier_operator(stage: Stage) -> dict[str, dict[str, Any]]:
    """The pods and lists of hosts, by the names that they had before a pool with a dash in its name had marked ones."""
    mark = names.learner_pod_name("bytes-lm", "v2-v5p-0", 1, 0).removeprefix("bytes-lm-").removesuffix("-v2-v5p-0-a1-0")
    for held in (stage.pods, stage.host_lists):
        for name in list(held):
            obj = held.pop(name)
            obj["metadata"]["name"] = name.replace(f"-{mark}-", "-")
            held[obj["metadata"]["name"]] = obj
    return stage.pods


@pytest.mark.parametrize("runs", [False, True])
def test_pods_keep_the_names_that_an_earlier_operator_gave_them(runs: bool) -> None:
    stage = Stage(a_job().with_learners(1, 1).with_pool("v2-v5p", max=1, topology="2x2x2"), *a_tpu_slice("np-0", 2))
    stage.settle()
    if runs:
        stage.train()
    pods = of_the_earlier_operator(stage)
    recover(stage)
    assert list(pods) == ["bytes-lm-syncer", "bytes-lm-v2-v5p-0-a1-0", "bytes-lm-v2-v5p-0-a1-1"]
    assert "bytes-lm-v2-v5p-0-a1-hosts-2" in stage.host_lists
    unit = stage.unit("v2-v5p-0")
    assert (unit["state"], unit["attempt"], unit["restarts"]) == ("Training", 1, 0)


def test_attempt_of_which_an_earlier_operator_made_some_pods_gets_only_the_others() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_pool("v2-v5p", max=1, topology="2x2x2"), *a_tpu_slice("np-0", 2))
    stage.settle()
    pods = of_the_earlier_operator(stage)
    del pods["bytes-lm-v2-v5p-0-a1-1"]
    stage.job["status"] = {}
    stage.restart_operator()
    stage.settle()
    hosts = [pod["metadata"]["labels"][names.LABEL_HOST] for name, pod in pods.items() if name in stage.learner_pods()]
    assert (sorted(hosts), stage.unit("v2-v5p-0")["attempt"]) == (["0", "1"], 1)


def test_record_of_an_end_that_pods_still_show_may_wait() -> None:
    stage = trained()
    for host in (0, 1):
        stage.learner_exits("v5p-1", 1, 1, host=host)
    plan = stage.reconcile_only()
    assert plan.status is not None
    assert plan.status.may_wait


@pytest.mark.slow
def test_record_of_an_end_that_nothing_else_shows_does_not_wait() -> None:
    one_host_runs = trained()
    one_host_runs.learner_exits("v5p-1", 1, 1, host=0)  # a successor beside it would make it look as if it had only been replaced
    its_pods_are_gone = trained()
    for host in (0, 1):
        del its_pods_are_gone.pods[f"bytes-lm-v5p-1-a1-{host}"]
    it_is_over = trained()
    it_is_over.learner_exits("v5p-1", 1, 1)
    it_is_over.edit(suspend=True)
    for stage in (one_host_runs, its_pods_are_gone, it_is_over):
        plan = stage.reconcile_only()
        assert plan.status is not None
        assert not plan.status.may_wait


@pytest.mark.parametrize("writes", range(12))
def test_start_is_finished_wherever_the_operator_dies(writes: int) -> None:
    job = a_job().with_learners(2, 2).with_pool(max=2, topology="2x2x2")
    stage = Stage(job, *a_tpu_slice("np-0", 2), *a_tpu_slice("np-1", 2))
    left = writes
    while left >= 0:
        plan = stage.reconcile_only()
        count = len(plan.creates) + (plan.status is not None) + len(plan.deletes)
        stage.step(crash_after=min(left, count))
        left -= max(count, 1)
    recover(stage)
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "Training"}
    assert stage.learner_pods() == [f"bytes-lm-v5p-{u}-a1-{h}" for u in (0, 1) for h in (0, 1)]
    assert all(unit["restarts"] == 0 for unit in stage.status["units"])


def test_record_of_a_start_whose_pods_never_came_is_no_failure() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    stage.settle()
    del stage.pods["bytes-lm-v5p-0-a1-0"]
    stage.settle()
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["restarts"], unit["failures"]) == ("Starting", 0, [])
    assert len(stage.learner_pods()) == 1


def test_lost_status_is_rebuilt_from_the_pods() -> None:
    stage = trained()
    stage.job["status"] = {}
    recover(stage)
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "Training"}
    assert {unit["slice"] for unit in stage.status["units"]} == {"np-0", "np-1"}
    assert all(unit["attempt"] == 1 for unit in stage.status["units"])


def test_pods_newer_than_the_record_are_adopted_and_their_predecessor_accounted() -> None:
    stage = trained()
    stage.learner_exits("v5p-1", 1, 1, host=0)
    stage.learner_exits("v5p-1", 1, 1, host=1)
    plan = stage.reconcile_only()
    stage.step(crash_after=len(plan.certificates) + len(plan.creates))  # pods are made, status is not written
    stage.restart_operator()
    plan = stage.step()
    assert plan.creates == ()
    unit = stage.unit("v5p-1")
    assert (unit["attempt"], unit["endedAttempt"], len(unit["failures"]), unit["state"]) == (2, 1, 1, "Starting")


@pytest.mark.slow
def test_same_state_gives_the_same_plan() -> None:
    stage = trained()
    stage.learner_exits("v5p-1", 1, 1)
    assert stage.reconcile_only() == stage.reconcile_only()


@pytest.mark.slow
def test_reconcile_changes_none_of_its_arguments() -> None:
    stage = trained()
    stage.learner_exits("v5p-1", 1, 1)
    before = copy.deepcopy((stage.job, stage.pods, stage.children))
    stage.reconcile_only()
    assert (stage.job, stage.pods, stage.children) == before


def test_restarted_operator_knows_what_its_jobs_hold() -> None:
    stage = trained()
    held = stage.plans[-1].reservations.nodes
    stage.restart_operator()
    assert stage.inventory.reservations(stage.observed().job.key) == held == {"np-0-0", "np-0-1", "np-1-0", "np-1-1"}


def test_pods_of_a_job_that_is_gone_still_hold_their_hosts() -> None:
    stage = trained()
    observed = stage.observed()
    stage.job["status"] = {}
    assert reservations(stage.observed().job, observed.pods, stage.inventory).nodes == {"np-0-0", "np-0-1", "np-1-0", "np-1-1"}


def test_shared_objects_are_made_again_while_one_is_left_though_no_unit_needs_them() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0")).train()
    stage.lose_node("tpu-0")
    stage.settle()
    for name in [name for name in stage.pods if name != stage.syncer["metadata"]["name"]]:
        del stage.pods[name]
    stage.settle()
    assert not any(unit["slice"] for unit in stage.status["units"])
    stage.children.clear()
    stage.secrets.clear()
    assert "ConfigMap" in {create.resource.kind for create in stage.step().creates}
