"""Of every object only what the operator reads is kept in its caches: 0.7 instead of about 100 KiB a pod.

A projection takes the API's object and gives a new one of the same shape with fewer fields. What reconcile, placement or the
fleet's inventory start to read must be added here first. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from diloco_operator.api import names
from diloco_operator.kube.client import Obj, Resource

type Projection = Callable[[Obj], Obj]

_METADATA = ("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "labels", "annotations")


def project_job(obj: Obj) -> Obj:
    """The job but for its managedFields and the copy that `kubectl apply` leaves in an annotation."""
    metadata = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
    annotations = metadata.get("annotations")
    if annotations:
        metadata["annotations"] = {k: v for k, v in annotations.items() if k != "kubectl.kubernetes.io/last-applied-configuration"}
    return {**obj, "metadata": metadata}


def project_pod(obj: Obj) -> Obj:
    """Identity, owners, node, and how its containers fare."""
    spec = obj.get("spec", {})
    status = obj.get("status", {})
    kept = _kept(status, ("phase", "reason", "message", "podIP", "hostIP", "startTime"))
    if conditions := status.get("conditions"):
        kept["conditions"] = [_kept(c, ("type", "status", "reason", "message", "lastTransitionTime")) for c in conditions]
    for field in ("containerStatuses", "initContainerStatuses"):
        if statuses := status.get(field):
            kept[field] = [_kept(c, ("name", "state", "lastState", "ready", "restartCount", "started")) for c in statuses]
    return {
        "metadata": {**_metadata(obj), **_kept(obj["metadata"], ("ownerReferences", "finalizers", "deletionGracePeriodSeconds"))},
        "spec": _kept(spec, ("nodeName", "nodeSelector", "schedulingGates", "terminationGracePeriodSeconds")),
        "status": kept,
    }


def project_node(obj: Obj) -> Obj:
    """Labels, annotations, taints, room, and whether it is ready. Heartbeats are left out: they change nothing."""
    status = obj.get("status", {})
    return {
        "metadata": _metadata(obj),
        "spec": _kept(obj.get("spec", {}), ("taints", "unschedulable")),
        "status": {
            **_kept(status, ("capacity", "allocatable")),
            "conditions": [
                _kept(c, ("type", "status", "reason", "message", "lastTransitionTime"))
                for c in status.get("conditions", ())
                if c.get("type") == "Ready" or c.get("status") == "True"
            ],
        },
    }


def project_child(obj: Obj) -> Obj:
    """A job's ConfigMap, Secret, Service or volume claim: identity, owners, and for ConfigMap and Secret the data."""
    return {
        "metadata": {**_metadata(obj), **_kept(obj["metadata"], ("ownerReferences",))},
        **_kept(obj, ("data", "status")),
    }


PROJECTIONS: Mapping[Resource, Projection] = {
    names.DILOCO_JOBS: project_job,
    names.PODS: project_pod,
    names.NODES: project_node,
    names.CONFIG_MAPS: project_child,
    names.SECRETS: project_child,
    names.SERVICES: project_child,
    names.VOLUME_CLAIMS: project_child,
}
"""The projection for each resource that the operator watches."""


def _metadata(obj: Obj) -> dict[str, Any]:
    return _kept(obj["metadata"], _METADATA)


def _kept(fields: Mapping[str, Any], wanted: tuple[str, ...]) -> dict[str, Any]:
    return {name: fields[name] for name in wanted if name in fields}
