"""The four time-outs of a start: to be scheduled, to pull images, to start, to join."""

from __future__ import annotations

from typing import Any

import pytest
from builders.jobs import a_job
from builders.nodes import a_gpu_node, a_tpu_node
from builders.pods import (
    has_network,
    init_container,
    is_bound,
    is_unschedulable,
    starts,
    waits,
)
from builders.stage import Stage
from diloco_operator.kube.timestamps import format_timestamp, parse_timestamp
from diloco_operator.plan import UnitRestart
from diloco_operator.reconcile.units.timeouts import is_refused
from diloco_operator.report import Report

HOUR = 3600.0
WORDS = "0/5 nodes are available: 1 Insufficient google.com/tpu."


def starting(nodes: int = 2, **timeouts: str) -> Stage:
    """One unit, whose pod exists. 30 s to be scheduled, 3 minutes to pull, 2 to start, 1 to join, unless `timeouts` says otherwise."""
    limits = {"schedule": "30s", "pull": "3m", "start": "2m", "join": "1m", **timeouts}
    job = a_job().with_learners(1, 1, timeouts=limits).with_restarts(2, initial="10s").with_pool(max=1)
    stage = Stage(job, *(a_tpu_node(f"tpu-{index}") for index in range(nodes)))
    stage.settle()
    starts(stage.syncer, stage.now)
    stage.settle()
    return stage


def failures(stage: Stage) -> int:
    return len(stage.unit("v5p-0")["failures"])


def refuse(stage: Stage, attempt: int) -> None:
    """The scheduler finds no place for the attempt's pod, and its time passes."""
    is_unschedulable(stage.pod("v5p-0", attempt))
    stage.settle()
    stage.advance(30)
    stage.settle()


def next_attempt(stage: Stage) -> float:
    """Until the unit starts again; the seconds that this took."""
    paused = parse_timestamp(stage.unit("v5p-0")["notBefore"]) - stage.now
    stage.advance(paused)
    stage.settle()
    return paused


# --- schedule ---------------------------------------------------------------------------------------------------------
def test_unschedulable_pod_gives_its_slice_up_and_this_is_no_failure() -> None:
    stage = starting()
    is_unschedulable(stage.pod("v5p-0", 1))
    stage.settle()
    assert stage.unit("v5p-0")["message"] == f"bytes-lm-v5p-0-a1-0: {WORDS}"
    stage.advance(29)
    assert stage.reconcile_only().deletes == ()
    stage.advance(1)
    plan = stage.step()
    unit = stage.unit("v5p-0")
    assert [delete.name for delete in plan.deletes] == ["bytes-lm-v5p-0-a1-0"]
    assert (unit["state"], unit["reason"], unit["restarts"], unit["failures"]) == ("Pending", "Unschedulable", 0, [])
    assert "bytes-lm-v5p-0-a1-0 to tpu-0 within 30s (learners.timeouts.schedule)" in unit["message"]
    assert WORDS in unit["message"]
    assert plan.slices_given_up == (UnitRestart("v5p-0", "Unschedulable"),)
    assert [(event.type, event.reason) for event in plan.events] == [("Warning", "UnitGaveSliceUp")]
    assert stage.status["unschedulableNodes"] == [{"name": "tpu-0", "since": format_timestamp(stage.now)}]
    next_attempt(stage)
    assert (stage.unit("v5p-0")["state"], stage.unit("v5p-0")["slice"], failures(stage)) == ("Starting", "tpu-1", 0)


def test_unit_takes_a_third_slice_instead_of_alternating_between_two() -> None:
    stage = starting(nodes=4)
    seen = []
    for attempt in (1, 2, 3):
        seen.append(stage.unit("v5p-0")["slice"])
        refuse(stage, attempt)
        next_attempt(stage)
    assert [*seen, stage.unit("v5p-0")["slice"]] == ["tpu-0", "tpu-1", "tpu-2", "tpu-3"]


def test_other_units_of_the_job_avoid_the_node_too() -> None:
    stage = starting(nodes=4)
    refuse(stage, 1)
    stage.edit(pools=[{**stage.job["spec"]["pools"][0], "learners": {"min": 0, "max": 3}}])
    stage.scale(max=3)
    stage.settle()
    assert "tpu-0" not in {unit["slice"] for unit in stage.status["units"]}


def test_avoided_slice_is_used_when_there_is_no_other() -> None:
    stage = starting(nodes=1)
    refuse(stage, 1)
    next_attempt(stage)
    assert stage.unit("v5p-0")["slice"] == "tpu-0"


def test_slice_that_becomes_free_during_the_pause_is_preferred_to_the_one_that_was_given_up() -> None:
    stage = starting(nodes=1)
    refuse(stage, 1)
    stage.set_node(a_tpu_node("tpu-1"))
    stage.settle()
    next_attempt(stage)
    assert stage.unit("v5p-0")["slice"] == "tpu-1"


def test_pause_between_slices_doubles_up_to_five_minutes_and_survives_the_operator() -> None:
    stage = starting(nodes=1)
    pauses = []
    for attempt in range(1, 10):
        refuse(stage, attempt)
        stage.restart_operator()
        pauses.append(next_attempt(stage))
    for pause, longest in zip(pauses, (5, 10, 20, 40, 80, 160, 300, 300, 300), strict=True):
        assert longest / 2 <= pause <= longest
    assert failures(stage) == 0
    assert stage.unit("v5p-0")["unschedulable"] == 9


def test_pause_is_short_again_after_a_scheduler_bound_the_pods() -> None:
    stage = starting(nodes=1)
    refuse(stage, 1)
    next_attempt(stage)
    is_bound(stage.pod("v5p-0", 2), stage.now)
    stage.settle()
    assert "unschedulable" not in stage.unit("v5p-0")


def test_node_is_forgotten_after_half_an_hour() -> None:
    stage = starting(nodes=2)
    refuse(stage, 1)
    next_attempt(stage)
    starts(stage.pod("v5p-0", 2), stage.now)
    stage.settle()
    stage.advance(1800)
    stage.settle()
    assert "unschedulableNodes" not in stage.status


def test_time_to_schedule_goes_on_while_the_operator_restarts() -> None:
    stage = starting()
    is_unschedulable(stage.pod("v5p-0", 1))
    stage.settle()
    stage.advance(20)
    stage.restart_operator()
    stage.settle()
    stage.advance(10)
    stage.settle()
    assert stage.unit("v5p-0")["reason"] == "Unschedulable"


def test_operator_that_dies_before_the_deletes_gives_up_once() -> None:
    stage = starting()
    is_unschedulable(stage.pod("v5p-0", 1))
    stage.settle()
    stage.advance(30)
    stage.step(crash_after=1)  # status is written, the pod stays
    stage.restart_operator()
    stage.step()
    assert stage.unit("v5p-0")["unschedulable"] == 1
    assert "bytes-lm-v5p-0-a1-0" not in stage.pods


def test_pod_that_no_scheduler_has_looked_at_keeps_its_slice_for_longer_and_then_says_what_to_check() -> None:
    stage = starting()
    stage.advance(149)  # 30 s to be scheduled and 2 minutes to start, but for one
    assert stage.reconcile_only().deletes == ()
    stage.advance(1)
    stage.step()
    message = stage.unit("v5p-0")["message"]
    assert "no scheduler has looked at bytes-lm-v5p-0-a1-0 within 2m30s" in message
    assert "check that kube-scheduler runs, and schedulerName" in message


def test_time_to_schedule_counts_from_the_first_word_of_a_scheduler_with_a_long_queue() -> None:
    stage = starting()
    stage.advance(100)
    is_unschedulable(stage.pod("v5p-0", 1), at=stage.now)
    stage.settle()
    stage.advance(29)
    assert stage.reconcile_only().deletes == ()
    stage.advance(1)
    stage.settle()
    assert stage.unit("v5p-0")["reason"] == "Unschedulable"


def test_time_to_schedule_counts_from_the_creation_of_a_pod_when_a_clock_is_ahead() -> None:
    stage = starting()
    is_unschedulable(stage.pod("v5p-0", 1), at=stage.now + HOUR)
    stage.settle()
    stage.advance(30)
    stage.settle()
    assert stage.unit("v5p-0")["reason"] == "Unschedulable"


def test_long_words_of_a_scheduler_are_clipped() -> None:
    stage = starting()
    is_unschedulable(stage.pod("v5p-0", 1), "x" * 100_000)
    stage.settle()
    stage.advance(30)
    stage.step()
    assert len(stage.unit("v5p-0")["message"]) < 1000


def test_pod_with_scheduling_gates_keeps_its_slice() -> None:
    stage = starting()
    is_unschedulable(stage.pod("v5p-0", 1), "Scheduling is blocked due to non-empty scheduling gates", reason="SchedulingGated")
    stage.settle()
    stage.advance(HOUR)
    stage.settle()
    assert (stage.unit("v5p-0")["state"], stage.unit("v5p-0")["slice"]) == ("Starting", "tpu-0")
    assert "schedulingGates" in stage.unit("v5p-0")["message"]


def test_pod_for_which_the_scheduler_preempts_others_has_time_until_they_are_gone() -> None:
    stage = starting()
    is_unschedulable(stage.pod("v5p-0", 1))
    stage.pod("v5p-0", 1)["status"]["nominatedNodeName"] = "tpu-0"
    stage.settle()
    stage.advance(120)
    stage.settle()
    assert stage.unit("v5p-0")["state"] == "Starting"
    stage.advance(30)  # schedule and start
    stage.settle()
    assert stage.unit("v5p-0")["reason"] == "Unschedulable"


def test_gang_of_which_one_pod_is_unschedulable_leaves_whole_and_without_a_failure() -> None:
    job = a_job().with_learners(1, 1).with_gpu_pool(hosts=2, max=1)
    stage = Stage(job, *(a_gpu_node(f"gpu-{index}") for index in range(4)))
    stage.settle()
    for pod in (stage.syncer, stage.pod("h100-0", 1, 0)):
        starts(pod, stage.now)
    is_unschedulable(stage.pod("h100-0", 1, 1))
    stage.settle()
    stage.advance(30)
    stage.settle()
    unit = stage.unit("h100-0")
    assert (unit["reason"], unit["failures"]) == ("Unschedulable", [])
    stage.kubelets_finish_deletions()
    stage.advance(5)
    stage.settle()
    assert stage.unit("h100-0")["state"] == "Starting"
    assert "gpu-1" not in stage.unit("h100-0")["slice"].split("+")


# --- pull -------------------------------------------------------------------------------------------------------------
def pulling(stage: Stage, skew: float = 0.0) -> dict[str, Any]:
    pod = stage.pod("v5p-0", 1)
    is_bound(pod, stage.now)
    has_network(pod, stage.now + skew)
    stage.settle()
    return pod


def test_slow_pull_is_no_failure() -> None:
    stage = starting()
    pod = pulling(stage)
    assert (stage.unit("v5p-0")["reason"], stage.unit("v5p-0")["message"]) == (
        "PullingImages",
        "bytes-lm-v5p-0-a1-0: pulls its images on tpu-0",
    )
    stage.advance(179)
    stage.settle()
    assert stage.unit("v5p-0")["state"] == "Starting"
    starts(pod, stage.now)
    stage.settle()
    assert (stage.unit("v5p-0")["state"], failures(stage)) == ("Joining", 0)


@pytest.mark.parametrize("skew", [-3 * HOUR, -5.0, 0.0, 5.0, 3 * HOUR])
def test_time_to_pull_does_not_depend_on_a_nodes_clock(skew: float) -> None:
    stage = starting()
    pulling(stage, skew)
    stage.advance(170)
    stage.settle()
    assert failures(stage) == 0
    stage.advance(130)
    stage.settle()
    assert failures(stage) == 1
    assert stage.unit("v5p-0")["reason"] == "PullTimeout"
    assert "learners.timeouts.pull" in stage.unit("v5p-0")["message"]
    assert stage.unit("v5p-0")["slice"] == "tpu-1"


def test_image_that_the_registry_refuses_uses_up_the_restart_budget() -> None:
    stage = starting()
    for attempt in (1, 2, 3):
        pod = stage.pod("v5p-0", attempt)
        is_bound(pod, stage.now)
        has_network(pod, stage.now)
        waits(pod, "ImagePullBackOff", 'Back-off pulling image "trian:1": rpc error: code = NotFound desc = trian:1: not found')
        stage.settle()
        stage.advance(120)  # timeouts.start
        stage.settle()
        assert failures(stage) == attempt
        if attempt < 3:
            next_attempt(stage)
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["reason"]) == ("Failed", "RestartsExhausted")
    assert "correct it in the pool's template" in unit["message"]
    assert "trian:1: not found" in unit["message"]


def test_registry_that_does_not_answer_has_the_time_of_a_pull() -> None:
    stage = starting()
    pod = pulling(stage)
    waits(pod, "ErrImagePull", "rpc error: code = Unknown desc = dial tcp 10.1.2.3:443: i/o timeout")
    stage.settle()
    stage.advance(179)
    stage.settle()
    assert failures(stage) == 0
    stage.advance(1)
    stage.settle()
    assert stage.unit("v5p-0")["reason"] == "PullTimeout"


@pytest.mark.parametrize(
    ("problem", "refused"),
    [
        ('InvalidImageName: Failed to apply default image tag "A B": couldn\'t parse image name', True),
        ("ErrImageNeverPull: Container image is not present with pull policy of Never", True),
        ("ErrImagePull: pull access denied, repository does not exist or may require authorization", True),
        ("ErrImagePull: unexpected status from HEAD request: 401 Unauthorized", True),
        ("ErrImagePull: rpc error: code = Unknown desc = read: connection reset by peer", False),
        ("ErrImagePull: toomanyrequests: you have reached your pull rate limit", False),
        ("ImagePullBackOff", False),
    ],
)
def test_kubelets_words_tell_a_refused_image_from_a_registry_in_trouble(problem: str, refused: bool) -> None:
    assert is_refused(problem) is refused


# --- start ------------------------------------------------------------------------------------------------------------
def test_pod_whose_volumes_do_not_come_fails_within_start() -> None:
    stage = starting()
    pod = stage.pod("v5p-0", 1)
    is_bound(pod, stage.now)
    waits(pod, "ContainerCreating")
    stage.settle()
    assert stage.unit("v5p-0")["reason"] == "StartingContainers"
    stage.advance(119)
    stage.settle()
    assert failures(stage) == 0
    stage.advance(1)
    stage.settle()
    assert (failures(stage), stage.unit("v5p-0")["reason"]) == (1, "StartTimeout")
    assert "learners.timeouts.start): waits for volumes and network on tpu-0" in stage.unit("v5p-0")["message"]


def test_time_to_start_counts_from_the_binding() -> None:
    stage = starting(schedule="10m")
    stage.advance(500)
    is_bound(stage.pod("v5p-0", 1), stage.now)
    stage.settle()
    stage.advance(119)
    stage.settle()
    assert failures(stage) == 0


def test_binding_in_the_future_counts_from_the_creation() -> None:
    stage = starting()
    is_bound(stage.pod("v5p-0", 1), stage.now + 3 * HOUR)
    stage.settle()
    stage.advance(120)
    stage.settle()
    assert stage.unit("v5p-0")["reason"] == "StartTimeout"


def test_init_container_has_the_time_to_start_after_that_to_pull() -> None:
    stage = starting()
    pod = pulling(stage)
    init_container(pod, {"running": {"startedAt": format_timestamp(stage.now)}})
    stage.settle()
    assert stage.unit("v5p-0")["message"] == "bytes-lm-v5p-0-a1-0: the init container fetch runs on tpu-0"
    stage.advance(299)
    stage.settle()
    assert failures(stage) == 0
    stage.advance(1)
    stage.settle()
    assert stage.unit("v5p-0")["reason"] == "StartTimeout"


def test_image_that_is_pulled_after_a_long_init_container_has_time() -> None:
    stage = starting()
    pod = pulling(stage)
    init_container(pod, {"terminated": {"exitCode": 0, "finishedAt": format_timestamp(stage.now + 200)}})
    stage.settle()
    stage.advance(299)
    stage.settle()
    assert (stage.unit("v5p-0")["reason"], failures(stage)) == ("PullingImages", 0)
    stage.advance(1)
    stage.settle()
    assert stage.unit("v5p-0")["reason"] == "PullTimeout"


def test_container_that_cannot_be_made_says_why() -> None:
    stage = starting()
    pod = pulling(stage)
    waits(pod, "CreateContainerConfigError", 'configmap "settings" not found')
    stage.settle()
    stage.advance(120)
    stage.settle()
    assert stage.unit("v5p-0")["reason"] == "StartTimeout"
    assert 'configmap "settings" not found' in stage.unit("v5p-0")["message"]


# --- join -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("skew", [-3 * HOUR, 0.0, 3 * HOUR])
def test_time_to_join_begins_when_the_pods_run(skew: float) -> None:
    stage = starting()
    pod = pulling(stage)
    stage.advance(170)  # longer than the unit may take to join
    starts(pod, stage.now + skew)
    stage.report = Report(received_at=stage.now, t=0, steps=100)  # the syncer serves, but has seen no learner
    stage.settle()
    assert stage.unit("v5p-0")["state"] == "Joining"
    stage.advance(59)
    stage.settle()
    assert failures(stage) == 0
    stage.advance(1)
    stage.settle()
    assert (failures(stage), stage.unit("v5p-0")["reason"]) == (1, "JoinTimeout")
    assert "learners.timeouts.join" in stage.unit("v5p-0")["message"]
