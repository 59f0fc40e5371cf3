"""What status shows, and how often it is written."""

from __future__ import annotations

import pytest
from builders.jobs import a_job
from builders.nodes import a_tpu_node
from builders.stage import Stage
from builders.statuses import dump_status
from diloco_operator.api.conditions import ConditionType
from diloco_operator.api.losses import LossPoint
from diloco_operator.api.status import Status
from diloco_operator.report import UnitPhase


def trained(count: int = 2, *, min: int = 1) -> Stage:
    job = a_job().with_learners(min, count).with_restarts(3, "30s").with_pool(max=count)
    return Stage(job, *(a_tpu_node(f"tpu-{i}") for i in range(count))).train()


def test_status_is_what_the_api_gives_back() -> None:
    stage = trained()
    stage.learner_exits("v5p-1", 1, 1)
    stage.settle()
    assert dump_status(Status.model_validate(stage.status)) == stage.status


def test_the_selector_of_the_status_selects_the_pods_of_learners_and_not_the_syncers() -> None:
    stage = trained()
    wanted = dict(term.split("=") for term in stage.status["selector"].split(","))
    selected = {name for name, pod in stage.pods.items() if wanted.items() <= pod["metadata"]["labels"].items()}
    assert selected == {"bytes-lm-v5p-0-a1-0", "bytes-lm-v5p-1-a1-0"}


def test_every_condition_is_there_from_the_first_write_and_names_the_generation_of_the_spec() -> None:
    stage = Stage(a_job().with_pool(), a_tpu_node("tpu-0"))
    for generation in (1, 2):
        stage.step()
        assert stage.status["observedGeneration"] == generation
        assert [(c["type"], c["observedGeneration"]) for c in stage.status["conditions"]] == [(kind, generation) for kind in ConditionType]
        stage.scale(max=3)


def test_transition_time_moves_only_with_the_status() -> None:
    stage = trained()
    before = stage.condition("Training")
    stage.advance(100)
    stage.learner_exits("v5p-1", 1, 1)
    stage.syncer_says("v5p-1", 1, UnitPhase.DISCONNECTED)
    stage.settle()
    after = stage.condition("Training")
    assert after["message"] != before["message"]
    assert after["lastTransitionTime"] == before["lastTransitionTime"]
    stage.learner_exits("v5p-0", 1, 1)
    stage.settle()
    assert stage.condition("Training")["status"] == "False"
    assert stage.condition("Training")["lastTransitionTime"] != before["lastTransitionTime"]


def test_figures_alone_are_written_at_most_once_per_interval_and_what_matters_at_once() -> None:
    stage = trained()
    stage.advance(1)
    stage.all_contribute(t=11, losses=HISTORY)
    plan = stage.step()
    assert plan.status is None
    assert plan.requeue_after == pytest.approx(stage.config.progress_interval - 1, abs=0.01)
    stage.advance(stage.config.progress_interval)
    stage.all_contribute(t=15)
    assert stage.step().status is not None
    assert stage.status["progress"]["step"] == 15
    stage.advance(0.1)
    stage.learner_exits("v5p-1", 1, 1)
    assert stage.step().status is not None


def test_progress_and_unit_figures_come_from_the_syncer() -> None:
    stage = trained(1)
    stage.advance(10)
    stage.syncer_says("v5p-0", 1, UnitPhase.CONTRIBUTING, tokens=7000, steps=70, tokens_per_second=123.46, weight=1.0, staleness=3)
    stage.step()
    assert stage.status["progress"] == {
        "step": 10,
        "steps": 100,
        "tokens": 8000,
        "tokensPerSecond": 200.0,
        "loss": 2.5,
        "estimatedCompletion": "2026-11-20T12:01:40Z",  # 90 steps of 1 s from 12:00:10
        "updatedAt": "2026-11-20T12:00:10Z",
    }
    unit = stage.unit("v5p-0")
    assert (unit["tokens"], unit["tokensPerSecond"], unit["weight"], unit["staleness"]) == (7000, 123.5, 1.0, 3)


HISTORY = (LossPoint(1, 5.545177444479562), LossPoint(8, 3.25))


def test_loss_history_comes_from_the_syncer_in_five_digits_goes_back_with_it_and_stays_without_it() -> None:
    stage = trained(1)
    stage.advance(10)
    stage.all_contribute(losses=HISTORY, held_out_losses=(LossPoint(8, 3.5),))
    stage.step()
    progress = stage.status["progress"]
    assert (progress["losses"], progress["heldOutLosses"]) == ("1:5.5452 8:3.25", "8:3.5")
    stage.advance(10)
    stage.all_contribute(t=5, losses=HISTORY[:1])
    stage.step()
    assert stage.status["progress"]["losses"] == "1:5.5452"
    assert "heldOutLosses" not in stage.status["progress"], "step 8 is not trained any more"
    stage.report = None
    stage.edit(suspend=True)
    stage.settle()
    assert stage.status["progress"]["losses"] == "1:5.5452"


def test_unit_that_ended_is_told_and_has_no_speed_but_keeps_its_tokens_and_its_share_of_recent_merges() -> None:
    stage = trained()
    stage.learner_exits("v5p-1", 1, 1)
    [crash] = [event for event in stage.step().events if event.reason == "UnitCrashed"]
    assert crash.type == "Warning"
    assert "v5p-1: attempt 1 ended: exit 1" in crash.message
    unit = stage.unit("v5p-1")
    assert (unit["tokensPerSecond"], unit["weight"], unit["tokens"]) == (0.0, 0.5, 4000)
    assert sum(unit["weight"] for unit in stage.status["units"]) == 1.0


def test_operator_that_restarts_takes_the_training_on_record_until_a_report_is_due_and_then_does_not_know() -> None:
    stage = trained()
    before = stage.condition("Training")
    stage.now += 3600
    stage.restart_operator()
    stage.plans.clear()
    stage.settle()
    assert (stage.condition("Training"), stage.status["state"]) == (before, "Training")
    assert [event for plan in stage.plans for event in plan.events] == []
    assert 0 < (stage.plans[-1].requeue_after or 0) <= 60.01
    stage.now += 61
    stage.step()
    training = stage.condition("Training")
    assert (training["status"], training["reason"]) == ("Unknown", "SyncerUnreachable")
    assert (stage.status["state"], stage.status["reason"]) == ("Degraded", "SyncerUnreachable")
    assert stage.plans[-1].deletes == ()
    assert stage.status["learners"]["contributing"] == 2


@pytest.mark.parametrize(
    ("least", "explains", "other"),
    [
        (2, "Degraded", "1 of 2 learners contribute, training.quorum is 2: outer steps wait; see Degraded"),
        (1, "Training", "1 contributes, learners.min is 1"),
    ],
)
def test_missing_quorum_is_explained_once_by_the_units_the_cause_and_the_time(least: int, explains: str, other: str) -> None:
    job = a_job().with_learners(least, 2).with_restarts(3, "30s").with_pool(max=2).with_training(quorum=2)
    stage = Stage(job, a_tpu_node("tpu-0"), a_tpu_node("tpu-1")).train()
    stage.failed_before("v5p-1")
    stage.learner_exits("v5p-1", 1, 137, reason="OOMKilled")
    stage.step()
    assert (stage.condition("Training")["status"], stage.condition("Training")["reason"]) == ("False", "QuorumMissing")
    messages = {kind: stage.condition(kind)["message"] for kind in ("Training", "Degraded")}
    explained = messages.pop(explains)
    for part in ("v5p-1 is backing off", "exit 137 (OOMKilled)", "12:00:30Z"):
        assert part in explained
    assert list(messages.values()) == [other]


@pytest.mark.slow
def test_units_that_the_job_no_longer_wants_are_not_named_as_missing() -> None:
    stage = trained(3, min=2)
    stage.scale(max=2)
    stage.settle()
    stage.kubelets_finish_deletions()
    stage.settle()
    stage.failed_before()
    stage.learner_exits("v5p-0", 1, 1)
    stage.settle()
    assert stage.states() == {"v5p-0": "BackingOff", "v5p-1": "Training", "v5p-2": "Pending"}
    assert stage.unit("v5p-2")["reason"] == "ScaledDown"
    degraded = stage.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "LearnersFailed")
    assert degraded["message"].startswith("1 of 2 learners contribute, learners.min is 2; v5p-0 is backing off (")
    assert "v5p-2" not in degraded["message"]


def test_job_whose_surplus_gives_way_before_it_has_trained_still_starts() -> None:
    stage = Stage(a_job().with_learners(1, 2).with_pool(max=2), a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    stage.settle()
    stage.scale(max=1)
    stage.step()
    assert sorted(stage.states().values()) == ["Draining", "Starting"]
    assert (stage.status["state"], stage.status["reason"]) == ("Starting", "SyncerStarting")
    assert stage.condition("Degraded")["reason"] == "LearnersStarting"


def test_learner_that_crashes_before_the_job_has_trained_degrades_it_until_it_trains() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_restarts(3, "30s").with_pool(max=1), a_tpu_node("tpu-0"))
    stage.settle()
    stage.kubelets_start()
    stage.settle()
    assert (stage.status["state"], stage.status["reason"]) == ("Starting", "SyncerStarting")
    stage.failed_before()
    stage.learner_exits("v5p-0", 1, 1)
    stage.settle()
    assert (stage.status["state"], stage.status["reason"]) == ("Degraded", "LearnersFailed")
    stage.kubelets_finish_deletions()
    stage.advance(30)
    stage.settle()
    assert (stage.unit("v5p-0")["state"], stage.unit("v5p-0")["restarts"]) == ("Starting", 1)
    assert (stage.status["state"], stage.status["reason"]) == ("Degraded", "LearnersMissing")
    stage.train()
    assert (stage.status["state"], stage.status["reason"]) == ("Training", "QuorumContributing")


def test_job_trains_while_others_of_its_learners_start_for_the_first_time() -> None:
    stage = Stage(a_job().with_learners(2, 2).with_pool(max=2), a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    stage.settle()
    stage.kubelets_start()
    stage.settle()
    stage.kubelets_start()
    stage.syncer_says("v5p-0", 1, UnitPhase.CONTRIBUTING)
    stage.syncer_says("v5p-1", 1, UnitPhase.JOINING)
    stage.settle()
    assert "Training" in stage.true()
    assert (stage.condition("Degraded")["status"], stage.condition("Degraded")["reason"]) == ("Unknown", "LearnersStarting")
    assert "v5p-1 is joining" in stage.condition("Degraded")["message"]
    assert (stage.status["state"], stage.status["reason"]) == ("Training", "QuorumContributing")
    stage.syncer_says("v5p-1", 1, UnitPhase.DISCONNECTED)  # it was there, and is missed
    stage.settle()
    assert (stage.status["state"], stage.status["reason"]) == ("Degraded", "LearnersMissing")


def test_last_step_is_no_alarm_while_the_final_snapshot_is_written() -> None:
    stage = trained()
    stage.all_contribute(done=True, t=100)
    for index in range(2):
        stage.learner_exits(f"v5p-{index}", 1, 0)
    stage.plans.clear()
    stage.settle()
    assert stage.status["learners"]["contributing"] == 0
    assert (stage.condition("Training")["status"], stage.status["state"], stage.status["reason"]) == ("True", "Training", "Finishing")
    assert [event for plan in stage.plans for event in plan.events if event.type == "Warning"] == []


def test_held_out_loss_is_of_the_final_parameters_only() -> None:
    stage = trained()
    stage.all_contribute(done=True, t=100, held_out_loss=2.25)
    stage.settle()
    assert stage.status["progress"]["heldOutLoss"] == 2.25
    stage.advance(10)
    stage.all_contribute(t=101)  # more steps came before the job was complete: a new syncer goes on
    stage.settle()
    assert stage.status["progress"]["step"] == 101
    assert "heldOutLoss" not in stage.status["progress"]


def test_seeding_is_not_training_yet() -> None:
    stage = trained(1)
    stage.all_contribute(seeded=False)
    stage.step()
    assert stage.condition("Training")["reason"] == "Seeding"


def test_many_refused_contributions_degrade_a_job_while_it_trains_and_until_they_are_few() -> None:
    stage = trained()

    def degraded(refused: int, merged: int) -> tuple[str, str]:
        stage.all_contribute(work_refused=refused, contributions=merged)
        stage.settle()
        return stage.condition("Degraded")["status"], stage.condition("Degraded")["reason"]

    enough, lost = ("False", "EnoughLearners"), ("True", "WorkRefused")
    assert degraded(9, 11) == enough, "too few to tell"
    assert degraded(10, 90) == enough, "a tenth is not more than a tenth"
    assert degraded(11, 89) == lost
    assert (stage.status["state"], stage.condition("Training")["status"]) == ("Degraded", "True")
    assert stage.condition("Degraded")["message"] == (
        "training continues, but 11 contributions were refused, 89 merged; the syncer's log says why each is refused. kubectl diloco units "
        "-o wide shows whose"
    )
    assert degraded(12, 188) == lost, "6 in 100"
    assert degraded(12, 228) == enough, "5 in 100"
    assert degraded(20, 220) == enough, "8 in 100"


@pytest.mark.parametrize("feed_themselves", [0, 1, 2, 3])
def test_units_that_feed_themselves_are_told_that_they_may_train_the_same_samples(feed_themselves: int) -> None:
    stage = trained(3)
    stage.plans.clear()
    for _ in range(2):  # each report says it again
        stage.advance(10)
        for index in range(3):
            stage.syncer_says(f"v5p-{index}", 1, UnitPhase.CONTRIBUTING, own_data=index < feed_themselves)
        stage.settle()
    warnings = [event for plan in stage.plans for event in plan.events if event.reason == "OwnData"]
    assert (stage.status["state"], stage.condition("Training")["reason"]) == ("Training", "QuorumContributing")
    message = stage.condition("Training")["message"]
    if feed_themselves < 2:
        assert (warnings, message) == ([], "3 of 3 learners contribute")
        return
    advice = (
        f"{feed_themselves} units feed themselves, and nothing keeps them from training the same samples: let each read its own part by "
        "DILOCO_UNIT, or draw what it trains with session.numbers or session.shards"
    )
    assert [(event.type, event.message) for event in warnings] == [("Warning", advice)], "once"
    assert message == f"3 of 3 learners contribute; {advice}"


def test_snapshot_that_cannot_be_written_degrades_the_job_with_advice() -> None:
    stage = trained()
    stage.all_contribute(snapshot_error="No space left on device")
    stage.step()
    degraded = stage.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "SnapshotFailed")
    assert "Make room" in degraded["message"]
    assert "Training" in stage.true()


def test_placed_counts_units_and_reports_what_is_missing() -> None:
    stage = Stage(a_job().with_learners(1, 4).with_pool(max=4), a_tpu_node("tpu-0"))
    stage.settle()
    placed = stage.condition("Placed")
    assert (placed["status"], placed["reason"]) == ("True", "MinimumPlaced")
    assert "1 of 4 units have hardware" in placed["message"]
    assert "pool v5p needs 3 more slices of tpu-v5p 2x2x1; the fleet has 1" in placed["message"]
    stage.scale(min=2)
    stage.settle()
    placed = stage.condition("Placed")
    assert (placed["status"], placed["reason"]) == ("False", "InsufficientCapacity")
    assert "Add nodes" in placed["message"]


def test_pool_that_waits_is_reported_once_per_reason_and_again_when_it_waits_no_more() -> None:
    def told() -> list[str]:
        return [e.message for e in stage.step().events if e.reason == "PoolChanged"]

    stage = Stage(a_job().with_learners(1, 3).with_pool(max=3))
    why = "NoMatchingNodes: pool v5p needs 3 more slices of tpu-v5p 2x2x1; the fleet has no such nodes"
    assert told() == [f"{why}. What would help: more nodes; an autoscaler, which provisioning.mode of the pool asks"]
    assert told() == []
    stage.set_node(a_tpu_node("tpu-0"))
    first = told()
    assert len(first) == 1
    assert first[0].startswith("NoFreeSlice: pool v5p needs 2 more slices")
    stage.set_node(a_tpu_node("tpu-1"))  # the message changes, the reason does not
    assert told() == []
    stage.set_node(a_tpu_node("tpu-2"))
    assert told() == ["pool v5p: no unit of it waits for a slice any more"]
    assert told() == []


def test_pool_that_is_full_or_switched_off_is_no_news() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1).with_gpu_pool(max=0), a_tpu_node("tpu-0"))
    assert [event for _ in range(3) for event in stage.step().events if event.reason == "PoolChanged"] == []


def test_message_of_many_missing_units_stays_short() -> None:
    stage = Stage(a_job().with_learners(64, 64).with_pool(max=64), a_tpu_node("tpu-0"))
    stage.settle()
    message = stage.condition("Degraded")["message"]
    assert "v5p-1, v5p-2, v5p-3, v5p-4 and 59 more wait for slices, see Placed" in message
    assert len(message) < 2000


def test_a_condition_of_others_stays_and_causes_no_write() -> None:
    stage = trained()
    theirs = {"type": "example.com/Audited", "status": "True", "reason": "ByHand", "message": ""}
    stage.status["conditions"].insert(0, theirs)
    assert stage.step().status is None
    stage.learner_exits("v5p-1", 1, 1)
    stage.settle()
    assert stage.unit("v5p-1")["failures"]
    assert [each for each in stage.status["conditions"] if each["type"] not in set(ConditionType)] == [theirs]
