"""The built-in kinds that the operator and the embedded control plane use.

Only pods are validated, because users write their templates. The operator alone makes the other objects, and tests on a real API server
show whether that takes them.
"""

from __future__ import annotations

from collections.abc import Callable

from diloco_operator.kube.client import Obj, Resource

from diloco_local.memory.kinds import Kind
from diloco_local.memory.meta import LABEL, SERVICE
from diloco_local.memory.pods import SELECTABLE, default_pod, initialize_pod, pod_causes

NAMESPACES = Resource("", "v1", "Namespace", "namespaces", namespaced=False)
CUSTOM_RESOURCES = Resource("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)

_DEFAULT_CLASS = "standard"
"""Storage class of claims that name none: this cluster has a default one."""

_DRA = "resource.k8s.io"


def _default_secret(obj: Obj) -> None:
    obj.setdefault("type", "Opaque")


def _default_claim(obj: Obj) -> None:
    obj["spec"].setdefault("storageClassName", _DEFAULT_CLASS)


def _initialize(phase: str) -> Callable[[Obj], None]:
    def begin(obj: Obj) -> None:
        obj["status"] = {"phase": phase}

    return begin


def builtin_kinds() -> list[Kind]:
    """All built-in kinds except CustomResourceDefinition, which `crds` defines."""

    def core(kind: str, plural: str, *, namespaced: bool = True) -> Resource:
        return Resource("", "v1", kind, plural, namespaced=namespaced)

    about = {f"involvedObject.{name}": ("involvedObject", name) for name in ("kind", "name", "uid")}
    return [
        Kind(NAMESPACES, status=True, name_rule=LABEL, initialize=_initialize("Active")),
        Kind(
            core("Pod", "pods"),
            status=True,
            generation=True,
            graceful=True,
            selectable=SELECTABLE,
            default=default_pod,
            initialize=initialize_pod,
            validate=pod_causes,
        ),
        # A kubelet registers its node and the node's capacity with one write.
        Kind(core("Node", "nodes", namespaced=False), status=True, keeps_status_on_create=True),
        Kind(core("Secret", "secrets"), default=_default_secret),
        Kind(core("ConfigMap", "configmaps")),
        Kind(core("Service", "services"), status=True, name_rule=SERVICE),
        Kind(
            core("PersistentVolumeClaim", "persistentvolumeclaims"),
            status=True,
            default=_default_claim,
            initialize=_initialize("Pending"),
        ),
        Kind(core("Event", "events"), selectable={**about, "reason": ("reason",)}),
        Kind(core("ServiceAccount", "serviceaccounts")),
        # Refuse updates without a version: two replicas that write blindly would both lead.
        Kind(Resource("coordination.k8s.io", "v1", "Lease", "leases"), unconditional_update=False),
        Kind(Resource("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False)),
        Kind(Resource(_DRA, "v1", "ResourceSlice", "resourceslices", namespaced=False), selectable={"spec.driver": ("spec", "driver")}),
        Kind(Resource(_DRA, "v1", "ResourceClaim", "resourceclaims"), status=True),
        Kind(Resource(_DRA, "v1", "ResourceClaimTemplate", "resourceclaimtemplates")),
    ]
