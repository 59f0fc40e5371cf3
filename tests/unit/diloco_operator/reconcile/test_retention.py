"""Where the model is, and what happens to it when the job is deleted: `syncer.storage.retain` and `status.model`."""

from __future__ import annotations

from typing import Any

import pytest
from builders.jobs import a_job
from builders.nodes import a_tpu_node
from builders.pods import exits
from builders.stage import Stage
from diloco.contract import Exit, Result
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile.observe.rejected_writes import RejectedWrite

PATH = "snapshots/snapshot-00000011-t100"
RESULT = Result(step=100, steps=100, tokens=64000, snapshot=PATH)


def a_stage(retain: str = "Delete", **spec: Any) -> Stage:
    job = a_job().with_pool(max=1).with_spec(syncer={"storage": {"size": "10Gi", "retain": retain}}, **spec)
    return Stage(job, a_tpu_node("tpu-0"))


def complete(stage: Stage, result: Result = RESULT) -> Stage:
    exits(stage.syncer, 0, stage.now, message=result.model_dump_json(by_alias=True))
    stage.settle()
    stage.kubelets_finish_deletions()
    stage.settle()
    return stage


def set_retain(stage: Stage, retain: str) -> None:
    stage.edit(syncer={**stage.job["spec"].get("syncer", {}), "storage": {"size": "10Gi", "retain": retain}})


def claim(stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = stage.children["PersistentVolumeClaim"]["metadata"]
    return found


def is_kept(stage: Stage) -> bool:
    """By everything that the claim says; True and False are the only states that it may be in."""
    meta, uid = claim(stage), stage.job["metadata"]["uid"]
    owned = [owner["uid"] for owner in meta.get("ownerReferences") or ()] == [uid]
    kept: bool = meta["labels"].get("diloco.dev/retain") == "Keep" and meta.get("annotations", {}).get("diloco.dev/job-uid") == uid
    assert owned != kept, f"half of one and half of the other: {meta}"
    assert meta["labels"]["diloco.dev/job"] == "bytes-lm"
    return kept


# --- the claim ----------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_claim_goes_with_its_job_unless_it_is_asked_to_stay() -> None:
    assert not is_kept(a_stage().train())
    assert is_kept(a_stage("Keep").train())
    bare = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0")).train()  # its spec does not say it
    assert not is_kept(bare)


@pytest.mark.parametrize(("before", "after"), [("Delete", "Keep"), ("Keep", "Delete")])
def test_claim_of_a_running_job_follows_the_field_and_nothing_restarts(before: str, after: str) -> None:
    stage = a_stage(before).train()
    pods = {name: pod["metadata"]["uid"] for name, pod in stage.pods.items()}
    set_retain(stage, after)
    stage.settle()
    assert is_kept(stage) == (after == "Keep")
    assert {name: pod["metadata"]["uid"] for name, pod in stage.pods.items()} == pods
    assert "Training" in stage.true()


@pytest.mark.parametrize(("before", "after"), [("Delete", "Keep"), ("Keep", "Delete")])
def test_claim_of_a_suspended_job_follows_the_field(before: str, after: str) -> None:
    stage = a_stage(before).train()
    stage.edit(suspend=True)
    stage.settle()
    stage.kubelets_finish_deletions()
    stage.settle()
    set_retain(stage, after)
    stage.settle()
    assert is_kept(stage) == (after == "Keep")


def test_what_others_changed_on_the_claim_is_set_right_and_what_is_theirs_stays() -> None:
    stage = a_stage("Keep").train()
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "theirs", "uid": "x"}
    meta = claim(stage)
    meta["ownerReferences"] = [other, {**other, "kind": "DiLoCoJob", "name": "bytes-lm", "uid": stage.job["metadata"]["uid"]}]
    del meta["labels"]["diloco.dev/retain"]
    meta["labels"]["team"] = "a"
    stage.settle()
    assert claim(stage)["ownerReferences"] == [other], "a reference that does not control lets the garbage collector delete too"
    assert claim(stage)["labels"] == {"diloco.dev/job": "bytes-lm", "diloco.dev/retain": "Keep", "team": "a"}
    set_retain(stage, "Delete")
    stage.settle()
    assert [owner["uid"] for owner in claim(stage)["ownerReferences"]] == ["x", stage.job["metadata"]["uid"]]


def test_operator_that_dies_right_after_the_change_of_the_claim_goes_on() -> None:
    stage = a_stage().train()
    set_retain(stage, "Keep")
    stage.step(crash_after=1)
    assert is_kept(stage)
    stage.restart_operator()
    stage.settle()
    assert is_kept(stage)


def image_of(stage: Stage) -> str:
    found: str = claim(stage)["annotations"]["diloco.dev/syncer-image"]
    return found


def test_claim_names_the_image_that_reads_it_once_its_job_is_gone() -> None:
    stage = a_stage().train()
    assert image_of(stage) == stage.config.syncer_image
    template = {"spec": {"containers": [{"name": "syncer", "image": "own/syncer:2"}]}}
    stage.edit(syncer={"storage": {"size": "10Gi", "retain": "Keep"}, "template": template})
    stage.settle()
    assert image_of(stage) == "own/syncer:2"
    del claim(stage)["annotations"]["diloco.dev/syncer-image"]  # as of a claim that an earlier operator made
    stage.settle()
    assert (is_kept(stage), image_of(stage)) == (True, "own/syncer:2")


def test_image_that_cannot_be_written_holds_nothing_back() -> None:
    stage = complete(a_stage("Keep", ttlSecondsAfterFinished=60).train())
    del claim(stage)["annotations"]["diloco.dev/syncer-image"]
    generation = stage.job["metadata"]["generation"]
    stage.rejected_writes = {("PersistentVolumeClaim", "bytes-lm-syncer"): RejectedWrite(403, "forbidden", stage.now, generation)}
    stage.step()
    assert "forbidden" not in stage.condition("Complete")["message"]
    stage.advance(61)
    stage.step()
    assert stage.job_gone


# --- the end ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("before", "after"), [("Delete", "Keep"), ("Keep", "Delete")])
def test_field_has_its_effect_on_a_job_that_is_over_and_the_message_follows(before: str, after: str) -> None:
    stage = complete(a_stage(before).train())
    turned = stage.condition("Complete")["lastTransitionTime"]
    set_retain(stage, after)
    stage.advance(1000)
    stage.settle()
    assert is_kept(stage) == (after == "Keep")
    condition = stage.condition("Complete")
    fate = {"Keep": "the claim stays when the job is deleted", "Delete": "the claim is deleted with the job"}[after]
    assert condition["message"] == (
        f"100 of 100 steps, 64000 tokens. The model is in claim bytes-lm-syncer, {PATH} (safetensors); {fate} "
        f"(syncer.storage.retain: {after})"
    )
    assert condition["lastTransitionTime"] == turned
    assert stage.status["model"] == {"step": 100, "claim": "bytes-lm-syncer", "path": PATH, "format": "safetensors", "retain": after}
    assert stage.status["observedGeneration"] == stage.job["metadata"]["generation"]


def test_message_of_the_end_follows_from_fields_whatever_it_says() -> None:
    """A status that is too long has shortened messages."""
    stage = complete(a_stage().train())
    stage.condition("Complete")["message"] = "100 of 100 steps, 64…"
    set_retain(stage, "Keep")
    stage.settle()
    assert stage.status["endedWith"] == "100 of 100 steps, 64000 tokens"
    assert stage.condition("Complete")["message"] == (
        f"100 of 100 steps, 64000 tokens. The model is in claim bytes-lm-syncer, {PATH} (safetensors); the claim stays when the job is "
        "deleted (syncer.storage.retain: Keep)"
    )


@pytest.mark.parametrize(("before", "after"), [("Delete", "Keep"), ("Keep", "Delete")])
def test_time_to_live_deletes_the_job_only_when_the_claim_is_seen_as_the_spec_wants_it(before: str, after: str) -> None:
    """The field changes while no operator runs, and the time is up when one comes back."""
    stage = complete(a_stage(before, ttlSecondsAfterFinished=60).train())
    stage.advance(61)
    set_retain(stage, after)
    stage.restart_operator()
    plan = stage.step()
    assert [patch.resource.kind for patch in plan.patches] == ["PersistentVolumeClaim"]
    assert not stage.job_gone
    assert is_kept(stage) == (after == "Keep")
    stage.step()
    assert stage.job_gone


def test_claim_that_the_api_server_does_not_let_change_holds_the_deletion_back_and_says_so() -> None:
    stage = complete(a_stage(ttlSecondsAfterFinished=60).train())
    stage.advance(61)
    set_retain(stage, "Keep")
    generation = stage.job["metadata"]["generation"]
    no = 'persistentvolumeclaims "bytes-lm-syncer" is forbidden: User "operator" cannot patch resource "persistentvolumeclaims"'
    stage.rejected_writes = {("PersistentVolumeClaim", "bytes-lm-syncer"): RejectedWrite(403, no, stage.now, generation)}
    plan = stage.step()
    assert (plan.patches, stage.job_gone, is_kept(stage)) == ((), False, False)
    assert plan.requeue_after is not None
    message = stage.condition("Complete")["message"]
    assert "the claim is deleted with the job at " in message
    assert "(syncer.storage.retain: Keep, which is not in effect yet: " in message
    assert "cannot patch resource" in message
    assert "give the operator's service account this right" in message
    stage.advance(plan.requeue_after)
    stage.step()
    assert is_kept(stage)
    stage.step()
    assert stage.job_gone


def test_message_says_when_the_time_to_live_is_over() -> None:
    stage = complete(a_stage(ttlSecondsAfterFinished=3600).train())
    when = format_timestamp(stage.now + 3600)
    assert f"the claim is deleted with the job at {when} (ttlSecondsAfterFinished)" in stage.condition("Complete")["message"]
    stage.edit(ttlSecondsAfterFinished=None)
    stage.settle()
    assert stage.condition("Complete")["message"].endswith("the claim is deleted with the job (syncer.storage.retain: Delete)")


def test_failed_job_says_where_its_last_snapshot_is() -> None:
    stage = a_stage("Keep").train()
    stage.all_contribute(t=48, snapshot_t=40, snapshot="snapshots/snapshot-00000003-t40")
    stage.advance(60)
    stage.settle()
    exits(stage.syncer, Exit.BAD_CONTRACT, stage.now)
    stage.syncer["status"]["containerStatuses"][0]["restartCount"] = 1
    stage.restart_operator()
    stage.settle()
    assert stage.condition("Failed")["message"].endswith(
        ". The last snapshot, of outer step 40, is in claim bytes-lm-syncer, snapshots/snapshot-00000003-t40 (safetensors); the claim "
        "stays when the job is deleted (syncer.storage.retain: Keep)"
    )


def test_job_that_failed_before_its_first_snapshot_says_so() -> None:
    stage = a_stage().train()
    exits(stage.syncer, Exit.BAD_CONTRACT, stage.now)
    stage.syncer["status"]["containerStatuses"][0]["restartCount"] = 1
    stage.settle()
    message = stage.condition("Failed")["message"]
    assert "No snapshot is known in claim bytes-lm-syncer; the claim is deleted with the job (syncer.storage.retain: Delete)" in message
    assert "model" not in stage.status
    set_retain(stage, "Keep")
    stage.settle()
    assert stage.condition("Failed")["message"].endswith("; the claim stays when the job is deleted (syncer.storage.retain: Keep)")


# --- status.model -------------------------------------------------------------------------------------------------------
def test_model_is_in_status_as_soon_as_there_is_a_snapshot() -> None:
    stage = a_stage().train()
    assert "model" not in stage.status
    stage.all_contribute(t=48, snapshot_t=40, snapshot="snapshots/snapshot-00000003-t40")
    stage.advance(60)
    stage.settle()
    model = {"step": 40, "claim": "bytes-lm-syncer", "path": "snapshots/snapshot-00000003-t40", "format": "safetensors", "retain": "Delete"}
    assert stage.status["model"] == model
    stage.restart_operator()
    stage.settle()
    assert stage.status["model"] == model, "without a report it stays"


def test_suspended_job_names_the_snapshot_that_its_syncer_wrote_at_its_end() -> None:
    stage = a_stage().train()
    stage.all_contribute(t=328, snapshot_t=301, snapshot="snapshots/snapshot-00000003-t301", steps=1000)
    stage.advance(60)
    stage.settle()
    assert (stage.status["progress"]["step"], stage.status["model"]["step"]) == (328, 301)
    stage.edit(suspend=True)
    stage.settle()
    stage.kubelets_finish_deletions()  # the learners'; then the syncer is asked to go
    stage.settle()
    stage.all_contribute(t=334, snapshot_t=334, snapshot="snapshots/snapshot-00000004-t334", tokens=8000, steps=1000)
    stage.kubelets_finish_deletions()  # before any reconcile has seen that report
    stage.settle()
    assert (stage.condition("Suspended")["reason"], list(stage.pods)) == ("Suspended", [])
    assert (stage.status["progress"]["step"], stage.status["progress"]["tokens"]) == (334, 8000)
    assert (stage.status["model"]["step"], stage.status["model"]["path"]) == (334, "snapshots/snapshot-00000004-t334")


def test_copy_below_the_uri_is_in_status_and_outlives_the_job() -> None:
    training = {**a_job().build()["spec"]["training"], "checkpoint": {"uri": "s3://models/lm/"}}
    stage = complete(a_stage(training=training).train(), RESULT.model_copy(update={"snapshot_copied": True}))
    uri = f"s3://models/lm/team-bytes-lm-{stage.job['metadata']['uid']}/snapshot-00000011-t100"
    assert stage.status["model"]["uri"] == uri
    assert stage.condition("Complete")["message"].endswith(
        f"The model is in claim bytes-lm-syncer, {PATH} (safetensors), and in {uri}; the claim is deleted with the job "
        "(syncer.storage.retain: Delete); the copy stays"
    )


def test_copy_that_failed_is_not_passed_off_as_one() -> None:
    training = {**a_job().build()["spec"]["training"], "checkpoint": {"uri": "s3://models/lm/"}}
    stage = complete(a_stage(training=training).train())
    assert "uri" not in stage.status["model"]
    assert "(safetensors), and has not been copied to s3://models/lm/; the claim is deleted" in stage.condition("Complete")["message"]


def test_path_that_no_syncer_writes_is_not_taken_over() -> None:
    stage = complete(a_stage().train(), RESULT.model_copy(update={"snapshot": "../../etc; rm -rf"}))
    assert stage.status["model"] == {"step": 100, "claim": "bytes-lm-syncer", "format": "safetensors", "retain": "Delete"}


def test_result_with_fields_of_a_later_version_is_read() -> None:
    stage = a_stage().train()
    exits(stage.syncer, 0, stage.now, message=RESULT.model_dump_json(by_alias=True).replace("{", '{"later": {"a": 1}, ', 1))
    stage.settle()
    assert stage.condition("Complete")["message"].startswith("100 of 100 steps")


# --- a job of the same name ---------------------------------------------------------------------------------------------
def test_job_of_the_same_name_does_not_take_a_kept_claim_and_says_what_to_do() -> None:
    stage = complete(a_stage("Keep").train())
    kept = claim(stage)
    later = a_stage("Keep")
    later.job["metadata"]["uid"] = "another"
    later.children["PersistentVolumeClaim"] = {"metadata": kept}
    later.settle()
    training = later.condition("Training")
    assert training["reason"] == "NameTaken"
    assert training["message"] == (
        "PersistentVolumeClaim bytes-lm-syncer keeps the model of an earlier job of this name, or comes from a backup, and no job "
        "writes over it. To go on from it: kubectl annotate pvc bytes-lm-syncer --overwrite diloco.dev/job-uid=another. To begin anew: "
        "give this job another name. kubectl diloco export --claim bytes-lm-syncer writes the model to a file"
    )
    assert later.pods == {}
    assert claim(later) == kept
