"""A pod's status as a kubelet reports it, made from the states of its containers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from diloco.protocol.backoff import exponential
from diloco_operator.kube.client import Obj
from diloco_operator.kube.pods import ENDED

RESTART_FIRST, RESTART_CEILING = 10.0, 300.0
"""Seconds. A kubelet's back-off between restarts of one container."""
RESTART_FORGOTTEN_AFTER = 600.0
"""Seconds. A container that has run this long restarts without back-off again."""
MESSAGE_BYTES = 4096
"""How much of a termination message a kubelet keeps."""


@dataclass(frozen=True, slots=True)
class Waiting:
    reason: str
    message: str = ""


_CREATING = Waiting("ContainerCreating")


@dataclass(frozen=True, slots=True)
class Running:
    started_at: datetime
    container_id: str


@dataclass(frozen=True, slots=True)
class Terminated:
    exit_code: int
    reason: str
    started_at: datetime | None
    finished_at: datetime
    message: str = ""
    signal: int = 0
    container_id: str = ""


@dataclass(frozen=True, slots=True)
class ContainerState:
    name: str
    image: str
    now: Waiting | Running | Terminated
    last: Terminated | None = None
    restarts: int = 0
    final: bool = False
    """The container is not restarted any more."""


def timestamp(when: datetime) -> str:
    """Write a time as Kubernetes does: UTC, whole seconds."""
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def restarts_again(policy: str, exit_code: int) -> bool:
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def restart_delay(earlier: int) -> float:
    """Seconds before the next restart: none before the first, then 10 s, 20 s, … 5 min. `earlier`: restarts since the last long run."""
    return 0.0 if earlier == 0 else exponential(RESTART_FIRST, RESTART_CEILING, earlier)


def ended_reason(exit_code: int, *, out_of_memory: bool) -> str:
    if out_of_memory:
        return "OOMKilled"
    return "Completed" if exit_code == 0 else "Error"


def phase(init: Sequence[ContainerState], main: Sequence[ContainerState]) -> str:
    """Return Pending, Running, Succeeded or Failed."""
    if any(_failed_for_good(state) for state in init):
        return "Failed"
    if not all(_succeeded(state) for state in init):
        return "Pending"
    if main and all(state.final and isinstance(state.now, Terminated) for state in main):
        return "Succeeded" if all(_succeeded(state) for state in main) else "Failed"
    # A container that has run and waits for its restart leaves its pod Running.
    if all(isinstance(state.now, Waiting) and state.last is None for state in main):
        return "Pending"
    return "Running"


def _succeeded(state: ContainerState) -> bool:
    return isinstance(state.now, Terminated) and state.now.exit_code == 0 and state.final


def _failed_for_good(state: ContainerState) -> bool:
    return isinstance(state.now, Terminated) and state.now.exit_code != 0 and state.final


def pod_status(
    current: Mapping[str, Any],
    *,
    init: Sequence[ContainerState],
    main: Sequence[ContainerState],
    pod_ip: str | None,
    host_ip: str,
    started_at: datetime,
    now: datetime,
) -> Obj:
    """The whole status to write. It keeps the conditions of `current` that a kubelet does not set, and the transition times of conditions
    that have not changed. If `pod_ip` is None, the status has no address."""
    pod_phase = phase(init, main)
    ended = pod_phase in ENDED
    ready = pod_phase == "Running" and all(isinstance(state.now, Running) for state in main)
    initialized = all(_succeeded(state) for state in init)
    unready = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(pod_phase, "ContainersNotReady")
    not_running = [state.name for state in main if not isinstance(state.now, Running)]
    message = "" if ended or ready else f"containers with unready status: [{' '.join(not_running)}]"
    # The operator reads this condition as "the kubelet pulls images". Simulated nodes pull none: a prepared container starts at once.
    prepared = any(state.now != _CREATING or state.last is not None for state in (*init, *main))
    conditions = {
        "PodReadyToStartContainers": (prepared and not ended, "", ""),
        "Initialized": (initialized, "" if initialized else "ContainersNotInitialized", ""),
        "Ready": (ready, "" if ready else unready, message),
        "ContainersReady": (ready, "" if ready else unready, message),
        "PodScheduled": (True, "", ""),
    }
    status: Obj = {key: value for key, value in current.items() if key not in ("reason", "message", "podIP", "podIPs")}
    status |= {
        "phase": pod_phase,
        **({"podIP": pod_ip, "podIPs": [{"ip": pod_ip}]} if pod_ip is not None else {}),
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "startTime": timestamp(started_at),
        "conditions": _conditions(current.get("conditions") or [], conditions, timestamp(now)),
        "containerStatuses": [_container(state) for state in main],
    }
    if init:
        status["initContainerStatuses"] = [_container(state) for state in init]
    return status


def _conditions(current: Sequence[Mapping[str, Any]], wanted: Mapping[str, tuple[bool, str, str]], now: str) -> list[Obj]:
    before = {condition["type"]: condition for condition in current}
    written: list[Obj] = [dict(condition) for condition in current if condition["type"] not in wanted]
    for type_, (holds, reason, message) in wanted.items():
        value = "True" if holds else "False"
        old = before.get(type_)
        since = old["lastTransitionTime"] if old and old["status"] == value and "lastTransitionTime" in old else now
        condition: Obj = {"type": type_, "status": value, "lastTransitionTime": since}
        if reason:
            condition["reason"] = reason
        if message:
            condition["message"] = message
        written.append(condition)
    return written


def _container(state: ContainerState) -> Obj:
    identity = state.now if isinstance(state.now, Running | Terminated) else state.last
    running = isinstance(state.now, Running)
    return {
        "name": state.name,
        "image": state.image,
        "imageID": "",
        "containerID": identity.container_id if identity else "",
        "restartCount": state.restarts,
        "ready": running,
        "started": running,
        "state": _state(state.now),
        "lastState": _state(state.last) if state.last else {},
    }


def _state(state: Waiting | Running | Terminated) -> Obj:
    match state:
        case Waiting(reason, message):
            return {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        case Running(started_at):
            return {"running": {"startedAt": timestamp(started_at)}}
        case Terminated():
            began = state.started_at or state.finished_at
            ended: Obj = {
                "exitCode": state.exit_code,
                "reason": state.reason,
                "startedAt": timestamp(began),
                "finishedAt": timestamp(state.finished_at),
                "containerID": state.container_id,
            }
            if state.signal:
                ended["signal"] = state.signal
            if state.message:
                ended["message"] = state.message
            return {"terminated": ended}


def initial_states(containers: Sequence[Mapping[str, Any]], reported: Sequence[Mapping[str, Any]], now: datetime) -> list[ContainerState]:
    """The first states of a pod's containers: new, or as reported by an earlier kubelet process.

    A container that was reported as running ended with that kubelet: exit status 137, ContainerStatusUnknown.
    """
    by_name = {status["name"]: status for status in reported}
    return [_initial_state(container, by_name.get(container["name"], {}), now) for container in containers]


def _initial_state(container: Mapping[str, Any], reported: Mapping[str, Any], now: datetime) -> ContainerState:
    image = container.get("image", "")
    fresh = ContainerState(container["name"], image, _CREATING, restarts=reported.get("restartCount", 0))
    state = reported.get("state", {})
    if "running" in state:
        lost = Terminated(
            137,
            "ContainerStatusUnknown",
            _time(state["running"].get("startedAt")),
            now,
            message="The container could not be located: the kubelet that ran it has ended.",
            container_id=reported.get("containerID", ""),
        )
        return replace(fresh, now=lost)
    if "terminated" in state:
        return replace(fresh, now=_terminated(state["terminated"], now))
    if "terminated" in reported.get("lastState", {}):
        return replace(fresh, last=_terminated(reported["lastState"]["terminated"], now))
    return fresh


def _terminated(state: Mapping[str, Any], now: datetime) -> Terminated:
    return Terminated(
        state["exitCode"],
        state.get("reason", ""),
        _time(state.get("startedAt")),
        _time(state.get("finishedAt")) or now,
        message=state.get("message", ""),
        signal=state.get("signal", 0),
        container_id=state.get("containerID", ""),
    )


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
