"""The ConfigMap with the hosts of an attempt: made before its pods, gone with the attempt. And the annotation of large groups."""

from __future__ import annotations

from typing import Any

import pytest
from builders.jobs import a_job
from builders.nodes import a_node, a_tpu_slice
from builders.stage import Stage
from diloco_operator.plan import Create

LIST = "bytes-lm-v5p-0-a1-hosts-2"


def two_hosts() -> Stage:
    return Stage(a_job().with_restarts(3).with_pool(max=1, topology="2x2x2"), *a_tpu_slice("np-0", 2))


def wave_of(creates: tuple[Create, ...], name: str) -> int:
    return next(create.wave for create in creates if create.obj["metadata"]["name"] == name)


def test_list_is_made_before_the_pods_that_read_it_and_belongs_to_the_job() -> None:
    stage = two_hosts()
    stage.step()  # the syncer, and its volume claim
    plan = stage.step()
    assert wave_of(plan.creates, LIST) < wave_of(plan.creates, "bytes-lm-v5p-0-a1-0")
    made = stage.host_lists[LIST]
    [owner] = made["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"], made["immutable"]) == (stage.job["metadata"]["uid"], True, True)


def test_each_attempt_has_its_own_list_and_takes_it_along() -> None:
    stage = two_hosts().train()
    stage.learner_exits("v5p-0", 1, 1)
    plan = stage.step()
    assert LIST in {delete.name for delete in plan.deletes}  # after status records the end
    for _ in range(3):
        stage.settle()
        stage.kubelets_finish_deletions()
        stage.kubelets_start()
    assert list(stage.host_lists) == ["bytes-lm-v5p-0-a2-hosts-2"]


@pytest.mark.parametrize("change", [{"suspend": True}, {"pools": "another"}])
def test_list_goes_when_its_unit_has_left(change: dict[str, Any]) -> None:
    stage = two_hosts().train()
    if "pools" in change:
        change = {"pools": [{**stage.job["spec"]["pools"][0], "name": "other", "topology": "2x2x1"}]}
    stage.edit(**change)
    stage.step()
    assert list(stage.host_lists) == [LIST]  # the unit drains
    for _ in range(3):
        stage.settle()
        stage.kubelets_finish_deletions()
    stage.settle()
    assert stage.host_lists == {}


def test_lists_go_when_the_job_is_over() -> None:
    stage = two_hosts().train()
    stage.job["status"] = {**stage.status, "conditions": [{**stage.condition("Complete"), "status": "True"}]}
    stage.settle()
    assert stage.host_lists == {}


def test_list_that_somebody_deleted_is_made_again_while_pods_may_need_it() -> None:
    stage = two_hosts()
    stage.settle()
    assert stage.states() == {"v5p-0": "Starting"}
    del stage.host_lists[LIST]
    stage.settle()
    assert list(stage.host_lists) == [LIST]
    stage.kubelets_start()
    stage.all_contribute()
    stage.settle()
    del stage.host_lists[LIST]
    assert stage.step().empty  # a program reads its environment once


def test_list_of_another_owner_is_left_alone() -> None:
    stage = two_hosts().train()
    stage.host_lists["foreign"] = {
        "metadata": {"name": "foreign", "uid": "f", "labels": {"diloco.dev/job": "bytes-lm", "diloco.dev/unit": "v5p-7"}},
        "kind": "ConfigMap",
    }
    stage.settle()
    assert "foreign" in stage.host_lists


def test_operator_that_died_after_the_list_is_taken_over_also_when_the_pool_changed_meanwhile() -> None:
    stage = Stage(a_job().with_pool(max=1, topology="2x2x2"), *a_tpu_slice("np-0", 2), *a_tpu_slice("np-big", 4, topology="2x2x4"))
    stage.step()  # the objects of the job
    for name in stage.learner_pods():
        del stage.pods[name]
    stage.job["status"] = {}  # it died before it made the pods and wrote the status
    stage.edit(pools=[{**stage.job["spec"]["pools"][0], "topology": "2x2x4"}])
    stage.restart_operator()
    stage.settle()
    assert list(stage.host_lists) == ["bytes-lm-v5p-0-a1-hosts-4"]
    assert len(stage.learner_pods()) == 4


# --- large groups -------------------------------------------------------------------------------------------------------
HOSTS = 20


def a_group() -> Stage:
    """A unit on twenty hosts."""
    job = a_job().with_restarts(3).with_pool("cpu", accelerator="cpu", hosts=HOSTS, max=1)
    stage = Stage(job, *(a_node(f"host-{index}") for index in range(2 * HOSTS)))
    stage.settle()
    assert len(stage.learner_pods()) == HOSTS
    return stage


def pod_of(stage: Stage, host: int) -> dict[str, Any]:
    return stage.pod("cpu-0", 1, host)


def test_only_the_first_pods_of_a_group_name_all_of_its_hosts() -> None:
    stage = a_group()
    naming = [host for host in range(HOSTS) if "diloco.dev/slice" in pod_of(stage, host)["metadata"]["annotations"]]
    assert naming == list(range(16))
    assert stage.unit("cpu-0")["slice"].count("+") == HOSTS - 1


def forgets_the_unit(stage: Stage, *, without: range) -> None:
    """The operator died before it wrote the status, and before it made some of the pods."""
    stage.job["status"] = {}
    for host in without:
        del stage.pods[f"bytes-lm-cpu-0-a1-{host}"]
    stage.restart_operator()


def test_attempt_of_a_group_is_completed_by_the_next_operator() -> None:
    stage = a_group()
    slice_name = stage.unit("cpu-0")["slice"]
    forgets_the_unit(stage, without=range(3, 12))
    stage.settle()
    assert (stage.unit("cpu-0")["slice"], stage.unit("cpu-0")["attempt"]) == (slice_name, 1)
    assert len(stage.learner_pods()) == HOSTS


@pytest.mark.slow
def test_attempt_of_a_group_whose_naming_pods_were_never_made_is_created_again() -> None:
    stage = a_group()
    forgets_the_unit(stage, without=range(16))
    for _ in range(3):
        stage.settle()
        stage.kubelets_finish_deletions()
    stage.settle()
    unit = stage.unit("cpu-0")
    assert (unit["attempt"], unit["restarts"], unit["failures"]) == (2, 0, [])
    assert len([name for name in stage.learner_pods() if "-a2-" in name]) == HOSTS


def test_attempt_that_two_plans_made_on_two_groups_is_created_again() -> None:
    stage = a_group()
    slice_name = stage.unit("cpu-0")["slice"]
    other = next(name for name in stage.nodes if name.startswith("host-") and name not in slice_name.split("+"))
    pod_of(stage, 18)["metadata"]["annotations"]["diloco.dev/node"] = other
    stage.step()
    unit = stage.unit("cpu-0")
    assert (unit["endedAttempt"], unit["restarts"], unit["failures"]) == (1, 0, [])
    assert {delete.name for delete in stage.plans[-1].deletes} == {f"bytes-lm-cpu-0-a1-{host}" for host in range(HOSTS)}
