"""From a new job to training."""

from __future__ import annotations

import pytest
from builders.jobs import a_job
from builders.nodes import a_gpu_node, a_tpu_node
from builders.reports import a_report
from builders.stage import Stage
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.report import UnitPhase


def test_configuration_is_created_before_the_syncer_and_the_syncer_before_learners() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    stage.step()
    first, second = stage.plans[-1], stage.step()
    assert [(create.wave, create.resource.kind, create.obj["metadata"]["name"]) for create in first.creates] == [
        (0, "ConfigMap", "bytes-lm-job"),
        (0, "Service", "bytes-lm"),
        (0, "PersistentVolumeClaim", "bytes-lm-syncer"),
        (2, "Pod", "bytes-lm-syncer"),
    ]
    assert [(create.wave, create.obj["metadata"]["name"]) for create in second.creates] == [(3, "bytes-lm-v5p-0-a1-0")]
    assert stage.children["ConfigMap"]["immutable"], "kubelets need not watch it, and it does not change under a syncer"
    assert [(wanted.wave, wanted.obj["metadata"]["name"]) for wanted in first.certificates] == [
        (0, "bytes-lm-ca"),
        (1, "bytes-lm-syncer-tls"),
    ]
    assert [(wanted.wave, wanted.obj["metadata"]["name"]) for wanted in second.certificates] == [(3, "bytes-lm-learners-v5p-0")]


def test_a_settled_job_gets_an_empty_plan() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0")).train()
    assert stage.reconcile_only().empty


def said(stage: Stage) -> tuple[str, str]:
    unit = stage.unit("v5p-0")
    return unit["reason"], unit["message"]


def test_unit_goes_through_starting_joining_and_training() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    stage.settle()
    assert stage.states() == {"v5p-0": "Starting"}
    stage.kubelets_start()
    stage.settle()
    assert stage.states() == {"v5p-0": "Joining"}
    assert said(stage) == ("WaitingForSyncer", "its pods run, and no report of the syncer says more")
    stage.report = a_report(at=stage.now)
    stage.step()
    assert said(stage) == ("WaitingForSyncer", "its program starts (imports, builds its model) and has not joined yet")
    stage.syncer_says("v5p-0", 1, UnitPhase.JOINING)
    stage.step()
    assert said(stage) == ("TakingParameters", "connected, takes the current parameters")
    stage.syncer_says("v5p-0", 1, UnitPhase.JOINING, holds_parameters=True)
    stage.step()
    assert said(stage) == ("FirstStep", "has the parameters; its program compiles, or runs its first step")
    stage.syncer_says("v5p-0", 1, UnitPhase.DISCONNECTED, holds_parameters=True)
    stage.step()
    assert said(stage) == ("WaitingForSyncer", "is not connected to the syncer: its program starts, or reconnects after a loss")
    # The same process is back with another syncer, whose parameters it takes.
    stage.syncer_says("v5p-0", 1, UnitPhase.JOINING, holds_parameters=True, local_step=7)
    stage.step()
    assert said(stage)[0] == "TakingParameters"
    stage.syncer_says("v5p-0", 1, UnitPhase.CONTRIBUTING)
    stage.step()
    assert stage.states() == {"v5p-0": "Training"}


def test_only_the_syncer_makes_a_unit_training_not_a_running_pod() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    stage.settle()
    stage.kubelets_start()
    stage.settle()
    stage.syncer_says("v5p-0", 7, UnitPhase.CONTRIBUTING)  # another attempt
    stage.step()
    assert stage.states() == {"v5p-0": "Joining"}


def test_units_start_on_every_kind_of_hardware_up_to_the_maximum() -> None:
    job = a_job().with_learners(1, 3).with_pool(max=2).with_gpu_pool(max=4)
    stage = Stage(job, a_tpu_node("tpu-0"), a_tpu_node("tpu-1"), a_gpu_node("gpu-0"), a_gpu_node("gpu-1")).train()
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "Training", "h100-0": "Training"}
    assert stage.status["learners"] == {"desired": 3, "placed": 3, "contributing": 3, "min": 1, "max": 3}


def test_job_starts_with_what_there_is_and_names_who_is_missing() -> None:
    stage = Stage(a_job().with_learners(2, 4).with_pool(min=2, max=4), a_tpu_node("tpu-0"))
    stage.settle()
    assert stage.states() == {"v5p-0": "Starting", "v5p-1": "Pending"}
    missing = stage.unit("v5p-1")
    assert missing["reason"] == "NoCapacity"
    assert missing["message"] == "waits for a slice; the message of pool v5p says why"
    [pool] = stage.status["pools"]
    assert pool["message"] == "pool v5p needs 3 more slices of tpu-v5p 2x2x1; the fleet has 1: 1 of this job"
    assert pool["remedies"] == ["more nodes", "an autoscaler, which provisioning.mode of the pool asks"]


def test_new_hardware_is_taken_as_soon_as_it_is_there() -> None:
    stage = Stage(a_job().with_learners(2, 4).with_pool(max=4), a_tpu_node("tpu-0")).train()
    stage.set_node(a_tpu_node("tpu-1"))
    stage.settle()
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "Starting"}


def test_a_job_with_unplaced_units_is_reconciled_again_soon() -> None:
    stage = Stage(a_job().with_learners(2, 4).with_pool(max=4), a_tpu_node("tpu-0"))
    stage.settle()
    assert (stage.reconcile_only().requeue_after or 0) <= stage.config.placement_retry + 0.001


def test_plan_has_the_nodes_that_the_job_reserves() -> None:
    stage = Stage(a_job().with_learners(1, 2).with_pool(max=4), a_tpu_node("tpu-0"), a_tpu_node("tpu-1"), a_tpu_node("tpu-2"))
    stage.settle()
    assert stage.plans[-1].reservations.nodes == {"tpu-0", "tpu-1"}


def test_slices_that_another_job_holds_are_left_alone() -> None:
    stage = Stage(a_job().with_pool(max=4), a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    stage.inventory.set_reservations("team/other/uid", {"tpu-0"})
    stage.settle()
    assert [stage.unit(u)["slice"] for u in stage.states()] == ["tpu-1"]
    assert "1 held by job team/other" in stage.status["pools"][0]["message"]


def test_job_of_another_manager_is_left_alone() -> None:
    plan = Stage(a_job().with_pool().with_spec(managedBy="kueue.x-k8s.io/multikueue"), a_tpu_node("tpu-0")).reconcile_only()
    assert plan.empty
    assert plan.requeue_after is None


def test_job_that_is_being_deleted_gets_no_new_pods() -> None:
    stage = Stage(a_job().with_pool(max=2), a_tpu_node("tpu-0")).train()
    stage.job["metadata"]["deletionTimestamp"] = "2026-11-20T12:00:01Z"
    del stage.pods["bytes-lm-v5p-0-a1-0"]
    assert stage.reconcile_only().empty


def test_deleted_job_that_a_finalizer_keeps_gives_its_hardware_back() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0")).train()
    stage.job["metadata"] |= {"deletionTimestamp": "2026-11-20T12:00:01Z", "finalizers": ["example.com/archive"]}
    stage.step()
    assert {name for name, pod in stage.pods.items() if "deletionTimestamp" in pod["metadata"]} == {"bytes-lm-v5p-0-a1-0"}
    stage.kubelets_finish_deletions()
    stage.step()
    stage.kubelets_finish_deletions()
    assert stage.pods == {}


def test_syncer_of_a_deleted_job_that_a_finalizer_keeps_waits_for_no_learner_whose_node_is_silent() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0")).train()
    stage.job["metadata"] |= {"deletionTimestamp": "2026-11-20T12:00:01Z", "finalizers": ["example.com/archive"]}
    stage.set_node(a_tpu_node("tpu-0", ready=False, ready_since=format_timestamp(stage.now - 600)))
    stage.step()
    assert all("deletionTimestamp" in pod["metadata"] for pod in stage.pods.values())


@pytest.mark.parametrize("finalizers", [[], ["foregroundDeletion"], ["orphan", "example.com/archive"]])
def test_pods_of_a_deleted_job_are_left_to_garbage_collection(finalizers: list[str]) -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0")).train()
    stage.job["metadata"] |= {"deletionTimestamp": "2026-11-20T12:00:01Z", "finalizers": finalizers}
    assert stage.reconcile_only().empty


def test_invalid_spec_is_reported_with_every_reason_and_what_runs_is_left_alone() -> None:
    stage = Stage(a_job().with_learners(1, 2).with_pool(max=2), a_tpu_node("tpu-0")).train()
    stage.edit(
        pools=[{"name": "v5p", "accelerator": "tpu-v5p", "topology": "3x5", "learners": {"min": 3, "max": 2}, "template": {"spec": {}}}]
    )
    stage.step()
    accepted = stage.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    for part in (
        "spec.pools[0].topology: tpu-v5p has no topology '3x5'",
        "needs one container named 'learner'",
        "min 3 is more than max 2",
    ):
        assert part in accepted["message"]
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a1-0"]
    assert stage.states() == {"v5p-0": "Training"}
    assert stage.plans[-1].reservations.nodes == {"tpu-0"}


def test_pods_of_another_owner_are_no_units_of_this_job() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    stage.settle()
    stage.pods["bytes-lm-v5p-0-a1-0"]["metadata"]["ownerReferences"] = [{"uid": "the-job-before", "controller": True}]
    observed = stage.observed()
    assert {pod.owner for pod in observed.pods} == {"job-uid-1", "the-job-before"}
    stage.job["status"] = {}
    plan = stage.reconcile_only()
    assert plan.reservations.nodes == frozenset()  # what another owner's pod uses is not this job's


def test_spec_is_parsed_once_per_generation() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    first = stage.observed().job
    stage.step()
    assert stage.observed().job.spec is first.spec
    stage.scale(max=3)
    assert stage.observed().job.spec is not first.spec


def test_template_that_is_no_list_of_containers_is_a_reason_not_a_crash() -> None:
    job = a_job().with_pool(max=1).build()
    job["spec"]["pools"][0]["template"]["spec"] = {"containers": {"name": "learner"}}
    stage = Stage(job, a_tpu_node("tpu-0"))
    stage.step()
    assert "containers" in stage.condition("Accepted")["message"]


def test_job_as_an_older_crd_stores_it_gets_the_defaults_of_what_it_lacks() -> None:
    job = a_job().with_pool(max=1).build()
    job["spec"] = {
        "learners": {"max": 1},
        "pools": [{key: value for key, value in job["spec"]["pools"][0].items() if key in ("name", "accelerator", "topology", "template")}],
        "training": {"steps": 10},
        "fieldOfANewerCrd": 7,
    }
    job["spec"]["pools"][0]["learners"] = {"max": 1}
    job["status"] = {"units": [{"name": "v5p-0", "pool": "v5p", "state": "Pending"}]}
    stage = Stage(job, a_tpu_node("tpu-0")).train()
    assert stage.condition("Accepted")["status"] == "True"
    assert stage.states() == {"v5p-0": "Training"}


# --- what units share ---------------------------------------------------------------------------------------------------
def test_a_job_without_a_slice_gets_nothing_that_units_share() -> None:
    stage = Stage(a_job().with_pool(max=1))
    stage.settle()
    assert (stage.pods, stage.children, stage.secrets) == ({}, {}, {})
    assert stage.condition("Training")["reason"] == "WaitingForHardware"
    assert stage.unit("v5p-0")["reason"] == "NoCapacity"
    assert (stage.reconcile_only().requeue_after or 0) > stage.config.placement_retry - 1, "no report of a syncer is awaited"


def test_what_units_share_comes_before_a_unit_of_another_job_leaves() -> None:
    stage = Stage(a_job().with_pool(max=1))
    stage.settle()
    stage.prepares = True
    stage.settle()
    assert sorted(stage.pods) == ["bytes-lm-syncer"]
    assert sorted(stage.children) == ["ConfigMap", "PersistentVolumeClaim", "Service"]
    assert sorted(stage.secrets) == ["bytes-lm-ca", "bytes-lm-syncer-tls"]
    request = stage.reconcile_only().request
    assert request is not None
    assert [pool.ready for pool in request.pools] == [True]
    stage.prepares = False
    stage.settle()
    assert sorted(stage.pods) == ["bytes-lm-syncer"], "what is there stays"
