"""Units whose nodes are asked for by a ProvisioningRequest: one for each unit, all nodes or none, and the pods come when the nodes do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from builders.jobs import a_job, gpu_pool, tpu_pool
from builders.nodes import a_gpu_node, a_tpu_node, a_tpu_slice
from builders.pods import exits, starts
from builders.provisioning import a_condition
from builders.stage import Stage
from diloco.contract import Result
from diloco_operator.api import names
from diloco_operator.kube.client import Resource
from diloco_operator.kube.timestamps import format_timestamp

QUEUED = "queued-provisioning.gke.io"
ATOMIC = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
UNKNOWN = "the API server has no provisioningrequests in autoscaling.x-k8s.io/v1"


def by_request(**fields: Any) -> dict[str, Any]:
    return {"mode": "ProvisioningRequest", "class": ATOMIC, "timeout": "10m", **fields}


def a_pool(name: str = "h100", **fields: Any) -> dict[str, Any]:
    return gpu_pool(name, **{"provisioning": by_request(), **fields})


def a_stage(*pools: dict[str, Any], nodes: Any = (), min: int = 1, max: int = 1, without: Mapping[Resource, str] | None = None) -> Stage:
    """The syncer runs, and everything that can be asked for was."""
    stage = Stage(a_job().with_learners(min, max).with_pools(*(pools or (a_pool(),))), *nodes)
    stage.without = dict(without or {})
    stage.settle()
    stage.syncer_starts()
    stage.settle()
    return stage


def answers(stage: Stage, *conditions: dict[str, Any], name: str = "bytes-lm-h100-0-a1") -> None:
    """The autoscaler says so, now."""
    stage.requests[name]["status"] = {"conditions": [{**each, "lastTransitionTime": format_timestamp(stage.now)} for each in conditions]}
    stage.settle()


def edit_pool(stage: Stage, **fields: Any) -> None:
    stage.edit(pools=[{**stage.job["spec"]["pools"][0], **fields}])
    stage.settle()


def trains(stage: Stage, unit: str, node: str, attempt: int = 1) -> None:
    stage.binds(unit, attempt, node)
    stage.settle()
    stage.kubelets_start()
    stage.all_contribute()
    stage.settle()
    assert stage.unit(unit)["state"] == "Training"


# --- asking -----------------------------------------------------------------------------------------------------------
def test_unit_is_asked_for_by_one_request_for_all_its_pods_and_has_none_before() -> None:
    stage = a_stage(a_pool(hosts=2, provisioning=by_request(parameters={"ValidUntilSeconds": "600"})))
    request = stage.requests["bytes-lm-h100-0-a1"]
    assert request["spec"] == {
        "provisioningClassName": ATOMIC,
        "podSets": [{"podTemplateRef": {"name": "bytes-lm-h100-0-a1"}, "count": 2}],
        "parameters": {"ValidUntilSeconds": "600"},
    }
    for obj in (request, stage.templates["bytes-lm-h100-0-a1"]):
        assert obj["metadata"]["ownerReferences"][0]["uid"] == stage.job["metadata"]["uid"]
        assert obj["metadata"]["labels"][names.LABEL_UNIT] == "h100-0"
    assert stage.learner_pods() == []
    unit = stage.unit("h100-0")
    assert (unit["state"], unit["reason"], unit["slice"], unit["attempt"]) == ("Starting", "WaitingForNodes", "", 1)
    asked = f"asked the autoscaler for nodes at {format_timestamp(stage.now)} by ProvisioningRequest bytes-lm-h100-0-a1"
    assert unit["message"] == f"{asked}; it has said nothing yet"
    assert stage.condition("Placed")["reason"] == "WaitingForNodes"
    assert "nodes for it were asked of the autoscaler (by ProvisioningRequest)" in stage.status["pools"][0]["message"]


def test_template_of_the_request_is_that_of_the_pods_that_come() -> None:
    stage = a_stage(a_pool(hosts=2))
    answers(stage, a_condition("Provisioned"))
    pod, template = stage.pod("h100-0", 1, 1), stage.templates["bytes-lm-h100-0-a1"]["template"]
    assert template["metadata"]["annotations"] == pod["metadata"]["annotations"]
    assert pod["metadata"]["annotations"][names.CONSUME_REQUEST] == "bytes-lm-h100-0-a1"
    assert pod["metadata"]["annotations"][names.REQUEST_CLASS] == ATOMIC
    assert pod["metadata"]["annotations"][names.ANNOTATION_GRANTOR] == "ProvisioningRequest"
    for field in ("affinity", "nodeSelector", "tolerations"):
        assert template["spec"][field] == pod["spec"][field]
    assert template["spec"]["containers"][0]["resources"] == pod["spec"]["containers"][0]["resources"]


def test_what_the_request_says_stands_in_status_until_the_pods_come() -> None:
    stage = a_stage()
    answers(stage, a_condition("Accepted", message="waiting for capacity in us-east5"))
    assert stage.unit("h100-0")["message"].endswith("; it says: Accepted=True: Said: waiting for capacity in us-east5")
    assert stage.learner_pods() == []
    before = stage.job["status"]
    stage.advance(60)
    stage.settle()
    assert stage.job["status"]["units"] == before["units"]  # no text that changes by itself
    answers(stage, a_condition("Accepted"), a_condition("Provisioned"))
    assert stage.learner_pods() == ["bytes-lm-h100-0-a1-0"]


@pytest.mark.slow
def test_unit_trains_on_the_nodes_that_came_and_its_request_stays_as_long() -> None:
    stage = a_stage(tpu_pool(provisioning=by_request(**{"class": QUEUED})))
    for node in a_tpu_slice("np-1", 2, taints=[{"key": names.QUEUED_TAINT, "value": "true", "effect": "NoSchedule"}]):
        stage.set_node(node)
    stage.settle()
    assert stage.learner_pods() == []  # the nodes are there, and the autoscaler has not said so
    answers(stage, a_condition("Provisioned"), name="bytes-lm-v5p-0-a1")
    stage.binds("v5p-0", 1, "np-1-1", "np-1-0")
    stage.settle()
    assert stage.unit("v5p-0")["slice"] == "np-1"
    stage.kubelets_start()
    stage.all_contribute()
    answers(stage, a_condition("Provisioned"), a_condition("BookingExpired"), name="bytes-lm-v5p-0-a1")
    assert stage.states() == {"v5p-0": "Training"}
    # a restart on the nodes that are there needs no new request, and tolerates their taint
    stage.learner_exits("v5p-0", 1, 1)
    stage.settle()
    stage.kubelets_finish_deletions()
    stage.advance(1)
    stage.settle()
    pod = stage.pod("v5p-0", 2)
    assert pod["metadata"]["annotations"][names.ANNOTATION_NODE] == "np-1-0"
    assert {"key": names.QUEUED_TAINT, "operator": "Equal", "value": "true", "effect": "NoSchedule"} in pod["spec"]["tolerations"]
    assert (stage.requests, stage.templates) == ({}, {})


def test_template_of_gke_is_changed_at_its_admission_as_pods_are() -> None:
    stage = a_stage(a_pool(provisioning=by_request(**{"class": QUEUED})))
    assert stage.templates["bytes-lm-h100-0-a1"]["metadata"]["labels"][names.WARDEN_POLICIES] == "true"
    assert names.WARDEN_POLICIES not in a_stage().templates["bytes-lm-h100-0-a1"]["metadata"]["labels"]


def test_free_slices_are_used_before_nodes_are_asked_for() -> None:
    stage = a_stage(nodes=[a_gpu_node("gpu-0")], min=2, max=2)
    assert stage.unit("h100-0")["slice"] == "gpu-0"
    assert list(stage.requests) == ["bytes-lm-h100-1-a1"]


def test_names_of_requests_fit_into_a_label_whatever_the_job_is_called() -> None:
    name = names.provisioning_request_name("a" * 32, "sixteen-letters-1023", names.MAX_ATTEMPT)
    assert len(name) <= 63
    assert name != names.provisioning_request_name("a" * 31 + "b", "sixteen-letters-1023", names.MAX_ATTEMPT)


# --- what does not come, or is not needed ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ([a_condition("Failed", message="quota")], "ProvisioningRequest bytes-lm-h100-0-a1 failed; it says: Failed=True: Said: quota"),
        ([a_condition("CapacityRevoked")], "the nodes of ProvisioningRequest bytes-lm-h100-0-a1 are taken away; it says: CapacityRevoked"),
        ([a_condition("Provisioned"), a_condition("BookingExpired")], "were kept for too short a time, and its pods were not bound"),
        ([a_condition("Provisioned"), a_condition("Failed")], "says what cannot be: its conditions contradict each other"),
    ],
)
def test_request_of_which_no_nodes_come_is_withdrawn_and_asked_anew_after_a_pause(conditions: list[Any], words: str) -> None:
    stage = a_stage()
    answers(stage, *conditions)
    unit = stage.unit("h100-0")
    assert (unit["state"], unit["reason"], unit["failures"], unit["restarts"]) == ("Pending", "NotProvisioned", [], 0)
    assert words in unit["message"]
    assert (stage.requests, stage.templates, stage.learner_pods()) == ({}, {}, [])
    stage.advance(10)
    stage.settle()
    assert list(stage.requests) == list(stage.templates) == ["bytes-lm-h100-0-a2"]


CONTRADICTION = {"conditions": [a_condition("Provisioned"), a_condition("Failed")]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "words"),
    [
        (7, "status"),
        ({"conditions": "soon"}, "status"),
        ({"conditions": [{"type": "Provisioned", "status": True}]}, "status"),
        (CONTRADICTION, "its conditions contradict each other"),
    ],
)
def test_answer_that_cannot_be_read_is_named_and_asked_anew_with_a_pause_that_doubles(status: object, words: str) -> None:
    stage = a_stage()
    pauses = []
    for attempt in (1, 2, 3):
        stage.requests[f"bytes-lm-h100-0-a{attempt}"]["status"] = status
        stage.settle()
        assert f"says what cannot be: {words}" in stage.unit("h100-0")["message"]
        begun = stage.now
        while not stage.requests:
            stage.advance(1)
            stage.settle()
        pauses.append(stage.now - begun)
    assert pauses[0] < pauses[1] < pauses[2]


@pytest.mark.slow
def test_job_that_is_answered_nonsense_asks_less_and_less_often_with_one_request_at_a_time() -> None:
    stage, asked = a_stage(), set()
    end = stage.now + 900
    while stage.now < end:
        for name, request in stage.requests.items():
            asked.add(name)
            request["status"] = CONTRADICTION
        stage.settle()
        assert len(stage.requests) <= 1
        wait = stage.reconcile_only().requeue_after
        assert wait is not None
        stage.advance(wait)
        stage.settle()
    # The pause doubles from 5 s to 5 min, so six of them pass in the first five minutes; by lot each is cut to half of it at the most.
    assert 900 / 300 <= len(asked) <= 2 * 6 + 900 / 150


def test_conditions_that_nobody_knows_are_shown_and_waited_for_until_the_time_out() -> None:
    stage = a_stage()
    answers(stage, a_condition("example.com/Pondering", message="hm"))
    assert stage.unit("h100-0")["message"].endswith("it says: example.com/Pondering=True: Said: hm")
    stage.advance(599)
    stage.settle()
    assert stage.unit("h100-0")["reason"] == "WaitingForNodes"
    stage.advance(1)
    stage.settle()
    assert stage.unit("h100-0")["reason"] == "NotProvisioned"


def test_next_pool_is_asked_when_no_nodes_come_in_time() -> None:
    stage = a_stage(a_pool("one"), a_pool("two"))
    assert list(stage.requests) == ["bytes-lm-one-0-a1"]
    answers(stage, a_condition("Accepted", message="no capacity"), name="bytes-lm-one-0-a1")
    assert stage.plans[-1].requeue_after is not None
    assert stage.plans[-1].requeue_after <= 600.001
    stage.advance(600)
    stage.settle()
    assert list(stage.requests) == list(stage.templates) == ["bytes-lm-two-0-a1"]
    message = stage.unit("one-0")["message"]
    assert "no nodes came within 10m (provisioning.timeout of pool one)" in message
    assert "no capacity" in message


@pytest.mark.slow
def test_booking_that_ends_before_the_pods_are_bound_is_asked_for_anew() -> None:
    stage = a_stage(a_pool(hosts=2))
    answers(stage, a_condition("Provisioned"))
    stage.set_node(a_gpu_node("new-0"))
    stage.binds("h100-0", 1, "new-0")
    stage.settle()
    answers(stage, a_condition("Provisioned"), a_condition("BookingExpired"))
    assert stage.unit("h100-0")["reason"] == "NotProvisioned"
    stage.kubelets_finish_deletions()
    stage.advance(10)
    stage.settle()
    assert (stage.learner_pods(), list(stage.requests)) == ([], ["bytes-lm-h100-0-a2"])


def test_pods_that_were_granted_and_find_no_node_are_withdrawn_in_time() -> None:
    stage = a_stage()
    answers(stage, a_condition("Provisioned"))
    stage.advance(600)
    stage.settle()
    assert stage.unit("h100-0")["reason"] == "NotProvisioned"
    assert (stage.learner_pods(), stage.requests) == ([], {})


def test_half_a_unit_of_a_request_that_was_granted_is_withdrawn_in_time() -> None:
    stage = a_stage(a_pool(hosts=2))
    answers(stage, a_condition("Provisioned"))
    stage.set_node(a_gpu_node("new-0"))
    stage.binds("h100-0", 1, "new-0")
    stage.advance(599)
    stage.settle()
    assert len(stage.learner_pods()) == 2
    stage.advance(1)
    stage.settle()
    stage.kubelets_finish_deletions()
    assert stage.unit("h100-0")["reason"] == "NotProvisioned"
    assert (stage.learner_pods(), stage.requests) == ([], {})


OLD = "2026-11-20T11:00:00Z"
"""An hour before a stage begins."""


def test_slice_that_becomes_free_is_taken_and_the_request_is_withdrawn() -> None:
    stage = a_stage(a_pool(hosts=2))
    answers(stage, a_condition("Accepted"))
    for node in ("gpu-0", "gpu-1"):
        stage.set_node(a_gpu_node(node, created=OLD))
    stage.settle()
    unit = stage.unit("h100-0")
    assert (unit["slice"], unit["attempt"], unit["restarts"], unit["failures"]) == ("gpu-0+gpu-1", 2, 0, [])
    assert stage.pod("h100-0", 2, 1)["metadata"]["annotations"][names.ANNOTATION_NODE] == "gpu-1"
    assert names.CONSUME_REQUEST not in stage.pod("h100-0", 2)["metadata"]["annotations"]
    assert (stage.requests, stage.templates) == ({}, {})


def test_one_slice_goes_to_one_of_two_units_that_wait_and_the_other_goes_on_waiting() -> None:
    stage = a_stage(min=2, max=2)
    stage.set_node(a_gpu_node("gpu-0", created=OLD))
    stage.settle()
    assert stage.unit("h100-0")["slice"] == "gpu-0"
    assert (stage.unit("h100-1")["reason"], stage.unit("h100-1")["attempt"]) == ("WaitingForNodes", 1)
    assert list(stage.requests) == ["bytes-lm-h100-1-a1"]


def test_nodes_that_are_new_are_left_to_the_request_until_it_had_time_to_say_that_they_are_its_own() -> None:
    stage = a_stage()
    stage.advance(300)
    stage.set_node(a_gpu_node("new-0", created=format_timestamp(stage.now)))
    stage.settle()
    stage.advance(119)
    stage.settle()
    assert list(stage.requests) == ["bytes-lm-h100-0-a1"]
    stage.advance(1)
    stage.settle()
    assert stage.unit("h100-0")["slice"] == "new-0"
    assert stage.requests == {}


def test_nodes_that_are_granted_are_used_and_not_another_slice() -> None:
    stage = a_stage()
    answers(stage, a_condition("Provisioned"))
    stage.set_node(a_gpu_node("gpu-0", created=OLD))
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-h100-0-a1-0"]
    assert list(stage.requests) == ["bytes-lm-h100-0-a1"]


@pytest.mark.slow
def test_operator_that_dies_while_a_unit_takes_a_slice_leaves_neither_half_a_unit_nor_a_request() -> None:
    for writes in range(8):
        stage = a_stage(a_pool(hosts=2))
        for node in ("gpu-0", "gpu-1"):
            stage.set_node(a_gpu_node(node, created=OLD))
        stage.step(crash_after=writes)
        stage.restart_operator()
        stage.settle()
        unit = stage.unit("h100-0")
        assert (unit["slice"], unit["attempt"], unit["restarts"]) == ("gpu-0+gpu-1", 2, 0)
        assert stage.learner_pods() == ["bytes-lm-h100-0-a2-0", "bytes-lm-h100-0-a2-1"]
        assert (stage.requests, stage.templates) == ({}, {})


def test_request_that_is_granted_while_its_unit_takes_a_slice_is_withdrawn_as_well() -> None:
    stage = a_stage()
    stage.set_node(a_gpu_node("gpu-0", created=OLD))
    stage.step(crash_after=2)  # the pod is there; status and deletion are not
    stage.requests["bytes-lm-h100-0-a1"]["status"] = {"conditions": [a_condition("Provisioned")]}
    stage.restart_operator()
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-h100-0-a2-0"]
    assert (stage.requests, stage.templates) == ({}, {})


def test_request_is_withdrawn_when_another_pool_is_faster() -> None:
    stage = a_stage(a_pool(), tpu_pool(topology="2x2x1"))
    assert list(stage.requests) == ["bytes-lm-h100-0-a1"]
    stage.set_node(a_tpu_node("tpu-0"))
    stage.settle()
    assert (stage.requests, stage.templates) == ({}, {})
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a1-0"]


def test_scale_down_withdraws_the_requests_beyond_it() -> None:
    stage = a_stage(a_pool(), min=3, max=3)
    assert len(stage.requests) == 3
    stage.scale(min=1, max=1)
    stage.settle()
    assert (list(stage.requests), len(stage.templates)) == (["bytes-lm-h100-0-a1"], 1)


def test_pool_whose_request_failed_says_so_while_another_pool_has_the_units() -> None:
    stage = a_stage(a_pool(), tpu_pool(topology="2x2x1"))
    answers(stage, a_condition("Failed", message="quota exceeded"))
    stage.set_node(a_tpu_node("tpu-0"))
    stage.settle()
    stage.kubelets_start()
    stage.all_contribute()
    for _ in range(3):
        stage.advance(60)  # longer than the pause
        stage.settle()
    said = "ProvisioningRequest bytes-lm-h100-0-a1 failed; it says: Failed=True: Said: quota exceeded"
    pool = stage.status["pools"][0]
    assert (pool["reason"], stage.unit("h100-0")["reason"]) == ("JobAtMaximum", "ScaledDown")
    assert pool["message"].endswith(f"; h100-0 until then: attempt 1 was withdrawn: {said}")
    assert pool["remedies"] == ["raise learners.max, or learners.min of the pool, which comes before other pools"]
    assert stage.unit("h100-0")["message"].endswith(f"; until then: attempt 1 was withdrawn: {said}")
    assert stage.unit("h100-0")["grantorSaid"] == f"attempt 1 was withdrawn: {said}"
    # once it is needed again, it asks again, and nothing of that is said any more
    stage.scale(min=2, max=2)
    stage.settle()
    assert list(stage.requests) == ["bytes-lm-h100-0-a2"]
    assert "until then" not in stage.unit("h100-0")["message"] + stage.status["pools"][0]["message"]


@pytest.mark.parametrize("granted", [False, True])
def test_suspend_withdraws_every_request_and_lets_the_job_ask_again(granted: bool) -> None:
    stage = a_stage(min=2, max=2)
    if granted:
        answers(stage, a_condition("Provisioned"))
    stage.edit(suspend=True)
    stage.settle()
    stage.kubelets_finish_deletions()
    stage.settle()
    assert (stage.requests, stage.templates, stage.learner_pods()) == ({}, {}, [])
    stage.edit(suspend=False)
    stage.settle()
    starts(stage.syncer, stage.now)
    stage.settle()
    assert list(stage.requests) == ["bytes-lm-h100-0-a2", "bytes-lm-h100-1-a2"]


def test_request_goes_as_soon_as_its_unit_drains() -> None:
    stage = a_stage()
    answers(stage, a_condition("Provisioned"))
    stage.set_node(a_gpu_node("new-0"))
    trains(stage, "h100-0", "new-0")
    assert list(stage.requests) == list(stage.templates) == ["bytes-lm-h100-0-a1"]
    stage.edit(suspend=True)
    stage.settle()
    assert stage.states() == {"h100-0": "Draining"}
    assert (stage.requests, stage.templates) == ({}, {})


def test_job_that_is_over_leaves_no_request_behind() -> None:
    stage = a_stage(nodes=[a_gpu_node("gpu-0")], min=1, max=2)
    trains(stage, "h100-0", "gpu-0")
    assert list(stage.requests) == ["bytes-lm-h100-1-a1"]
    stage.learner_exits("h100-0", 1, 0)
    exits(stage.syncer, 0, stage.now, message=Result(step=100, steps=100, tokens=1, units=[]).model_dump_json(by_alias=True))
    stage.settle()
    assert "Complete" in stage.true()
    assert (stage.requests, stage.templates) == ({}, {})


def test_request_of_another_class_or_other_parameters_is_made_anew_when_the_pool_is_edited() -> None:
    stage = a_stage()
    edit_pool(stage, provisioning=by_request(parameters={"ValidUntilSeconds": "60"}))
    assert "provisioning.class or provisioning.parameters of pool h100 were changed" in stage.unit("h100-0")["message"]
    stage.advance(10)
    stage.settle()
    assert stage.requests["bytes-lm-h100-0-a2"]["spec"]["parameters"] == {"ValidUntilSeconds": "60"}


@pytest.mark.parametrize("mode", ["Autoscaler", "Existing"])
def test_unit_that_waits_follows_a_change_of_the_mode(mode: str) -> None:
    stage = a_stage()
    edit_pool(stage, provisioning={"mode": mode})
    stage.advance(10)
    stage.settle()
    assert (stage.requests, stage.templates) == ({}, {})
    assert stage.learner_pods() == (["bytes-lm-h100-0-a2-0"] if mode == "Autoscaler" else [])


# --- strangers --------------------------------------------------------------------------------------------------------
def test_request_that_a_stranger_deletes_is_asked_for_anew_after_a_pause() -> None:
    stage = a_stage()
    del stage.requests["bytes-lm-h100-0-a1"]
    stage.settle()
    assert "ProvisioningRequest bytes-lm-h100-0-a1 was deleted, but not by the operator" in stage.unit("h100-0")["message"]
    assert stage.requests == {}
    stage.advance(10)
    stage.settle()
    assert list(stage.requests) == ["bytes-lm-h100-0-a2"]


def test_request_of_a_stranger_under_our_name_is_left_alone_and_named() -> None:
    stage = a_stage()
    stage.requests["bytes-lm-h100-0-a1"]["metadata"]["ownerReferences"][0]["uid"] = "another"
    answers(stage, a_condition("Provisioned"))
    assert "exists and does not belong to this job; delete or rename it" in stage.unit("h100-0")["message"]
    assert stage.learner_pods() == []
    assert list(stage.requests) == ["bytes-lm-h100-0-a1"]


def test_request_that_the_api_server_rejects_is_said_and_tried_again_later() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_pools(a_pool()))
    says = 'provisioningrequests is forbidden: User "operator" cannot create resource "provisioningrequests"'
    while not stage.rejected_writes:
        stage.step_rejected(lambda obj: says if "podSets" in obj.get("spec", {}) else "")
    stage.settle()
    unit = stage.unit("h100-0")
    assert (unit["state"], unit["reason"]) == ("Pending", "PodsRefused")
    assert "give the operator's service account this right" in unit["message"]
    stage.advance(6)
    stage.settle()
    assert list(stage.requests) == list(stage.templates) == ["bytes-lm-h100-0-a1"]


def test_pods_that_the_api_server_rejects_do_not_cost_the_nodes() -> None:
    stage = a_stage()
    stage.requests["bytes-lm-h100-0-a1"]["status"] = {"conditions": [a_condition("Provisioned", at=format_timestamp(stage.now))]}
    stage.step_rejected(lambda obj: "exceeded quota: pods" if obj["metadata"]["name"].endswith("-a1-0") else "")
    stage.settle()
    unit = stage.unit("h100-0")
    assert (unit["reason"], unit["attempt"]) == ("WaitingForNodes", 1)
    assert "its nodes are there, and its pods are not" in unit["message"]
    assert "raise the namespace's quota" in unit["message"]
    stage.advance(6)
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-h100-0-a1-0"]


def test_what_units_share_comes_when_the_nodes_are_there_and_the_pods_after_it() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_pools(a_pool()))
    stage.default_class = True  # the volume claim of another job has got a class
    stage.settle()
    assert (list(stage.requests), stage.pods, stage.children, stage.secrets) == (["bytes-lm-h100-0-a1"], {}, {}, {})
    stage.requests["bytes-lm-h100-0-a1"]["status"] = {
        "conditions": [{**a_condition("Provisioned"), "lastTransitionTime": format_timestamp(stage.now)}]
    }
    plan = stage.step_rejected(lambda obj: "no" if obj["kind"] == "Service" else "")
    assert "Pod" in {create.resource.kind for create in plan.creates}
    stage.step()
    assert stage.condition("Training")["reason"] == "WriteRefused"
    assert not stage.pods, "pods would wait for what nobody makes"
    stage.rejected_writes.clear()
    stage.settle()
    assert sorted(stage.pods) == ["bytes-lm-h100-0-a1-0", "bytes-lm-syncer"]


def test_cluster_without_provisioning_requests_says_so_and_other_pools_are_asked() -> None:
    without = {names.PROVISIONING_REQUESTS: UNKNOWN}
    stage = a_stage(without=without)
    assert (stage.requests, stage.templates, stage.learner_pods()) == ({}, {}, [])
    assert UNKNOWN in stage.status["pools"][0]["message"]
    assert "set provisioning.mode to Autoscaler" in stage.condition("Placed")["message"]
    both = a_stage(a_pool("one"), a_pool("two", provisioning={"mode": "Autoscaler"}), without=without)
    assert both.learner_pods() == ["bytes-lm-two-0-a1-0"]


def test_unit_that_waits_says_so_when_the_resource_goes() -> None:
    stage = a_stage()
    stage.without = {names.PROVISIONING_REQUESTS: UNKNOWN}
    stage.requests.clear()
    stage.settle()
    assert UNKNOWN in stage.unit("h100-0")["message"]
    stage.without = {}
    stage.advance(10)
    stage.settle()
    assert list(stage.requests) == ["bytes-lm-h100-0-a2"]


@pytest.mark.slow
def test_operator_that_dies_at_any_write_asks_once_and_makes_all_pods() -> None:
    job = a_job().with_learners(1, 1).with_pools(a_pool(hosts=2))
    for writes in range(8):
        stage = Stage(job)
        stage.settle()
        starts(stage.syncer, stage.now)
        stage.step(crash_after=writes)
        stage.restart_operator()
        stage.settle()
        assert list(stage.requests) == list(stage.templates) == ["bytes-lm-h100-0-a1"]
        stage.requests["bytes-lm-h100-0-a1"]["status"] = {"conditions": [a_condition("Provisioned", at=format_timestamp(stage.now))]}
        stage.step(crash_after=writes)
        stage.restart_operator()
        stage.settle()
        assert stage.learner_pods() == ["bytes-lm-h100-0-a1-0", "bytes-lm-h100-0-a1-1"]
        assert stage.unit("h100-0")["reason"] == "WaitingForNodes"
