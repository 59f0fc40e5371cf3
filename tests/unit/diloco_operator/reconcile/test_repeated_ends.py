"""Whatever ends a unit's attempts again and again, the next ones come ever later, or the unit is given up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from builders.jobs import Obj, a_job
from builders.nodes import a_tpu_node
from builders.pods import exits, is_deleted, is_ended_by_its_node, phase, starts
from builders.stage import Stage
from diloco_operator.kube.timestamps import format_timestamp

type Cause = Callable[[Stage, str], None]


def on_pod(change: Callable[[Obj, float], None]) -> Cause:
    return lambda stage, name: change(stage.pods[name], stage.now)


def is_refused_by_its_host(pod: Obj, now: float) -> None:
    pod["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed: no healthy device"}


def fills_its_volume(pod: Obj, now: float) -> None:
    starts(pod, now)
    exits(pod, 137, now)
    pod["status"] |= {"reason": "Evicted", "message": 'Usage of EmptyDir volume "scratch" exceeds the limit "1Gi".'}


def is_deleted_while_it_starts(stage: Stage, name: str) -> None:
    is_deleted(stage.pods[name], stage.now)
    stage.settle()
    stage.kubelets_finish_deletions()


def vanishes(stage: Stage, name: str) -> None:
    del stage.pods[name]


CAUSES: dict[str, Cause] = {
    "its program fails": on_pod(lambda pod, now: exits(pod, 1, now)),
    "it fills its own volume": on_pod(fills_its_volume),
    "its host admits no pod": on_pod(is_refused_by_its_host),
    "its node ends it": on_pod(lambda pod, now: is_ended_by_its_node(pod, "Preempting")),
    "its pod is deleted": is_deleted_while_it_starts,
    "its pod vanishes": vanishes,
}


# Pauses of at most 5, 10, 20, 40, 80, 160 and 300 s, the half of them at least, leave room for 8 attempts in ten minutes. One more comes at
# once, as the first end of its kind has no pause; one more where a unit tries its second host first.
MOST_ATTEMPTS = 10
TICK = 5
"""Seconds after which an attempt that runs is ended: without pauses there would be 120 in ten minutes."""


@pytest.mark.slow
@pytest.mark.parametrize("cause", CAUSES)
def test_what_ends_each_attempt_does_not_make_attempts_without_pause(cause: str) -> None:
    job = a_job().with_learners(1, 1).with_restarts(5, "5s", max="5m").with_pool(max=1)
    stage = Stage(job, a_tpu_node("tpu-0"), a_tpu_node("tpu-1")).train()
    for _ in range(600 // TICK):
        for name in stage.learner_pods():
            if phase(stage.pods[name]) not in ("Failed", "Succeeded"):
                CAUSES[cause](stage, name)
        stage.settle()
        stage.kubelets_finish_deletions()
        stage.advance(TICK)
        stage.settle()
    assert 3 <= stage.unit("v5p-0")["attempt"] <= MOST_ATTEMPTS


def test_a_unit_whose_host_admits_no_pod_tries_another_one_and_says_why() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1), a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    stage.settle()
    (name,) = stage.learner_pods()
    is_refused_by_its_host(stage.pods[name], stage.now)
    stage.settle()
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["reason"], unit["failures"]) == ("Pending", "HostRefused", [])
    assert "UnexpectedAdmissionError Allocate failed: no healthy device" in unit["message"]
    stage.advance(6)
    stage.settle()
    assert (stage.unit("v5p-0")["attempt"], stage.unit("v5p-0")["slice"]) == (2, "tpu-1")


def test_a_unit_that_is_evicted_for_its_own_volume_has_failed() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_restarts(5, "30s").with_pool(max=1), a_tpu_node("tpu-0")).train()
    stage.failed_before()
    (name,) = stage.learner_pods()
    fills_its_volume(stage.pods[name], stage.now)
    stage.settle()
    unit = stage.unit("v5p-0")
    assert (unit["reason"], len(unit["failures"])) == ("OutOfStorage", 2)
    assert "scratch" in unit["message"]


def test_the_first_failure_after_a_calm_has_no_pause_and_is_told() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_restarts(5, "5s").with_pool(max=1), a_tpu_node("tpu-0")).train()
    for first in (1, 3):
        stage.learner_exits("v5p-0", first, 1)
        events = [(event.reason, event.unit_message) for event in stage.step().events if event.unit]
        assert events == [("UnitCrashed", f"attempt {first} ended: exit 1"), ("UnitStarted", f"attempt {first + 1} starts on tpu-0")]
        stage.kubelets_start()
        stage.learner_exits("v5p-0", first + 1, 1)
        stage.settle()
        assert stage.unit("v5p-0")["notBefore"] == format_timestamp(stage.now + 5)
        stage.advance(3600)  # the window
        stage.train()


def test_a_window_of_a_second_makes_no_attempts_without_a_pause() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_restarts(5, "5s", window="1s").with_pool(max=1), a_tpu_node("tpu-0")).train()
    began = stage.now
    for attempt in range(1, 12):
        stage.advance(2)
        stage.learner_exits("v5p-0", attempt, 1)
        stage.settle()
        assert len(stage.unit("v5p-0")["failures"]) == 1
        while stage.unit("v5p-0")["attempt"] == attempt:
            stage.advance(1)
            stage.settle()
        stage.train()
    assert stage.now - began == 72  # 11 times 2 s; the first pause is none, and the ten others have 5 s each
