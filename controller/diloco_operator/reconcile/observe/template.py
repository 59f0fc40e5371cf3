"""The fields of a pod template that would break the contract, each by its path. Pure.

What a cluster may forbid (host paths, privileged containers, users) is not checked here: Pod Security, quotas and admission decide on
the pods, and the unit's message quotes them. A field that is checked here would make the job misbehave on any cluster: the operator
rejects the job, and does not change the template without its author's knowledge.

See docs/decisions/0099-pod-security-and-templates.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from diloco import contract

from diloco_operator.accelerators import CATALOGUE, UnitShape
from diloco_operator.api import names
from diloco_operator.api.spec import PodTemplate, Pool, Spec
from diloco_operator.kube.client import Cause

RESERVED_VARIABLES = frozenset(value for key, value in vars(contract).items() if key.startswith("ENV_"))
RESERVED_PREFIXES = ("MEGASCALE_",)
_OWN_KEYS = f"{names.GROUP}/"
_IDENTITY = "pods are named by the operator, and found under that name by the other pods of the job"
_FORBIDDEN = {
    "nodeName": "placement chooses the node, and the scheduler binds the pod to it; narrow the choice with nodeSelector",
    "hostname": _IDENTITY,
    "hostnameOverride": _IDENTITY,
    "subdomain": _IDENTITY,
    "setHostnameAsFQDN": _IDENTITY,
}

type _Problems = Iterator[Cause]


def template_problems(spec: Spec) -> list[Cause]:
    """Find the problems of all templates; empty: pods can be made from them."""
    found: list[Cause] = []
    for index, pool in enumerate(spec.pools):
        found += _learner(f"spec.pools[{index}].template", pool, spec)
    if spec.syncer.template is not None:
        found += _syncer("spec.syncer.template", spec.syncer.template, spec)
    return found


def _learner(where: str, pool: Pool, spec: Spec) -> _Problems:
    malformed = list(_malformed(f"{where}.spec", pool.template.spec))
    if malformed:
        yield from malformed
        return  # a value of the wrong type cannot be checked further
    yield from _common(where, pool.template, spec, names.LEARNER_CONTAINER, restart="Never")
    template = pool.template.spec
    container = main_container(template, names.LEARNER_CONTAINER)
    if container is None:
        yield Cause(f"{where}.spec.containers", f"needs one container named {names.LEARNER_CONTAINER!r}, the training program")
        return
    index = template["containers"].index(container)
    at = f"{where}.spec.containers[{index}]"
    for field in ("restartPolicy", "restartPolicyRules"):
        if container.get(field):
            yield Cause(
                f"{at}.{field}", "must be left out: a program that ended is started again as a new attempt of its unit, not in place"
            )
    try:
        unit = pool.shape
    except ValueError:
        return  # reported elsewhere
    yield from _devices(at, container, unit)
    yield from _hardware_labels(f"{where}.spec.nodeSelector", template, unit)


def _syncer(where: str, template: PodTemplate, spec: Spec) -> _Problems:
    malformed = list(_malformed(f"{where}.spec", template.spec))
    if malformed:
        yield from malformed
        return
    yield from _common(where, template, spec, names.SYNCER_CONTAINER, restart="OnFailure")
    container = main_container(template.spec, names.SYNCER_CONTAINER)
    if _true(template.spec, "hostNetwork"):
        yield Cause(f"{where}.spec.hostNetwork", f"must be false: syncers on one host would compete for port {contract.SYNCER_PORT}")
    if container is None:
        return
    at = f"{where}.spec.containers[{template.spec['containers'].index(container)}]"
    for field in ("restartPolicy", "restartPolicyRules"):
        if container.get(field):
            yield Cause(f"{at}.{field}", "must be left out: the pod's OnFailure holds for the syncer")
    path = container.get("terminationMessagePath", contract.TERMINATION_LOG)
    if path != contract.TERMINATION_LOG:
        yield Cause(f"{at}.terminationMessagePath", f"must be {contract.TERMINATION_LOG}, where the syncer leaves the job's result")


# --- what both have in common ----------------------------------------------------------------------------------------------
def _common(where: str, template: PodTemplate, spec: Spec, main: str, *, restart: str) -> _Problems:
    for kind, given in (("labels", template.metadata.labels), ("annotations", template.metadata.annotations)):
        for key in given:
            if key.startswith(_OWN_KEYS):
                yield Cause(f"{where}.metadata.{kind}[{key}]", f"keys of {_OWN_KEYS} are the operator's own")
    pod = template.spec
    at = f"{where}.spec"
    for field, why in _FORBIDDEN.items():
        if pod.get(field):
            yield Cause(f"{at}.{field}", f"must be left out: {why}")
    if pod.get("restartPolicy", restart) != restart:
        yield Cause(f"{at}.restartPolicy", f"must be {restart} or left out, not {pod['restartPolicy']}")
    policy = pod.get("dnsPolicy")
    if policy == "Default" or (policy == "ClusterFirst" and _true(pod, "hostNetwork")):
        fit = "ClusterFirstWithHostNet" if _true(pod, "hostNetwork") else "ClusterFirst"
        yield Cause(f"{at}.dnsPolicy", f"{policy} does not find the names of the job's pods; use {fit}, or leave it out")
    own, wanted = pod.get("priorityClassName"), spec.priority_class_name
    if own and wanted and own != wanted:
        yield Cause(f"{at}.priorityClassName", f"{own} is not spec.priorityClassName {wanted}; leave one of them out")
    for index, volume in enumerate(pod.get("volumes") or ()):
        if volume["name"].startswith(names.VOLUME_PREFIX):
            yield Cause(
                f"{at}.volumes[{index}].name", f"names that begin with {names.VOLUME_PREFIX} are the operator's own; rename the volume"
            )
    for index, container in enumerate(pod.get("containers") or ()):
        # Sidecars are not the contract's: they may have variables and mounts of these names.
        if container["name"] == main:
            yield from _environment(f"{at}.containers[{index}]", container)
            yield from _mounts(f"{at}.containers[{index}]", container)


def _environment(at: str, container: Mapping[str, Any]) -> _Problems:
    for index, variable in enumerate(container.get("env") or ()):
        name = variable["name"]
        if name in RESERVED_VARIABLES:
            yield Cause(f"{at}.env[{index}].name", f"{name} is set by the operator; remove it")
        elif name.startswith(RESERVED_PREFIXES):
            yield Cause(f"{at}.env[{index}].name", f"{name} would fuse several slices into one program, but each is a unit of its own")


def _mounts(at: str, container: Mapping[str, Any]) -> _Problems:
    ours = [value for key, value in vars(contract).items() if key.startswith("MOUNT_")]
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        path = mount["mountPath"].rstrip("/")
        # Below them too: a mount there would hide files of the contract.
        taken = next((own for own in ours if path == own or path.startswith(f"{own}/")), None)
        if taken is not None:
            yield Cause(f"{at}.volumeMounts[{index}].mountPath", f"{taken} is mounted by the operator; mount the volume elsewhere")


# --- hardware ---------------------------------------------------------------------------------------------------------
def _devices(at: str, container: Mapping[str, Any], unit: UnitShape) -> _Problems:
    """Check the accelerators: the pool defines how many of a host a unit uses; a template may repeat that, but not contradict it."""
    for kind in ("requests", "limits"):
        amount = ((container.get("resources") or {}).get(kind) or {}).get(unit.resource)
        # As text: YAML has the number with quotes or without.
        if unit.resource and amount is not None and str(amount) != str(unit.accelerators_per_host):
            yield Cause(
                f"{at}.resources.{kind}[{unit.resource}]",
                f"{amount} is not the {unit.accelerators_per_host} of each host that the pool asks for; remove it, or change the pool",
            )


def _hardware_labels(at: str, template: Mapping[str, Any], unit: UnitShape) -> _Problems:
    """Check the nodeSelector: the operator selects nodes by the accelerator's labels; a template may repeat them, not contradict them."""
    for label, value in CATALOGUE[unit.accelerator].node_selector(unit.topology).items():
        chosen = (template.get("nodeSelector") or {}).get(label)
        if chosen is not None and chosen != value:
            yield Cause(f"{at}[{label}]", f"{chosen} is not the pool's {value}; remove it, accelerator and topology say it")


# --- shape ------------------------------------------------------------------------------------------------------------
def main_container(template: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """Return the container of this name, or None."""
    containers = template.get("containers")
    found = containers if isinstance(containers, list) else ()
    return next((c for c in found if isinstance(c, dict) and c.get("name") == name), None)


_MAPS = ("nodeSelector", "affinity", "securityContext")
_LISTS = {"volumes": ("name",), "tolerations": (), "containers": ("name",), "initContainers": ("name",)}
_CONTAINER_LISTS = {"env": ("name",), "volumeMounts": ("name", "mountPath")}


def _malformed(at: str, pod: Mapping[str, Any]) -> _Problems:
    """Find what is malformed in the parts that pods are made from. A template is stored as it came: only its pods are checked by the API
    server."""
    if _deeper_than(_LEVELS, pod):
        yield Cause(at, f"must not be nested deeper than {_LEVELS} levels")
    for field in _MAPS:
        yield from _object_problems(f"{at}.{field}", pod.get(field))
    for key, value in (pod.get("nodeSelector") or {}).items() if isinstance(pod.get("nodeSelector"), dict) else ():
        yield from _string_problems(f"{at}.nodeSelector[{key}]", value)
    yield from _affinity(f"{at}.affinity", pod.get("affinity"))
    for field, keys in _LISTS.items():
        yield from _list_problems(f"{at}.{field}", pod.get(field), keys)
    for index, toleration in _objects(pod.get("tolerations")):
        for field in ("key", "operator", "value", "effect"):
            if toleration.get(field) is not None:
                yield from _string_problems(f"{at}.tolerations[{index}].{field}", toleration[field])
    for field in ("containers", "initContainers"):
        for index, container in _objects(pod.get(field)):
            yield from _malformed_container(f"{at}.{field}[{index}]", container)


_LEVELS = 64
"""No PodSpec has 20. Copying something of a thousand would end a reconcile."""


def _deeper_than(levels: int, value: object) -> bool:
    layer: list[Any] = [value]
    for _ in range(levels):
        layer = [item for each in layer for item in (each.values() if isinstance(each, dict) else each) if isinstance(item, dict | list)]
    return bool(layer)


def _malformed_container(at: str, container: Mapping[str, Any]) -> _Problems:
    for field, keys in _CONTAINER_LISTS.items():
        yield from _list_problems(f"{at}.{field}", container.get(field), keys)
    yield from _object_problems(f"{at}.securityContext", container.get("securityContext"))
    yield from _object_problems(f"{at}.resources", container.get("resources"))
    for owner, field in (("securityContext", "capabilities"), ("resources", "requests"), ("resources", "limits")):
        if isinstance(container.get(owner), dict):
            yield from _object_problems(f"{at}.{owner}.{field}", container[owner].get(field))


def _affinity(at: str, affinity: object) -> _Problems:
    """Check the affinity as deep as the operator adds to it."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    for field in ("nodeAffinity", required):
        affinity = affinity.get(field) if isinstance(affinity, dict) else None
        at = f"{at}.{field}"
        yield from _object_problems(at, affinity)
    terms = affinity.get("nodeSelectorTerms") if isinstance(affinity, dict) else None
    yield from _list_problems(f"{at}.nodeSelectorTerms", terms, ())
    for index, term in _objects(terms):
        for field in ("matchExpressions", "matchFields"):
            where = f"{at}.nodeSelectorTerms[{index}].{field}"
            yield from _list_problems(where, term.get(field), ("key", "operator"))
            for number, expression in _objects(term.get(field)):
                yield from _strings_problems(f"{where}[{number}].values", expression.get("values"))


def _objects(value: object) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield those of a list that are objects, with their index; `_list_problems` reports the others."""
    return ((index, item) for index, item in enumerate(value if isinstance(value, list) else ()) if isinstance(item, dict))


def _string_problems(at: str, value: object) -> _Problems:
    if not isinstance(value, str):
        yield Cause(at, "must be a string; put it into quotes")


def _strings_problems(at: str, value: object) -> _Problems:
    if value is not None and not isinstance(value, list):
        yield Cause(at, f"must be a list, not {_kind(value)}")
    for index, item in enumerate(value if isinstance(value, list) else ()):
        yield from _string_problems(f"{at}[{index}]", item)


def _object_problems(at: str, value: object) -> _Problems:
    if value is not None and not isinstance(value, dict):
        yield Cause(at, f"must be an object, not {_kind(value)}")


def _list_problems(at: str, value: object, keys: tuple[str, ...]) -> _Problems:
    """Report what is no list of objects, each with these keys as strings."""
    if value is None:
        return
    if not isinstance(value, list):
        yield Cause(at, f"must be a list, not {_kind(value)}")
        return
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            yield Cause(f"{at}[{index}]", f"must be an object, not {_kind(item)}")
            continue
        for key in keys:
            if not isinstance(item.get(key), str) or not item[key]:
                yield Cause(f"{at}[{index}].{key}", "is needed, as a string")


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a truth value", int: "a number", float: "a number"}
    return kinds.get(type(value), type(value).__name__)


def _true(pod: Mapping[str, Any], field: str) -> bool:
    return bool(pod.get(field))
