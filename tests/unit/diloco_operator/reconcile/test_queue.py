"""Units of a job with queueName: each is a pod group of Kueue, which keeps its quota over restarts and gives it back when it leaves."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from builders.jobs import a_job, gpu_pool, template
from builders.nodes import a_gpu_node
from builders.pods import is_unschedulable, phase, starts
from builders.stage import Stage
from builders.workloads import GROUP, NO_QUOTA, RETRIABLE, SimulatedQueue
from diloco_operator.allotment import Allotment
from diloco_operator.api import names
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.plan import Patch
from diloco_operator.reconcile import PodView, project_pod
from diloco_operator.reconcile.grantors.registry import orphan_patches
from diloco_operator.reconcile.observe.rejected_writes import RejectedWrite

ONE, TWO = "h100-0", "h100-1"
NODES = ("gpu-0", "gpu-1", "gpu-2")


def a_queued_stage(quota: int = 1, *, min: int = 2, max: int = 2, hosts: int = 1, restarts: int = 3, **pool: Any) -> SimulatedQueue:
    """The syncer runs, the units have asked for their quota, and those for which there is some have it."""
    job = a_job().with_learners(min, max).with_restarts(restarts, initial="10s").with_spec(queueName="team-a")
    stage = Stage(job.with_pools(gpu_pool(hosts=hosts, max=max, **pool)), *map(a_gpu_node, NODES))
    stage.settle()
    starts(stage.syncer, stage.now)
    stage.settle()
    queue = stage.with_quota(quota)
    queue.play()
    return queue


def a_training_unit(quota: int = 1, *, hosts: int = 1, **more: Any) -> SimulatedQueue:
    """The first unit trains."""
    queue = a_queued_stage(quota, hosts=hosts, **more)
    trains(queue, ONE, 1, *NODES[:hosts])
    return queue


def trains(queue: SimulatedQueue, unit: str, attempt: int, *nodes: str) -> None:
    """kube-scheduler, the kubelets and the syncer do their part."""
    stage = queue.stage
    stage.binds(unit, attempt, *nodes)
    stage.settle()
    for host in range(len(nodes)):
        starts(stage.pod(unit, attempt, host), stage.now)
    stage.all_contribute()
    queue.play()


def group(stage: Stage, unit: str, attempt: int, host: int = 0) -> str:
    found: str = stage.pod(unit, attempt, host)["metadata"]["labels"][GROUP]
    return found


def released(stage: Stage) -> set[str]:
    """Groups that will give their quota back."""
    pods = [pod["metadata"] for pod in stage.pods.values()]
    return {meta["labels"][GROUP] for meta in pods if meta["annotations"].get(RETRIABLE) == "false"}


# --- asking -----------------------------------------------------------------------------------------------------------
def test_pods_of_a_unit_are_one_group_that_no_scheduler_may_bind_yet() -> None:
    stage = Stage(a_job().with_spec(queueName="team-a").with_pools(gpu_pool(hosts=2)), *map(a_gpu_node, NODES))
    stage.job["metadata"]["labels"] = {names.KUEUE_PRIORITY: "urgent"}
    stage.settle()
    starts(stage.syncer, stage.now)
    stage.settle()
    pods = [stage.pod(ONE, 1, host) for host in (0, 1)]
    assert {pod["metadata"]["labels"][GROUP] for pod in pods} == {group(stage, ONE, 1)}
    for pod in pods:
        meta, spec = pod["metadata"], pod["spec"]
        assert (meta["labels"][names.KUEUE_QUEUE], meta["labels"][names.KUEUE_PRIORITY]) == ("team-a", "urgent")
        assert (meta["annotations"][names.KUEUE_GROUP_COUNT], meta["annotations"][names.KUEUE_ROLE]) == ("2", "learner")
        assert meta["annotations"][names.ANNOTATION_GRANTOR] == "Kueue"
        assert spec["schedulingGates"] == [{"name": "kueue.x-k8s.io/admission"}]
        assert names.ANNOTATION_NODE not in meta["annotations"]
    assert GROUP not in stage.syncer["metadata"]["labels"]


def test_gates_of_the_template_stay() -> None:
    queue = a_queued_stage(template=template(schedulingGates=[{"name": "example.org/hold"}]))
    made = next(
        create.obj for plan in queue.stage.plans for create in plan.creates if create.obj["metadata"]["name"].endswith("h100-0-a1-0")
    )
    assert [gate["name"] for gate in made["spec"]["schedulingGates"]] == ["example.org/hold", names.KUEUE_GATE]


def test_one_unit_has_quota_and_the_other_waits_with_kueues_words() -> None:
    stage = a_training_unit().stage
    waiting = stage.unit(TWO)
    assert (stage.unit(ONE)["state"], stage.unit(ONE)["slice"]) == ("Training", "gpu-0")
    assert (waiting["state"], waiting["reason"], waiting["slice"]) == ("Starting", "WaitingForQuota", "")
    assert waiting["message"] == f"bytes-lm-h100-1-a1-0: waits for quota in queue team-a; Kueue says: {NO_QUOTA}"
    assert stage.condition("Placed")["reason"] == "WaitingForQuota"
    assert (stage.status["pools"][0]["reason"], stage.status["pools"][0]["placed"]) == ("WaitingForQuota", 1)


def test_free_slices_are_left_to_kueue_and_kube_scheduler() -> None:
    stage = a_queued_stage(quota=0).stage
    assert stage.plans[-1].reservations.nodes == set()
    assert [unit["slice"] for unit in stage.status["units"]] == ["", ""]
    assert (
        stage.plans[-1].request is None
        or not stage.plans[-1].request.pools
        or all(pool.wanted == 0 for pool in stage.plans[-1].request.pools)
    )


@pytest.mark.slow
def test_no_other_job_of_the_operator_gets_the_slice_of_a_unit_that_has_quota() -> None:
    queue = a_training_unit(quota=2, min=1)
    trains(queue, TWO, 1, "gpu-1")
    stage = queue.stage
    request = next(plan.request for plan in reversed(stage.plans) if plan.request is not None)
    allotment = Allotment(stage.inventory)
    allotment.update(request)
    other = Stage(a_job().with_learners(4, 4).with_pools(gpu_pool(min=4, max=4)))
    other.job["metadata"] |= {"name": "other", "uid": "another"}
    other.inventory = stage.inventory
    other.settle()
    wants = other.plans[-1].request
    assert wants is not None
    allotment.update(dataclasses.replace(wants, priority=1000))
    allotment.refresh()
    assert allotment.of(request.job).revoked == {}


def test_group_that_kueue_does_not_take_up_says_what_to_check() -> None:
    stage = a_queued_stage().stage
    stage.workloads.clear()
    stage.settle()
    assert "Kueue has not taken it up yet; if this lasts, check that" in stage.unit(TWO)["message"]


@pytest.mark.slow
def test_unit_waits_for_its_quota_as_long_as_that_takes_and_for_nodes_no_longer_than_the_pool_says() -> None:
    queue = a_queued_stage(min=1, max=1, provisioning={"mode": "Autoscaler", "timeout": "10m"})
    stage = queue.stage
    waiting = a_queued_stage(quota=0, min=1, max=1, provisioning={"mode": "Autoscaler", "timeout": "10m"})
    waiting.stage.advance(36_000)
    waiting.play()
    assert waiting.stage.unit(ONE)["reason"] == "WaitingForQuota"
    is_unschedulable(stage.pod(ONE, 1))
    stage.settle()
    since = format_timestamp(stage.now)
    assert stage.unit(ONE)["reason"] == "WaitingForNodes"
    assert f"has its quota since {since} and waits for a node; the scheduler says: 0/5 nodes" in stage.unit(ONE)["message"]
    stage.advance(601)
    stage.settle()
    assert stage.unit(ONE)["reason"] == "NotProvisioned"
    queue.play()
    assert queue.admitted == []


@pytest.mark.slow
def test_units_with_quota_and_half_of_their_hosts_each_give_both_back_and_one_has_all() -> None:
    queue = a_queued_stage(quota=2, hosts=2, provisioning={"mode": "Autoscaler", "timeout": "10m"})
    stage = queue.stage
    for unit, node in ((ONE, "gpu-0"), (TWO, "gpu-1")):
        stage.binds(unit, 1, node)
        starts(stage.pod(unit, 1), stage.now)
    stage.advance(599)
    queue.play()
    assert {unit["reason"] for unit in stage.status["units"]} == {"WaitingForNodes"}
    stage.advance(1)
    stage.settle()
    assert {unit["reason"] for unit in stage.status["units"]} == {"NotProvisioned"}
    stage.kubelets_finish_deletions()
    queue.play()
    assert queue.admitted == []
    stage.advance(30)  # the pause
    queue.play()
    assert queue.admitted == [group(stage, ONE, 2), group(stage, TWO, 2)]
    trains(queue, ONE, 2, "gpu-0", "gpu-1")
    assert stage.unit(ONE)["state"] == "Training"


def test_job_without_kueue_says_so_and_makes_no_learner_pod() -> None:
    stage = Stage(a_job().with_spec(queueName="team-a").with_pools(gpu_pool()), *map(a_gpu_node, NODES))
    stage.unreadable = {names.WORKLOADS: "the API server has no workloads in kueue.x-k8s.io/v1beta2"}
    stage.settle()
    assert not stage.pods
    placed = stage.condition("Placed")
    assert stage.learner_pods() == []
    assert (placed["status"], placed["reason"]) == ("False", "KueueMissing")
    assert "the API server has no workloads in kueue.x-k8s.io/v1beta2. Install Kueue 0.15 or newer" in placed["message"]
    assert stage.unit(ONE)["reason"] == "WaitingForQuota"
    stage.unreadable = {}
    stage.settle()
    assert stage.condition("Placed")["reason"] == "WaitingForQuota"
    assert stage.learner_pods()


def test_job_without_a_queue_needs_no_kueue() -> None:
    stage = Stage(a_job().with_pools(gpu_pool()), *map(a_gpu_node, NODES))
    stage.unreadable = {names.WORKLOADS: "the API server has no workloads"}
    assert stage.train().unit(ONE)["state"] == "Training"
    assert GROUP not in stage.pod(ONE, 1)["metadata"]["labels"]


# --- keeping the quota ------------------------------------------------------------------------------------------------
def crashes(queue: SimulatedQueue, attempt: int = 1) -> None:
    """The first unit's program fails, and the pause after it is over."""
    queue.stage.learner_exits(ONE, attempt, 1)
    queue.play()
    queue.stage.advance(40)
    queue.play()


@pytest.mark.slow
def test_unit_that_crashed_starts_again_with_its_quota_before_units_that_wait() -> None:
    queue = a_training_unit()
    crashes(queue)
    assert group(queue.stage, ONE, 2) == group(queue.stage, ONE, 1)
    assert queue.admitted == [group(queue.stage, ONE, 1)]
    assert queue.excess == []
    trains(queue, ONE, 2, "gpu-2")
    assert (queue.stage.unit(ONE)["state"], queue.stage.unit(ONE)["slice"]) == ("Training", "gpu-2")


@pytest.mark.slow
def test_unit_that_pauses_with_its_quota_comes_back_before_a_unit_of_another_pool_is_asked_for() -> None:
    job = a_job().with_learners(1, 1).with_restarts(9, initial="10s").with_spec(queueName="team-a")
    stage = Stage(job.with_pools(gpu_pool(max=1), gpu_pool("other", max=1)), *map(a_gpu_node, NODES))
    stage.settle()
    starts(stage.syncer, stage.now)
    stage.settle()
    queue = stage.with_quota(1)
    queue.play()
    for attempt in (1, 2):
        trains(queue, ONE, attempt, NODES[0])
        stage.learner_exits(ONE, attempt, 1)
        queue.play()
    assert stage.unit(ONE)["state"] == "BackingOff"
    stage.advance(20)
    queue.play()
    assert {unit["name"]: (unit["state"], unit["attempt"]) for unit in stage.status["units"]} == {ONE: ("Starting", 3)}


def test_unit_that_pauses_gives_its_quota_back_when_the_job_has_no_room_for_it_any_more() -> None:
    queue = a_queued_stage(quota=2)
    trains(queue, ONE, 1, NODES[0])
    trains(queue, TWO, 1, NODES[1])
    stage = queue.stage
    stage.learner_exits(TWO, 1, 1)
    queue.play()
    held = group(stage, TWO, 2)
    stage.learner_exits(TWO, 2, 1)
    queue.play()
    stage.scale(min=1, max=1)
    queue.play()
    assert (stage.unit(TWO)["state"], stage.unit(TWO)["reason"]) == ("Pending", "ScaledDown")
    assert held in released(stage)


def test_unit_that_pauses_gives_its_quota_back_while_the_spec_is_refused() -> None:
    queue = a_training_unit(quota=2)
    stage = queue.stage
    stage.learner_exits(ONE, 1, 1)
    [pool] = stage.job["spec"]["pools"]
    stage.edit(pools=[pool, {**pool, "name": "other", "accelerator": "no-such-kind"}])
    queue.play()
    assert stage.condition("Accepted")["status"] == "False"
    assert group(stage, ONE, 1) in released(stage)


def test_template_that_changed_before_the_next_attempt_asks_anew() -> None:
    queue = a_training_unit(min=1, max=1)
    stage, first = queue.stage, group(queue.stage, ONE, 1)
    stage.failed_before(ONE)
    stage.learner_exits(ONE, 1, 1)
    queue.play()
    stage.edit(pools=[{**stage.job["spec"]["pools"][0], "template": template(image="train:2")}])
    stage.advance(40)
    queue.play()
    assert queue.admitted == [group(stage, ONE, 2)]
    assert group(stage, ONE, 2) != first


@pytest.mark.slow
def test_next_attempt_waits_until_the_pods_of_the_last_one_have_ended() -> None:
    queue = a_training_unit(hosts=2)
    stage = queue.stage
    stage.learner_exits(ONE, 1, 1)  # its other host is asked to go, and takes its time
    queue.play()
    stage.advance(40)
    queue.play()
    assert "waits until the pod bytes-lm-h100-0-a1-1 has ended" in stage.unit(ONE)["message"]
    assert released(stage) == set()
    stage.kubelets_finish_deletions()
    queue.play()
    assert group(stage, ONE, 2) == queue.admitted[0]
    assert stage.unit(ONE)["state"] == "Starting"
    assert queue.excess == []


@pytest.mark.slow
def test_preempted_unit_drains_without_a_failure_asks_again_and_the_others_go_on() -> None:
    queue = a_training_unit(quota=2)
    trains(queue, TWO, 1, "gpu-1")
    stage = queue.stage
    queue.preempt(group(stage, ONE, 1))
    queue.play()
    assert stage.unit(ONE)["state"] == "Draining"
    assert stage.unit(ONE)["message"] == "bytes-lm-h100-0-a1-0: WorkloadEvicted: Preempted to accommodate a workload"
    stage.kubelets_finish_deletions()
    stage.all_contribute()
    queue.play()
    assert (stage.unit(ONE)["state"], stage.unit(ONE)["reason"]) == ("Starting", "WaitingForQuota")
    assert (stage.unit(ONE)["failures"], stage.unit(ONE)["restarts"]) == ([], 1)
    assert (stage.unit(TWO)["state"], stage.condition("Training")["status"]) == ("Training", "True")
    queue.quota = 2
    queue.play()
    assert len(queue.admitted) == 2
    trains(queue, ONE, 2, "gpu-2")
    assert stage.unit(ONE)["state"] == "Training"
    assert queue.excess == []


@pytest.mark.slow
def test_units_of_a_queue_that_is_drained_come_back_as_far_as_its_quota_goes() -> None:
    queue = a_training_unit(quota=2)
    trains(queue, TWO, 1, "gpu-1")
    stage = queue.stage
    for unit in (ONE, TWO):
        queue.preempt(group(stage, unit, 1))
    queue.play()
    stage.kubelets_finish_deletions()
    queue.play()
    for unit in (ONE, TWO):
        assert (stage.unit(unit)["state"], stage.unit(unit)["reason"]) == ("Starting", "WaitingForQuota")
        assert stage.unit(unit)["failures"] == []
    assert stage.condition("Placed")["reason"] == "WaitingForQuota"
    for units in (1, 2):
        queue.quota = units
        queue.play()
        assert len(queue.admitted) == units
    assert queue.excess == []


def test_operator_that_died_in_the_middle_of_an_attempt_completes_its_group() -> None:
    queue = a_queued_stage(quota=0, min=1, max=1, hosts=2)
    stage = queue.stage
    first = group(stage, ONE, 1)
    del stage.pods["bytes-lm-h100-0-a1-1"]
    stage.job["status"] = {}
    stage.restart_operator()
    stage.settle()
    assert {group(stage, ONE, 1, host) for host in (0, 1)} == {first}


# --- giving it back ---------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_unit_that_is_given_up_gives_its_quota_to_the_one_that_waits() -> None:
    queue = a_training_unit(restarts=0)
    stage, first = queue.stage, group(queue.stage, ONE, 1)
    stage.learner_exits(ONE, 1, 1)
    queue.play()
    assert stage.unit(ONE)["state"] == "Failed"
    assert first not in queue.admitted
    assert queue.admitted == [group(stage, TWO, 1)]


@pytest.mark.slow
def test_unit_that_is_scaled_down_gives_its_quota_back_when_its_pods_have_ended() -> None:
    queue = a_training_unit(quota=2)
    trains(queue, TWO, 1, "gpu-1")
    stage = queue.stage
    stage.scale(min=1, max=1)
    queue.play()
    assert len(queue.admitted) == 2
    stage.kubelets_finish_deletions()
    queue.play()
    assert queue.admitted == [group(stage, ONE, 1)]
    assert not [name for name in stage.learner_pods() if "h100-1" in name]


@pytest.mark.slow
def test_suspended_job_gives_all_quota_back_also_of_units_that_wait() -> None:
    queue = a_training_unit()
    stage, first = queue.stage, group(queue.stage, ONE, 1)
    stage.edit(suspend=True)
    queue.play()
    stage.kubelets_finish_deletions()
    queue.play()
    assert (queue.admitted, stage.learner_pods()) == ([], [])
    stage.kubelets_finish_deletions()
    stage.edit(suspend=False)
    stage.settle()
    starts(stage.syncer, stage.now)
    queue.play()
    assert group(stage, ONE, 2) not in ("", first)


@pytest.mark.slow
def test_unit_of_a_changed_template_asks_anew_and_gives_the_old_quota_back() -> None:
    queue = a_training_unit(quota=2, min=1, max=1)
    stage, first = queue.stage, group(queue.stage, ONE, 1)
    pool = {**stage.job["spec"]["pools"][0], "template": template(image="train:2")}
    stage.edit(pools=[pool])
    queue.play()
    stage.kubelets_finish_deletions()
    queue.play()
    assert queue.admitted == [group(stage, ONE, 2)]
    assert group(stage, ONE, 2) != first


def test_unit_of_a_changed_template_says_that_its_quota_is_free_before_its_pods_have_ended() -> None:
    queue = a_training_unit(min=1, max=1)
    stage = queue.stage
    stage.edit(pools=[{**stage.job["spec"]["pools"][0], "template": template(image="train:2")}])
    stage.settle()
    assert (stage.unit(ONE)["state"], stage.unit(ONE)["reason"]) == ("Draining", "TemplateChanged")
    assert (phase(stage.pod(ONE, 1)), stage.pod(ONE, 1)["metadata"]["annotations"].get(RETRIABLE)) == ("Running", "false")


LOST = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}


def lost(queue: SimulatedQueue) -> None:
    """The node of the first unit does not answer any more."""
    queue.stage.set_node(a_gpu_node("gpu-0", taints=[LOST]))
    queue.play()


@pytest.mark.slow
def test_unit_on_a_lost_node_starts_again_with_its_quota_before_units_that_wait() -> None:
    queue = a_training_unit()
    stage, first = queue.stage, group(queue.stage, ONE, 1)
    lost(queue)
    assert group(stage, ONE, 2) == first
    assert stage.unit(ONE)["failures"] == []
    assert queue.admitted == [first]
    assert queue.excess == []
    assert "bytes-lm-h100-0-a1-0" not in stage.pods
    trains(queue, ONE, 2, "gpu-2")
    assert stage.unit(ONE)["state"] == "Training"
    assert stage.unit(TWO)["reason"] == "WaitingForQuota"


def test_pod_on_a_lost_node_is_called_failed_and_says_why() -> None:
    stage = a_training_unit(min=1, max=1).stage
    stage.set_node(a_gpu_node("gpu-0", taints=[LOST]))
    assert stage.step().patches == ()
    assert "waits until the pod bytes-lm-h100-0-a1-0 has ended" in stage.unit(ONE)["message"]
    [patch] = stage.step().patches  # its deletion was asked for
    assert (patch.name, patch.subresource) == ("bytes-lm-h100-0-a1-0", "status")
    status = stage.pod(ONE, 1)["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "NodeLost")
    assert status["message"] == "node gpu-0 does not answer, and the unit goes on without it"


@pytest.mark.slow
def test_suspended_job_gives_back_the_quota_of_a_unit_on_a_lost_node() -> None:
    queue = a_training_unit(min=1, max=1)
    queue.stage.edit(suspend=True)
    lost(queue)
    assert (queue.admitted, queue.stage.learner_pods()) == ([], [])


@pytest.mark.slow
def test_operator_that_may_not_end_pods_of_lost_nodes_lets_their_units_ask_anew() -> None:
    queue = a_training_unit(quota=2, min=1, max=1)
    stage, first = queue.stage, group(queue.stage, ONE, 1)
    no = RejectedWrite(403, "cannot patch resource pods/status", stage.now + 30, stage.job["metadata"]["generation"])
    stage.rejected_writes[("Pod", "bytes-lm-h100-0-a1-0")] = no
    lost(queue)
    assert group(stage, ONE, 2) != first
    assert queue.excess == []


@pytest.mark.slow
def test_unit_whose_program_ended_too_early_asks_anew() -> None:
    queue = a_training_unit(quota=1, min=1, max=1)
    stage, first = queue.stage, group(queue.stage, ONE, 1)
    stage.learner_exits(ONE, 1, 0)
    queue.play()
    for _ in range(3):
        stage.advance(60)
        queue.play()
    assert group(stage, ONE, 2) != first
    assert queue.admitted == [group(stage, ONE, 2)]
    assert queue.excess == []


@pytest.mark.slow
def test_group_in_which_all_pods_succeeded_needs_no_word() -> None:
    queue = a_training_unit(min=1, max=1)
    stage = queue.stage
    stage.learner_exits(ONE, 1, 0)
    stage.settle()
    assert released(stage) == set()
    queue.play()
    assert queue.admitted == []


@pytest.mark.slow
def test_deleted_job_releases_its_groups() -> None:
    queue = a_training_unit()
    stage = queue.stage
    groups = {group(stage, unit, 1) for unit in (ONE, TWO)}
    stage.job["metadata"]["deletionTimestamp"] = format_timestamp(stage.now)
    stage.step()
    assert released(stage) == groups


@pytest.mark.slow
def test_groups_of_an_earlier_job_of_this_name_are_released_when_their_pods_go() -> None:
    queue = a_training_unit()
    stage = queue.stage
    groups = {group(stage, unit, 1) for unit in (ONE, TWO)}
    stage.job["metadata"]["uid"] = "another"
    stage.job["status"] = {}
    stage.restart_operator()
    stage.settle()
    assert released(stage) == set()  # their job may be there, in another version of the cache
    for pod in list(stage.pods.values()):
        pod["metadata"]["deletionTimestamp"] = format_timestamp(stage.now)
    stage.settle()
    assert released(stage) == groups


def test_pods_of_a_job_that_is_gone_release_their_groups_once() -> None:
    stage = a_training_unit(min=1, max=1).stage
    pod = stage.pod(ONE, 1)

    def releases(pods: list[PodView]) -> list[Patch]:
        return orphan_patches(pods, lambda _: False)

    assert releases([project_pod(pod)]) == []
    pod["metadata"]["deletionTimestamp"] = format_timestamp(stage.now)
    [patch] = releases([project_pod(pod)])
    assert (patch.resource, patch.name) == (names.PODS, "bytes-lm-h100-0-a1-0")
    assert patch.body == {"metadata": {"uid": pod["metadata"]["uid"], "annotations": {RETRIABLE: "false"}}}
    pod["metadata"]["annotations"][RETRIABLE] = "false"
    assert releases([project_pod(pod)]) == []


def test_pod_of_a_job_that_is_gone_is_called_failed_once_its_node_does_not_answer() -> None:
    stage = a_training_unit(min=1, max=1).stage
    pod = stage.pod(ONE, 1)
    pod["metadata"]["deletionTimestamp"] = format_timestamp(stage.now)
    pod["metadata"]["annotations"][RETRIABLE] = "false"
    assert orphan_patches([project_pod(pod)], lambda node: node != "gpu-0") == []
    [patch] = orphan_patches([project_pod(pod)], lambda node: node == "gpu-0")
    assert (patch.subresource, patch.body["status"]["phase"]) == ("status", "Failed")


# --- strangers --------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("stranger", ["payroll", "bytes-lm-h100-1-a1-000000"])
def test_label_of_a_stranger_brings_no_unit_into_another_group(stranger: str) -> None:
    queue = a_training_unit(min=1, max=1)
    queue.stage.pod(ONE, 1)["metadata"]["labels"][GROUP] = stranger
    crashes(queue)
    assert group(queue.stage, ONE, 2) not in ("", stranger)
