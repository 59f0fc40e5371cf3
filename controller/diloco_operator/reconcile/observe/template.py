"""Finds the fields of a pod template that would break the contract. Pure.

Checked are the fields that would make a job misbehave on every cluster: the operator rejects the job, and does not change the template
behind its author's back. What some clusters forbid (host paths, privileged containers, users) is not checked: Pod Security, quotas and
admission decide on the pods, and the unit's message quotes them.

See docs/decisions/0099-pod-security-and-templates.md.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from diloco import contract

from diloco_operator.accelerators import CATALOGUE, UnitShape
from diloco_operator.api import names
from diloco_operator.api.spec import PodTemplate, Pool, Spec
from diloco_operator.kube.client import Cause
from diloco_operator.kube.quantities import quantity

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
    """The problems of all templates. If there are none, pods can be made from them."""
    problems = list(_own_keys("spec.podLabels", spec.pod_labels))
    for index, pool in enumerate(spec.pools):
        problems += _learner(f"spec.pools[{index}].template", pool, spec)
    if spec.syncer.template is not None:
        problems += _syncer("spec.syncer.template", spec.syncer.template, spec)
    return problems


def is_malformed(template: PodTemplate) -> bool:
    """Whether a value of the template has another type than in a PodSpec."""
    return any(_malformed("", template.spec))


def _learner(where: str, pool: Pool, spec: Spec) -> _Problems:
    malformed = list(_malformed(f"{where}.spec", pool.template.spec))
    if malformed:
        yield from malformed
        return  # a value of the wrong type cannot be checked further
    yield from _common(where, pool.template, spec, names.LEARNER_CONTAINER, restart="Never")
    template = pool.template.spec
    container = container_named(template, names.LEARNER_CONTAINER)
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
        return  # `kind_problems` reports it
    yield from _devices(at, container, unit)
    yield from _hardware_labels(f"{where}.spec.nodeSelector", template, unit)


def _syncer(where: str, template: PodTemplate, spec: Spec) -> _Problems:
    malformed = list(_malformed(f"{where}.spec", template.spec))
    if malformed:
        yield from malformed
        return
    yield from _common(where, template, spec, names.SYNCER_CONTAINER, restart="OnFailure")
    container = container_named(template.spec, names.SYNCER_CONTAINER)
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


def _own_keys(at: str, given: Iterable[str]) -> _Problems:
    for key in given:
        if key.startswith(_OWN_KEYS):
            yield Cause(f"{at}[{key}]", f"keys of {_OWN_KEYS} are the operator's own")


# --- what templates of learners and syncer have in common ----------------------------------------------------------------
def _common(where: str, template: PodTemplate, spec: Spec, main: str, *, restart: str) -> _Problems:
    for kind, given in (("labels", template.metadata.labels), ("annotations", template.metadata.annotations)):
        yield from _own_keys(f"{where}.metadata.{kind}", given)
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
    pod_class, job_class = pod.get("priorityClassName"), spec.priority_class_name
    if pod_class and job_class and pod_class != job_class:
        yield Cause(f"{at}.priorityClassName", f"{pod_class} is not spec.priorityClassName {job_class}; leave one of them out")
    volumes = [volume["name"] for volume in pod.get("volumes") or ()]
    for index, name in enumerate(volumes):
        if name.startswith(names.VOLUME_PREFIX):
            yield Cause(
                f"{at}.volumes[{index}].name", f"names that begin with {names.VOLUME_PREFIX} are the operator's own; rename the volume"
            )
    yield from _amounts(at, pod)
    containers = [
        (f"{at}.{kind}[{index}]", container)
        for kind in ("initContainers", "containers")
        for index, container in enumerate(pod.get(kind) or ())
    ]
    yield from _repeated((f"{at}.volumes[{index}].name", name) for index, name in enumerate(volumes))
    yield from _repeated((f"{where}.name", container["name"]) for where, container in containers)
    mountable = frozenset(volumes)
    for where, container in containers:
        yield from _amounts(where, container)
        yield from _mounted(where, container, mountable)
        # The contract is with the main container: sidecars may use its variables and mount paths for themselves.
        if container["name"] == main:
            yield from _environment(where, container)
            yield from _mounts(where, container)


def _repeated(named: Iterable[tuple[str, str]]) -> _Problems:
    """A field that has the value of an earlier field. `named`: pairs of field and value."""
    earlier: dict[str, str] = {}
    for field, value in named:
        if value in earlier:
            yield Cause(field, f"{value!r} is {earlier[value]} already; give it another one")
        earlier.setdefault(value, field)


def _mounted(at: str, container: Mapping[str, Any], volumes: frozenset[str]) -> _Problems:
    mounts = container.get("volumeMounts") or ()
    for index, mount in enumerate(mounts):
        if mount["name"] not in volumes and not mount["name"].startswith(names.VOLUME_PREFIX):
            yield Cause(f"{at}.volumeMounts[{index}].name", f"the template has no volume {mount['name']!r}; add it, or remove the mount")
    yield from _repeated((f"{at}.volumeMounts[{index}].mountPath", mount["mountPath"]) for index, mount in enumerate(mounts))


def _environment(at: str, container: Mapping[str, Any]) -> _Problems:
    for index, variable in enumerate(container.get("env") or ()):
        name = variable["name"]
        if name in RESERVED_VARIABLES:
            yield Cause(f"{at}.env[{index}].name", f"{name} is set by the operator; remove it")
        elif name.startswith(names.VARIABLE_PREFIX):
            yield Cause(
                f"{at}.env[{index}].name",
                f"{name} is none that the operator or a program reads; names of {names.VARIABLE_PREFIX} are its own",
            )
        elif name.startswith(RESERVED_PREFIXES):
            yield Cause(f"{at}.env[{index}].name", f"{name} would fuse several slices into one program, but each is a unit of its own")


def _mounts(at: str, container: Mapping[str, Any]) -> _Problems:
    contract_paths = [value for key, value in vars(contract).items() if key.startswith("MOUNT_")]
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        path = posixpath.normpath(mount["mountPath"])
        # A mount below one of the contract's paths would hide its files.
        taken = next((reserved for reserved in contract_paths if path == reserved or path.startswith(f"{reserved}/")), None)
        if taken is not None:
            yield Cause(f"{at}.volumeMounts[{index}].mountPath", f"{taken} is mounted by the operator; mount the volume elsewhere")


# --- requests and limits ------------------------------------------------------------------------------------------------
def _amounts(at: str, holder: Mapping[str, Any]) -> _Problems:
    """Check requests and limits of a container, or of the pod as a whole."""
    known: dict[str, dict[str, Fraction]] = {"requests": {}, "limits": {}}
    for kind, amounts in known.items():
        for name, text in ((holder.get("resources") or {}).get(kind) or {}).items():
            if text is None:
                continue
            field = f"{at}.resources.{kind}[{name}]"
            try:
                amounts[name] = amount = quantity(text)
            except ValueError as error:
                yield Cause(field, str(error))
                continue
            if amount < 0:
                yield Cause(field, f"must not be less than 0, as {text} is")
            elif name.startswith(_IN_BYTES) and amount.denominator > 1:
                yield Cause(field, f"{text} is no whole number of bytes; write 100Mi for mebibytes, and m for nothing but thousandths")
    for name, amount in known["requests"].items():
        if amount > known["limits"].get(name, amount):
            yield Cause(f"{at}.resources.requests[{name}]", "must not be more than the limit; lower it, or raise the limit")


_IN_BYTES = ("memory", "ephemeral-storage", "hugepages-")


# --- hardware ---------------------------------------------------------------------------------------------------------
def _devices(at: str, container: Mapping[str, Any], unit: UnitShape) -> _Problems:
    """Check the accelerators: the pool says how many of each host a unit uses. A template may only repeat that."""
    for kind in ("requests", "limits"):
        amount = ((container.get("resources") or {}).get(kind) or {}).get(unit.resource)
        # Compared as text, because YAML may have the number in quotes.
        if unit.resource and amount is not None and str(amount) != str(unit.accelerators_per_host):
            yield Cause(
                f"{at}.resources.{kind}[{unit.resource}]",
                f"{amount} is not the {unit.accelerators_per_host} of each host that the pool asks for; remove it, or change the pool",
            )


def _hardware_labels(at: str, template: Mapping[str, Any], unit: UnitShape) -> _Problems:
    """Check the nodeSelector: the operator selects nodes by the accelerator's labels. A template may only repeat them."""
    for label, value in CATALOGUE[unit.accelerator].node_selector(unit.topology).items():
        chosen = (template.get("nodeSelector") or {}).get(label)
        if chosen is not None and chosen != value:
            yield Cause(f"{at}[{label}]", f"{chosen} is not the pool's {value}; remove it, accelerator and topology say it")


# --- shape ------------------------------------------------------------------------------------------------------------
def container_named(template: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """None if the template has no container of this name."""
    containers = template.get("containers")
    known = containers if isinstance(containers, list) else ()
    return next((container for container in known if isinstance(container, dict) and container.get("name") == name), None)


_TEXT, _NAME = "text", "name"
"""Shapes of a value: a string, and a string that is required. `[shape]` is a list of such values; `{field: shape}` is an object that may
have other fields."""
_EACH = "each"
"""Stands for all fields of an object."""
_SELECTION = {"key": _NAME, "operator": _NAME, "values": [_TEXT]}
_CONTAINER = {
    "name": _NAME,
    "env": [{"name": _NAME, "value": _TEXT}],
    "volumeMounts": [{"name": _NAME, "mountPath": _NAME}],
    "securityContext": {"capabilities": {}},
    "resources": {"requests": {}, "limits": {}},
}
_POD = {
    "nodeSelector": {_EACH: _TEXT},
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [_SELECTION], "matchFields": [_SELECTION]}]
            }
        }
    },
    "securityContext": {},
    "volumes": [{"name": _NAME}],
    "resources": {"requests": {}, "limits": {}},
    "tolerations": [dict.fromkeys(("key", "operator", "value", "effect"), _TEXT)],
    "containers": [_CONTAINER],
    "initContainers": [_CONTAINER],
}
"""The fields that the operator reads. The API server stores a template as it came, and checks only the pods that are made from it."""
_LEVELS = 64
"""Nesting that is allowed. No PodSpec has 20 levels; to copy a value with a thousand would raise RecursionError in a reconcile."""


def _malformed(at: str, pod: Mapping[str, Any]) -> _Problems:
    if _deeper_than(_LEVELS, pod):
        yield Cause(at, f"must not be nested deeper than {_LEVELS} levels")
    yield from _misshapen(at, pod, _POD)


def _deeper_than(levels: int, value: object) -> bool:
    layer: list[Any] = [value]
    for _ in range(levels):
        layer = [item for each in layer for item in (each.values() if isinstance(each, dict) else each) if isinstance(item, dict | list)]
    return bool(layer)


def _misshapen(at: str, value: Any, shape: Any) -> _Problems:
    """Values that do not have the shape. A field may be absent or null unless its shape is `_NAME`."""
    if shape == _NAME:
        if not isinstance(value, str) or not value:
            yield Cause(at, "is needed, as a string")
    elif shape == _TEXT:
        if not isinstance(value, str):
            yield Cause(at, "must be a string; put it into quotes")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield Cause(at, f"must be a list, not {_kind(value)}")
            return
        for index, item in enumerate(value):
            yield from _misshapen(f"{at}[{index}]", item, shape[0])
    elif not isinstance(value, dict):
        yield Cause(at, f"must be an object, not {_kind(value)}")
    elif _EACH in shape:
        for key, item in value.items():
            yield from _misshapen(f"{at}[{key}]", item, shape[_EACH])
    else:
        for field, inner in shape.items():
            if value.get(field) is not None or inner == _NAME:
                yield from _misshapen(f"{at}.{field}", value.get(field), inner)


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a truth value", int: "a number", float: "a number"}
    return kinds.get(type(value), type(value).__name__)


def _true(pod: Mapping[str, Any], field: str) -> bool:
    return bool(pod.get(field))
