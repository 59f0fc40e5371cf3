"""Workloads of Kueue, and what Kueue does to the pods of a group."""

from __future__ import annotations

from typing import Any

from diloco_operator.api import names
from diloco_operator.kube.client import Obj
from diloco_operator.kube.timestamps import format_timestamp

NO_QUOTA = "couldn't assign flavors to pod set learner: insufficient unused quota for nvidia.com/gpu in flavor h100, 8 more needed"
"""In the words of Kueue 0.16."""
GATE = {"name": "kueue.x-k8s.io/admission"}
FINALIZER = "kueue.x-k8s.io/managed"


def workloads_crd() -> Obj:
    """The CustomResourceDefinition of Workloads, as far as the operator reads them."""
    resource = names.WORKLOADS
    kinds = {"kind": resource.kind, "listKind": f"{resource.kind}List", "plural": resource.plural, "singular": "workload"}
    anything: Obj = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    whole = {"type": "object", "properties": {"spec": anything, "status": anything}}
    version = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": whole},
        "subresources": {"status": {}},
    }
    return {
        "metadata": {"name": f"{resource.plural}.{resource.group}", "annotations": {"api-approved.kubernetes.io": "unapproved"}},
        "spec": {"group": resource.group, "names": kinds, "scope": "Namespaced", "versions": [version]},
    }


def a_workload(group: str = "group", *, says: str = "", admitted_at: float | None = None, **status: Any) -> Obj:
    """The Workload of a pod group that waits, about which Kueue says this, or that has its quota since `admitted_at`."""
    conditions = [{"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": says}] if says else []
    if admitted_at is not None:
        since = {"lastTransitionTime": format_timestamp(admitted_at)}
        conditions = [{"type": kind, "status": "True", "reason": kind, **since} for kind in ("QuotaReserved", "Admitted")]
    meta = {"name": group, "namespace": "team", "uid": f"uid-{group}", "resourceVersion": "1", "creationTimestamp": "2026-11-20T12:00:00Z"}
    return {"metadata": meta, "status": {"conditions": conditions, **status}}


def takes_up(pod: Obj) -> None:
    """What Kueue's webhook does to a new pod of a group, and the API server to one with a gate."""
    pod["metadata"]["finalizers"] = [FINALIZER]
    pod["spec"]["schedulingGates"] = [GATE]
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "Scheduling is blocked"}
    pod["status"]["conditions"] = [gated]


def admits(pod: Obj) -> None:
    """What Kueue does to a pod whose group has its quota: any scheduler may bind it now."""
    pod["spec"]["schedulingGates"] = []
    pod["status"]["conditions"] = []


def preempts(pod: Obj, now: float, grace: int = 30) -> None:
    """What Kueue does to a pod that runs, when another workload needs its quota."""
    pod["status"].setdefault("conditions", []).append(
        {"type": "TerminationTarget", "status": "True", "reason": "WorkloadEvicted", "message": "Preempted to accommodate a workload"}
    )
    pod["metadata"]["deletionTimestamp"] = format_timestamp(now + grace)


def finalizes(pod: Obj) -> None:
    """What Kueue does to a pod whose successor is there, or whose group is over."""
    pod["metadata"].pop("finalizers", None)
