"""The built-in kinds that the operator and the embedded control plane use."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from diloco_operator.kube.client import Cause, Obj, Resource

from diloco_local.memory.kinds import Kind
from diloco_local.memory.meta import LABEL, SERVICE, config_key_problem, name_problem, string_map_causes
from diloco_local.memory.pods import POD, SELECTABLE, default_pod, initialize_pod, pod_causes
from diloco_local.memory.structural import ANY, Node
from diloco_local.memory.values import parse_bytes, show

NAMESPACES = Resource("", "v1", "Namespace", "namespaces", namespaced=False)
CUSTOM_RESOURCES = Resource("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)

_CONDITIONS = Node(list_type="map", list_keys=("type",), items=ANY)
_PLAIN = Node(root=True, preserve=True)
_WITH_CONDITIONS = Node(root=True, preserve=True, properties={"status": Node(preserve=True, properties={"conditions": _CONDITIONS})})


def _default_secret(obj: Obj) -> None:
    obj.setdefault("type", "Opaque")
    # It is for writing only: stored, it would stand in the way of a later change of `data`.
    text = obj.pop("stringData", None)
    if isinstance(text, dict) and all(isinstance(value, str) for value in text.values()):
        obj["data"] = {**(obj.get("data") or {}), **{key: base64.b64encode(value.encode()).decode() for key, value in text.items()}}
    elif text is not None:
        obj["stringData"] = text  # the check rejects it


def _frozen(obj: Obj, old: Obj | None, fields: tuple[str, ...]) -> list[Cause]:
    """Return what `immutable: true` of a secret or config map forbids."""
    if old is None or not old.get("immutable"):
        return []
    causes = [] if obj.get("immutable") else [Cause("immutable", "Forbidden: field is immutable when `immutable` is set")]
    changed = (name for name in fields if obj.get(name) != old.get(name))
    return causes + [Cause(name, "Forbidden: field is immutable when `immutable` is set") for name in changed]


def _data_causes(obj: Obj, *fields: str) -> list[Cause]:
    causes: list[Cause] = []
    for name in fields:
        value = obj.get(name) or {}
        found = string_map_causes(value, name)
        causes += found or [Cause(f"{name}[{key}]", problem) for key in value if (problem := config_key_problem(key))]
    return causes


def _secret_causes(obj: Obj, old: Obj | None) -> list[Cause]:
    causes = _data_causes(obj, "data", "stringData")
    if not causes:
        for key, value in (obj.get("data") or {}).items():
            try:
                parse_bytes(value)
            except ValueError:
                causes.append(Cause(f"data[{key}]", "Invalid value: must be base64; plain text belongs into stringData"))
    if old is not None and obj.get("type") != old.get("type"):
        causes.append(Cause("type", f"Invalid value: {show(obj.get('type'))}: field is immutable"))
    return causes + _frozen(obj, old, ("data",))


def _config_map_causes(obj: Obj, old: Obj | None) -> list[Cause]:
    causes = _data_causes(obj, "data", "binaryData")
    both = set(obj.get("data") or ()) & set(obj.get("binaryData") or ())
    causes += [Cause(f"data[{key}]", "Invalid value: duplicate of key present in binaryData") for key in sorted(both)]
    return causes + _frozen(obj, old, ("data", "binaryData"))


def _service_defaults(addresses: Callable[[], str]) -> Callable[[Obj], None]:
    def default(obj: Obj) -> None:
        spec = obj.setdefault("spec", {})
        if not isinstance(spec, dict):
            return
        spec.setdefault("type", "ClusterIP")
        spec.setdefault("sessionAffinity", "None")
        if spec["type"] != "ExternalName":
            # "None" stays: the name of a headless service leads to its pods.
            if not spec.get("clusterIP"):
                spec["clusterIP"] = addresses()
            spec.setdefault("clusterIPs", [spec["clusterIP"]])
        for port in spec.get("ports", ()):
            port.setdefault("protocol", "TCP")
            port.setdefault("targetPort", port.get("port"))

    return default


def _service_causes(obj: Obj, old: Obj | None) -> list[Cause]:
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        return [Cause("spec", "Required value")]
    causes = []
    ports = spec.get("ports", ())
    if not ports and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        causes.append(Cause("spec.ports", "Required value"))
    for index, port in enumerate(ports):
        number = port.get("port")
        if type(number) is not int or not 0 < number < 65536:
            causes.append(Cause(f"spec.ports[{index}].port", f"Invalid value: {show(number)}: must be between 1 and 65535, inclusive"))
        name = port.get("name", "")
        if not name and len(ports) > 1:
            causes.append(Cause(f"spec.ports[{index}].name", "Required value"))
        elif name and (problem := name_problem(LABEL, name)):
            causes.append(Cause(f"spec.ports[{index}].name", problem))
    if old is not None and spec.get("clusterIP") != old["spec"].get("clusterIP"):
        causes.append(Cause("spec.clusterIP", f"Invalid value: {show(spec.get('clusterIP'))}: field is immutable"))
    return causes


_DEFAULT_CLASS = "standard"
"""What claims without a class get: this is a cluster that has a default one."""


def _default_claim(obj: Obj) -> None:
    spec = obj.get("spec")
    if isinstance(spec, dict):
        spec.setdefault("volumeMode", "Filesystem")
        spec.setdefault("storageClassName", _DEFAULT_CLASS)


def _claim_causes(obj: Obj, old: Obj | None) -> list[Cause]:
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        return [Cause("spec", "Required value")]
    causes = []
    if not spec.get("accessModes"):
        causes.append(Cause("spec.accessModes", "Required value: at least 1 access mode is required"))
    if not spec.get("resources", {}).get("requests", {}).get("storage"):
        causes.append(Cause("spec.resources[storage]", "Required value"))
    if old is not None and _fixed_claim(spec, old["spec"]) != _fixed_claim(old["spec"], old["spec"]):
        causes.append(
            Cause(
                "spec",
                "Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
            )
        )
    return causes


def _fixed_claim(spec: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    # A volume is bound once: a claim that could change its volume would lose its data.
    free = {"resources", "volumeAttributesClassName"} | (set() if old.get("volumeName") else {"volumeName"})
    return {name: value for name, value in spec.items() if name not in free}


def _node_causes(obj: Obj, old: Obj | None) -> list[Cause]:
    causes = []
    effects = ("NoSchedule", "PreferNoSchedule", "NoExecute")
    for index, taint in enumerate((obj.get("spec") or {}).get("taints") or ()):
        if not taint.get("key"):
            causes.append(Cause(f"spec.taints[{index}].key", "Required value"))
        if taint.get("effect") not in effects:
            options = ", ".join(show(each) for each in effects)
            causes.append(
                Cause(f"spec.taints[{index}].effect", f"Unsupported value: {show(taint.get('effect'))}: supported values: {options}")
            )
    return causes


def _event_causes(obj: Obj, old: Obj | None) -> list[Cause]:
    about = obj.get("involvedObject") or {}
    namespace = obj["metadata"].get("namespace", "")
    if about.get("namespace", "") not in (namespace, "") or (not about.get("namespace") and namespace != "default"):
        return [Cause("involvedObject.namespace", f"Invalid value: {show(about.get('namespace', ''))}: does not match event.namespace")]
    return []


def _initialize(phase: str) -> Callable[[Obj], None]:
    def begin(obj: Obj) -> None:
        obj["status"] = {"phase": phase}

    return begin


def _initialize_namespace(obj: Obj) -> None:
    obj["spec"] = {"finalizers": ["kubernetes"]}
    obj["status"] = {"phase": "Active"}
    labels = obj["metadata"].setdefault("labels", {})
    labels["kubernetes.io/metadata.name"] = obj["metadata"]["name"]


def builtin_kinds(addresses: Callable[[], str]) -> list[Kind]:
    """Return all kinds except CustomResourceDefinition, which `crds` makes. `addresses` gives cluster IPs."""

    def core(kind: str, plural: str, *, namespaced: bool = True) -> Resource:
        return Resource("", "v1", kind, plural, namespaced=namespaced)

    about = {f"involvedObject.{name}": ("involvedObject", name) for name in ("kind", "namespace", "name", "uid", "apiVersion", "fieldPath")}
    node = Node(
        root=True,
        preserve=True,
        properties={
            "status": Node(preserve=True, properties={"conditions": _CONDITIONS, "addresses": _CONDITIONS}),
            "spec": Node(preserve=True, properties={"podCIDRs": Node(list_type="set")}),
        },
    )
    port = Node(list_type="map", list_keys=("port", "protocol"), key_defaults={"protocol": "TCP"}, items=ANY)
    # Atomic: merged by key, it would keep labels that the new selector leaves out.
    selector = Node(preserve=True, map_type="atomic")
    service = Node(
        root=True,
        preserve=True,
        properties={
            "spec": Node(preserve=True, properties={"ports": port, "selector": selector}),
            "status": Node(preserve=True, properties={"conditions": _CONDITIONS}),
        },
    )
    return [
        Kind(
            NAMESPACES,
            _WITH_CONDITIONS,
            status=True,
            name_rule=LABEL,
            initialize=_initialize_namespace,
            selectable={"status.phase": ("status", "phase")},
        ),
        Kind(
            core("Pod", "pods"),
            POD,
            status=True,
            generation=True,
            graceful=True,
            selectable=SELECTABLE,
            default=default_pod,
            initialize=initialize_pod,
            validate=pod_causes,
        ),
        Kind(
            core("Node", "nodes", namespaced=False),
            node,
            status=True,
            # A kubelet registers its node and its capacity with one write.
            keeps_status_on_create=True,
            selectable={"spec.unschedulable": ("spec", "unschedulable")},
            validate=_node_causes,
        ),
        Kind(core("Secret", "secrets"), _PLAIN, selectable={"type": ("type",)}, default=_default_secret, validate=_secret_causes),
        Kind(core("ConfigMap", "configmaps"), _PLAIN, validate=_config_map_causes),
        Kind(
            core("Service", "services"),
            service,
            status=True,
            name_rule=SERVICE,
            default=_service_defaults(addresses),
            validate=_service_causes,
            selectable={"spec.clusterIP": ("spec", "clusterIP"), "spec.type": ("spec", "type")},
        ),
        Kind(
            core("PersistentVolumeClaim", "persistentvolumeclaims"),
            _WITH_CONDITIONS,
            status=True,
            default=_default_claim,
            initialize=_initialize("Pending"),
            validate=_claim_causes,
        ),
        Kind(
            core("Event", "events"),
            _PLAIN,
            selectable={**about, "reason": ("reason",), "type": ("type",), "reportingComponent": ("reportingComponent",)},
            validate=_event_causes,
        ),
        Kind(core("PodTemplate", "podtemplates"), _PLAIN),
        Kind(core("ServiceAccount", "serviceaccounts"), _PLAIN),
        # Without a version no update: two replicas that write blindly would both lead.
        Kind(Resource("coordination.k8s.io", "v1", "Lease", "leases"), _PLAIN, unconditional_update=False),
        Kind(Resource("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False), _PLAIN),
    ]
