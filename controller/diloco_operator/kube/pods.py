"""What every Kubernetes cluster knows of pods."""

from __future__ import annotations

from diloco_operator.kube.client import Obj, Resource

PODS = Resource("", "v1", "Pod", "pods")
ENDED = ("Succeeded", "Failed")
"""Phases of a pod that no longer uses anything."""
USING = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of pods that use resources of a node."""


def has_ended(pod: Obj) -> bool:
    return (pod.get("status") or {}).get("phase") in ENDED
