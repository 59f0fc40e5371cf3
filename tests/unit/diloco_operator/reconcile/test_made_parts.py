"""A job with pools in other clusters: the parts that its operator wants there, how it shares its units out, and its end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders.jobs import a_job
from builders.nodes import a_tpu_node
from builders.pods import exits
from builders.stage import START, Stage
from diloco.contract import MOST_PARTS, Exit
from diloco_operator.api.goodput import MAX_KINDS
from diloco_operator.api.names import FINALIZER_PARTS
from diloco_operator.api.status import Status
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.plan import WantedPart
from diloco_operator.reconcile.observe.part_view import PartView, project_part_job
from diloco_operator.reconcile.observe.rejected_writes import RejectedWrite
from diloco_operator.reconcile.observe.shares import HERE, MOVES_AFTER, Place, share_out
from diloco_operator.report import PartState, ToldPart, UnitPhase

SYNCER = {"externalAddress": "syncer.example.com"}


def a_stage(*, most: int = 3, here: int = 1, tokyo: int = 2, least: int = 1, slices: int = 1, **learners: Any) -> Stage:
    """A job with at most `most` units: up to `here` of them in this cluster, which has `slices`, and up to `tokyo` in tokyo."""
    job = a_job().with_learners(least, most, **learners)
    if here:
        job = job.with_pool("v5p", max=here)
    job = job.with_pool("far", max=tokyo, cluster="tokyo").with_spec(syncer=SYNCER)
    stage = Stage(job, *(a_tpu_node(f"tpu-{index}") for index in range(slices)))
    stage.parts["tokyo"] = PartView()
    stage.settle()
    return stage


def wanted(stage: Stage) -> WantedPart:
    parts = stage.reconcile_only().parts
    assert parts is not None
    [part] = parts
    return part


def runs(
    stage: Stage,
    placed: int,
    *,
    state: str = "Training",
    waiting_since: float | None = None,
    silent_since: float | None = None,
    **goodput: object,
) -> None:
    """The part exists in tokyo, and `placed` of its units have hardware. `goodput`: fields of its status.goodput."""
    waits = {"waitingSince": format_timestamp(waiting_since)} if waiting_since is not None else {}
    pool = {"name": "far", "placed": placed, "reason": "", "message": "", **waits}
    job = {
        "metadata": {"name": "bytes-lm", "uid": "far-uid", "labels": {"diloco.dev/home": stage.job["metadata"]["uid"]}},
        "spec": {},
        "status": {"state": state, "pools": [pool], "goodput": goodput},
    }
    stage.parts["tokyo"] = PartView(project_part_job(job), silent_since=silent_since, namespace="there")


# --- what is wanted there -----------------------------------------------------------------------------------------------
def test_a_pool_of_another_cluster_becomes_a_part_there() -> None:
    stage = a_stage()
    part = wanted(stage)
    assert (part.cluster, part.secret, part.may_be_made) == ("tokyo", "bytes-lm-part-tokyo-tls", True)
    spec = part.manifest["spec"]
    assert spec["syncer"] == {"at": {"address": "syncer.example.com:7077", "secretName": "bytes-lm-home"}}
    assert [(pool["name"], pool["learners"], "cluster" in pool) for pool in spec["pools"]] == [("far", {"min": 0, "max": 2}, False)]
    assert spec["suspend"] is False
    assert part.manifest["metadata"]["labels"] == {"diloco.dev/home": stage.job["metadata"]["uid"]}
    assert len(stage.learner_pods()) == 1, "units of tokyo are not started here"


def test_the_job_waits_for_its_parts_before_any_is_made() -> None:
    job = a_job().with_learners(1, 2).with_pool("v5p", max=1).with_pool("far", max=1, cluster="tokyo").with_spec(syncer=SYNCER)
    stage = Stage(job, a_tpu_node("tpu-0"))
    first = stage.step()
    assert (first.parts, stage.job["metadata"]["finalizers"]) == (None, [FINALIZER_PARTS])


def test_a_finalizer_that_the_api_server_refuses_keeps_parts_from_being_made_and_nothing_else() -> None:
    stage = a_stage()
    stage.job["metadata"]["finalizers"] = []
    message = 'user "operator" cannot patch resource "dilocojobs"'
    generation = stage.job["metadata"]["generation"]
    stage.rejected_writes["DiLoCoJob", "bytes-lm"] = RejectedWrite(403, message, stage.now, generation)
    stage.settle()
    stage.kubelets_start()
    stage.learner_exits("v5p-0", 1, 1)
    stage.settle()
    assert stage.unit("v5p-0")["attempt"] == 2, "units here are looked after"
    assert stage.status["parts"][0]["message"].startswith("DiLoCoJob bytes-lm cannot be made: the API server rejected it: user")
    assert stage.reconcile_only().parts is None
    stage.advance(3600)
    stage.settle()
    assert stage.job["metadata"]["finalizers"] == [FINALIZER_PARTS]
    assert wanted(stage).may_be_made


def test_a_part_waits_for_its_certificates_and_for_the_address_of_a_load_balancer() -> None:
    job = (
        a_job().with_learners(1, 2).with_pool("v5p", max=1).with_pool("far", max=1, cluster="tokyo").with_spec(syncer={"loadBalancer": {}})
    )
    stage = Stage(job, a_tpu_node("tpu-0"))
    stage.parts["tokyo"] = PartView()
    stage.settle()
    assert stage.reconcile_only().parts is None
    assert "waits for an address of Service bytes-lm-syncer-external" in message_of_part(stage)
    assert stage.external_service is not None
    stage.external_service["status"] = {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}}
    [owner] = stage.external_service["metadata"]["ownerReferences"]
    stage.external_service["metadata"]["ownerReferences"] = [{**owner, "uid": "of-another"}]
    stage.settle()
    assert stage.reconcile_only().parts is None, "a Service of another owner leads elsewhere"
    stage.external_service["metadata"]["ownerReferences"] = [owner]
    stage.settle()
    assert wanted(stage).manifest["spec"]["syncer"]["at"]["address"] == "203.0.113.7:7077"
    assert message_of_part(stage) == ""
    runs(stage, 1)
    stage.external_service["status"] = {}
    assert stage.reconcile_only().parts is None, "it stays while the address is not known"
    stage.edit(suspend=True)
    stage.settle()
    assert "waits for an address of Service" in message_of_part(stage), "it is not suspended either"


def message_of_part(stage: Stage) -> str:
    [part] = stage.status["parts"]
    return str(part.get("message", ""))


@pytest.mark.parametrize("address", ["1:2:3", "[:]"])
def test_a_spec_whose_address_is_none_is_refused_with_the_field(address: str) -> None:
    """They have the form that the CRD asks for, and no cluster could reach the syncer there."""
    stage = a_stage().train()
    stage.edit(syncer={"externalAddress": address})
    stage.settle()
    accepted = stage.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    assert f"spec.syncer.externalAddress: '{address}' is no address such as syncer.example.com" in accepted["message"]


def test_a_part_stays_while_its_secret_at_home_is_made_again() -> None:
    stage = a_stage().train()
    del stage.secrets["bytes-lm-part-tokyo-tls"]
    assert stage.reconcile_only().parts is None
    stage.settle()
    assert wanted(stage).may_be_made


@pytest.mark.parametrize("suspend", [False, True])
def test_a_part_stays_as_it_is_while_the_spec_cannot_be_read_as_a_whole(suspend: bool) -> None:
    stage = a_stage().train()
    here, far = stage.job["spec"]["pools"]
    stage.edit(pools=[here, {**far, "accelerator": "no-such-kind"}], suspend=suspend)
    assert stage.reconcile_only().parts is None


def test_a_cluster_whose_pools_are_switched_off_has_no_part() -> None:
    stage = a_stage().train()
    here, far = stage.job["spec"]["pools"]
    stage.edit(pools=[here, {**far, "learners": {"max": 0}}])
    stage.settle()
    assert stage.reconcile_only().parts == ()
    assert [(pool["name"], pool.get("assigned")) for pool in stage.status["pools"]] == [("v5p", None), ("far", 0)]


def test_a_suspended_job_suspends_its_parts_and_makes_none() -> None:
    stage = a_stage()
    stage.edit(suspend=True)
    part = wanted(stage)
    assert (part.manifest["spec"]["suspend"], part.may_be_made) == (True, False)
    stage.settle()
    assert stage.status["learners"]["desired"] == 0


def test_a_failed_job_suspends_its_parts_and_a_complete_one_leaves_them_to_end() -> None:
    stage = a_stage(least=3, restart={"limit": 0}).train()
    stage.learner_exits("v5p-0", 1, 1)
    stage.settle()
    assert stage.status["state"] != "Failed", "those elsewhere may still be the quorum"
    stage.edit(training={**stage.job["spec"]["training"], "quorum": 3})
    stage.settle()
    assert stage.status["state"] == "Failed"
    assert wanted(stage).manifest["spec"]["suspend"] is True
    complete = a_stage().train()
    exits(complete.syncer, 0, complete.now)
    complete.settle()
    assert (complete.status["state"], complete.reconcile_only().parts) == ("Complete", None)
    for ended in (stage, complete):
        assert [ended.status["learners"][count] for count in ("desired", "placed", "contributing")] == [0, 0, 0], "wherever they were"


@pytest.mark.parametrize(("ends", "state"), [(True, "Done"), (False, "Disconnected")])
def test_no_unit_elsewhere_contributes_to_a_syncer_that_has_ended(ends: bool, state: str) -> None:
    """Its last report may say so for ever."""
    stage = a_stage().train()
    stage.syncer_says("far-0", 1, UnitPhase.CONTRIBUTING)
    stage.syncer_says("far-1", 1, UnitPhase.DISCONNECTED)
    stage.settle()
    stage.now += 1
    if ends:
        exits(stage.syncer, 0, stage.now)
    else:
        stage.edit(suspend=True)
    stage.settle()
    [part] = stage.status["parts"]
    assert [unit["state"] for unit in part["units"]] == [state, "Disconnected"]
    assert (part["contributing"], part["tokensPerSecond"]) == (0, 0.0)
    assert stage.reconcile_only().status is None, "it is said once"


@pytest.mark.parametrize(("code", "over", "there"), [(Exit.COMPLETE, "Complete", "Complete"), (Exit.BAD_STATE, "Failed", "Suspended")])
def test_a_job_that_is_over_shows_when_its_parts_have_given_their_hardware_back_and_what_they_cost(
    code: Exit, over: str, there: str
) -> None:
    stage = a_stage().train()
    runs(stage, 2, acceleratorHours={"tpu-v6e": 12.5})
    stage.syncer_says("far-0", 1, UnitPhase.CONTRIBUTING)
    stage.settle()
    exits(stage.syncer, code, stage.now)
    stage.settle()
    assert (stage.status["state"], stage.status["parts"][0]["state"], stage.status["pools"][1]["placed"]) == (over, "Training", 2)
    stage.now += 7200
    runs(stage, 2, silent_since=stage.now - 60, acceleratorHours={"tpu-v6e": 12.5})
    stage.settle()
    assert stage.status["parts"][0]["silentSince"] == format_timestamp(stage.now - 60)
    stage.now += 60
    runs(stage, 0, state=there, acceleratorHours={"tpu-v6e": 14.5})
    stage.settle()
    [part], [_, far] = stage.status["parts"], stage.status["pools"]
    assert (part["state"], part["acceleratorHours"], "silentSince" in part) == (there, {"tpu-v6e": 14.5}, False)
    assert (far["placed"], far["contributing"], stage.status["poolSummary"]) == (0, 0, "v5p 0/0, far 0/0")
    assert part["units"][0]["tokens"] == part["tokens"] > 0, "the final account stays"
    assert stage.reconcile_only().status is None, "it is said once"


def test_an_operator_that_starts_after_the_end_looks_again_until_the_parts_have_ended() -> None:
    stage = a_stage().train()
    runs(stage, 2)
    exits(stage.syncer, 0, stage.now)
    stage.settle()
    stage.now += 7200  # its pods have ended, and nothing else is due
    stage.settle()
    stage.kubelets_finish_deletions()
    for view in (PartView(silent_since=stage.now), stage.parts["tokyo"]):
        stage.parts["tokyo"] = view
        stage.settle()
        assert stage.reconcile_only().requeue_after == pytest.approx(stage.config.resync_interval, abs=0.01)
    runs(stage, 0, state="Complete")
    stage.settle()
    assert stage.reconcile_only().requeue_after is None


def test_learners_outside_and_units_of_a_part_may_be_the_quorum_together() -> None:
    stage = a_stage(tokyo=1, most=2, least=2, restart={"limit": 0}, outside=["lab"])
    stage.edit(training={**stage.job["spec"]["training"], "quorum": 2})
    stage.train()
    runs(stage, 1)
    stage.syncer_says("lab", 1, UnitPhase.CONTRIBUTING)
    stage.syncer_says("far-0", 1, UnitPhase.JOINING)
    stage.learner_exits("v5p-0", 1, 1)
    stage.settle()
    assert stage.unit("v5p-0")["state"] == "Failed"
    assert stage.status["state"] != "Failed", "far-0 starts again, and lab contributes"


def test_a_job_may_have_all_its_units_elsewhere() -> None:
    stage = a_stage(here=0, most=2, slices=0)
    assert wanted(stage).manifest["spec"]["learners"]["max"] == 2
    assert stage.learner_pods() == []
    runs(stage, 2)
    stage.kubelets_start()
    stage.syncer_says("far-0", 1, UnitPhase.CONTRIBUTING)
    stage.syncer_says("far-1", 1, UnitPhase.CONTRIBUTING)
    stage.settle()
    assert (stage.condition("Training")["reason"], stage.condition("Degraded")["status"]) == ("QuorumContributing", "False")
    assert stage.condition("Placed")["reason"] == "AllPlaced"


# --- status -------------------------------------------------------------------------------------------------------------
def test_status_counts_the_units_of_all_clusters() -> None:
    stage = a_stage(least=2).train()
    assert stage.condition("Degraded")["status"] == "True"
    runs(stage, 2)
    stage.syncer_says("far-0", 1, UnitPhase.CONTRIBUTING)
    stage.syncer_says("far-1", 1, UnitPhase.JOINING)
    stage.settle()
    assert stage.status["learners"] == {"desired": 3, "placed": 3, "contributing": 2, "min": 2, "max": 3}
    assert stage.condition("Degraded")["status"] == "False"
    [_, far] = stage.status["pools"]
    assert {key: far[key] for key in ("name", "cluster", "assigned", "placed", "contributing")} == {
        "name": "far",
        "cluster": "tokyo",
        "assigned": 2,
        "placed": 2,
        "contributing": 1,
    }
    [part] = stage.status["parts"]
    assert (part["namespace"], part["state"], len(part["units"]), part["contributing"]) == ("there", "Training", 2, 1)


def test_a_syncer_needs_memory_for_the_learners_of_all_clusters_once() -> None:
    """Four units in all, each of which could be here or in tokyo."""
    stage = a_stage(most=4, here=4, tokyo=4).train()
    stage.all_contribute(parameters=1_100_000_000)
    stage.settle()
    assert "for 1.1 B parameters and 4 learners needs about" in stage.condition("Training")["message"]


def test_status_says_why_a_part_cannot_be_made_and_since_when_its_cluster_is_silent() -> None:
    stage = a_stage()
    stage.parts["tokyo"] = PartView(problem="the operator knows no cluster tokyo", silent_since=START)
    stage.settle()
    [part] = stage.status["parts"]
    assert part == {"name": "tokyo", "message": "the operator knows no cluster tokyo", "silentSince": "2026-11-20T12:00:00Z"}


def part_on_record(stage: Stage) -> dict[str, Any]:
    """What status says of the part once figures are due."""
    stage.now += stage.config.progress_interval
    stage.all_contribute()
    stage.settle()
    [part] = stage.status["parts"]
    return dict(part)


def test_accelerator_hours_of_a_part_are_those_that_it_says_and_never_fall() -> None:
    stage = a_stage().train()
    runs(stage, 2)
    assert "acceleratorHours" not in part_on_record(stage)
    runs(stage, 2, acceleratorHours={"tpu-v6e": 12.5})
    assert stage.reconcile_only().status is None, "a figure is no reason for a write"
    assert part_on_record(stage)["acceleratorHours"] == {"tpu-v6e": 12.5}
    stage.parts["tokyo"] = PartView(silent_since=stage.now)  # another operator, which has not seen the part yet
    assert part_on_record(stage)["acceleratorHours"] == {"tpu-v6e": 12.5}
    runs(stage, 2, acceleratorHours={"tpu-v6e": 2.0, "tpu-v5p": 1.0})  # its object was made anew
    assert part_on_record(stage)["acceleratorHours"] == {"tpu-v6e": 12.5, "tpu-v5p": 1.0}


def test_what_a_part_trained_and_cost_stays_its_own_when_its_pool_shrinks_and_goes() -> None:
    stage = a_stage().train()
    runs(stage, 2, acceleratorHours={"tpu-v6e": 12.5})

    def reports() -> None:
        stage.all_contribute()
        stage.syncer_says("far-0", 1, UnitPhase.CONTRIBUTING, tokens=5_000)
        stage.syncer_says("far-1", 1, UnitPhase.CONTRIBUTING, tokens=4_000)
        assert stage.report is not None
        stage.report = replace(stage.report, tokens=10_000)
        stage.now += stage.config.progress_interval
        stage.settle()

    def on_record() -> tuple[int, int]:
        """Tokens of the part, and those that are left for this cluster."""
        return stage.status["parts"][0]["tokens"], Status.model_validate(stage.status).tokens_here

    reports()
    assert on_record() == (9_000, 1_000)
    v5p, far = stage.job["spec"]["pools"]
    stage.edit(pools=[v5p, {**far, "learners": {"max": 1}}])
    reports()
    assert on_record() == (9_000, 1_000)
    stage.edit(pools=[v5p, {**far, "learners": {"max": 0}}])
    runs(stage, 0, acceleratorHours={"tpu-v6e": 12.6})
    reports()
    assert on_record() == (9_000, 1_000)
    stage.edit(pools=[v5p])
    stage.parts.clear()
    reports()
    assert on_record() == (9_000, 1_000)
    gone = {"name": "tokyo", "tokens": 9_000, "acceleratorHours": {"tpu-v6e": 12.6}}
    assert stage.status["parts"] == [gone | {"message": "the job has no units in this cluster any more"}]
    stage.parts["tokyo"] = PartView()
    stage.edit(pools=[v5p, far])
    reports()
    assert on_record() == (9_000, 1_000)


def test_of_the_parts_that_a_job_had_the_sixteen_are_kept_that_went_last() -> None:
    stage = a_stage()
    stage.status["parts"] = [{"name": f"gone-{number}", "tokens": 1} for number in range(MOST_PARTS)] + [{"name": "never-trained"}]
    stage.status["parts"].insert(0, {"name": "newest", "tokens": 2})
    stage.edit(pools=stage.job["spec"]["pools"])
    stage.now += stage.config.progress_interval
    stage.settle()
    kept = [part["name"] for part in stage.status["parts"]]
    assert kept == ["tokyo", "newest", *(f"gone-{number}" for number in range(MOST_PARTS - 1))]
    Status.model_validate(stage.status)


def test_hours_that_are_none_are_left_out_and_the_rest_of_the_part_counts() -> None:
    stage = a_stage().train()
    hostile = {"tpu-v6e": 1, "tpu-v4": -1.0, "tpu7x": "9", "tpu-v5e": True, "gb200": 1e300, "<b>": 1.0, "k" * 64: 1.0, "nan": float("nan")}
    runs(stage, 2, acceleratorHours=hostile)
    assert part_on_record(stage)["acceleratorHours"] == {"tpu-v6e": 1.0}
    assert stage.status["learners"]["placed"] == 3
    runs(stage, 2, acceleratorHours={f"kind-{number}": 1.0 for number in range(100)})
    assert len(part_on_record(stage)["acceleratorHours"]) == MAX_KINDS


def test_the_goodput_of_a_part_is_what_it_says_and_stays_while_it_says_nothing() -> None:
    stage = a_stage().train()
    runs(stage, 2)
    assert "productiveShare" not in part_on_record(stage)
    runs(stage, 2, productiveShare=0.93)
    assert stage.reconcile_only().status is None, "a figure is no reason for a write"
    assert part_on_record(stage)["productiveShare"] == 0.93
    stage.parts["tokyo"] = PartView(silent_since=stage.now)
    assert part_on_record(stage)["productiveShare"] == 0.93
    runs(stage, 2, productiveShare=1.5)
    assert "productiveShare" not in part_on_record(stage), "no share"


def test_of_a_cluster_that_does_not_answer_home_shows_what_the_operator_there_tells_the_syncer() -> None:
    stage = a_stage().train()
    runs(stage, 2, silent_since=stage.now)
    stage.all_contribute()
    assert stage.report is not None
    stage.report = replace(stage.report, parts={"tokyo": ToldPart(PartState("Degraded", "Quorum: one of two"), stage.now)})
    stage.settle()
    [part] = stage.status["parts"]
    assert (part["state"], part["message"], "silentSince" in part) == ("Degraded", "Quorum: one of two", True)
    runs(stage, 2)
    stage.settle()
    [part] = stage.status["parts"]
    assert (part["state"], "silentSince" in part) == ("Training", False), "read there, as the cluster answers"


# --- the numbers --------------------------------------------------------------------------------------------------------
def test_the_minimum_of_a_job_is_over_all_clusters() -> None:
    stage = a_stage(most=3, here=3, tokyo=1, least=3, slices=3)
    assert stage.status["learners"]["desired"] == 3
    assert len(stage.learner_pods()) == 3, "the first pool takes all"


def test_units_that_find_no_hardware_for_long_start_in_another_cluster() -> None:
    stage = a_stage(most=2, here=2, tokyo=2, slices=1)
    stage.train()
    assert wanted(stage).may_be_made is False, "the first pool has the number for both"
    stage.now += MOVES_AFTER
    stage.all_contribute()
    stage.settle()
    part = wanted(stage)
    assert (part.may_be_made, part.manifest["spec"]["learners"]["max"]) == (True, 1)
    assert stage.status["learners"]["desired"] == 2
    runs(stage, 1)
    stage.now += MOVES_AFTER
    stage.all_contribute()
    stage.settle()
    assert wanted(stage).manifest["spec"]["learners"]["max"] == 1, "it stays where it has hardware"


def assigned(stage: Stage) -> dict[str, int]:
    return {pool["name"]: pool["assigned"] for pool in stage.status["pools"] if "cluster" in pool}


def fails(stage: Stage, cluster: str = "tokyo", retry: int = 0) -> None:
    """The part in this cluster. `retry`: the last one that its operator acted on."""
    why = {"type": "Failed", "reason": "RestartsExhausted", "message": "far-0: exit 1"}
    job = {
        "metadata": {"name": "bytes-lm", "uid": "far-uid", "labels": {"diloco.dev/home": stage.job["metadata"]["uid"]}},
        "spec": {},
        "status": {"state": "Failed", "reason": "RestartsExhausted", "conditions": [why], "retry": retry},
    }
    stage.parts[cluster] = PartView(project_part_job(job), namespace="there")


def test_the_units_of_a_part_that_failed_start_in_another_cluster() -> None:
    """Two units here and one elsewhere are the quorum."""
    job = a_job().with_learners(1, 3).with_training(quorum=3).with_pool("v5p", max=2)
    job = job.with_pool("far", max=1, cluster="tokyo").with_pool("near", max=2, cluster="osaka").with_spec(syncer=SYNCER)
    stage = Stage(job, a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    stage.parts |= {"tokyo": PartView(), "osaka": PartView()}
    stage.settle()
    assert assigned(stage) == {"far": 1, "near": 0}
    fails(stage)
    stage.settle()
    assert (assigned(stage), stage.status["state"]) == ({"far": 0, "near": 1}, "Queued")
    runs(stage, 0)
    stage.settle()
    assert assigned(stage) == {"far": 0, "near": 1}, "once it is back it takes none from the others"


def test_a_job_whose_quorum_needs_a_part_that_failed_fails_and_a_retry_starts_both() -> None:
    stage = a_stage(most=3, tokyo=2, least=1).train()
    stage.edit(training={**stage.job["spec"]["training"], "quorum": 2})
    stage.settle()
    fails(stage)
    stage.settle()
    assert stage.status["reason"] == "RestartsExhausted"
    why = "the units of the other clusters cannot reach training.quorum 2; tokyo: RestartsExhausted: far-0: exit 1. "
    assert stage.condition("Failed")["message"].startswith(f"part tokyo has failed, and {why}")
    stage.kubelets_finish_deletions()
    stage.settle()
    stage.edit(retry=1)
    stage.pods.clear()
    stage.settle()
    assert (stage.status["state"], assigned(stage)) == ("Queued", {"far": 2}), "the part has not acted on the retry yet"
    part = wanted(stage)
    assert (part.manifest["spec"]["retry"], part.manifest["spec"]["suspend"]) == (1, False)
    fails(stage, retry=1)
    stage.settle()
    assert stage.status["state"] == "Failed"


def test_units_in_a_silent_cluster_keep_their_number_when_the_operator_starts_anew() -> None:
    stage = a_stage(most=3, here=1, tokyo=2, slices=3).train()
    runs(stage, 2)
    here, far = stage.job["spec"]["pools"]
    stage.edit(pools=[{**here, "learners": {"max": 3}}, far])
    stage.settle()
    stage.restart_operator()
    stage.parts["tokyo"] = PartView(silent_since=stage.now, left=True, namespace="there")
    stage.now += MOVES_AFTER
    stage.all_contribute()
    stage.settle()
    assert [(pool["name"], pool.get("assigned"), pool["placed"]) for pool in stage.status["pools"]] == [("v5p", None, 1), ("far", 2, 2)]
    assert not wanted(stage).manifest["spec"]["suspend"]


def numbers(stage: Stage) -> dict[str, int]:
    """Where the job has its units: "" is here."""
    assigned = {pool["name"]: pool["assigned"] for pool in stage.status["pools"] if "assigned" in pool}
    return {HERE: stage.status["learners"]["desired"] - sum(assigned.values()), **assigned}


def test_a_cluster_that_is_added_takes_no_unit_from_the_others() -> None:
    """Of four units two have hardware here, and the others moved to tokyo."""
    stage = a_stage(most=4, here=4, tokyo=4, slices=2).train()
    stage.now += MOVES_AFTER
    stage.all_contribute()
    stage.settle()
    runs(stage, 2)
    here, far = stage.job["spec"]["pools"]
    stage.parts["osaka"] = PartView()
    stage.edit(pools=[here, far, {**far, "name": "new", "cluster": "osaka"}])
    stage.settle()
    assert numbers(stage) == {HERE: 2, "far": 2, "new": 0}


@pytest.mark.parametrize("placed", [0, 2])
def test_fewer_units_are_taken_from_where_they_have_no_hardware_or_from_the_last_pools(placed: int) -> None:
    """Two of four units train here, and tokyo has the numbers of two."""
    stage = a_stage(most=4, here=2, tokyo=2, slices=2).train()
    runs(stage, placed, waiting_since=stage.now)
    stage.settle()
    assert numbers(stage) == {HERE: 2, "far": 2}
    stage.edit(learners={"min": 1, "max": 2})
    stage.settle()
    assert numbers(stage) == {HERE: 2, "far": 0}
    assert [unit["state"] for unit in stage.status["units"]] == ["Training", "Training"]


def places(**numbers: tuple[int, int, int]) -> list[Place]:
    """Name -> minimum, maximum, placed units; `here` stands for this cluster."""
    return [Place(HERE if name == "here" else name, least, most, placed, None, 0.0) for name, (least, most, placed) in numbers.items()]


def test_minima_come_first_and_then_the_order_of_the_pools() -> None:
    assert share_out(places(here=(0, 4, 0), tokyo=(1, 4, 0), osaka=(1, 4, 0)), 5, {}, 0.0) == {HERE: 3, "tokyo": 1, "osaka": 1}
    assert share_out(places(here=(0, 1, 0), tokyo=(0, 1, 0)), 5, {}, 0.0) == {HERE: 1, "tokyo": 1}


def test_a_place_that_trains_faster_gets_units_first_once_all_are_measured() -> None:
    slow, fast = Place("slow", 0, 2, 0, None, 100.0), Place("fast", 0, 2, 0, None, 300.0)
    assert share_out([slow, fast], 3, {}, 0.0) == {"slow": 1, "fast": 2}
    assert share_out([slow, fast._replace(value=0.0)], 3, {}, 0.0) == {"slow": 2, "fast": 1}


def test_numbers_on_record_stay_and_a_change_of_the_spec_keeps_what_it_can() -> None:
    found = places(here=(0, 4, 0), tokyo=(0, 4, 2))
    assert share_out(found, 4, {HERE: 2, "tokyo": 2}, 0.0) == {HERE: 2, "tokyo": 2}
    assert share_out(found, 6, {HERE: 2, "tokyo": 2}, 0.0) == {HERE: 4, "tokyo": 2}
    assert share_out(found, 3, {HERE: 2, "tokyo": 2}, 0.0) == {HERE: 1, "tokyo": 2}, "here none has hardware"


def test_a_number_that_no_place_can_use_goes_round() -> None:
    recorded = {HERE: 1, "tokyo": 0, "osaka": 0}
    here, tokyo, osaka = places(here=(0, 1, 0), tokyo=(0, 1, 0), osaka=(0, 1, 0))
    recorded = share_out([here._replace(waiting_since=0.0), tokyo, osaka], 1, recorded, MOVES_AFTER)
    assert recorded == {HERE: 0, "tokyo": 1, "osaka": 0}
    recorded = share_out([here, tokyo._replace(waiting_since=MOVES_AFTER), osaka], 1, recorded, 2 * MOVES_AFTER)
    assert recorded == {HERE: 0, "tokyo": 0, "osaka": 1}


@pytest.mark.parametrize("placed", [2, 3])
def test_units_that_have_hardware_keep_it_while_others_of_their_pool_wait(placed: int) -> None:
    here, tokyo = places(here=(0, 3, placed), tokyo=(0, 3, 0))
    found = share_out([here._replace(waiting_since=0.0), tokyo], 3, {HERE: 3, "tokyo": 0}, MOVES_AFTER)
    assert found == {HERE: placed, "tokyo": 3 - placed}


# --- the end ------------------------------------------------------------------------------------------------------------
def delete(stage: Stage) -> None:
    stage.job["metadata"]["deletionTimestamp"] = format_timestamp(stage.now)


def test_a_deleted_job_goes_once_its_parts_are_gone() -> None:
    stage = a_stage().train()
    runs(stage, 2)
    delete(stage)
    assert stage.step().parts == ()
    assert stage.job["metadata"]["finalizers"] == [FINALIZER_PARTS]
    stage.parts["tokyo"] = PartView(left=True)
    stage.step()
    assert stage.job["metadata"]["finalizers"] == [FINALIZER_PARTS], "the part's Secret may be there"
    stage.parts["tokyo"] = PartView()
    stage.step()
    assert stage.job["metadata"]["finalizers"] == []


def test_a_deleted_job_does_not_wait_for_ever_for_a_cluster_that_is_gone() -> None:
    stage = a_stage().train()
    runs(stage, 2, silent_since=START)
    delete(stage)
    plan = stage.step()
    assert plan.requeue_after is not None
    stage.now += 601
    plan = stage.step()
    assert stage.job["metadata"]["finalizers"] == []
    [event] = plan.events
    assert (event.reason, event.message.startswith("in tokyo the job's part may be left: it did not go within 10 minutes")) == (
        "PartsLeft",
        True,
    )


def test_a_deleted_job_waits_for_its_parts_although_no_operator_ran_when_it_was_deleted() -> None:
    stage = a_stage().train()
    runs(stage, 2)
    delete(stage)
    stage.now += 3600
    stage.restart_operator()
    stage.step()
    assert stage.job["metadata"]["finalizers"] == [FINALIZER_PARTS]
    stage.now += 600
    stage.step()
    assert stage.job["metadata"]["finalizers"] == []


def test_a_deleted_job_without_parts_is_not_looked_at_again() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1), a_tpu_node("tpu-0")).train()
    delete(stage)
    stage.pods.clear()
    assert stage.step().requeue_after is None


def test_a_deleted_job_waits_for_no_cluster_that_the_operator_does_not_know() -> None:
    stage = a_stage().train()
    stage.parts["tokyo"] = PartView(problem="the operator knows no cluster tokyo", left=True, unknown=True)
    delete(stage)
    [event] = stage.step().events
    assert stage.job["metadata"]["finalizers"] == []
    assert (event.reason, event.message.startswith("in tokyo the job's part may be left")) == ("PartsLeft", True)
