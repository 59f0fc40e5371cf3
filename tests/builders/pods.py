"""Pods of a job as raw API objects, and what a kubelet writes into them."""

from __future__ import annotations

from typing import Any

from builders.jobs import JOB_UID, Obj
from diloco_operator.kube.timestamps import format_timestamp

NO_PLACE = "0/5 nodes are available: 1 Insufficient google.com/tpu."
"""What a scheduler says of a pod that it finds no place for."""


def a_pod(name: str = "pod", *command: str, node: str = "", policy: str = "Never", **spec: Any) -> Obj:
    """A pod with one container `main`; what the container needs besides goes through `container=`."""
    container = {"name": "main", "image": "none", "command": list(command), **spec.pop("container", {})}
    bound = {"nodeName": node} if node else {}
    meta = {"name": name, "namespace": "default", **spec.pop("metadata", {})}
    return _pod(meta, {"containers": [container], "restartPolicy": policy, **bound, **spec})


def a_bare_pod(namespace: str, name: str = "", *, meta: Obj | None = None, **spec: Any) -> Obj:
    """A pod without a controller, for a scheduler that does not exist: only the test writes to it."""
    main = {"name": "main", "image": "image:1"}
    named = {"name": name} if name else {}
    kept = {"automountServiceAccountToken": False, "schedulerName": "none"}
    return _pod({"namespace": namespace, **named, **(meta or {})}, {"containers": [main], **kept, **spec})


def _pod(meta: Obj, spec: Obj) -> Obj:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def a_learner_pod(unit: str = "v5p-0", attempt: int = 1, host: int = 0, *, node: str = "tpu-0", job: str = "bytes-lm", **meta: Any) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job}-{unit}-a{attempt}-{host}",
            "namespace": "team",
            "uid": f"uid-{unit}-a{attempt}-{host}",
            "creationTimestamp": "2026-11-20T12:00:00Z",
            "labels": {
                "diloco.dev/job": job,
                "diloco.dev/component": "learner",
                "diloco.dev/unit": unit,
                "diloco.dev/pool": unit.rsplit("-", 1)[0],
                "diloco.dev/attempt": str(attempt),
                "diloco.dev/host": str(host),
            },
            "annotations": {"diloco.dev/slice": node, "diloco.dev/node": node},
            "ownerReferences": [{"uid": JOB_UID, "controller": True}],
            **meta,
        },
        "spec": {"nodeSelector": {"kubernetes.io/hostname": node}},
        "status": {"phase": "Pending"},
    }


def main_container(pod: Obj) -> str:
    return str(pod["metadata"]["labels"]["diloco.dev/component"])


# --- what a kubelet reports of it -------------------------------------------------------------------------------------
def running_status(pod: Obj, at: str, *, ip: str = "10.0.0.1") -> Obj:
    """The status of a pod whose containers run since `at`, a timestamp."""
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": at}
    container = _container_status(pod, {"running": {"startedAt": at}})
    return {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [ready], "containerStatuses": [container]}


def ended_status(pod: Obj, code: int, at: str, *, reason: str = "", message: str = "") -> Obj:
    """The status of a pod whose main container exited with `code`."""
    ended = {"exitCode": code, "reason": reason or ("Completed" if code == 0 else "Error"), "startedAt": at, "finishedAt": at}
    container = _container_status(pod, {"terminated": {**ended, **({"message": message} if message else {})}})
    return {"phase": "Succeeded" if code == 0 else "Failed", "containerStatuses": [container]}


def _container_status(pod: Obj, state: Obj) -> Obj:
    image = next((each["image"] for each in pod["spec"].get("containers", ())), "")
    ready = "running" in state
    return {"name": main_container(pod), "image": image, "imageID": "", "ready": ready, "restartCount": 0, "state": state}


def is_unschedulable(
    pod: Obj,
    words: str = NO_PLACE,
    reason: str = "Unschedulable",
    at: float | None = None,
) -> None:
    """As a scheduler says it, since `at`, of a pod that it finds no place for."""
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": words}
    if at is not None:
        condition["lastTransitionTime"] = format_timestamp(at)
    pod["status"]["conditions"] = [condition]


def is_bound(pod: Obj, at: float, node: str = "") -> None:
    """To the node that it is pinned to, unless `node` says where."""
    pod["spec"]["nodeName"] = node or pod["metadata"]["annotations"].get("diloco.dev/node", "cpu-0")
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": format_timestamp(at)}]


def has_network(pod: Obj, at: float) -> None:
    """Its volumes and network are ready since `at`, by the clock of its node; the kubelet pulls its images."""
    condition = {"type": "PodReadyToStartContainers", "status": "True", "lastTransitionTime": format_timestamp(at)}
    pod["status"].setdefault("conditions", []).append(condition)
    waits(pod, "ContainerCreating")


def waits(pod: Obj, reason: str, message: str = "") -> None:
    """Its main container waits."""
    waiting = {"reason": reason, **({"message": message} if message else {})}
    pod["status"]["containerStatuses"] = [_container_status(pod, {"waiting": waiting})]


def init_container(pod: Obj, state: Obj, name: str = "fetch") -> None:
    """Its one init container is in this state, and the main container waits for it."""
    pod["status"]["initContainerStatuses"] = [{"name": name, "image": "fetch:1", "state": state}]
    waits(pod, "PodInitializing")


def starts(pod: Obj, now: float) -> None:
    pod["status"] = running_status(pod, format_timestamp(now))
    pod["spec"].setdefault("nodeName", pod["metadata"]["annotations"].get("diloco.dev/node", "cpu-0"))


def exits(pod: Obj, code: int, now: float, *, reason: str = "", message: str = "") -> None:
    pod["status"] |= ended_status(pod, code, format_timestamp(now), reason=reason, message=message)


def main_container_exits(pod: Obj, code: int, now: float, message: str = "") -> None:
    """While a sidecar runs on, so that the pod does not end."""
    exits(pod, code, now, message=message)
    pod["status"]["phase"] = "Running"


def is_disrupted(pod: Obj, reason: str = "PreemptionByScheduler") -> None:
    pod["status"].setdefault("conditions", []).append(
        {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "a pod of higher priority needs the node"}
    )


def is_ended_by_its_node(pod: Obj, reason: str) -> None:
    """For what the node lacks: then a kubelet sets the condition, too."""
    pod["status"] = {"phase": "Failed", "reason": reason, "message": "make room"}
    is_disrupted(pod, "TerminationByKubelet")


def is_deleted(pod: Obj, now: float, grace: int = 30) -> None:
    pod["metadata"]["deletionTimestamp"] = format_timestamp(now + grace)
    pod["metadata"]["deletionGracePeriodSeconds"] = grace


def phase(pod: Obj) -> str:
    return str(pod["status"].get("phase", "Pending"))
