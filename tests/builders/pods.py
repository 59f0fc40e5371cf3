"""Pods of a job as raw API objects, and what a kubelet writes into them."""

from __future__ import annotations

from typing import Any

from builders.jobs import JOB_UID
from diloco_operator.kube.timestamps import format_timestamp


def a_learner_pod(
    unit: str = "v5p-0", attempt: int = 1, host: int = 0, *, node: str = "tpu-0", job: str = "bytes-lm", **meta: Any
) -> dict[str, Any]:
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


def main_container(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["labels"]["diloco.dev/component"])


def starts(pod: dict[str, Any], now: float) -> None:
    pod["status"] = {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": main_container(pod), "restartCount": 0, "state": {"running": {"startedAt": format_timestamp(now)}}}],
    }
    pod["spec"]["nodeName"] = pod["metadata"]["annotations"].get("diloco.dev/node", "cpu-0")


def exits(pod: dict[str, Any], code: int, now: float, *, reason: str = "", message: str = "") -> None:
    ended = {
        "exitCode": code,
        "reason": reason or ("Completed" if code == 0 else "Error"),
        "message": message,
        "finishedAt": format_timestamp(now),
    }
    pod["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
    pod["status"]["containerStatuses"] = [{"name": main_container(pod), "restartCount": 0, "state": {"terminated": ended}}]


def main_container_exits(pod: dict[str, Any], code: int, now: float, message: str = "") -> None:
    """While a sidecar runs on, so that the pod does not end."""
    exits(pod, code, now, message=message)
    pod["status"]["phase"] = "Running"


def is_disrupted(pod: dict[str, Any], reason: str = "PreemptionByScheduler") -> None:
    pod["status"].setdefault("conditions", []).append(
        {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "somebody more important came"}
    )


def is_deleted(pod: dict[str, Any], now: float, grace: int = 30) -> None:
    pod["metadata"]["deletionTimestamp"] = format_timestamp(now + grace)
    pod["metadata"]["deletionGracePeriodSeconds"] = grace


def phase(pod: dict[str, Any]) -> str:
    return str(pod["status"].get("phase", "Pending"))
