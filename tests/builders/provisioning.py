"""ProvisioningRequests, and the definition of their kind: the fields and limits of autoscaling.x-k8s.io/v1 in kubernetes/autoscaler."""

from __future__ import annotations

from typing import Any

from diloco_operator.api import names
from diloco_operator.kube.client import Obj

_NAME = {"type": "string", "maxLength": 253, "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"}


def _fixed(schema: Obj) -> Obj:
    return {**schema, "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "Value is immutable"}]}


def provisioning_crd() -> Obj:
    """The CustomResourceDefinition of ProvisioningRequests."""
    reference = {"type": "object", "required": ["name"], "properties": {"name": _NAME}}
    count = {"type": "integer", "format": "int32", "minimum": 1}
    pod_set = {"type": "object", "required": ["count", "podTemplateRef"], "properties": {"count": count, "podTemplateRef": reference}}
    spec = {
        "type": "object",
        "required": ["podSets", "provisioningClassName"],
        "properties": {
            "podSets": _fixed({"type": "array", "minItems": 1, "maxItems": 32, "items": pod_set}),
            "provisioningClassName": _fixed(_NAME),
            "parameters": _fixed(
                {"type": "object", "maxProperties": 100, "additionalProperties": {"type": "string", "maxLength": 255}},
            ),
        },
    }
    condition = {
        "type": "object",
        "required": ["lastTransitionTime", "message", "reason", "status", "type"],
        "properties": {
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "message": {"type": "string", "maxLength": 32768},
            "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
            "reason": {"type": "string", "minLength": 1, "maxLength": 1024},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "type": {"type": "string", "maxLength": 316},
        },
    }
    conditions = {"type": "array", "items": condition, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    details = {"type": "object", "maxProperties": 64, "additionalProperties": {"type": "string", "maxLength": 32768}}
    status = {"type": "object", "properties": {"conditions": conditions, "provisioningClassDetails": details}}
    whole = {"type": "object", "required": ["spec"], "properties": {"spec": spec, "status": status}}
    resource = names.PROVISIONING_REQUESTS
    kinds = {"kind": resource.kind, "listKind": f"{resource.kind}List", "plural": resource.plural, "singular": "provisioningrequest"}
    version = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": whole},
        "subresources": {"status": {}},
    }
    approved = {"api-approved.kubernetes.io": "https://github.com/kubernetes/autoscaler/pull/5848"}
    return {
        "metadata": {"name": f"{resource.plural}.{resource.group}", "annotations": approved},
        "spec": {"group": resource.group, "names": kinds, "scope": "Namespaced", "versions": [version]},
    }


def a_condition(kind: str, status: str = "True", *, reason: str = "Said", message: str = "", at: str = "2026-11-20T21:00:00Z") -> Obj:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


def a_request(*conditions: Any, name: str = "lm-v6e-0-a1", job: str = "lm", unit: str = "v6e-0", attempt: int = 1, owner: str = "") -> Obj:
    """A request as the API returns it, of an attempt of a unit."""
    labels = {names.LABEL_JOB: job, names.LABEL_UNIT: unit, names.LABEL_ATTEMPT: str(attempt)}
    owners = [{"kind": names.KIND, "name": job, "uid": owner, "controller": True}] if owner else []
    meta = {"namespace": "default", "name": name, "uid": f"uid-{name}", "resourceVersion": "1", "labels": labels, "ownerReferences": owners}
    return {
        "metadata": {**meta, "creationTimestamp": "2026-11-20T20:00:00Z"},
        "spec": {"provisioningClassName": "queued-provisioning.gke.io", "podSets": [{"count": 2, "podTemplateRef": {"name": name}}]},
        "status": {"conditions": list(conditions)},
    }
