"""Pods: defaults, checks, what an update may change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from diloco_operator.kube.client import Cause, Obj

from diloco_local.memory.meta import LABEL, label_causes, name_problem
from diloco_local.memory.structural import ANY, Node
from diloco_local.memory.values import show

DEFAULT_GRACE_SECONDS = 30
_RESTART_POLICIES = ("Always", "OnFailure", "Never")


def _by(*keys: str, items: Node = ANY, defaults: dict[str, Any] | None = None) -> Node:
    return Node(list_type="map", list_keys=keys, items=items, key_defaults=defaults or {})


_CONTAINER = Node(
    preserve=True,
    properties={
        "env": _by("name"),
        "ports": _by("containerPort", "protocol", defaults={"protocol": "TCP"}),
        "volumeMounts": _by("mountPath"),
        "volumeDevices": _by("devicePath"),
    },
)
POD_SPEC = Node(
    preserve=True,
    properties={
        "containers": _by("name", items=_CONTAINER),
        "initContainers": _by("name", items=_CONTAINER),
        "ephemeralContainers": _by("name", items=_CONTAINER),
        "volumes": _by("name"),
        "imagePullSecrets": _by("name"),
        "hostAliases": _by("ip"),
        "schedulingGates": _by("name"),
        "resourceClaims": _by("name"),
        "topologySpreadConstraints": _by("topologyKey", "whenUnsatisfiable"),
        "nodeSelector": Node(preserve=True, map_type="atomic"),
    },
)
POD = Node(
    root=True,
    preserve=True,
    properties={"spec": POD_SPEC, "status": Node(preserve=True, properties={"conditions": _by("type"), "podIPs": _by("ip")})},
)
SELECTABLE = {
    f"{top}.{name}": (top, name)
    for top, names in {
        "spec": ("nodeName", "restartPolicy", "schedulerName", "serviceAccountName", "hostNetwork"),
        "status": ("phase", "podIP", "nominatedNodeName"),
    }.items()
    for name in names
}


def _containers(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for group in ("containers", "initContainers"):
        found = spec.get(group)
        if isinstance(found, list):
            yield from (container for container in found if isinstance(container, dict))


def _default_container(container: dict[str, Any]) -> None:
    image = container.get("image", "")
    # Only in the last part: a registry's port has a colon too.
    tag = image.rpartition("/")[2].partition(":")[2] if isinstance(image, str) and "@" not in image else "digest"
    container.setdefault("imagePullPolicy", "Always" if tag in ("", "latest") else "IfNotPresent")
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("resources", {})
    resources = container["resources"]
    if resources.get("limits"):  # a limit without a request is also the request
        resources["requests"] = {**resources["limits"], **resources.get("requests", {})}
    for port in container.get("ports", ()):
        port.setdefault("protocol", "TCP")
    for variable in container.get("env", ()):
        if "fieldRef" in variable.get("valueFrom", ()):
            variable["valueFrom"]["fieldRef"].setdefault("apiVersion", "v1")


def default_pod(obj: Obj) -> None:
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        return
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("serviceAccount", spec["serviceAccountName"])
    spec.setdefault("securityContext", {})
    spec.setdefault("enableServiceLinks", True)
    for container in _containers(spec):
        _default_container(container)
    for volume in spec.get("volumes", ()):
        for source in ("secret", "configMap", "projected", "downwardAPI"):
            if source in volume:
                volume[source].setdefault("defaultMode", 0o644)


def _quality(spec: dict[str, Any]) -> str:
    """Return qosClass, from cpu and memory alone, as Kubernetes computes it."""
    asked, guaranteed = False, True
    for container in _containers(spec):
        resources = container.get("resources", {})
        limits, requests = resources.get("limits", {}), resources.get("requests", {})
        for name in ("cpu", "memory"):
            asked = asked or name in requests or name in limits
            guaranteed = guaranteed and name in limits and requests.get(name, limits[name]) == limits[name]
    return "BestEffort" if not asked else "Guaranteed" if guaranteed else "Burstable"


def initialize_pod(obj: Obj) -> None:
    status: dict[str, Any] = {"phase": "Pending", "qosClass": _quality(obj["spec"])}
    if gates := obj["spec"].get("schedulingGates"):
        waiting = f"Scheduling is blocked due to non-empty scheduling gates: {[gate['name'] for gate in gates]}"
        status["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": waiting}]
    obj["status"] = status


def pod_causes(obj: Obj, old: Obj | None) -> list[Cause]:
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        return [Cause("spec", "Required value")]
    if old is not None:
        # Most updates are of the status and share the spec: they must not pay for its checks.
        if spec is old["spec"] or spec == old["spec"]:
            return []
        return pod_spec_causes(spec) + _update_causes(spec, old["spec"])
    return pod_spec_causes(spec)


def pod_spec_causes(spec: dict[str, Any], path: str = "spec") -> list[Cause]:
    causes: list[Cause] = []
    if not spec.get("containers"):
        causes.append(Cause(f"{path}.containers", "Required value"))
    volumes, volume_causes = _volume_names(spec.get("volumes", ()), f"{path}.volumes")
    causes += volume_causes
    # One set for both groups: logs and statuses name a container without its group.
    seen: set[str] = set()
    for group in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(group, ())):
            causes += _container_causes(container, f"{path}.{group}[{index}]", volumes, seen)
    if spec.get("restartPolicy") not in _RESTART_POLICIES:
        options = ", ".join(show(each) for each in _RESTART_POLICIES)
        causes.append(Cause(f"{path}.restartPolicy", f"Unsupported value: {show(spec.get('restartPolicy'))}: supported values: {options}"))
    grace = spec.get("terminationGracePeriodSeconds", 0)
    # Not isinstance: to Python True is an int, to an API server it is none.
    if type(grace) is not int or grace < 0:
        causes.append(
            Cause(f"{path}.terminationGracePeriodSeconds", f"Invalid value: {show(grace)}: must be an integer greater than or equal to 0")
        )
    for name in ("hostname", "subdomain"):
        if spec.get(name) and (problem := name_problem(LABEL, spec[name])):
            causes.append(Cause(f"{path}.{name}", problem))
    if spec.get("nodeSelector"):
        causes += label_causes(spec["nodeSelector"], f"{path}.nodeSelector")
    if spec.get("nodeName") and spec.get("schedulingGates"):
        causes.append(Cause(f"{path}.nodeName", "Forbidden: cannot be set until all schedulingGates have been cleared"))
    return causes


def _volume_names(volumes: Any, path: str) -> tuple[set[str], list[Cause]]:
    names: set[str] = set()
    causes = []
    for index, volume in enumerate(volumes):
        name = volume.get("name", "")
        if problem := _required_label(name):
            causes.append(Cause(f"{path}[{index}].name", problem))
        elif name in names:
            causes.append(Cause(f"{path}[{index}].name", f"Duplicate value: {show(name)}"))
        # A bad name too: otherwise each mount of this volume would be an error of its own, "not found".
        names.add(name)
    return names, causes


def _required_label(name: Any) -> str | None:
    if not isinstance(name, str) or not name:
        return "Required value"
    return name_problem(LABEL, name)


def _container_causes(container: Any, path: str, volumes: set[str], seen: set[str]) -> list[Cause]:
    if not isinstance(container, dict):
        return [Cause(path, "Invalid value: must be a container")]
    causes: list[Cause] = []
    name = container.get("name", "")
    if problem := _required_label(name):
        causes.append(Cause(f"{path}.name", problem))
    elif name in seen:
        causes.append(Cause(f"{path}.name", f"Duplicate value: {show(name)}"))
    seen.add(name)
    if not container.get("image"):
        causes.append(Cause(f"{path}.image", "Required value"))
    for index, variable in enumerate(container.get("env", ())):
        if not variable.get("name"):
            causes.append(Cause(f"{path}.env[{index}].name", "Required value"))
        # In YAML `value: 1` is a number. What is taken here must be taken by every API server.
        if type(variable.get("value", "")) is not str:
            causes.append(Cause(f"{path}.env[{index}].value", f"Invalid value: {show(variable['value'])}: must be a string"))
        if variable.get("value") and variable.get("valueFrom"):
            causes.append(Cause(f"{path}.env[{index}].valueFrom", "Invalid value: may not be specified when `value` is not empty"))
    for index, port in enumerate(container.get("ports", ())):
        number = port.get("containerPort")
        if type(number) is not int or not 0 < number < 65536:
            causes.append(
                Cause(f"{path}.ports[{index}].containerPort", f"Invalid value: {show(number)}: must be between 1 and 65535, inclusive")
            )
    return causes + _mount_causes(container.get("volumeMounts", ()), f"{path}.volumeMounts", volumes)


def _mount_causes(mounts: Any, path: str, volumes: set[str]) -> list[Cause]:
    causes: list[Cause] = []
    places: set[str] = set()
    for index, mount in enumerate(mounts):
        if mount.get("name") not in volumes:
            causes.append(Cause(f"{path}[{index}].name", f"Not found: {show(mount.get('name'))}"))
        place = mount.get("mountPath", "")
        if not place:
            causes.append(Cause(f"{path}[{index}].mountPath", "Required value"))
        elif place in places:
            causes.append(Cause(f"{path}[{index}].mountPath", f"Invalid value: {show(place)}: must be unique"))
        places.add(place)
    return causes


_FORBIDDEN = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.schedulingGates` (only removals)"
)


def _update_causes(new: dict[str, Any], old: dict[str, Any]) -> list[Cause]:
    causes: list[Cause] = []
    if any(toleration not in new.get("tolerations", ()) for toleration in old.get("tolerations", ())):
        causes.append(Cause("spec.tolerations", "Forbidden: existing toleration can not be modified except its tolerationSeconds"))
    old_gates = [gate["name"] for gate in old.get("schedulingGates", ())]
    if any(gate["name"] not in old_gates for gate in new.get("schedulingGates", ())):
        causes.append(Cause("spec.schedulingGates", "Forbidden: only deletion is allowed"))
    if _fixed(new, gated=bool(old_gates)) != _fixed(old, gated=bool(old_gates)):
        causes.append(Cause("spec", _FORBIDDEN))
    elif old_gates and not old.get("nodeSelector", {}).items() <= new.get("nodeSelector", {}).items():
        causes.append(Cause("spec.nodeSelector", "Forbidden: only additions are allowed (no mutations or deletions)"))
    before, now = old.get("activeDeadlineSeconds"), new.get("activeDeadlineSeconds")
    if before is not None and (now is None or now > before):
        causes.append(Cause("spec.activeDeadlineSeconds", f"Invalid value: {show(now)}: must be less than or equal to previous value"))
    return causes


def _fixed(spec: dict[str, Any], *, gated: bool) -> dict[str, Any]:
    """Return the part of a pod's spec that no update may change. A gated pod's nodeSelector may still be narrowed."""
    free = {"activeDeadlineSeconds", "tolerations", "schedulingGates", *(("nodeSelector",) if gated else ())}
    fixed = {name: value for name, value in spec.items() if name not in free}
    for group in ("containers", "initContainers"):
        if group in fixed:
            fixed[group] = [{name: value for name, value in container.items() if name != "image"} for container in fixed[group]]
    return fixed
