"""Whatever ends a unit's attempts again and again, the next ones come ever later, or the unit is given up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from builders.jobs import Obj, a_job
from builders.nodes import a_tpu_node
from builders.pods import exits, is_deleted, is_ended_by_its_node, phase, starts
from builders.stage import Stage

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
# once, as the first disruption and the first pod that never ran have no pause; one more where a unit tries its second host first.
MOST_ATTEMPTS = 10


@pytest.mark.slow
@pytest.mark.parametrize("cause", CAUSES)
def test_what_ends_each_attempt_does_not_make_attempts_without_pause(cause: str) -> None:
    job = a_job().with_learners(1, 1).with_restarts(5, "5s", max="5m").with_pool(max=1)
    stage = Stage(job, a_tpu_node("tpu-0"), a_tpu_node("tpu-1")).train()
    for _ in range(600):
        for name in stage.learner_pods():
            if phase(stage.pods[name]) not in ("Failed", "Succeeded"):
                CAUSES[cause](stage, name)
        stage.settle()
        stage.kubelets_finish_deletions()
        stage.advance(1)
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
    (name,) = stage.learner_pods()
    fills_its_volume(stage.pods[name], stage.now)
    stage.settle()
    unit = stage.unit("v5p-0")
    assert (unit["reason"], len(unit["failures"])) == ("OutOfStorage", 1)
    assert "scratch" in unit["message"]
