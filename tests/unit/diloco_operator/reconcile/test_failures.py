"""Crashes, refusals and time-outs: what counts, what waits, and which units are given up."""

from __future__ import annotations

from typing import Any

import pytest
from builders.jobs import a_job, template
from builders.nodes import a_tpu_node, a_tpu_slice
from builders.pods import is_bound, main_container_exits, starts, waits
from builders.stage import Stage
from diloco_operator.kube.timestamps import format_timestamp, parse_timestamp
from diloco_operator.report import Report, UnitPhase


def one_unit(limit: int = 2, initial: str = "0s", **restart: str) -> Stage:
    job = a_job().with_restarts(limit, initial, **restart).with_pool(max=1).with_training(quorum=1)
    return Stage(job, a_tpu_node("tpu-0")).train()


def two_units(**restart: str) -> Stage:
    job = a_job().with_learners(2, 2).with_restarts(2, **{"initial": "0s", **restart}).with_pool(max=2)
    return Stage(job, a_tpu_node("tpu-0"), a_tpu_node("tpu-1")).train()


def test_crashed_unit_is_replaced_in_the_reconcile_that_sees_it() -> None:
    stage = one_unit()
    stage.learner_exits("v5p-0", 1, 1)
    plan = stage.step()
    assert [c.obj["metadata"]["name"] for c in plan.creates] == ["bytes-lm-v5p-0-a2-0"]
    assert plan.deletes == ()  # the pod stays for its log
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["attempt"], unit["endedAttempt"], unit["restarts"]) == ("Starting", 2, 1, 1)
    assert len(unit["failures"]) == 1


def test_new_attempt_stays_on_the_slice() -> None:
    stage = two_units()
    stage.learner_exits("v5p-1", 1, 1)
    stage.settle()
    assert stage.unit("v5p-1")["slice"] == "tpu-1"


def test_survivors_are_not_touched() -> None:
    stage = two_units()
    stage.learner_exits("v5p-1", 1, 137)
    stage.settle()
    assert "bytes-lm-v5p-0-a1-0" in stage.learner_pods()
    assert stage.unit("v5p-0")["state"] == "Training"


def test_backoff_doubles_with_every_failure_up_to_its_maximum() -> None:
    stage = one_unit(limit=10, initial="4s", max="10s")
    pauses = []
    for attempt in range(1, 5):
        stage.learner_exits("v5p-0", attempt, 1)
        stage.step()
        assert stage.unit("v5p-0")["state"] == "BackingOff"
        plan = stage.reconcile_only()
        assert plan.empty
        pauses.append(round(plan.requeue_after or 0))
        stage.advance(pauses[-1] + 0.01)
        stage.settle()
        stage.kubelets_start()
    # initial x 2^(n-1), at most max: 4, 8, 16 -> 10, 10
    assert pauses == [4, 8, 10, 10]


def test_backing_off_unit_keeps_its_slice_and_reports_when_it_returns() -> None:
    stage = one_unit(initial="30s")
    stage.learner_exits("v5p-0", 1, 137, reason="OOMKilled")
    stage.settle()
    unit = stage.unit("v5p-0")
    assert (unit["slice"], unit["reason"], unit["notBefore"]) == ("tpu-0", "OutOfMemory", "2026-11-20T12:00:30Z")
    assert "exit 137 (OOMKilled)" in unit["message"]
    assert "2026-11-20T12:00:30Z" in unit["message"]
    assert stage.plans[-1].reservations.nodes == {"tpu-0"}


def test_unit_with_more_failures_than_the_limit_is_given_up_with_advice() -> None:
    stage = one_unit(limit=2)
    for attempt in (1, 2, 3):
        stage.learner_exits("v5p-0", attempt, 1, message="Traceback (most recent call last):\nValueError: bad batch")
        stage.settle()
        stage.kubelets_start()
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["reason"], unit["slice"]) == ("Failed", "RestartsExhausted", "")
    for part in ("3 failures within 1h", "limit is 2", "exit 1: ValueError: bad batch", "kubectl diloco retry"):
        assert part in unit["message"]
    assert stage.live_attempts() == []
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a3-0"]  # of the newest failed attempt, for its log


def test_job_goes_on_without_a_unit_that_was_given_up() -> None:
    stage = two_units()
    stage.learner_exits("v5p-1", 1, 65)
    stage.settle()
    stage.all_contribute()
    stage.settle()
    assert "Training" in stage.true()
    assert stage.condition("Degraded")["reason"] == "LearnersLost"
    assert "v5p-1 has failed" in stage.condition("Degraded")["message"]


def test_failures_outside_the_window_are_forgotten() -> None:
    stage = one_unit(limit=1, window="10m")
    for attempt in range(1, 5):
        stage.learner_exits("v5p-0", attempt, 1)
        stage.settle()
        stage.kubelets_start()
        stage.all_contribute()
        stage.settle()
        stage.advance(601)
        stage.all_contribute()
    assert stage.unit("v5p-0")["state"] == "Training"
    assert stage.unit("v5p-0")["restarts"] == 4


def test_limit_zero_gives_up_at_the_first_failure() -> None:
    stage = one_unit(limit=0)
    stage.learner_exits("v5p-0", 1, 1)
    stage.step()
    assert stage.condition("Failed")["status"] == "True"


@pytest.mark.parametrize(
    ("code", "reason"),
    [(65, "RefusedLayout"), (64, "BadContract")],
)
def test_errors_that_a_restart_does_not_fix_fail_the_unit_at_once(code: int, reason: str) -> None:
    stage = two_units()
    stage.learner_exits("v5p-1", 1, code, message="expected 12 tensors, got 11")
    stage.settle()
    unit = stage.unit("v5p-1")
    assert (unit["state"], unit["reason"]) == ("Failed", reason)
    assert "expected 12 tensors, got 11" in unit["message"]


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
    stage = one_unit(initial="30s")
    stage.learner_exits("v5p-0", 1, code, **how)
    stage.step()
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["reason"], len(unit["failures"])) == ("BackingOff", reason, 1)
    assert text in unit["message"]


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
    stage = one_unit(initial="30s")
    stage.learner_exits("v5p-0", 1, code, message=message)
    stage.step()
    unit = stage.unit("v5p-0")
    assert unit["reason"] == reason
    assert text in unit["message"]
    assert "half a line" not in unit["message"]


def test_one_failure_is_counted_once_however_often_it_is_seen() -> None:
    stage = one_unit(initial="30s")
    stage.learner_exits("v5p-0", 1, 1)
    for _ in range(5):
        stage.reconcile_only()
        stage.step(crash_after=1)  # status is written, the pod stays
    assert len(stage.unit("v5p-0")["failures"]) == 1
    assert stage.unit("v5p-0")["restarts"] == 1


def test_unit_that_does_not_join_in_time_is_replaced() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    stage.settle()
    stage.kubelets_start()
    stage.settle()
    stage.all_contribute()
    stage.report = Report(received_at=stage.now, t=0, steps=100)  # the syncer serves, but has seen no learner
    stage.settle()
    stage.advance(59)
    assert stage.reconcile_only().deletes == ()
    stage.advance(1)
    stage.step()
    unit = stage.unit("v5p-0")
    assert unit["endedAttempt"] == 1
    assert len(unit["failures"]) == 1
    assert "learners.timeouts.join" in unit["message"] or unit["reason"] == "Scheduling"


def test_joining_is_not_timed_while_the_syncer_is_silent() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    stage.settle()
    stage.kubelets_start()
    stage.settle()
    stage.advance(3600)
    stage.settle()
    assert stage.states() == {"v5p-0": "Joining"}


def test_unit_whose_pods_never_run_is_tried_on_another_slice() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1), a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    stage.settle()
    starts(stage.syncer, stage.now)
    is_bound(stage.pod("v5p-0", 1), stage.now)
    waits(stage.pod("v5p-0", 1), "ContainerCreating")
    stage.settle()
    assert stage.unit("v5p-0")["message"] == "bytes-lm-v5p-0-a1-0: waits for volumes and network on tpu-0"
    stage.advance(60)
    stage.settle()
    assert stage.unit("v5p-0")["slice"] == "tpu-1"
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a2-0"]


def test_silent_unit_is_replaced_after_the_stall_timeout() -> None:
    stage = one_unit()
    stage.advance(100)
    stage.syncer_says("v5p-0", 1, UnitPhase.CONTRIBUTING, seconds_since_heard=29.0)
    assert stage.step().deletes == ()
    stage.syncer_says("v5p-0", 1, UnitPhase.DISCONNECTED, seconds_since_heard=30.0)
    plan = stage.step()
    assert [d.name for d in plan.deletes] == ["bytes-lm-v5p-0-a1-0"]
    assert plan.creates == ()  # a stopped process still stands on the host
    assert len(stage.unit("v5p-0")["failures"]) == 1
    assert "bytes-lm-v5p-0-a1-0" in stage.unit("v5p-0")["message"]
    stage.kubelets_finish_deletions()
    assert [c.obj["metadata"]["name"] for c in stage.step().creates] == ["bytes-lm-v5p-0-a2-0"]


def test_a_unit_that_rests_says_so_and_is_neither_stalled_nor_gone() -> None:
    stage = one_unit()
    stage.syncer_says("v5p-0", 1, UnitPhase.CONTRIBUTING, seconds_since_heard=0.2, resting_seconds=9.0)
    stage.step()
    assert stage.unit("v5p-0")["reason"] == "", "a moment is not worth a word"
    stage.advance(3600)
    stage.syncer_says("v5p-0", 1, UnitPhase.CONTRIBUTING, seconds_since_heard=0.2, resting_seconds=3600.0)
    assert stage.step().deletes == ()
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["reason"]) == ("Training", "WaitingForQuorum")
    assert unit["message"] == "is ahead of the job, and rests until a quorum of 1 learner trains"
    stage.syncer_says("v5p-0", 1, UnitPhase.CONTRIBUTING, seconds_since_heard=0.2)
    stage.step()
    assert (stage.unit("v5p-0")["reason"], stage.unit("v5p-0")["message"]) == ("", "")


def test_syncer_that_has_just_restarted_stalls_no_learner() -> None:
    stage = one_unit()
    stage.advance(600)
    starts(stage.syncer, stage.now)
    stage.advance(5)
    stage.syncer_says("v5p-0", 1, UnitPhase.DISCONNECTED, seconds_since_heard=600.0)
    assert stage.step().deletes == ()
    assert stage.states() == {"v5p-0": "Joining"}


def test_stale_report_ends_no_unit() -> None:
    stage = one_unit()
    stage.syncer_says("v5p-0", 1, UnitPhase.DISCONNECTED, seconds_since_heard=10.0)
    stage.step()
    stage.now += 4000
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a1-0"]


def test_recovery_is_measured_from_the_loss_to_contributing_again() -> None:
    stage = one_unit(initial="5s")
    stage.learner_exits("v5p-0", 1, 137)
    stage.settle()
    stage.advance(6)
    stage.settle()
    stage.advance(4)
    stage.kubelets_start()
    stage.all_contribute()
    stage.settle()
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["recoverSeconds"]) == ("Training", 10.0)
    assert "endedAt" not in unit


def test_first_start_is_no_recovery() -> None:
    assert "recoverSeconds" not in one_unit().unit("v5p-0")


def test_all_hosts_of_a_unit_go_when_one_fails() -> None:
    stage = Stage(a_job().with_restarts(3, "30s").with_pool(max=1, topology="2x2x2"), *a_tpu_slice("np-0", 2)).train()
    stage.learner_exits("v5p-0", 1, 1, host=1)
    plan = stage.step()
    assert {d.name for d in plan.deletes} == {"bytes-lm-v5p-0-a1-0", "bytes-lm-v5p-0-a1-hosts-2"}  # the other host has ended
    assert len(stage.unit("v5p-0")["failures"]) == 1


def test_next_attempt_of_a_gang_waits_for_the_last_process_of_the_one_before() -> None:
    stage = Stage(a_job().with_pool(max=1, topology="2x2x2"), *a_tpu_slice("np-0", 2)).train()
    stage.learner_exits("v5p-0", 1, 1, host=1)
    stage.settle()
    assert [attempt for _, _, attempt in stage.live_attempts()] == [1]  # asked to go, still there
    assert stage.unit("v5p-0")["message"].endswith("; waits until the pod bytes-lm-v5p-0-a1-0 has gone")
    stage.kubelets_finish_deletions()
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a1-1", "bytes-lm-v5p-0-a2-0", "bytes-lm-v5p-0-a2-1"]


def test_first_failure_in_a_gang_is_named_as_its_cause() -> None:
    stage = Stage(a_job().with_restarts(3, "30s").with_pool(max=1, topology="2x2x2"), *a_tpu_slice("np-0", 2)).train()
    stage.learner_exits("v5p-0", 1, 137, host=1, reason="OOMKilled")
    stage.advance(2)
    stage.learner_exits("v5p-0", 1, 1, host=0, message="peer went away")
    stage.step()
    assert stage.unit("v5p-0")["reason"] == "OutOfMemory"


def lost_rank(*, host: int = 0, code: int = 71, message: str = "rank 1 was lost") -> Stage:
    """A unit of two hosts, of which one has ended just now."""
    stage = Stage(a_job().with_restarts(3, "30s").with_pool(max=1, topology="2x2x2"), *a_tpu_slice("np-0", 2)).train()
    stage.learner_exits("v5p-0", 1, code, host=host, message=message)
    return stage


def test_lost_rank_is_a_consequence_whichever_host_ended_first() -> None:
    stage = lost_rank()
    stage.advance(2)
    stage.learner_exits("v5p-0", 1, 1, host=1, message="ValueError: bad batch")
    stage.step()
    unit = stage.unit("v5p-0")
    assert (unit["reason"], len(unit["failures"]), unit["restarts"]) == ("Crashed", 1, 1)
    assert "exit 1: ValueError: bad batch" in unit["message"]
    assert [host["node"] for host in stage.status["hosts"]] == [stage.pod("v5p-0", 1, 1)["spec"]["nodeName"]]


def test_unit_waits_five_seconds_for_the_host_that_can_say_why_a_rank_was_lost() -> None:
    stage = lost_rank()
    assert stage.step().requeue_after == pytest.approx(5.0, abs=0.01)
    assert stage.states() == {"v5p-0": "Training"}
    stage.advance(5)
    stage.step()
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["reason"], len(unit["failures"])) == ("BackingOff", "RankLost", 1)
    assert "exit 71: another rank of its unit ended or was lost: rank 1 was lost" in unit["message"]
    # The host that never said anything is the suspect, not the one that noticed.
    assert [host["node"] for host in stage.status["hosts"]] == [stage.pod("v5p-0", 1, 1)["spec"]["nodeName"]]


def test_gang_of_which_all_hosts_lost_a_rank_starts_again_once_and_blames_no_host() -> None:
    stage = lost_rank()
    stage.learner_exits("v5p-0", 1, 71, host=1, message="rank 0 was lost")
    stage.step()
    assert (stage.unit("v5p-0")["reason"], stage.unit("v5p-0")["restarts"]) == ("RankLost", 1)
    assert not stage.status.get("hosts")
    for _ in range(3):
        stage.reconcile_only()
    stage.settle()
    assert len(stage.unit("v5p-0")["failures"]) == 1


def test_lost_rank_whose_host_was_taken_away_is_no_failure() -> None:
    stage = lost_rank()
    stage.step()
    stage.lose_node(stage.pod("v5p-0", 1, 1)["spec"]["nodeName"])
    stage.step()
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["restarts"], unit.get("failures", [])) == ("Pending", 1, [])


def test_end_from_a_node_whose_clock_is_wrong_is_not_waited_for() -> None:
    stage = lost_rank()
    stage.now -= 3600  # the node's clock is an hour ahead
    stage.step()
    assert stage.unit("v5p-0")["reason"] == "RankLost"


def test_unit_that_ends_well_before_the_job_does_has_failed() -> None:
    stage = one_unit(initial="30s")
    stage.learner_exits("v5p-0", 1, 0)
    stage.settle()
    assert stage.states() == {"v5p-0": "Completed"}
    stage.advance(61)
    stage.step()
    assert stage.states() == {"v5p-0": "BackingOff"}
    assert "before the job was done" in stage.unit("v5p-0")["message"]


def test_sidecar_does_not_keep_a_dead_learner_alive() -> None:
    stage = one_unit()
    main_container_exits(stage.pod("v5p-0", 1), 1, stage.now)
    stage.settle()
    assert len(stage.unit("v5p-0")["failures"]) == 1
    assert stage.unit("v5p-0")["message"].endswith("; waits until the pod bytes-lm-v5p-0-a1-0 has gone")
    stage.kubelets_finish_deletions()
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a2-0"]


def test_the_cause_of_an_end_is_reported_while_its_pod_still_ends() -> None:
    stage = one_unit()
    # A real kubelet reports the end of the container a moment before it reports the end of the pod.
    main_container_exits(stage.pod("v5p-0", 1), 137, stage.now)
    stage.settle()
    stage.settle()
    (lost,) = [event.message for plan in stage.plans for event in plan.events if event.reason == "UnitLost"]
    assert "attempt 1 ended: exit 137" in lost
    assert stage.unit("v5p-0")["message"].count("waits until") == 1


def test_given_up_unit_starts_again_with_a_new_template() -> None:
    stage = two_units()
    stage.learner_exits("v5p-1", 1, 65)
    stage.settle()
    pool = stage.job["spec"]["pools"][0]
    stage.edit(pools=[{**pool, "template": template(terminationGracePeriodSeconds=45)}])
    stage.step()
    assert stage.unit("v5p-1")["state"] == "Starting"
    assert stage.unit("v5p-1")["attempt"] == 2
    assert stage.unit("v5p-1")["failures"] == []


def test_given_up_unit_starts_again_after_suspend_and_resume() -> None:
    stage = two_units()
    stage.learner_exits("v5p-1", 1, 65)
    stage.settle()
    stage.edit(suspend=True)
    stage.settle()
    stage.kubelets_finish_deletions()
    stage.settle()
    stage.kubelets_finish_deletions()
    stage.settle()
    stage.edit(suspend=False)
    stage.settle()
    stage.kubelets_start()
    stage.settle()
    assert stage.unit("v5p-1")["state"] in ("Starting", "Joining")


# --- busy, paused or gone -----------------------------------------------------------------------------------------------
# The job's stallTimeout is 30 s; its first step may take 30 minutes.


def test_a_process_that_is_alive_and_takes_no_step_stalls_with_words_of_its_own() -> None:
    stage = one_unit()
    stage.advance(100)
    stage.syncer_says("v5p-0", 1, UnitPhase.CONTRIBUTING, seconds_since_heard=29.0, seconds_since_alive=1.0, local_step=7)
    assert stage.step().deletes == ()
    stage.syncer_says("v5p-0", 1, UnitPhase.CONTRIBUTING, seconds_since_heard=30.0, seconds_since_alive=1.0, local_step=7)
    assert [d.name for d in stage.step().deletes] == ["bytes-lm-v5p-0-a1-0"]
    message = stage.unit("v5p-0")["message"]
    assert "its process is alive, but took no step for 30s (learners.stallTimeout)" in message
    assert "session.paused" in message


def test_the_first_step_has_a_time_of_its_own_as_long_as_the_process_is_heard_from() -> None:
    stage = one_unit()
    stage.advance(4000)
    stage.syncer_says("v5p-0", 1, UnitPhase.JOINING, seconds_since_heard=1799.0, seconds_since_alive=1.0)
    assert stage.step().deletes == ()
    stage.syncer_says("v5p-0", 1, UnitPhase.JOINING, seconds_since_heard=1800.0, seconds_since_alive=1.0)
    assert [d.name for d in stage.step().deletes] == ["bytes-lm-v5p-0-a1-0"]
    assert "did not take its first step within 30m (learners.timeouts.firstStep)" in stage.unit("v5p-0")["message"]


def test_a_process_that_is_gone_before_its_first_step_is_replaced_after_the_stall_timeout() -> None:
    stage = one_unit()
    stage.advance(4000)
    stage.syncer_says("v5p-0", 1, UnitPhase.DISCONNECTED, seconds_since_heard=31.0, seconds_since_alive=30.0)
    assert [d.name for d in stage.step().deletes] == ["bytes-lm-v5p-0-a1-0"]
    assert "the syncer has not heard from it for 30s (learners.stallTimeout)" in stage.unit("v5p-0")["message"]


def test_a_short_stall_timeout_does_not_take_the_time_between_heartbeats_for_silence() -> None:
    stage = one_unit()
    stage.edit(learners={**stage.job["spec"]["learners"], "stallTimeout": "2s"})
    stage.advance(100)
    stage.syncer_says("v5p-0", 1, UnitPhase.JOINING, seconds_since_heard=14.0, seconds_since_alive=14.0)
    assert stage.step().deletes == ()
    stage.syncer_says("v5p-0", 1, UnitPhase.JOINING, seconds_since_heard=15.0, seconds_since_alive=15.0)
    assert [d.name for d in stage.step().deletes] == ["bytes-lm-v5p-0-a1-0"]


def test_a_pause_is_no_stall_until_it_takes_longer_than_the_program_said() -> None:
    stage = one_unit()
    stage.advance(1000)
    paused = {"local_step": 7, "pause": "evaluation", "seconds_since_alive": 1.0}
    stage.syncer_says("v5p-0", 1, UnitPhase.CONTRIBUTING, seconds_since_heard=400.0, pause_left=200.0, **paused)
    assert stage.step().deletes == ()
    stage.settle()
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["reason"]) == ("Training", "Paused")
    until = format_timestamp(stage.now + 200)
    assert unit["message"] == f"its program takes no steps for a while, until {until} at most: evaluation"
    assert parse_timestamp(unit["pausedUntil"]) == stage.now + 200
    stage.advance(200)
    stage.syncer_says("v5p-0", 1, UnitPhase.CONTRIBUTING, seconds_since_heard=600.0, pause_left=0.0, **paused)
    assert [d.name for d in stage.step().deletes] == ["bytes-lm-v5p-0-a1-0"]
    assert "its program paused for longer than it had said (evaluation)" in stage.unit("v5p-0")["message"]
    stage.settle()
    assert "pausedUntil" not in stage.unit("v5p-0")


def test_a_process_that_is_gone_is_replaced_also_in_a_pause() -> None:
    stage = one_unit()
    stage.advance(1000)
    paused = {"local_step": 7, "pause": "evaluation", "pause_left": 500.0}
    stage.syncer_says("v5p-0", 1, UnitPhase.CONTRIBUTING, seconds_since_heard=100.0, seconds_since_alive=30.0, **paused)
    assert [d.name for d in stage.step().deletes] == ["bytes-lm-v5p-0-a1-0"]


def test_a_pause_writes_the_status_once_and_its_end_does() -> None:
    stage = one_unit()
    stage.advance(100)
    paused = {"local_step": 7, "pause": "evaluation", "seconds_since_alive": 1.0}
    stage.syncer_says("v5p-0", 1, UnitPhase.CONTRIBUTING, seconds_since_heard=10.0, pause_left=200.0, **paused)
    stage.settle()
    until = stage.unit("v5p-0")["pausedUntil"]
    stage.advance(2)
    stage.syncer_says("v5p-0", 1, UnitPhase.CONTRIBUTING, seconds_since_heard=12.0, pause_left=199.2, **paused)
    stage.settle()
    assert stage.unit("v5p-0")["pausedUntil"] == until, "reports come at odd moments"
    stage.syncer_says("v5p-0", 1, UnitPhase.CONTRIBUTING, local_step=7, seconds_since_alive=1.0)
    stage.settle()
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["reason"], unit["message"], unit.get("pausedUntil")) == ("Training", "", "", None)
