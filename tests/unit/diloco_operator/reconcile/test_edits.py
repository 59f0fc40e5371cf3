"""A job that is edited while something else is under way: units that drain, start or wait."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from builders.jobs import a_job, gpu_pool, template
from builders.nodes import a_gpu_node, a_tpu_node, a_tpu_slice
from builders.stage import Stage
from diloco_operator.api.job import load
from diloco_operator.reconcile import reservations
from diloco_operator.reconcile.observe.template_hash import learner_hash, syncer_hash
from diloco_operator.report import UnitPhase


def trained(count: int) -> Stage:
    job = a_job().with_learners(1, count).with_pool(max=8)
    return Stage(job, *(a_tpu_node(f"tpu-{i}") for i in range(4))).train()


def until_all_train(stage: Stage) -> None:
    """Kubelets and syncer do their part until nothing is left to do."""
    for _ in range(6):
        stage.kubelets_finish_deletions()
        stage.settle()
        stage.kubelets_start()
        stage.all_contribute()
        stage.settle()


def counted(stage: Stage) -> list[tuple[str, int, int]]:
    """(unit, restarts, failures): nothing that the user did himself counts."""
    return [(unit["name"], unit["restarts"], len(unit["failures"])) for unit in stage.status["units"]]


def new_template(stage: Stage, **spec: Any) -> None:
    stage.edit(pools=[{**stage.job["spec"]["pools"][0], "template": template(**spec)}])


@pytest.mark.slow
def test_template_changed_while_a_unit_drains_is_what_it_comes_back_with() -> None:
    stage = trained(2)
    stage.scale(max=1)
    stage.step()
    assert stage.states()["v5p-1"] == "Draining"
    new_template(stage, terminationGracePeriodSeconds=45)
    stage.scale(max=2)
    stage.settle()
    assert stage.pod("v5p-1", 1)["spec"]["terminationGracePeriodSeconds"] != 45  # the pod that drains is as it was
    until_all_train(stage)
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "Training"}
    assert {pod["spec"]["terminationGracePeriodSeconds"] for name, pod in stage.pods.items() if name in stage.learner_pods()} == {45}
    assert counted(stage) == [("v5p-0", 0, 0), ("v5p-1", 0, 0)]


def two_pools() -> Stage:
    job = a_job().with_learners(1, 2).with_restarts(0).with_pool(max=1).with_gpu_pool(max=1)
    return Stage(job, a_tpu_node("tpu-0"), a_gpu_node("gpu-0")).train()


def test_template_changes_beside_a_unit_that_was_given_up() -> None:
    stage = two_pools()
    stage.learner_exits("h100-0", 1, 1)
    stage.settle()
    first, second = stage.job["spec"]["pools"]
    stage.edit(pools=[{**first, "template": template(terminationGracePeriodSeconds=45)}, second])
    stage.settle()
    assert stage.states() == {"v5p-0": "Draining", "h100-0": "Failed"}


def test_template_changes_beside_a_unit_without_hardware() -> None:
    stage = two_pools()
    stage.lose_node("gpu-0")
    stage.settle()
    first, second = stage.job["spec"]["pools"]
    stage.edit(pools=[{**first, "template": template(terminationGracePeriodSeconds=45)}, second])
    stage.settle()
    assert stage.states() == {"v5p-0": "Draining", "h100-0": "Pending"}
    assert stage.unit("h100-0")["slice"] == ""


def test_unit_of_two_attempts_on_a_shared_host_holds_the_larger_part() -> None:
    small = template()
    small["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    pool = gpu_pool(acceleratorsPerHost=2, max=1, template=small)
    stage = Stage(a_job().with_learners(1, 1).with_pools(pool), a_gpu_node("gpu-0")).train()
    new = copy.deepcopy(stage.pod("h100-0", 1))
    new["metadata"].update(name="bytes-lm-h100-0-a2-0", uid="new", labels={**new["metadata"]["labels"], "diloco.dev/attempt": "2"})
    stage.pods["bytes-lm-h100-0-a2-0"] = new
    stage.pod("h100-0", 1)["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "8"  # it was made from another template
    observed = stage.observed()
    for pods in (observed.pods, observed.pods[::-1]):
        shared = reservations(observed.job, pods, stage.inventory).shared
        assert {key: part.cpu for key, part in shared.items()} == {("gpu-0", "h100-0"): 8000}


def classes(stage: Stage) -> dict[str, str]:
    return {name.removeprefix("bytes-lm-"): pod["spec"].get("priorityClassName", "") for name, pod in stage.pods.items()}


@pytest.mark.slow
def test_another_priority_class_restarts_nothing_and_new_pods_get_it() -> None:
    stage = trained(1)
    for name in ("low", "high"):
        stage.edit(priorityClassName=name)
        stage.settle()
        assert classes(stage) == {"syncer": "", "v5p-0-a1-0": ""}
    stage.learner_exits("v5p-0", 1, 1)
    stage.settle()
    stage.advance(60)
    until_all_train(stage)
    assert classes(stage) == {"syncer": "", "v5p-0-a1-0": "", "v5p-0-a2-0": "high"}


def test_pods_of_an_operator_that_counted_the_priority_class_in_their_hash_stay() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1).with_spec(priorityClassName="low"), a_tpu_node("tpu-0")).train()
    spec = load(stage.job).spec
    before = {"v5p-0": learner_hash(spec.pools[0], "low"), "": syncer_hash(spec, "low")}
    for pod in stage.pods.values():
        pod["metadata"]["annotations"]["diloco.dev/template-hash"] = before[pod["metadata"]["labels"].get("diloco.dev/unit", "")]
    stage.unit("v5p-0")["templateHash"] = before["v5p-0"]
    stage.restart_operator()
    stage.all_contribute()
    assert stage.step().empty
    new_template(stage, terminationGracePeriodSeconds=45)
    stage.settle()
    assert stage.states() == {"v5p-0": "Draining"}


@pytest.mark.slow
def test_pool_that_returns_with_other_hardware_while_its_unit_drains_waits_for_the_old_pods() -> None:
    job = a_job().with_learners(1, 2).with_pool(max=1).with_pool("extra", max=1)
    stage = Stage(job, a_tpu_node("tpu-0"), a_tpu_node("tpu-1"), a_gpu_node("gpu-0")).train()
    keep, extra = stage.job["spec"]["pools"]
    stage.edit(pools=[keep])
    stage.step()
    assert stage.states()["extra-0"] == "Draining"
    other = {key: value for key, value in extra.items() if key != "topology"} | {"accelerator": "nvidia-h100-80gb"}
    stage.edit(pools=[keep, other])
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-extra-0-a1-0", "bytes-lm-v5p-0-a1-0"]
    assert stage.plans[-1].reservations.nodes >= {"tpu-0", "tpu-1"}  # an old pod's node is for no other unit
    until_all_train(stage)
    assert stage.learner_pods() == ["bytes-lm-extra-0-a2-0", "bytes-lm-v5p-0-a1-0"]
    assert stage.pod("extra-0", 2)["metadata"]["annotations"]["diloco.dev/node"] == "gpu-0"
    assert stage.plans[-1].reservations.nodes == {stage.pod("v5p-0", 1)["metadata"]["annotations"]["diloco.dev/node"], "gpu-0"}


@pytest.mark.slow
def test_spec_that_becomes_invalid_while_a_unit_drains_loses_nothing() -> None:
    stage = trained(2)
    stage.scale(max=1)
    stage.step()
    good = stage.job["spec"]["pools"]
    new_template(stage, nodeName="mine")
    stage.settle()
    accepted = stage.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    assert "nodeName" in accepted["message"]
    stage.kubelets_finish_deletions()
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a1-0"]  # what trains goes on
    stage.edit(pools=good)
    stage.scale(max=2)
    until_all_train(stage)
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a1-0", "bytes-lm-v5p-1-a2-0"]
    assert counted(stage) == [("v5p-0", 0, 0), ("v5p-1", 0, 0)]


@pytest.mark.slow
@pytest.mark.parametrize("run", [False, True], ids=["scheduling", "joining"])
def test_suspend_while_units_start_frees_every_slice_and_counts_no_failure(run: bool) -> None:
    stage = Stage(a_job().with_learners(1, 2).with_pool(max=2), a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    stage.settle()
    if run:
        stage.kubelets_start()
        stage.settle()
    assert set(stage.states().values()) == {"Joining" if run else "Starting"}
    stage.edit(suspend=True)
    for _ in range(3):
        stage.settle()
        stage.kubelets_finish_deletions()
    stage.settle()
    assert stage.pods == {}
    assert stage.plans[-1].reservations.nodes == frozenset()
    assert "Suspended" in stage.true()
    assert counted(stage) == [("v5p-0", 0, 0), ("v5p-1", 0, 0)]
    stage.edit(suspend=False)
    until_all_train(stage)
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "Training"}


@pytest.mark.slow
def test_resume_while_units_drain_starts_each_when_its_own_pods_have_gone() -> None:
    stage = trained(2)
    stage.edit(suspend=True)
    stage.step()
    assert set(stage.states().values()) == {"Draining"}
    stage.edit(suspend=False)
    stage.settle()
    assert "Suspended" not in stage.true()
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a1-0", "bytes-lm-v5p-1-a1-0"]  # none beside one that still ends
    assert "deletionTimestamp" not in stage.syncer["metadata"]
    del stage.pods["bytes-lm-v5p-0-a1-0"]
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a2-0", "bytes-lm-v5p-1-a1-0"]
    until_all_train(stage)
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a2-0", "bytes-lm-v5p-1-a2-0"]
    assert counted(stage) == [("v5p-0", 0, 0), ("v5p-1", 0, 0)]


def two_that_are_needed() -> Stage:
    return Stage(a_job().with_learners(2, 2).with_pool(max=2), a_tpu_node("tpu-0"), a_tpu_node("tpu-1")).train()


def told(stage: Stage) -> list[str]:
    """The Warnings of all plans since the last time they were forgotten."""
    return [event.message for plan in stage.plans for event in plan.events if event.type == "Warning"]


def test_resumed_job_is_not_degraded_because_some_of_its_learners_join_before_others() -> None:
    stage = two_that_are_needed()
    stage.edit(suspend=True)
    for _ in range(3):
        stage.settle()
        stage.kubelets_finish_deletions()
    assert stage.status["state"] == "Suspended"
    stage.plans.clear()
    stage.edit(suspend=False)
    for _ in range(2):  # the syncer, then the learners
        stage.settle()
        stage.kubelets_start()
    stage.syncer_says("v5p-0", 2, UnitPhase.CONTRIBUTING)
    stage.syncer_says("v5p-1", 2, UnitPhase.JOINING, tokens=4000)  # what it trained before stands in the syncer's snapshot
    stage.settle()
    assert stage.condition("Degraded")["reason"] == "LearnersStarting"
    assert (stage.status["state"], stage.status["reason"]) == ("Training", "QuorumContributing")
    assert told(stage) == []
    stage.syncer_says("v5p-1", 2, UnitPhase.DISCONNECTED)  # it was there, and is missed
    stage.settle()
    assert (stage.status["state"], stage.status["reason"]) == ("Degraded", "LearnersMissing")


def test_job_that_is_resumed_while_its_units_still_drain_is_not_degraded() -> None:
    stage = two_that_are_needed()
    stage.edit(suspend=True)
    stage.step()
    assert set(stage.states().values()) == {"Draining"}
    for name in stage.states():
        stage.syncer_says(name, 1, UnitPhase.DISCONNECTED)
    stage.plans.clear()
    stage.edit(suspend=False)
    stage.settle()
    assert set(stage.states().values()) == {"Draining"}
    assert (stage.status["state"], stage.status["reason"]) == ("Starting", "QuorumMissing")
    assert stage.condition("Degraded")["reason"] == "LearnersStarting"
    until_all_train(stage)
    assert told(stage) == []


@pytest.mark.slow
def test_resume_while_the_syncer_ends_waits_for_it() -> None:
    stage = trained(1)
    stage.edit(suspend=True)
    stage.step()
    stage.kubelets_finish_deletions()
    stage.step()
    assert "deletionTimestamp" in stage.syncer["metadata"]
    stage.edit(suspend=False)
    stage.settle()
    assert "deletionTimestamp" in stage.syncer["metadata"]  # its name is taken until it has gone
    until_all_train(stage)
    assert stage.states() == {"v5p-0": "Training"}
    assert counted(stage) == [("v5p-0", 0, 0)]


def on(stage: Stage, unit: str, attempt: int) -> str:
    node: str = stage.pod(unit, attempt)["metadata"]["annotations"]["diloco.dev/node"]
    return node


@pytest.mark.slow
def test_unit_leaves_a_slice_that_its_pools_new_topology_does_not_fit() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1), a_tpu_node("tpu-0"), *a_tpu_slice("np-big", 2)).train()
    assert on(stage, "v5p-0", 1) == "tpu-0"
    stage.edit(pools=[{**stage.job["spec"]["pools"][0], "topology": "2x2x2"}])
    until_all_train(stage)
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a2-0", "bytes-lm-v5p-0-a2-1"]
    assert "tpu-0" not in stage.plans[-1].reservations.nodes
    assert stage.unit("v5p-0")["slice"] == "np-big"


@pytest.mark.slow
def test_unit_leaves_a_node_that_its_templates_new_selector_does_not_choose() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1), a_tpu_node("tpu-0"), a_tpu_node("tpu-1", labels={"disk": "fast"})).train()
    assert on(stage, "v5p-0", 1) == "tpu-0"
    new_template(stage, nodeSelector={"disk": "fast"})
    until_all_train(stage)
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a2-0"]
    assert on(stage, "v5p-0", 2) == "tpu-1"


def test_unit_whose_new_shape_the_fleet_lacks_trains_on_and_says_so() -> None:
    stage = trained(1)
    before = stage.unit("v5p-0")["slice"]
    stage.edit(pools=[{**stage.job["spec"]["pools"][0], "topology": "2x2x2"}])
    until_all_train(stage)
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["attempt"], unit["slice"]) == ("Training", 1, before)
    assert "no slice of tpu-v5p 2x2x2" in stage.condition("Degraded")["message"]
    assert stage.plans[-1].reservations.nodes == {before}
    assert counted(stage) == [("v5p-0", 0, 0)]


def test_unit_that_waits_on_hosts_of_two_zones_leaves_them_when_the_pool_wants_one_zone() -> None:
    hosts = [a_gpu_node(name, labels={"topology.kubernetes.io/zone": zone}) for name, zone in (("a", "z1"), ("b", "z2"))]
    job = a_job().with_learners(1, 1).with_restarts(2, initial="30s").with_gpu_pool(hosts=2, max=1, locality="Any")
    stage = Stage(job, *hosts).train()
    stage.failed_before("h100-0")
    stage.learner_exits("h100-0", 1, 1)
    stage.settle()
    assert (stage.states(), stage.unit("h100-0")["slice"]) == ({"h100-0": "BackingOff"}, "a+b")
    stage.edit(pools=[{**stage.job["spec"]["pools"][0], "locality": "Zone"}])
    stage.settle()
    assert stage.unit("h100-0")["slice"] == ""
    assert "in one zone" in stage.status["pools"][0]["message"]
