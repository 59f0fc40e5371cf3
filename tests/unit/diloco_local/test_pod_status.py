"""A pod's status from how its containers fare."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from builders.local import condition
from diloco_local.pod_status import (
    ContainerState,
    Running,
    Terminated,
    Waiting,
    ended_reason,
    initial_states,
    phase,
    pod_status,
    restart_delay,
    restarts_again,
)
from diloco_operator.kube.client import Obj
from diloco_operator.reconcile.observe.startup import project_startup

T0 = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)
WAITING, RUNNING = Waiting("ContainerCreating"), Running(T0, "local://x")


def exited(code: int, *, final: bool = True) -> ContainerState:
    return ContainerState("c", "i", Terminated(code, "Error", T0, T0), final=final)


def now(state: Any, **fields: Any) -> ContainerState:
    return ContainerState("c", "i", state, **fields)


def status(*main: ContainerState, init: Sequence[ContainerState] = (), current: Obj | None = None, at: datetime = T0) -> Obj:
    return pod_status(current or {}, init=list(init), main=list(main), pod_ip="127.5.0.2", host_ip="127.5.0.1", started_at=T0, now=at)


@pytest.mark.parametrize(
    ("init", "main", "expected"),
    [
        ([], [now(WAITING)], "Pending"),
        ([], [now(RUNNING), now(WAITING)], "Running"),
        ([], [exited(0)], "Succeeded"),
        ([], [exited(0), exited(3)], "Failed"),
        ([], [exited(3), now(RUNNING)], "Running"),
        ([], [exited(3, final=False)], "Running"),  # about to restart
        ([], [now(Waiting("CrashLoopBackOff"), last=Terminated(1, "Error", T0, T0))], "Running"),
        ([now(RUNNING)], [now(WAITING)], "Pending"),
        ([exited(1)], [now(WAITING)], "Failed"),
        ([exited(0)], [now(RUNNING)], "Running"),
    ],
)
def test_phase(init: list[ContainerState], main: list[ContainerState], expected: str) -> None:
    assert phase(init, main) == expected


def test_restart_delays_are_a_kubelets() -> None:
    assert [restart_delay(n) for n in range(8)] == [0, 10, 20, 40, 80, 160, 300, 300]


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [("Always", 0, True), ("OnFailure", 0, False), ("OnFailure", 1, True), ("Never", 1, False), ("Never", 0, False)],
)
def test_restart_policies(policy: str, code: int, again: bool) -> None:
    assert restarts_again(policy, code) is again


def test_reason_tells_memory_from_other_kills() -> None:
    assert [ended_reason(137, out_of_memory=oom) for oom in (True, False)] == ["OOMKilled", "Error"]
    assert ended_reason(0, out_of_memory=False) == "Completed"


def test_ready_follows_the_containers_and_its_time_moves_only_with_it() -> None:
    first = status(now(RUNNING))
    later = status(now(RUNNING), current=first, at=T0 + timedelta(seconds=9))
    broken = status(now(WAITING, last=Terminated(1, "Error", T0, T0)), current=later, at=T0 + timedelta(seconds=19))
    assert [condition({"status": s}, "Ready")["status"] for s in (first, later, broken)] == ["True", "True", "False"]
    times = [condition({"status": s}, "Ready")["lastTransitionTime"] for s in (first, later, broken)]
    assert times == ["2026-11-20T21:00:00Z", "2026-11-20T21:00:00Z", "2026-11-20T21:00:19Z"]
    assert condition({"status": broken}, "Ready")["message"] == "containers with unready status: [c]"


def test_pod_that_starts_says_nothing_of_images_because_none_are_pulled() -> None:
    pod = {"metadata": {"name": "p", "creationTimestamp": "2026-11-20T21:00:00Z"}, "spec": {"nodeName": "n"}}
    steps = [status(now(WAITING)), status(now(RUNNING)), status(now(WAITING), init=[now(RUNNING)]), status(now(Waiting("ConfigError")))]
    assert [condition({"status": each}, "PodReadyToStartContainers")["status"] for each in steps] == ["False", "True", "True", "True"]
    assert [project_startup({**pod, "status": each}).network_at is None for each in steps] == [True, False, False, False]


def test_writing_the_same_again_changes_nothing() -> None:
    first = status(now(RUNNING))
    assert status(now(RUNNING), current=first, at=T0 + timedelta(hours=1)) == first


def test_foreign_conditions_stay() -> None:
    foreign = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": "x"}
    assert foreign in status(now(RUNNING), current={"conditions": [foreign]})["conditions"]


def test_exit_is_told_with_code_signal_times_and_message() -> None:
    end = Terminated(137, "Error", T0, T0 + timedelta(seconds=5), message="m", signal=9, container_id="local://x")
    container = status(now(end, final=True, restarts=2))["containerStatuses"][0]
    assert container["restartCount"] == 2
    assert container["state"]["terminated"] == {
        "exitCode": 137, "reason": "Error", "signal": 9, "message": "m", "containerID": "local://x",
        "startedAt": "2026-11-20T21:00:00Z", "finishedAt": "2026-11-20T21:00:05Z",
    }  # fmt: skip


def test_what_ran_under_a_kubelet_that_is_gone_ended_with_it() -> None:
    reported = status(now(RUNNING, restarts=1))["containerStatuses"]
    (state,) = initial_states([{"name": "c", "image": "i"}], reported, T0 + timedelta(minutes=1))
    assert isinstance(state.now, Terminated)
    assert (state.now.exit_code, state.now.reason, state.restarts) == (137, "ContainerStatusUnknown", 1)


def test_what_had_ended_before_stays_ended() -> None:
    reported = status(exited(3))["containerStatuses"]
    (state,) = initial_states([{"name": "c", "image": "i"}], reported, T0)
    assert isinstance(state.now, Terminated)
    assert state.now.exit_code == 3
