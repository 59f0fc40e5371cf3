"""Objects that the API server rejects: reported in status, tried again after growing pauses, and nothing else waits for them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from builders.jobs import a_job
from builders.nodes import a_tpu_node, a_tpu_slice
from builders.stage import Stage
from diloco_operator.reconcile.observe.rejected_writes import RejectedWrite, advice

PSA = (
    'pods "x" is forbidden: violates PodSecurity "restricted:latest": privileged '
    '(container "learner" must not set securityContext.privileged=true)'
)
SCC = (
    'pods "x" is forbidden: unable to validate against any security context constraint: [provider "anyuid": Forbidden: not usable by user '
    "or serviceaccount, provider restricted-v2: .containers[0].runAsUser: Invalid value: 1000: "
    "must be in the ranges: [1000680000, 1000689999]]"
)
QUOTA = 'pods "x" is forbidden: exceeded quota: pods, requested: pods=1, used: pods=1, limited: pods=1'


def of_unit(unit: str, message: str) -> Any:
    return lambda obj: message if obj["metadata"]["labels"].get("diloco.dev/unit") == unit else ""


def two_pools() -> Stage:
    job = a_job().with_learners(1, 4).with_pool("a", max=1).with_pool("b", max=1, accelerator="tpu-v6e", topology="2x2")
    return Stage(job, a_tpu_node("tpu-0"), a_tpu_node("tpu-1", kind="tpu-v6e-slice", topology="2x2"))


def test_rejected_unit_reports_why_and_the_other_pool_trains() -> None:
    stage = two_pools()
    for _ in range(6):
        stage.step_rejected(of_unit("a-0", PSA))
    unit = stage.unit("a-0")
    assert (unit["state"], unit["reason"], unit["slice"]) == ("Pending", "PodsRefused", "")
    assert "violates PodSecurity" in unit["message"]
    assert "pod-security.kubernetes.io/enforce" in unit["message"]
    assert stage.learner_pods() == ["bytes-lm-b-0-a1-0"]
    stage.kubelets_start()
    stage.all_contribute()
    stage.step_rejected(of_unit("a-0", PSA))
    assert stage.states() == {"a-0": "Pending", "b-0": "Training"}
    assert stage.condition("Training")["status"] == "True"


def test_the_only_slice_goes_to_a_unit_whose_pods_are_admitted() -> None:
    stage = Stage(a_job().with_learners(1, 2).with_pool(max=2), a_tpu_node("tpu-0"))
    for _ in range(4):
        stage.step_rejected(of_unit("v5p-0", PSA))
    assert stage.learner_pods() == ["bytes-lm-v5p-1-a1-0"]
    assert (stage.unit("v5p-0")["reason"], stage.unit("v5p-1")["slice"]) == ("PodsRefused", "tpu-0")


def test_job_whose_authority_is_rejected_asks_for_no_certificates() -> None:
    stage = two_pools()
    assert len(stage.reconcile_only().certificates) > 1, "the authority, and certificates that it signs"
    taken = RejectedWrite(409, "Secret bytes-lm-ca exists and does not belong to this job", stage.now, 1, transient=False, count=1)
    stage.rejected_writes["Secret", "bytes-lm-ca"] = taken
    assert not stage.reconcile_only().certificates, "there is no authority that signs"


def test_job_below_its_minimum_because_of_rejected_pods_reports_it() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1), a_tpu_node("tpu-0"))
    for _ in range(4):
        stage.step_rejected(of_unit("v5p-0", QUOTA))
    placed = stage.condition("Placed")
    assert (placed["status"], placed["reason"]) == ("False", "PodsRefused")
    assert "exceeded quota" in placed["message"]
    assert "raise the namespace's quota" in placed["message"]
    assert stage.status["learners"]["placed"] == 0


@pytest.mark.slow
def test_rejected_unit_is_tried_again_with_growing_pauses_and_starts_when_it_may() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    rejects = of_unit("v5p-0", QUOTA)
    tried = []
    for _ in range(1000):  # s; the first eight pauses take 915
        plan = stage.step_rejected(rejects)
        if any(create.obj["metadata"]["labels"].get("diloco.dev/unit") for create in plan.creates):
            tried.append(stage.now)
        assert plan.requeue_after is not None
        stage.advance(1.0)
    pauses = [round(b - a) for a, b in itertools.pairwise(tried)]
    # 5 s, doubled each time, at most 300 s; a reconcile each second may come up to one later.
    assert pauses[:8] == [5, 10, 20, 40, 80, 160, 300, 300]
    stage.advance(300)
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a1-0"]
    assert stage.unit("v5p-0")["restarts"] == 0


def test_plan_while_waiting_requeues_when_the_next_try_is_due() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    for _ in range(4):
        plan = stage.step_rejected(of_unit("v5p-0", QUOTA))
    assert not plan.creates
    assert plan.requeue_after is not None
    assert plan.requeue_after <= 5.01


def test_changed_spec_is_tried_at_once() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    for _ in range(4):
        stage.step_rejected(of_unit("v5p-0", PSA))
    stage.edit(priorityClassName="")
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a1-0"]


def test_gang_that_is_rejected_in_part_frees_what_it_has() -> None:
    stage = Stage(a_job().with_pool(max=1, topology="2x2x2"), *a_tpu_slice("np-0", 2))

    def second_host(obj: dict[str, Any]) -> str:
        return QUOTA if obj["metadata"]["labels"].get("diloco.dev/host") == "1" else ""

    for _ in range(5):
        stage.step_rejected(second_host)
    assert stage.learner_pods() == []
    assert stage.unit("v5p-0")["reason"] == "PodsRefused"
    assert stage.inventory.reservations(stage.observed().job.key) == frozenset()
    assert stage.unit("v5p-0")["attempt"] == 1  # no new one before its time
    stage.advance(6)
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a2-0", "bytes-lm-v5p-0-a2-1"]
    assert stage.unit("v5p-0")["restarts"] == 0


def test_rejected_syncer_is_a_condition_of_the_job() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))

    def syncer(obj: dict[str, Any]) -> str:
        return QUOTA if obj["metadata"]["labels"].get("diloco.dev/component") == "syncer" else ""

    for _ in range(3):
        stage.step_rejected(syncer)
    training = stage.condition("Training")
    assert (training["status"], training["reason"]) == ("False", "WriteRefused")
    assert "Pod bytes-lm-syncer cannot be made" in training["message"]
    assert stage.pods == {}
    stage.advance(6)
    stage.settle()
    assert "bytes-lm-syncer" in stage.pods
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a1-0"]


def test_rejected_volume_claim_keeps_back_everything_after_it() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    wrong = "PersistentVolumeClaim is invalid: spec.storageClassName: Invalid value"
    for _ in range(3):
        stage.step_rejected(lambda obj: wrong if obj["kind"] == "PersistentVolumeClaim" else "", code=422)
    assert stage.condition("Training")["reason"] == "WriteRefused"
    assert "PersistentVolumeClaim bytes-lm-syncer" in stage.condition("Training")["message"]
    assert stage.pods == {}


def test_server_error_is_tried_at_once_and_a_lasting_one_becomes_a_message() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    broken = 'failed calling webhook "w": context deadline exceeded'
    stage.step()  # the syncer, and its volume claim
    made = []
    for _ in range(5):
        plan = stage.step_rejected(of_unit("v5p-0", broken), code=500)
        made.append(any(create.obj["metadata"]["labels"].get("diloco.dev/unit") for create in plan.creates))
    assert made == [True, True, True, False, False]
    assert "ask the owner of this admission webhook" in stage.unit("v5p-0")["message"]


def test_running_units_are_left_alone_when_a_new_one_is_rejected() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=2), a_tpu_node("tpu-0"), a_tpu_node("tpu-1")).train()
    stage.scale(max=2)
    for _ in range(4):
        stage.step_rejected(of_unit("v5p-1", QUOTA))
    assert stage.states()["v5p-0"] == "Training"
    assert stage.condition("Training")["status"] == "True"
    assert stage.condition("Placed")["status"] == "True"


def test_operator_that_forgot_the_rejection_tries_once_and_reports_again() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    for _ in range(4):
        stage.step_rejected(of_unit("v5p-0", QUOTA))
    stage.restart_operator()
    assert stage.step_rejected(of_unit("v5p-0", QUOTA)).creates
    assert not stage.step_rejected(of_unit("v5p-0", QUOTA)).creates
    assert stage.unit("v5p-0")["reason"] == "PodsRefused"


@pytest.mark.parametrize(
    ("code", "message", "words"),
    [
        (403, PSA, "pod-security.kubernetes.io/enforce"),
        (403, QUOTA, "quota"),
        *((code, SCC, "config.assignUsers: false") for code in (403, 422)),
        (403, "forbidden: unable to create new content in namespace team because it is being terminated", "namespace is being deleted"),
        (404, 'namespaces "team" not found', "namespace is being deleted"),
        (403, "no PriorityClass with name high was found", "spec.priorityClassName"),
        (403, 'error looking up service account team/x: serviceaccount "x" not found', "serviceAccountName"),
        (403, 'User "system:serviceaccount:x:y" cannot create resource "pods" in API group ""', "the operator's service account"),
        (400, 'admission webhook "policy.example" denied the request: no', "admission webhook"),
        (422, 'Pod "x" is invalid: spec.containers[0].image: Required value', "the template that it names"),
        (409, "Pod team/x exists and does not belong to this job", "give the job another name"),
        (500, "etcdserver: request is too large", "smaller"),
        (500, "internal error", "API server"),
        (403, "no", "the cluster's administrators"),
    ],
)
def test_advice_fits_the_servers_message(code: int, message: str, words: str) -> None:
    assert words in advice(RejectedWrite(code, message, 0.0, 1))


def test_enormous_message_of_the_server_is_cut() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    for _ in range(4):
        stage.step_rejected(of_unit("v5p-0", "spec.x: " + "y" * 100_000), code=422)
    assert len(stage.unit("v5p-0")["message"]) < 4096  # what the CRD allows


def test_pods_show_their_slice_and_a_unit_on_two_is_created_again_on_one() -> None:
    # A create that timed out was carried out after all, on another slice than the next plan chose.
    stage = Stage(a_job().with_pool(max=1, topology="2x2x2"), *a_tpu_slice("np-0", 2), *a_tpu_slice("np-1", 2))
    stage.settle()
    first, second = stage.pod("v5p-0", 1, 0), stage.pod("v5p-0", 1, 1)
    for pod, node in ((first, "np-1-0"), (second, "np-1-1")):
        pod["metadata"]["annotations"] |= {"diloco.dev/slice": "np-1", "diloco.dev/node": node}
    stage.settle()
    assert (stage.unit("v5p-0")["slice"], stage.unit("v5p-0")["attempt"]) == ("np-1", 1)
    second["metadata"]["annotations"] |= {"diloco.dev/slice": "np-0", "diloco.dev/node": "np-0-1"}
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a2-0", "bytes-lm-v5p-0-a2-1"]
    assert len({stage.pod("v5p-0", 2, host)["metadata"]["annotations"]["diloco.dev/slice"] for host in (0, 1)}) == 1
    assert stage.unit("v5p-0")["restarts"] == 0
