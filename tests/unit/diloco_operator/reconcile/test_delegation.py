"""Units for which an autoscaler brings nodes: their pods name no node, and the operator learns the slice from the binding."""

from __future__ import annotations

from typing import Any

import pytest
from builders.jobs import a_job, gpu_pool, template, tpu_pool
from builders.nodes import a_gpu_node, a_tpu_node, a_tpu_slice
from builders.pods import is_unschedulable, starts
from builders.stage import Stage
from diloco_operator.api import names
from diloco_operator.kube.timestamps import format_timestamp

AUTOSCALER = {"mode": "Autoscaler", "timeout": "10m"}
WORDS = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


def a_growing_pool(name: str = "h100", **fields: Any) -> dict[str, Any]:
    return gpu_pool(name, **{"provisioning": AUTOSCALER, **fields})


def a_stage(*pools: dict[str, Any], nodes: Any = (), min: int = 1, max: int = 1, **spec: Any) -> Stage:
    """The syncer runs, and everything that can be asked for was. `spec`: further fields of the job's."""
    stage = Stage(a_job().with_learners(min, max).with_pools(*(pools or (a_growing_pool(),))).with_spec(**spec), *nodes)
    stage.settle()
    stage.syncer_starts()
    stage.settle()
    return stage


def trained_on_a_new_node() -> Stage:
    """One unit trains on new-0, which the autoscaler brought."""
    stage = a_stage()
    stage.set_node(a_gpu_node("new-0"))
    stage.binds("h100-0", 1, "new-0")
    stage.settle()
    stage.kubelets_start()
    stage.all_contribute()
    stage.settle()
    return stage


def affinity(stage: Stage, unit: str, attempt: int = 1) -> dict[str, Any]:
    found: dict[str, Any] = stage.pod(unit, attempt)["spec"]["affinity"]
    return found


def node_terms(stage: Stage, unit: str) -> list[dict[str, list[str]]]:
    required = affinity(stage, unit)["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [{each["key"]: each["values"] for each in term["matchExpressions"]} for term in required["nodeSelectorTerms"]]


# --- asking -----------------------------------------------------------------------------------------------------------
def test_unit_without_a_free_slice_gets_pods_that_name_no_node_and_say_who_was_asked() -> None:
    stage = a_stage()
    pod, unit = stage.pod("h100-0", 1), stage.unit("h100-0")
    assert pod["metadata"]["annotations"]["diloco.dev/grantor"] == "Autoscaler"
    assert names.ANNOTATION_NODE not in pod["metadata"]["annotations"]
    assert {"cloud.google.com/gke-accelerator": ["nvidia-h100-80gb"]} in node_terms(stage, "h100-0")
    assert pod["spec"]["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "8"}
    assert (unit["state"], unit["reason"], unit["slice"]) == ("Starting", "WaitingForNodes", "")
    assert unit["message"] == f"bytes-lm-h100-0-a1-0: asked the autoscaler for nodes at {format_timestamp(stage.now)}"
    assert stage.condition("Placed")["reason"] == "WaitingForNodes"
    assert stage.status["pools"][0]["reason"] == "WaitingForNodes"
    lacks = "pool h100 needs 1 more slice of nvidia-h100-80gb, 1 host with 8 accelerators"
    assert stage.status["pools"][0]["message"] == f"{lacks}; the fleet has no such nodes; nodes for it were asked of the autoscaler"
    assert "NodesRequested" in [event.reason for plan in stage.plans for event in plan.events]


def important(stage: Stage, unit: str = "h100-0") -> dict[str, Any]:
    """What the first pod of the unit says of its priority."""
    return {key: value for key, value in stage.pod(unit, 1)["spec"].items() if key in ("priorityClassName", "priority", "preemptionPolicy")}


@pytest.mark.parametrize("where", ["job", "template"])
def test_pods_that_name_no_node_have_no_priority_class_that_ends_pods_of_others(where: str) -> None:
    own: dict[str, Any] = {"priorityClassName": "urgent"}
    everything: dict[str, Any] = {**own, "priority": 1000, "preemptionPolicy": "PreemptLowerPriority"}
    pool = a_growing_pool(template=template(**(everything if where == "template" else {})))
    stage = a_stage(pool, nodes=[a_gpu_node("gpu-0")], max=2, **(own if where == "job" else {}))
    assert important(stage) == (everything if where == "template" else own)  # it is on a slice that was free
    assert stage.syncer["spec"].get("priorityClassName") == (None if where == "template" else "urgent")
    assert important(stage, "h100-1") == {}


def test_each_alternative_of_the_template_must_also_be_of_the_kind() -> None:
    zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in ("a", "b")]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": zones}}
    stage = a_stage(a_growing_pool(template=template(affinity={"nodeAffinity": required})))
    terms = node_terms(stage, "h100-0")
    plain = node_terms(a_stage(), "h100-0")
    assert terms == [{"zone": [zone], **term} for zone in ("a", "b") for term in plain]


def test_nodes_are_asked_for_as_the_pool_says_they_are_paid_for() -> None:
    any_, spot, steady, reserved = (
        a_stage({**a_growing_pool(), **asked}) for asked in ({}, *({"capacity": each} for each in ("Spot", "OnDemand", "Reserved")))
    )
    kinds = node_terms(any_, "h100-0")
    assert {**kinds[0], "karpenter.sh/capacity-type": ["spot"]} in node_terms(spot, "h100-0")
    assert len(node_terms(spot, "h100-0")) == 6 * len(kinds)  # labels that say spot
    (required,) = affinity(steady, "h100-0")["nodeAffinity"].values()
    assert len(required["nodeSelectorTerms"]) == len(kinds)
    for term in required["nodeSelectorTerms"]:
        assert {"key": "karpenter.sh/capacity-type", "operator": "NotIn", "values": ["spot", "reserved"]} in term["matchExpressions"]
        assert {"key": "cloud.google.com/reservation-name", "operator": "DoesNotExist"} in term["matchExpressions"]
    (required,) = affinity(reserved, "h100-0")["nodeAffinity"].values()
    exists = {"key": "cloud.google.com/reservation-name", "operator": "Exists"}
    assert sum(exists in term["matchExpressions"] for term in required["nodeSelectorTerms"]) == len(kinds)


def test_autoscalers_leave_the_pods_of_such_a_pool_alone_unless_the_template_says_otherwise() -> None:
    stage = a_stage()
    assert names.KEEP_PODS.items() <= stage.pod("h100-0", 1)["metadata"]["annotations"].items()
    own = {**template(), "metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "false"}}}
    stage = a_stage(a_growing_pool(template=own))
    assert stage.pod("h100-0", 1)["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "false"


def test_free_slices_are_used_before_nodes_are_asked_for() -> None:
    stage = a_stage(nodes=[a_gpu_node("gpu-0")], min=2, max=2)
    assert stage.unit("h100-0")["slice"] == "gpu-0"
    assert stage.pod("h100-0", 1)["metadata"]["annotations"][names.ANNOTATION_NODE] == "gpu-0"
    assert stage.unit("h100-1")["reason"] == "WaitingForNodes"


@pytest.mark.parametrize(("objective", "asked"), [("Throughput", "h100"), ("Preference", "a100")])
def test_nodes_of_the_kind_that_trains_the_job_faster_are_asked_for_unless_the_order_of_the_pools_decides(
    objective: str, asked: str
) -> None:
    pools = a_growing_pool("a100", accelerator="nvidia-a100-40gb"), a_growing_pool("h100")  # by the peaks: 312 and 989 TFLOP/s
    stage = a_stage(*pools, placement={"objective": objective})
    assert [unit["name"] for unit in stage.status["units"] if unit["reason"] == "WaitingForNodes"] == [f"{asked}-0"]


def test_units_beyond_the_minimum_are_asked_for_once_the_minimum_has_its_nodes() -> None:
    stage = a_stage(min=1, max=3)
    assert stage.states() == {"h100-0": "Starting"}
    stage.set_node(a_gpu_node("new-0"))
    stage.binds("h100-0", 1, "new-0")
    stage.settle()
    assert stage.unit("h100-0")["slice"] == "new-0"
    assert stage.learner_pods() == ["bytes-lm-h100-0-a1-0", "bytes-lm-h100-1-a1-0", "bytes-lm-h100-2-a1-0"]


def test_minimum_of_a_pool_is_asked_for_before_that_of_the_job() -> None:
    first, second = a_growing_pool("one"), a_growing_pool("two", min=1)
    stage = a_stage(first, second, min=2, max=2)
    assert stage.states() == {"one-0": "Starting", "two-0": "Starting"}


def test_minimum_of_a_pool_is_asked_for_although_another_pool_has_all_units() -> None:
    pools = (tpu_pool(topology="2x2x1"), a_growing_pool(min=1))
    stage = a_stage(*pools, nodes=[a_tpu_node("tpu-0"), a_tpu_node("tpu-1")], min=2, max=2)
    assert stage.states() == {"v5p-0": "Starting", "v5p-1": "Starting", "h100-0": "Starting"}
    assert (stage.unit("h100-0")["reason"], stage.status["pools"][1]["reason"]) == ("WaitingForNodes", "WaitingForNodes")
    for index in range(2):
        starts(stage.pod(f"v5p-{index}", 1), stage.now)
    stage.all_contribute()
    stage.advance(599)
    stage.settle()
    assert stage.unit("h100-0")["reason"] == "WaitingForNodes"  # the job trains with both meanwhile, and nothing is withdrawn
    assert [stage.unit(f"v5p-{index}")["state"] for index in range(2)] == ["Training", "Training"]
    stage.set_node(a_gpu_node("new-0"))
    stage.binds("h100-0", 1, "new-0")
    stage.settle()
    assert stage.unit("h100-0")["slice"] == "new-0"
    assert [stage.unit(f"v5p-{index}")["state"] for index in range(2)] == ["Training", "Draining"]


def test_pods_of_a_tpu_slice_ask_for_one_node_pool_of_their_own() -> None:
    stage = a_stage(tpu_pool(provisioning=AUTOSCALER))
    gang = stage.pod("v5p-0", 1)["metadata"]["labels"][names.LABEL_GANG]
    assert stage.pod("v5p-0", 1, 1)["metadata"]["labels"][names.LABEL_GANG] == gang
    assert stage.pod("v5p-0", 1)["spec"]["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
        "cloud.google.com/gke-tpu-topology": "2x2x2",
        "cloud.google.com/gke-accelerator-count": "4",
    }
    assert "nodeAffinity" not in affinity(stage, "v5p-0")
    together = affinity(stage, "v5p-0")["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    apart = affinity(stage, "v5p-0")["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert together == [{"labelSelector": {"matchLabels": {names.LABEL_GANG: gang}}, "topologyKey": names.NODE_POOL}]
    assert [rule["topologyKey"] for rule in apart] == [names.NODE_POOL]
    assert apart[0]["labelSelector"]["matchExpressions"][1] == {"key": names.LABEL_GANG, "operator": "NotIn", "values": [gang]}


@pytest.mark.parametrize("there", [True, False])
def test_pods_go_to_no_host_that_the_job_avoids_whatever_its_labels_say(there: bool) -> None:
    """A host that is gone is not named: Karpenter brings no node for a pod that excludes some."""
    nodes = [a_gpu_node("gpu-0", labels={names.NODE_HOSTNAME: "other"})] if there else []
    stage = Stage(a_job().with_pools(a_growing_pool()), *nodes)
    failures = [{"unit": "h100-9", "attempt": attempt, "at": format_timestamp(stage.now), "reason": "Crashed"} for attempt in (1, 2)]
    until = format_timestamp(stage.now + 600)
    stage.job["status"] = {"hosts": [{"node": "gpu-0", "failures": failures, "message": "", "avoidances": 1, "avoidedUntil": until}]}
    stage.settle()
    stage.syncer_starts()
    stage.settle()
    required = affinity(stage, "h100-0")["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    named = [term["matchFields"] for term in required["nodeSelectorTerms"] if "matchFields" in term]
    assert named == ([[{"key": "metadata.name", "operator": "NotIn", "values": ["gpu-0"]}]] if there else [])


def test_hosts_of_a_group_ask_for_hosts_of_their_own_in_one_zone() -> None:
    stage = a_stage(a_growing_pool(hosts=2))
    together = affinity(stage, "h100-0")["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    apart = affinity(stage, "h100-0")["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [rule["topologyKey"] for rule in together] == [names.NODE_ZONE]
    assert [(rule["topologyKey"], rule["namespaceSelector"]) for rule in apart] == [(names.NODE_HOSTNAME, {})]


# --- the binding ------------------------------------------------------------------------------------------------------
def test_unit_trains_on_the_slice_that_its_pods_were_bound_to() -> None:
    stage = trained_on_a_new_node()
    assert (stage.unit("h100-0")["slice"], stage.states()) == ("new-0", {"h100-0": "Training"})
    assert stage.condition("Placed")["status"] == "True"
    assert stage.plans[-1].reservations.nodes == {"new-0"}
    assert "h100-0: attempt 1 got new-0" in [event.message for plan in stage.plans for event in plan.events]


def test_slice_is_known_once_all_its_nodes_are_seen_in_whatever_order_pods_were_bound() -> None:
    stage = a_stage(tpu_pool(provisioning=AUTOSCALER))
    stage.binds("v5p-0", 1, "np-1-1", "np-1-0")
    stage.settle()
    for node in a_tpu_slice("np-1", 2):
        assert (stage.unit("v5p-0")["state"], stage.unit("v5p-0")["slice"]) == ("Starting", "")
        stage.set_node(node)
        stage.settle()
    assert stage.unit("v5p-0")["slice"] == "np-1"
    assert stage.plans[-1].reservations.nodes == {"np-1-0", "np-1-1"}


def test_group_is_called_by_its_hosts_in_the_order_of_the_pods() -> None:
    stage = a_stage(a_growing_pool(hosts=2))
    for node in ("new-0", "new-1"):
        stage.set_node(a_gpu_node(node))
    stage.binds("h100-0", 1, "new-1", "new-0")
    stage.settle()
    assert stage.unit("h100-0")["slice"] == "new-1+new-0"
    stage.restart_operator()
    stage.settle()
    assert stage.states() == {"h100-0": "Starting"}


def test_pods_on_two_slices_never_ran_and_start_again_on_one() -> None:
    stage = a_stage(tpu_pool(provisioning=AUTOSCALER))
    for node in (*a_tpu_slice("np-1", 2), *a_tpu_slice("np-2", 2)):
        stage.set_node(node)
    stage.binds("v5p-0", 1, "np-1-0", "np-2-0")
    stage.kubelets_start()
    stage.step()
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["failures"]) == ("Pending", [])
    assert "its pods were bound to two slices, np-1 and np-2" in unit["message"]
    assert "waits until the pod" in unit["message"]
    stage.kubelets_finish_deletions()
    stage.settle()
    unit = stage.unit("v5p-0")
    assert (unit["attempt"], unit["slice"], unit["restarts"], unit["failures"]) == (2, "np-1", 0, [])


def test_node_that_vanished_after_the_binding_is_a_disruption() -> None:
    stage = a_stage()
    stage.binds("h100-0", 1, "new-0")
    stage.settle()
    stage.advance(30)
    stage.settle()
    unit = stage.unit("h100-0")
    assert (unit["reason"], unit["failures"]) == ("WaitingForNodes", [])
    assert (unit["attempt"], unit["restarts"]) == (2, 1)


def half_bound(*, whole: bool) -> Stage:
    """A unit of two hosts has one of them in zone a, where there is no other; `whole`: zone b has two that are free."""
    stage = a_stage(a_growing_pool(hosts=2))
    stage.set_node(a_gpu_node("a-0", labels={names.NODE_ZONE: "a"}))
    stage.binds("h100-0", 1, "a-0")
    starts(stage.pod("h100-0", 1, 0), stage.now)
    for node in ("b-0", "b-1") if whole else ():
        stage.set_node(a_gpu_node(node, labels={names.NODE_ZONE: "b"}))
    stage.settle()
    return stage


def test_half_a_unit_for_which_no_other_half_comes_takes_a_whole_slice_that_is_free() -> None:
    stage = half_bound(whole=True)
    assert stage.unit("h100-0")["attempt"] == 1  # kube-scheduler may be in the middle of it
    assert stage.plans[-1].requeue_after is not None
    assert stage.plans[-1].requeue_after <= 30.001
    stage.advance(30)
    stage.settle()
    unit = stage.unit("h100-0")
    assert (unit["slice"], unit["attempt"], unit["restarts"], unit["failures"]) == ("b-0+b-1", 2, 0, [])
    assert "deletionTimestamp" in stage.pod("h100-0", 1, 0)["metadata"]
    stage.kubelets_finish_deletions()
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-h100-0-a2-0", "bytes-lm-h100-0-a2-1"]


def test_a_unit_that_runs_on_a_node_without_a_device_plugin_says_where_it_is() -> None:
    stage = a_stage()
    stage.set_node(a_gpu_node("dra-0", gpus=0))
    stage.binds("h100-0", 1, "dra-0")
    stage.settle()
    stage.kubelets_start()
    stage.settle()
    assert stage.status["pools"][0]["message"].endswith("; the pods of h100-0 are on dra-0, where the fleet has no slice of the pool")


def test_a_delegated_pod_without_the_claim_of_its_template_says_so() -> None:
    claims = template(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}])
    message = a_stage(a_growing_pool(template=claims)).unit("h100-0")["message"]
    assert "asked the autoscaler for nodes" in message
    assert "waits for a ResourceClaim of the template one-gpu" in message


def test_half_a_unit_waits_for_its_other_half_where_no_slice_is_free_until_its_time_is_up() -> None:
    stage = half_bound(whole=False)
    stage.advance(30)
    stage.settle()
    assert (stage.unit("h100-0")["attempt"], stage.unit("h100-0")["reason"]) == (1, "WaitingForNodes")
    stage.advance(570)
    plan = stage.step()
    assert {delete.name for delete in plan.deletes} == {"bytes-lm-h100-0-a1-0", "bytes-lm-h100-0-a1-1"}
    assert stage.unit("h100-0")["reason"] == "NotProvisioned"


def test_half_a_unit_that_does_not_wait_for_the_other_half_has_not_failed() -> None:
    stage = half_bound(whole=False)
    stage.learner_exits("h100-0", 1, 1)
    stage.settle()
    unit = stage.unit("h100-0")
    assert (unit["reason"], unit["failures"], unit["restarts"]) == ("NotProvisioned", [], 0)


@pytest.mark.slow
def test_operator_that_dies_after_some_of_the_pods_makes_the_others() -> None:
    job = a_job().with_learners(1, 1).with_pools(a_growing_pool(hosts=2))
    whole = Stage(job)
    whole.settle()
    starts(whole.syncer, whole.now)
    writes = 0
    while True:
        stage = Stage(job)
        stage.settle()
        starts(stage.syncer, stage.now)
        stage.step(crash_after=writes)
        stage.restart_operator()
        stage.settle()
        assert stage.learner_pods() == ["bytes-lm-h100-0-a1-0", "bytes-lm-h100-0-a1-1"]
        assert stage.unit("h100-0")["reason"] == "WaitingForNodes"
        if writes > 8:
            break
        writes += 1


# --- what does not come, or is not needed ----------------------------------------------------------------------------
def test_next_pool_is_asked_when_no_node_comes_in_time() -> None:
    stage = a_stage(a_growing_pool("one"), a_growing_pool("two"))
    is_unschedulable(stage.pod("one-0", 1), WORDS)
    stage.settle()
    assert stage.unit("one-0")["message"].endswith(f"; the scheduler says: {WORDS}")
    stage.advance(600)
    stage.settle()
    one = stage.unit("one-0")
    assert (one["state"], one["reason"], one["failures"], one["restarts"]) == ("Pending", "NotProvisioned", [], 0)
    assert "no node came for bytes-lm-one-0-a1-0 within 10m (provisioning.timeout of pool one)" in one["message"]
    assert WORDS in one["message"]
    assert stage.learner_pods() == ["bytes-lm-two-0-a1-0"]
    stage.advance(30)
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-two-0-a1-0"]  # what waits there is enough


@pytest.mark.slow
def test_pool_for_which_nothing_came_is_asked_again_after_a_pause_that_doubles() -> None:
    stage = a_stage()
    pauses = []
    for attempt in (1, 2, 3):
        assert stage.learner_pods() == [f"bytes-lm-h100-0-a{attempt}-0"]
        stage.advance(600)
        stage.settle()
        assert stage.learner_pods() == []
        [pool] = stage.status["pools"]
        assert "is asked again at" in pool["message"]
        assert pool["remedies"] == ["more nodes"]
        begun = stage.now
        while not stage.learner_pods():
            stage.advance(1)
            stage.settle()
        pauses.append(stage.now - begun)
    assert pauses[0] < pauses[1] < pauses[2]


def test_unit_that_pauses_because_no_node_came_takes_a_slice_that_becomes_free() -> None:
    stage = a_stage()
    stage.advance(600)
    stage.settle()
    assert (stage.unit("h100-0")["reason"], stage.learner_pods()) == ("NotProvisioned", [])
    stage.set_node(a_gpu_node("gpu-0"))
    stage.settle()
    assert stage.pod("h100-0", 2)["metadata"]["annotations"][names.ANNOTATION_NODE] == "gpu-0"


def withdrawn() -> Stage:
    """h100-0 asked for nodes, and pool v5p was faster."""
    stage = a_stage(a_growing_pool(), tpu_pool(topology="2x2x1"))
    is_unschedulable(stage.pod("h100-0", 1), WORDS)
    stage.settle()
    stage.set_node(a_tpu_node("tpu-0"))
    stage.settle()
    assert stage.unit("h100-0")["reason"] == "ScaledDown"
    return stage


def test_waiting_unit_is_withdrawn_when_another_pool_is_faster() -> None:
    stage = withdrawn()
    stage.kubelets_finish_deletions()
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a1-0"]
    unit = stage.unit("h100-0")
    assert (unit["state"], unit["reason"], unit["restarts"]) == ("Pending", "ScaledDown", 0)
    asked = f"bytes-lm-h100-0-a1-0: asked the autoscaler for nodes at {format_timestamp(stage.now)}; the scheduler says: {WORDS}"
    assert unit["message"] == f"the job has the 1 unit of learners.max; pool h100 has 0; until then: {asked}"
    pool = stage.status["pools"][0]
    assert pool["reason"] == "JobAtMaximum"
    told = f"the job has the 1 unit of learners.max; pool h100 has 0; h100-0 until then: {asked}"
    remedy = "raise learners.max, or learners.min of the pool, which comes before other pools"
    assert (pool["message"], pool["remedies"]) == (told, [remedy])
    events = [event.message for plan in stage.plans for event in plan.events if event.reason == "PoolChanged"]
    assert f"pool h100: no unit of it waits for a slice any more: {told}. What would help: {remedy}" in events
    assert unit["grantorSaid"] == asked


@pytest.mark.slow
def test_of_two_units_that_wait_the_one_that_was_asked_for_first_stays() -> None:
    stage = trained_on_a_new_node()
    stage.scale(min=2, max=2)
    stage.settle()
    assert stage.unit("h100-1")["reason"] == "WaitingForNodes"
    stage.advance(30)
    stage.lose_node("new-0")
    for _ in range(3):
        stage.settle()
        stage.advance(30)
    assert [(unit["name"], unit["reason"]) for unit in stage.status["units"]] == [
        ("h100-0", "WaitingForNodes"),
        ("h100-1", "WaitingForNodes"),
    ]
    stage.scale(min=1, max=1)
    stage.settle()
    assert (stage.unit("h100-1")["reason"], stage.states().get("h100-0", "Pending")) == ("WaitingForNodes", "Pending")


def test_what_a_grantor_said_outlives_a_message_that_was_cut_and_the_operator() -> None:
    stage = withdrawn()
    told = stage.status["pools"][0]["message"]
    stage.unit("h100-0")["message"] = "cut for lack of room"
    stage.restart_operator()
    stage.settle()
    assert WORDS in told
    assert stage.status["pools"][0]["message"] == told
    assert stage.unit("h100-0")["message"].endswith(f"; until then: {stage.unit('h100-0')['grantorSaid']}")


def test_message_of_an_operator_that_had_no_field_for_the_words_of_a_grantor_is_no_record_of_them() -> None:
    stage = withdrawn()
    del stage.unit("h100-0")["grantorSaid"]
    stage.restart_operator()
    stage.settle()
    plain = "the job has the 1 unit of learners.max; pool h100 has 0"
    told = stage.status["pools"][0]["message"]
    assert (stage.unit("h100-0")["message"], told) == (plain, plain)


@pytest.mark.slow
def test_what_a_grantor_said_is_forgotten_when_the_unit_is_asked_for_again_or_the_job_is_suspended() -> None:
    stage = withdrawn()
    stage.edit(suspend=True)
    stage.settle()
    assert "grantorSaid" not in stage.unit("h100-0")
    stage = withdrawn()
    stage.scale(min=2, max=2)
    stage.settle()
    unit = stage.unit("h100-0")
    assert (unit["reason"], "grantorSaid" in unit) == ("WaitingForNodes", False)


def test_scale_down_withdraws_the_newest_of_those_that_wait() -> None:
    stage = a_stage(min=3, max=3)
    assert len(stage.learner_pods()) == 3
    stage.scale(min=1, max=1)
    stage.settle()
    stage.kubelets_finish_deletions()
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-h100-0-a1-0"]


def test_suspend_withdraws_all_that_waits() -> None:
    stage = a_stage(min=2, max=2)
    stage.edit(suspend=True)
    stage.settle()
    stage.kubelets_finish_deletions()
    stage.settle()
    assert stage.learner_pods() == []
    assert stage.condition("Suspended")["status"] == "True"


def test_pods_that_a_stranger_deletes_are_asked_for_again_after_a_pause() -> None:
    stage = a_stage()
    del stage.pods["bytes-lm-h100-0-a1-0"]
    stage.settle()
    assert stage.unit("h100-0")["reason"] == "NotProvisioned"
    assert stage.learner_pods() == []
    stage.advance(10)
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-h100-0-a2-0"]


def test_unit_that_fails_starts_again_on_its_slice() -> None:
    stage = trained_on_a_new_node()
    stage.learner_exits("h100-0", 1, 1)
    stage.settle()
    stage.advance(1)
    stage.settle()
    assert stage.pod("h100-0", 2)["metadata"]["annotations"][names.ANNOTATION_NODE] == "new-0"


def test_unit_whose_node_was_taken_away_asks_for_another() -> None:
    stage = trained_on_a_new_node()
    stage.lose_node("new-0")
    stage.settle()
    unit = stage.unit("h100-0")
    assert (unit["attempt"], unit["reason"], unit["failures"]) == (2, "WaitingForNodes", [])
