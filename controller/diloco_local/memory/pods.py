"""Pods: defaults, and checks of what the local kubelet relies on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from diloco_operator.kube.client import Cause, Obj

from diloco_local.memory.meta import LABEL, name_problem
from diloco_local.memory.values import show

DEFAULT_GRACE_SECONDS = 30
SELECTABLE = {
    "spec.nodeName": ("spec", "nodeName"),
    "status.phase": ("status", "phase"),
}


def _containers(spec: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for group in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(group) or ()):
            yield f"spec.{group}[{index}]", container


def default_pod(obj: Obj) -> None:
    for _, container in _containers(obj["spec"]):
        resources = container.get("resources") or {}
        if resources.get("limits"):  # a limit without a request is also the request
            resources["requests"] = {**resources["limits"], **resources.get("requests", {})}


def initialize_pod(obj: Obj) -> None:
    status: dict[str, Any] = {"phase": "Pending"}
    if gates := obj["spec"].get("schedulingGates"):
        waiting = f"Scheduling is blocked due to non-empty scheduling gates: {[gate['name'] for gate in gates]}"
        status["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": waiting}]
    obj["status"] = status


def pod_causes(obj: Obj) -> list[Cause]:
    """Errors of a new pod. It looks only for those that a job's template can cause and that a kubelet could not cope with."""
    spec = obj["spec"]
    causes = [] if spec.get("containers") else [Cause("spec.containers", "Required value")]
    volumes = {volume.get("name") for volume in spec.get("volumes") or ()}
    seen: set[str] = set()
    for path, container in _containers(spec):
        name = container.get("name") or ""
        if problem := name_problem(LABEL, name) if name else "Required value":
            causes.append(Cause(f"{path}.name", problem))
        elif name in seen:
            causes.append(Cause(f"{path}.name", f"Duplicate value: {show(name)}"))
        # One set of names for both groups: logs and statuses name a container without its group.
        seen.add(name)
        if not container.get("image"):
            causes.append(Cause(f"{path}.image", "Required value"))
        causes += _variable_causes(container.get("env") or (), f"{path}.env")
        for index, mount in enumerate(container.get("volumeMounts") or ()):
            if mount.get("name") not in volumes:
                causes.append(Cause(f"{path}.volumeMounts[{index}].name", f"Not found: {show(mount.get('name'))}"))
            if not mount.get("mountPath"):
                causes.append(Cause(f"{path}.volumeMounts[{index}].mountPath", "Required value"))
    return causes


def _variable_causes(variables: Any, path: str) -> Iterator[Cause]:
    for index, variable in enumerate(variables):
        if not variable.get("name"):
            yield Cause(f"{path}[{index}].name", "Required value")
        # In YAML `value: 1` is a number. Every real API server refuses it, so this one must too.
        if type(variable.get("value", "")) is not str:
            yield Cause(f"{path}[{index}].value", f"Invalid value: {show(variable['value'])}: must be a string")
