"""Crashes, refusals and time-outs: what counts, what waits, and which units are given up."""

from __future__ import annotations

from typing import Any

import pytest
from builders import timelines as t
from builders.jobs import a_job, template
from builders.nodes import a_tpu_node, a_tpu_slice
from builders.stage import START, Stage
from builders.timelines import at, created, deleted, given, has, learner_pods, states, timelines, unit
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.report import UnitPhase

WAITS_FOR_ITS_POD = "; waits until the pod bytes-lm-v5p-0-a1-0 has gone"


# --- scenes -----------------------------------------------------------------------------------------------------------
@t.scene
def one_unit(limit: int = 2, initial: str = "0s", **restart: str) -> Stage:
    """It trains."""
    job = a_job().with_restarts(limit, initial, **restart).with_pool(max=1).with_training(quorum=1)
    return Stage(job, a_tpu_node("tpu-0")).train()


@t.scene
def two_units(limit: int = 2) -> Stage:
    """They train."""
    return Stage(a_job().with_learners(2, 2).with_restarts(limit).with_pool(max=2), a_tpu_node("tpu-0"), a_tpu_node("tpu-1")).train()


@t.scene
def two_hosts(initial: str = "30s") -> Stage:
    """One unit, which trains on both, and has failed once."""
    stage = Stage(a_job().with_restarts(3, initial).with_pool(max=1, topology="2x2x2"), *a_tpu_slice("np-0", 2)).train()
    stage.failed_before()
    return stage


@t.scene
def pods_that_run() -> Stage:
    """Start the pods of one unit, of which the syncer has said nothing."""
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    stage.settle()
    stage.kubelets_start()
    stage.settle()
    return stage


@t.scene
def two_slices_for_a_unit() -> Stage:
    """Its pod exists, and may take a minute to start."""
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1), a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    stage.settle()
    return stage


# --- attempts that end ------------------------------------------------------------------------------------------------
BACKS_OFF = (t.pods_run, t.exits(1), t.one_reconcile, unit(state="BackingOff"), t.one_plan, t.nothing_left)
NEW_TEMPLATE = t.edits_pool(template=template(terminationGracePeriodSeconds=45))
GIVEN_UP = (t.exits(65, unit="v5p-1"), unit("v5p-1", state="Failed"))


test_ends = timelines(
    crashed_unit_is_replaced_in_the_reconcile_that_sees_it=given(
        one_unit(),
        at(0, t.exits(1), t.one_reconcile, created("v5p-0-a2-0"), deleted()),  # the pod stays for its log
        at(0, unit(state="Starting", attempt=2, endedAttempt=1, restarts=1, failures=1)),
    ),
    new_attempt_stays_on_the_slice=given(
        two_units(),
        at(0, t.exits(1, unit="v5p-1"), unit("v5p-1", slice="tpu-1", attempt=2)),
    ),
    survivors_are_not_touched=given(
        two_units(),
        at(0, t.exits(137, unit="v5p-1"), unit("v5p-0", state="Training"), learner_pods("v5p-0-a1-0", "v5p-1-a1-0", "v5p-1-a2-0")),
    ),
    # The first failure has no pause. Then initial x 2^(n-2), at most max: 4, 8, 16 -> 10, 10
    backoff_doubles_with_every_failure_up_to_its_maximum=given(
        one_unit(limit=10, initial="4s", max="10s"),
        at(0, t.exits(1), t.one_reconcile, unit(state="Starting"), *BACKS_OFF, t.next_reconcile_after(4)),
        at(4, t.reconciled, *BACKS_OFF, t.next_reconcile_after(8)),
        at(12, t.reconciled, *BACKS_OFF, t.next_reconcile_after(10)),
        at(22, t.reconciled, *BACKS_OFF, t.next_reconcile_after(10)),
    ),
    backing_off_unit_keeps_its_slice_and_reports_when_it_returns=given(
        one_unit(initial="30s"),
        at(
            0,
            t.failed_before(),
            t.exits(137, reason="OOMKilled"),
            unit(slice="tpu-0", reason="OutOfMemory", notBefore="2026-11-20T12:00:30Z"),
        ),
        at(0, unit(message=has("exit 137 (OOMKilled)", "2026-11-20T12:00:30Z")), t.reserves("tpu-0")),
    ),
    unit_with_more_failures_than_the_limit_is_given_up_with_advice=given(
        one_unit(limit=2),
        at(0, crash := t.exits(1, message="Traceback (most recent call last):\nValueError: bad batch"), t.reconciled, t.pods_run),
        at(0, crash, t.reconciled, t.pods_run),
        at(0, crash, unit(state="Failed", reason="RestartsExhausted", slice="")),
        at(0, unit(message=has("3 failures within 1h", "limit is 2", "exit 1: ValueError: bad batch", "kubectl diloco retry"))),
        at(0, t.seen("live", Stage.live_attempts, []), learner_pods("v5p-0-a3-0")),  # of the newest failed attempt, for its log
    ),
    job_goes_on_without_a_unit_that_was_given_up=given(
        two_units(),
        at(0, *GIVEN_UP, t.all_contribute, t.seen("true", lambda stage: {"Training", "Degraded"} <= stage.true(), True)),
        at(0, t.condition("Degraded", reason="LearnersLost", message=has("v5p-1 has failed"))),
    ),
    failures_outside_the_window_are_forgotten=given(
        one_unit(limit=1, window="10m"),
        *(at(start, t.exits(1), t.reconciled, t.pods_run, t.all_contribute) for start in (0, 601, 1202, 1803)),
        at(1803, unit(state="Training", restarts=4)),
    ),
    limit_zero_gives_up_at_the_first_failure=given(
        one_unit(limit=0),
        at(0, t.exits(1), t.one_reconcile, t.condition("Failed", status="True")),
    ),
    one_failure_is_counted_once_however_often_it_is_seen=given(
        one_unit(initial="30s"),
        at(0, t.exits(1), *5 * (t.one_plan, t.one_reconcile_that_dies), unit(failures=1, restarts=1)),  # the pod stays
    ),
    recovery_is_measured_from_the_loss_to_contributing_again=given(
        one_unit(initial="5s"),
        at(0, t.exits(137)),
        at(6, unit(state="Starting")),
        at(10, t.pods_run, t.all_contribute, unit(state="Training", recoverSeconds=10.0, endedAt=None)),
    ),
    recovery_is_measured_from_the_first_of_several_ends=given(
        one_unit(limit=3, initial="5s"),
        at(0, t.exits(137)),
        at(6, t.pods_run, t.exits(1), unit(endedAt=format_timestamp(START))),
        at(11, t.reconciled),
        at(12, t.pods_run, t.all_contribute, unit(state="Training", recoverSeconds=12.0, endedAt=None)),  # 6 + 5 and a second
        at(20, t.exits(1)),
        at(30, t.reconciled),
        at(31, t.pods_run, t.all_contribute, unit(state="Training", recoverSeconds=11.0)),  # 2 * 5 and a second
    ),
    first_start_is_no_recovery=given(
        one_unit(),
        at(0, unit(recoverSeconds=None)),
    ),
    unit_that_ends_well_before_the_job_does_has_failed=given(
        one_unit(initial="70s"),
        at(0, t.failed_before(), t.exits(0), states(v5p_0="Completed")),
        at(61, t.one_reconcile, states(v5p_0="BackingOff"), unit(message=has("before the job was done"), failures=2)),
        at(61, unit(notBefore="2026-11-20T12:01:10Z", endedAt=format_timestamp(START))),  # from its end on
        at(70, t.one_reconcile, states(v5p_0="Starting")),
        at(75, t.pods_run, t.all_contribute, unit(recoverSeconds=75.0)),
    ),
    sidecar_does_not_keep_a_dead_learner_alive=given(
        one_unit(),
        at(0, t.main_container_exits(1), unit(failures=1, message=has(end=WAITS_FOR_ITS_POD))),
        at(0, t.deleted_pods_end, learner_pods("v5p-0-a2-0")),
    ),
    # A real kubelet reports the end of the container a moment before it reports the end of the pod.
    the_cause_of_an_end_is_reported_while_its_pod_still_ends=given(
        one_unit(),
        at(0, t.main_container_exits(137), t.reconciled, t.reconciled, t.losses(has("attempt 1 ended: exit 137"))),
        at(0, t.seen("waits", lambda stage: stage.unit("v5p-0")["message"].count("waits until"), 1)),
    ),
    given_up_unit_starts_again_with_a_new_template=given(
        two_units(),
        at(0, *GIVEN_UP, NEW_TEMPLATE, t.one_reconcile),
        at(0, unit("v5p-1", state="Starting", attempt=2, failures=0)),
    ),
    unit_that_used_up_its_restart_budget_has_a_new_one_with_a_new_template=given(
        two_units(limit=0),
        at(0, t.exits(1, unit="v5p-1"), unit("v5p-1", state="Failed", failures=1)),
        at(0, NEW_TEMPLATE, t.one_reconcile, unit("v5p-1", state="Starting", failures=0)),
    ),
    given_up_unit_starts_again_after_suspend_and_resume=given(
        two_units(),
        at(0, *GIVEN_UP, t.edits(suspend=True), *2 * (t.reconciled, t.deleted_pods_end), t.reconciled),
        at(0, t.edits(suspend=False), t.reconciled, t.pods_run, unit("v5p-1", state="Joining")),
    ),
)


@pytest.mark.parametrize(("code", "reason"), [(65, "RefusedLayout"), (64, "BadContract")])
def test_errors_that_a_restart_does_not_fix_fail_the_unit_at_once(code: int, reason: str) -> None:
    refusal = t.exits(code, unit="v5p-1", message="expected 12 tensors, got 11")
    t.play(two_units()(), at(0, refusal, unit("v5p-1", state="Failed", reason=reason, message=has("expected 12 tensors, got 11"))))


@pytest.mark.parametrize(
    ("code", "how", "reason", "text"),
    [
        (1, {}, "Crashed", "exit 1"),
        (137, {}, "Crashed", "exit 137 (SIGKILL)"),
        (139, {}, "Crashed", "exit 139 (SIGSEGV)"),
        (143, {}, "Crashed", "exit 143 (SIGTERM)"),
        (137, {"reason": "OOMKilled"}, "OutOfMemory", "raise the limit"),
        (66, {"message": "NaN in tensor wte"}, "RefusedNonFinite", "NaN in tensor wte"),
        (67, {}, "RefusedIdentity", "newer attempt"),
        (70, {"message": "the norm of its outer gradient is 1e+30"}, "RefusedQuarantined", "1e+30"),
        (68, {}, "RefusedIdentity", "certificates"),
        (71, {"message": "rank 3 on host 0 was lost"}, "RankLost", "rank 3 on host 0 was lost"),
    ],
)
def test_failures_count_and_say_what_happened(code: int, how: dict[str, Any], reason: str, text: str) -> None:
    seen = unit(state="BackingOff", reason=reason, failures=2, message=has(text))
    t.play(one_unit(initial="30s")(), at(0, t.failed_before(), t.exits(code, **how), t.one_reconcile, seen))


@pytest.mark.parametrize(
    ("code", "message", "reason", "text"),
    [
        # A launcher ends with status 1 whatever the status of its ranks is, and prints a table of its own.
        (
            1,
            "diloco: exit 65, rank 3: tensor a has another shape\n",
            "RefusedLayout",
            "every pool's template: rank 3: tensor a has another shape",
        ),
        (1, "diloco: exit 71, rank 0: rank 2 was lost\n", "RankLost", "rank 0: rank 2 was lost"),
        (1, "diloco: exit 1, rank 5: ValueError: bad batch\n", "Crashed", "exit 1: rank 5: ValueError: bad batch"),
        (137, "diloco: exit 137, rank 5: killed by SIGKILL\n", "Crashed", "exit 137 (SIGKILL): rank 5: killed by SIGKILL"),
        # What the kubelet killed is not what a rank had said.
        (137, "half a line of a log", "Crashed", "exit 137 (SIGKILL)"),
        (1, "ValueError: bad batch\n=====\n", "Crashed", "exit 1: ValueError: bad batch"),
        # A status that makes no sense is not believed.
        (1, "diloco: exit 0, rank 5: fine\n", "Crashed", "exit 1: rank 5: fine"),
    ],
)
def test_what_a_rank_said_decides_and_not_the_launcher(code: int, message: str, reason: str, text: str) -> None:
    stage = one_unit(initial="30s")()
    t.play(stage, at(0, t.failed_before(), t.exits(code, message=message), t.one_reconcile, unit(reason=reason, message=has(text))))
    assert "half a line" not in stage.unit("v5p-0")["message"]


# --- units of several hosts -------------------------------------------------------------------------------------------
LOST_RANK = t.exits(71, host=0, message="rank 1 was lost")


test_several_hosts = timelines(
    all_hosts_of_a_unit_go_when_one_fails=given(
        two_hosts(),
        # The other host has ended.
        at(0, t.exits(1, host=1), t.one_reconcile, deleted("v5p-0-a1-0", "v5p-0-a1-hosts-2"), unit(failures=2)),
    ),
    next_attempt_of_a_gang_waits_for_the_last_process_of_the_one_before=given(
        two_hosts(initial="0s"),
        at(0, t.exits(1, host=1), learner_pods("v5p-0-a1-0", "v5p-0-a1-1"), unit(message=has(end=WAITS_FOR_ITS_POD))),
        at(0, t.deleted_pods_end, learner_pods("v5p-0-a1-1", "v5p-0-a2-0", "v5p-0-a2-1")),
    ),
    first_failure_in_a_gang_is_named_as_its_cause=given(
        two_hosts(),
        at(2, t.exits(137, host=1, skew=-2, reason="OOMKilled"), t.exits(1, host=0, message="peer went away"), t.one_reconcile),
        at(2, unit(reason="OutOfMemory")),
    ),
    lost_rank_is_a_consequence_whichever_host_ended_first=given(
        two_hosts(),
        at(0, LOST_RANK),
        at(2, t.exits(1, host=1, message="ValueError: bad batch"), t.one_reconcile),
        at(2, unit(reason="Crashed", failures=2, restarts=1, message=has("exit 1: ValueError: bad batch")), t.suspected("np-0-1")),
    ),
    unit_waits_five_seconds_for_the_host_that_can_say_why_a_rank_was_lost=given(
        two_hosts(),
        at(0, LOST_RANK, t.one_reconcile, t.next_reconcile_after(5), states(v5p_0="Training")),
        at(5, t.one_reconcile, unit(state="BackingOff", reason="RankLost", failures=2)),
        at(5, unit(message=has("exit 71: another rank of its unit ended or was lost: rank 1 was lost"))),
        at(5, t.suspected("np-0-1")),  # the host that never said anything is the suspect, not the one that noticed
    ),
    gang_of_which_all_hosts_lost_a_rank_starts_again_once_and_blames_no_host=given(
        two_hosts(),
        at(0, LOST_RANK, t.exits(71, host=1, message="rank 0 was lost"), t.one_reconcile),
        at(0, unit(reason="RankLost", restarts=1), t.suspected(), *3 * (t.one_plan,), t.reconciled, unit(failures=2)),
    ),
    lost_rank_whose_host_was_taken_away_is_no_failure=given(
        two_hosts(),
        at(0, LOST_RANK, t.one_reconcile, t.lost("np-0-1"), t.one_reconcile, unit(state="Pending", restarts=1, failures=1)),
    ),
    end_from_a_node_whose_clock_is_wrong_is_not_waited_for=given(
        two_hosts(),
        at(0, t.exits(71, skew=3600, message="rank 1 was lost"), t.one_reconcile, unit(reason="RankLost")),
    ),
)


# --- units that are not heard from --------------------------------------------------------------------------------------
CONTRIBUTING, JOINING, DISCONNECTED, REFUSED = UnitPhase.CONTRIBUTING, UnitPhase.JOINING, UnitPhase.DISCONNECTED, UnitPhase.REFUSED


test_silence = timelines(
    unit_that_does_not_join_in_time_is_replaced=given(
        pods_that_run(),
        at(0, t.syncer_has_seen_nobody),
        at(59, deleted()),
        at(60, t.one_reconcile, unit(endedAttempt=1, failures=1, message=has("learners.timeouts.join"))),
    ),
    joining_is_not_timed_while_the_syncer_is_silent=given(
        pods_that_run(),
        at(3600, states(v5p_0="Joining")),
    ),
    unit_whose_pods_never_run_is_tried_on_another_slice=given(
        two_slices_for_a_unit(),
        at(0, t.syncer_restarts, t.bound(), t.waits("ContainerCreating")),
        at(0, unit(message="bytes-lm-v5p-0-a1-0: waits for volumes and network on tpu-0")),
        at(60, unit(slice="tpu-1"), learner_pods("v5p-0-a2-0")),
    ),
    silent_unit_is_replaced_after_the_stall_timeout=given(
        one_unit(),
        at(100, t.reported(CONTRIBUTING, heard=29.0), deleted()),
        at(100, t.reported(DISCONNECTED, heard=30.0), deleted("v5p-0-a1-0"), created()),  # a stopped process still stands on the host
        at(100, unit(failures=1, message=has("bytes-lm-v5p-0-a1-0")), t.deleted_pods_end, t.one_reconcile, created("v5p-0-a2-0")),
    ),
    a_unit_that_rests_says_so_and_is_neither_stalled_nor_gone=given(
        one_unit(),
        at(0, t.reported(CONTRIBUTING, heard=0.2, resting_seconds=9.0), unit(reason="")),  # a moment is not worth a word
        at(3600, t.reported(CONTRIBUTING, heard=0.2, resting_seconds=3600.0), deleted()),
        at(3600, unit(state="Training", reason="WaitingForQuorum")),
        at(3600, unit(message="is ahead of the job, and rests until a quorum of 1 learner trains")),
        at(3600, t.reported(CONTRIBUTING, heard=0.2), unit(reason="", message="")),
    ),
    syncer_that_has_just_restarted_stalls_no_learner=given(
        one_unit(),
        at(600, t.syncer_restarts),
        at(605, t.reported(DISCONNECTED, heard=600.0), deleted(), states(v5p_0="Joining")),
    ),
    process_that_the_syncer_has_refused_and_that_does_not_end_is_replaced=given(
        one_unit(),
        at(100, t.reported(REFUSED, heard=29.0, message="other tensors"), deleted()),
        at(100, unit(state="Joining", message="the syncer has refused it, and its program has not ended: other tensors")),
        at(100, t.reported(REFUSED, heard=30.0, message="other tensors"), deleted("v5p-0-a1-0")),
        at(100, unit(failures=1, message=has("the syncer has refused it, and its program has not ended: other tensors"))),
    ),
    stale_report_ends_no_unit=given(
        one_unit(),
        at(0, t.reported(DISCONNECTED, heard=10.0), t.one_reconcile, t.report_ages(4000), learner_pods("v5p-0-a1-0")),
    ),
)


# --- busy, paused or gone -----------------------------------------------------------------------------------------------
# The job's stallTimeout is 30 s; its first step may take 30 minutes.
test_pauses = timelines(
    a_process_that_is_alive_and_takes_no_step_stalls_with_words_of_its_own=given(
        one_unit(),
        at(100, t.reported(CONTRIBUTING, heard=29.0, alive=1.0, local_step=7), deleted()),
        at(100, t.reported(CONTRIBUTING, heard=30.0, alive=1.0, local_step=7), deleted("v5p-0-a1-0")),
        at(100, unit(message=has("its process is alive, but took no step for 30s (learners.stallTimeout)", "session.paused"))),
    ),
    the_first_step_has_a_time_of_its_own_as_long_as_the_process_is_heard_from=given(
        one_unit(),
        at(4000, t.reported(JOINING, heard=1799.0, alive=1.0), deleted()),
        at(4000, t.reported(JOINING, heard=1800.0, alive=1.0), deleted("v5p-0-a1-0")),
        at(4000, unit(message=has("did not take its first step within 30m (learners.timeouts.firstStep)"))),
    ),
    a_process_that_is_gone_before_its_first_step_is_replaced_after_the_stall_timeout=given(
        one_unit(),
        at(4000, t.reported(DISCONNECTED, heard=31.0, alive=30.0), deleted("v5p-0-a1-0")),
        at(4000, unit(message=has("the syncer has not heard from it for 30s (learners.stallTimeout)"))),
    ),
    a_short_stall_timeout_does_not_take_the_time_between_heartbeats_for_silence=given(
        one_unit(),
        at(0, t.edits_learners(stallTimeout="2s")),
        at(100, t.reported(JOINING, heard=14.0, alive=14.0), deleted()),
        at(100, t.reported(JOINING, heard=15.0, alive=15.0), deleted("v5p-0-a1-0")),
    ),
    a_pause_is_no_stall_until_it_takes_longer_than_the_program_said=given(
        one_unit(),
        at(1000, t.reported(CONTRIBUTING, heard=400.0, alive=1.0, local_step=7, pause="evaluation", pause_left=200.0), deleted()),
        at(1000, unit(state="Training", reason="Paused", pausedUntil=(until := format_timestamp(START + 1200)))),
        at(1000, unit(message=f"its program takes no steps for a while, until {until} at most: evaluation")),
        at(1200, t.reported(CONTRIBUTING, heard=600.0, alive=1.0, local_step=7, pause="evaluation", pause_left=0.0)),
        at(1200, deleted("v5p-0-a1-0"), unit(message=has("its program paused for longer than it had said (evaluation)"), pausedUntil=None)),
    ),
    a_process_that_is_gone_is_replaced_also_in_a_pause=given(
        one_unit(),
        at(1000, t.reported(CONTRIBUTING, heard=100.0, alive=30.0, local_step=7, pause="evaluation", pause_left=500.0)),
        at(1000, deleted("v5p-0-a1-0")),
    ),
    a_pause_writes_the_status_once_and_its_end_does=given(
        one_unit(),
        at(100, t.reported(CONTRIBUTING, heard=10.0, alive=1.0, local_step=7, pause="evaluation", pause_left=200.0)),
        at(100, unit(pausedUntil=format_timestamp(START + 300))),
        at(102, t.reported(CONTRIBUTING, heard=12.0, alive=1.0, local_step=7, pause="evaluation", pause_left=199.2)),
        at(102, unit(pausedUntil=format_timestamp(START + 300))),  # reports come at odd moments
        at(102, t.reported(CONTRIBUTING, alive=1.0, local_step=7), unit(state="Training", reason="", message="", pausedUntil=None)),
    ),
    a_pause_stays_on_record_while_there_is_no_report=given(
        one_unit(),
        at(100, t.reported(CONTRIBUTING, heard=10.0, alive=1.0, local_step=7, pause="evaluation", pause_left=200.0)),
        at(100, unit(pausedUntil=format_timestamp(START + 300))),
        at(101, t.report_ages(61.0), unit(state="Training", reason="Paused", pausedUntil=format_timestamp(START + 300))),
    ),
)
