"""A job that has ended starts again: a failed one by `spec.retry`, a complete one with more `training.steps`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from builders.jobs import a_job
from builders.nodes import a_tpu_node
from builders.pods import exits, phase
from builders.stage import Stage
from diloco.contract import ENDED_BY_PROGRAM, ENDED_BY_TOKENS, Exit, Result
from diloco_operator.kube.timestamps import parse_timestamp
from diloco_operator.reconcile import reconcile
from diloco_operator.report import Ending

RESULT = Result(step=100, steps=100, tokens=64000, loss=2.125, held_out_loss=2.25).model_dump_json(by_alias=True)
CRASH = "ValueError: bad batch"


def trained(units: int = 1, **spec: Any) -> Stage:
    job = a_job().with_learners(1, units).with_restarts(0, "1s").with_pool(max=units).with_spec(**spec)
    return Stage(job, *(a_tpu_node(f"tpu-{index}") for index in range(units))).train()


def failed(code: int = 1, **spec: Any) -> Stage:
    """A job whose only unit was given up, with everything cleaned up."""
    stage = trained(**spec)
    stage.all_contribute(t=40, snapshot_t=30)
    stage.advance(60)
    stage.settle()
    stage.learner_exits("v5p-0", 1, code, message=CRASH)
    return at_rest(stage)


def at_rest(stage: Stage) -> Stage:
    """Everything that the operator wants to go has gone."""
    for _ in range(3):
        stage.settle()
        stage.kubelets_finish_deletions()
    return stage


def completed(stage: Stage) -> Stage:
    for name in list(stage.pods):
        exits(stage.pods[name], 0, stage.now, message=RESULT if name.endswith("syncer") else "")
    stage.settle()
    return stage


def retry(stage: Stage, number: int = 1, **spec: Any) -> Stage:
    stage.edit(retry=number, **spec)
    return stage


def starts(stage: Stage) -> Stage:
    """The syncer's pod of the new start, and then the learners'."""
    stage.report = None
    at_rest(stage)
    stage.kubelets_start()
    stage.settle()
    stage.kubelets_start()
    stage.all_contribute()
    stage.settle()
    return stage


def running(stage: Stage) -> list[str]:
    """Pods that have not ended; others stay for their logs."""
    return sorted(name for name, pod in stage.pods.items() if phase(pod) not in ("Succeeded", "Failed"))


# --- a failed job -----------------------------------------------------------------------------------------------------
def test_failed_job_says_what_starts_it_again() -> None:
    message = failed().condition("Failed")["message"]
    assert "Fix the cause, then kubectl diloco retry bytes-lm -n team; a change" in message
    assert message.count("kubectl diloco retry") == 1
    assert "suspend" not in message


@pytest.mark.slow
def test_retry_starts_a_failed_job_from_its_last_snapshot_with_new_attempts() -> None:
    stage = retry(failed())
    plan = stage.step()
    assert plan.creates == ()
    [event] = plan.events
    assert (event.reason, event.message) == (
        "Retrying",
        "Failed=False: retry 1: the job starts again from its last snapshot, of outer step 30",
    )
    assert stage.true() == {"Accepted"}
    assert stage.status["state"] == "Starting"
    assert stage.status["retry"] == 1
    assert "endedWith" not in stage.status
    stage.step()
    assert stage.condition("Training")["message"] == "the syncer does not serve yet: its pod is being created"
    starts(stage)
    assert stage.true() == {"Accepted", "Placed", "Training"}
    assert stage.states() == {"v5p-0": "Training"}
    assert running(stage) == ["bytes-lm-syncer", "bytes-lm-v5p-0-a2-0"]


def test_job_without_a_snapshot_says_that_it_starts_from_the_beginning() -> None:
    stage = Stage(a_job().with_restarts(0).with_pool(max=1), a_tpu_node("tpu-0"))
    stage.settle()
    stage.kubelets_start()
    stage.settle()
    stage.kubelets_start()
    stage.learner_exits("v5p-0", 1, 1)
    retry(at_rest(stage)).step()
    assert stage.condition("Failed")["message"] == "retry 1: the job starts again from the beginning, because it has no snapshot"


@pytest.mark.slow
def test_retried_unit_has_a_new_restart_budget() -> None:
    stage = trained()
    stage.job["spec"]["learners"]["restart"]["limit"] = 1
    stage.edit()
    for attempt in (1, 2):
        stage.learner_exits("v5p-0", attempt, 1)
        stage.settle()
        stage.advance(10)
        stage.settle()
        stage.kubelets_start()
    at_rest(stage)
    assert stage.true() == {"Accepted", "Failed"}
    starts(retry(stage))
    stage.learner_exits("v5p-0", 3, 1)
    stage.settle()
    assert stage.states() == {"v5p-0": "Starting"}
    assert len(stage.unit("v5p-0")["failures"]) == 1
    assert stage.true() == {"Accepted", "Degraded", "Placed"}


@pytest.mark.slow
def test_refused_layout_is_retried_with_the_corrected_template_of_the_same_change() -> None:
    stage = failed(Exit.REFUSED_LAYOUT)
    assert stage.condition("Failed")["reason"] == "LayoutRefused"
    pools = [dict(pool) for pool in stage.job["spec"]["pools"]]
    pools[0]["template"] = {"spec": {"containers": [{"name": "learner", "image": "train:fixed"}]}}
    starts(retry(stage, pools=pools))
    assert stage.pod("v5p-0", 2)["spec"]["containers"][0]["image"] == "train:fixed"
    assert stage.states() == {"v5p-0": "Training"}


@pytest.mark.slow
def test_repaired_volume_is_used_again() -> None:
    stage = trained()
    exits(stage.syncer, Exit.BAD_STATE, stage.now, message="snapshot-00000002-t30: its bytes have changed")
    at_rest(stage)
    failure = stage.condition("Failed")
    assert failure["reason"] == "StateUnusable"
    assert "then kubectl diloco retry bytes-lm -n team; a change" in failure["message"]
    claim = stage.children["PersistentVolumeClaim"]["metadata"]["uid"]
    starts(retry(stage))
    assert "Training" in stage.true()
    assert stage.children["PersistentVolumeClaim"]["metadata"]["uid"] == claim


def test_job_waits_for_the_end_of_its_old_syncer() -> None:
    """Its end would be taken for the end of the new start."""
    stage = trained()
    exits(stage.syncer, Exit.BAD_STATE, stage.now)
    stage.syncer["metadata"]["deletionTimestamp"] = "2026-11-20T12:10:00Z"  # a kubelet is slow to confirm it
    stage.settle()
    retry(stage)
    stage.settle()
    assert stage.true() == {"Accepted", "Failed"}
    assert "retry" not in stage.status
    assert stage.condition("Training")["message"].endswith(", as soon as the pod bytes-lm-syncer of its last run has gone")
    stage.kubelets_finish_deletions()
    stage.step()
    assert stage.true() == {"Accepted"}


@pytest.mark.slow
def test_each_retry_is_acted_on_once() -> None:
    stage = starts(retry(failed()))
    stage.learner_exits("v5p-0", 2, 1)
    at_rest(stage)
    assert stage.true() == {"Accepted", "Failed"}
    assert stage.unit("v5p-0")["attempt"] == 2
    starts(retry(stage, 2))
    assert stage.unit("v5p-0")["attempt"] == 3


@pytest.mark.slow
def test_lower_retry_has_no_effect() -> None:
    stage = starts(retry(failed(), 3))
    retry(stage, 1)
    stage.learner_exits("v5p-0", 2, 1)
    at_rest(stage)
    assert stage.true() == {"Accepted", "Failed"}
    assert stage.status["retry"] == 3


@pytest.mark.slow
def test_time_to_live_begins_anew_with_the_next_end() -> None:
    stage = failed(ttlSecondsAfterFinished=60)
    stage.advance(59)
    starts(retry(stage))
    stage.advance(30)
    stage.settle()
    stage.learner_exits("v5p-0", 2, 1)
    at_rest(stage)
    stage.advance(59)
    at_rest(stage)
    assert not stage.job_gone
    stage.advance(2)
    stage.step()
    assert stage.job_gone


@pytest.mark.slow
def test_retry_comes_before_the_time_to_live() -> None:
    stage = failed(ttlSecondsAfterFinished=60)
    retry(stage).advance(3600)
    starts(stage)
    assert not stage.job_gone


@pytest.mark.slow
def test_suspended_job_is_retried_when_it_resumes() -> None:
    stage = failed()
    retry(stage, suspend=True)
    at_rest(stage)
    assert stage.true() == {"Accepted", "Suspended"}
    assert (running(stage), stage.status["retry"]) == ([], 1)
    stage.edit(suspend=False)
    starts(stage)
    assert "Training" in stage.true()


def test_avoided_hosts_stay_avoided() -> None:
    stage = failed()
    stage.status["hosts"] = [
        {"node": "tpu-9", "uid": "uid-9", "failures": [], "message": "", "avoidedUntil": "2026-11-20T13:00:00Z", "avoidances": 1}
    ]
    before = stage.status["hosts"]
    retry(stage).step()
    assert stage.status["hosts"] == before


def test_operator_that_may_not_see_pods_starts_nothing() -> None:
    stage = retry(failed())
    observed = stage.observed()
    plan = reconcile(replace(observed, missing_rights=("may not list pods",)), datetime.fromtimestamp(stage.now, UTC))
    assert (plan.creates, plan.deletes) == ((), ())
    assert plan.status is not None
    assert "retry" not in plan.status.status


@pytest.mark.slow
@pytest.mark.parametrize("writes", range(8))
def test_operator_that_dies_during_a_retry_is_taken_over(writes: int) -> None:
    stage = trained()
    exits(stage.syncer, Exit.BAD_STATE, stage.now)
    stage.step()
    retry(stage)
    left = writes
    while True:
        plan = stage.reconcile_only()
        count = len(plan.creates) + len(plan.deletes) + (plan.status is not None)
        if count == 0 or left <= count:
            stage.step(crash_after=left)
            break
        left -= count
        stage.step()
        stage.kubelets_finish_deletions()
    stage.restart_operator()
    starts(stage)
    assert stage.true() == {"Accepted", "Placed", "Training"}
    assert stage.status["retry"] == 1
    assert stage.unit("v5p-0")["attempt"] == 2


# --- units that were given up in a job that trains --------------------------------------------------------------------
def test_retry_brings_units_back_that_were_given_up_while_the_others_train_on() -> None:
    stage = trained(units=2)
    stage.learner_exits("v5p-1", 1, 1)
    stage.settle()
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "Failed"}
    assert stage.condition("Degraded")["reason"] == "LearnersLost"
    assert "kubectl diloco retry" in stage.condition("Degraded")["message"]
    retry(stage)
    stage.settle()
    assert stage.status["retry"] == 1
    stage.kubelets_start()
    stage.all_contribute()
    stage.settle()
    assert {u["name"]: (u["state"], u["attempt"]) for u in stage.status["units"]} == {"v5p-0": ("Training", 1), "v5p-1": ("Training", 2)}
    assert stage.true() == {"Accepted", "Placed", "Training"}


def test_retry_of_a_job_that_has_lost_nothing_changes_nothing() -> None:
    stage = trained()
    pods = dict(stage.pods)
    retry(stage).settle()
    assert (stage.pods, stage.status["retry"]) == (pods, 1)


def test_retry_that_was_asked_for_before_the_end_was_on_record_is_not_lost() -> None:
    stage = trained()
    exits(stage.syncer, Exit.BAD_STATE, stage.now)
    retry(stage).step()
    assert stage.true() == {"Accepted", "Failed"}
    assert "retry" not in stage.status
    starts(stage)
    assert "Training" in stage.true()


# --- a complete job ---------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_complete_job_goes_on_with_more_steps() -> None:
    stage = at_rest(completed(trained()))
    assert stage.true() == {"Accepted", "Complete"}
    stage.edit(training={"steps": 150})
    stage.step()  # the ended pod of the syncer stayed for its log, and goes
    plan = stage.step()
    assert [(event.reason, event.message) for event in plan.events] == [
        ("Continuing", "Complete=False: the job goes on from its final snapshot, of outer step 100, to 150 steps")
    ]
    starts(stage)
    assert stage.true() == {"Accepted", "Placed", "Training"}
    assert (stage.unit("v5p-0")["state"], stage.unit("v5p-0")["attempt"]) == ("Training", 2)
    assert "heldOutLoss" not in stage.status["progress"]
    assert '"steps":150' in stage.children["ConfigMap"]["data"]["job.json"]


def test_last_report_of_the_old_syncer_says_nothing_about_the_new_start() -> None:
    stage = trained()
    stage.all_contribute(t=100, steps=100, done=True)
    stage = at_rest(completed(stage))
    stage.edit(training={"steps": 150})
    at_rest(stage)
    stage.kubelets_start()
    stage.settle()
    assert stage.unit("v5p-0")["state"] == "Joining"
    assert (stage.condition("Degraded")["status"], stage.condition("Degraded")["reason"]) == ("Unknown", "LearnersStarting")


@pytest.mark.slow
def test_steps_that_were_raised_before_the_end_was_on_record_count() -> None:
    stage = trained()
    stage.edit(training={"steps": 150})
    completed(stage)
    starts(stage)
    assert "Training" in stage.true()


@pytest.mark.parametrize("message", [RESULT, "{truncated"])
def test_complete_job_stays_complete_with_the_steps_that_it_has(message: str) -> None:
    stage = trained()
    for name in list(stage.pods):
        exits(stage.pods[name], 0, stage.now, message=message if name.endswith("syncer") else "")
    at_rest(stage)
    stage.advance(10_000)
    at_rest(stage)
    assert stage.true() == {"Accepted", "Complete"}
    assert running(stage) == []


# --- a job that its token budget, or a program, has ended -----------------------------------------------------------------
def ended_early(by: str, tokens: int | None, committed: int = 6000) -> Stage:
    stage = trained(training={"steps": 100, **({"tokens": tokens} if tokens is not None else {})})
    early = Result(step=40, steps=100, tokens=committed, ended_by=by, end_reason="v5p-0: enough" if by == ENDED_BY_PROGRAM else "")
    for name in list(stage.pods):
        exits(stage.pods[name], 0, stage.now, message=early.model_dump_json(by_alias=True) if name.endswith("syncer") else "")
    stage.settle()
    return at_rest(stage)


def test_a_job_says_what_ended_it_early() -> None:
    stage = ended_early(ENDED_BY_TOKENS, 5000)
    complete = stage.condition("Complete")
    assert (complete["status"], complete["reason"]) == ("True", "TokensReached")
    assert complete["message"].startswith("40 of 100 steps, 6000 tokens. ")
    progress = stage.status["progress"]
    assert (progress["step"], progress["steps"], progress["tokens"], progress["tokenBudget"]) == (40, 100, 6000, 5000)
    assert "estimatedCompletion" not in progress
    complete = ended_early(ENDED_BY_PROGRAM, None).condition("Complete")
    assert (complete["status"], complete["reason"]) == ("True", "FinishedByProgram")
    assert complete["message"].startswith("40 of 100 steps, 6000 tokens; ended by unit v5p-0: enough. ")


@pytest.mark.parametrize(
    ("by", "tokens", "change", "starts"),
    [
        (ENDED_BY_TOKENS, 5000, {"steps": 100, "tokens": 9000}, True),
        (ENDED_BY_TOKENS, 5000, {"steps": 100}, True),
        (ENDED_BY_TOKENS, 5000, {"steps": 100, "tokens": 6000}, False),
        (ENDED_BY_TOKENS, 5000, {"steps": 200, "tokens": 5000}, False),
        (ENDED_BY_PROGRAM, None, {"steps": 101}, True),
        (ENDED_BY_PROGRAM, None, {"steps": 100}, False),
        (ENDED_BY_PROGRAM, 9000, {"steps": 100, "tokens": 12000}, False),
    ],
)
def test_a_job_that_ended_early_goes_on_with_more_of_what_ended_it(
    by: str, tokens: int | None, change: dict[str, int], starts: bool
) -> None:
    stage = ended_early(by, tokens)
    stage.edit(training=change)
    stage.step()  # the ended pod of the syncer stayed for its log, and goes
    stage.step()
    condition = stage.condition("Complete")
    assert (condition["status"] == "False") == starts
    if starts:
        assert condition["reason"] == "Continuing"
        assert "of outer step 40" in condition["message"]
        assert stage.status["progress"].get("tokenBudget") == change.get("tokens")


def test_the_syncer_of_a_job_that_ends_early_is_finishing() -> None:
    stage = trained()
    stage.all_contribute(t=40, steps=100, ending=Ending(ENDED_BY_PROGRAM, 40))
    stage.settle()
    assert stage.condition("Training")["reason"] == "Finishing"
    assert "estimatedCompletion" not in stage.status["progress"]
    stage.all_contribute(t=39, steps=100, ending=Ending(ENDED_BY_PROGRAM, 40))
    stage.settle()
    assert stage.condition("Training")["reason"] == "QuorumContributing", "a restarted syncer takes its last steps again"


def test_a_syncer_with_a_smaller_budget_than_the_job_is_not_finishing() -> None:
    stage = trained(training={"steps": 100, "tokens": 9000})
    stage.all_contribute(t=40, steps=100, ending=Ending(ENDED_BY_TOKENS, 40), token_budget=5000)
    stage.settle()
    assert stage.condition("Training")["reason"] == "QuorumContributing"
    stage.all_contribute(t=40, steps=100, ending=Ending(ENDED_BY_TOKENS, 40), token_budget=9000)
    stage.settle()
    assert stage.condition("Training")["reason"] == "Finishing"


def test_the_estimate_follows_the_budget_where_it_ends_the_job_first() -> None:
    stage = trained(training={"steps": 100, "tokens": 9000})
    # 90 outer steps of a second are left, and 1000 tokens at 200 a second.
    stage.all_contribute(t=10, steps=100, tokens=8000, tokens_per_second=200.0, step_seconds=1.0)
    stage.settle()
    assert parse_timestamp(stage.status["progress"]["estimatedCompletion"]) == stage.now + 5
