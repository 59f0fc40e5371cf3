"""Validation of metadata, the same for every kind: names, labels, annotations, finalizers, owner references. Pure."""

from __future__ import annotations

import functools
import re
from typing import Any

from diloco_operator.kube.client import Cause, Obj

from diloco_local.memory.values import show

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SERVICE = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_ANNOTATIONS_LIMIT = 256 * 1024

SUBDOMAIN, LABEL, SERVICE = "subdomain", "label", "service"
"""Rules for the names of a kind: DNS-1123 subdomain, DNS-1123 label, DNS-1035 label."""

_RULES = {
    SUBDOMAIN: (
        _SUBDOMAIN,
        253,
        (
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
            "and must start and end with an alphanumeric character"
        ),
    ),
    LABEL: (
        _LABEL,
        63,
        (
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
            "and must start and end with an alphanumeric character"
        ),
    ),
    SERVICE: (
        _SERVICE,
        63,
        (
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', "
            "start with an alphabetic character, and end with an alphanumeric character"
        ),
    ),
}


@functools.lru_cache(maxsize=65536)
def name_problem(rule: str, name: str) -> str | None:
    """Return the error of a name, or None."""
    pattern, limit, message = _RULES[rule]
    if len(name) > limit:
        return f"Invalid value: {show(name)}: must be no more than {limit} characters"
    return None if pattern.fullmatch(name) else f"Invalid value: {show(name)}: {message}"


@functools.lru_cache(maxsize=65536)
def _key_problem(key: str) -> str | None:
    prefix, slash, name = key.rpartition("/")
    if _QUALIFIED.fullmatch(name) and (not slash or (len(prefix) <= 253 and _SUBDOMAIN.fullmatch(prefix))):
        return None
    return f"Invalid value: {show(key)}: must be a name, or a DNS subdomain, '/' and a name of at most 63 characters"


@functools.lru_cache(maxsize=65536)
def label_value_problem(value: str) -> str | None:
    if value == "" or _QUALIFIED.fullmatch(value):
        return None
    return f"Invalid value: {show(value)}: a label's value must be at most 63 alphanumeric characters, '-', '_' or '.'"


def config_key_problem(key: str) -> str | None:
    if _CONFIG_KEY.fullmatch(key) and key not in (".", ".."):
        return None
    return f"Invalid value: {show(key)}: a valid config key must consist of alphanumeric characters, '-', '_' or '.'"


def string_map_causes(value: Any, path: str) -> list[Cause]:
    if not isinstance(value, dict):
        return [Cause(path, "Invalid value: must be a map of strings")]
    return [
        Cause(f"{path}.{key}", f"Invalid value: {show(each)}: must be a string") for key, each in value.items() if type(each) is not str
    ]


def label_causes(labels: Any, path: str) -> list[Cause]:
    if causes := string_map_causes(labels, path):
        return causes
    found = []
    for key, value in labels.items():
        problem = _key_problem(key) or label_value_problem(value)
        if problem:
            found.append(Cause(path, problem))
    return found


def metadata_causes(obj: Obj, rule: str) -> list[Cause]:
    """Return every error of an object's metadata."""
    meta = obj["metadata"]
    causes: list[Cause] = []
    if problem := name_problem(rule, meta["name"]):
        causes.append(Cause("metadata.name", problem))
    if labels := meta.get("labels"):
        causes += label_causes(labels, "metadata.labels")
    if annotations := meta.get("annotations"):
        causes += _annotation_causes(annotations)
    for index, finalizer in enumerate(meta.get("finalizers", ())):
        if problem := _key_problem(finalizer):
            causes.append(Cause(f"metadata.finalizers[{index}]", problem))
    if refs := meta.get("ownerReferences"):
        causes += _owner_causes(refs)
    return causes


def _annotation_causes(annotations: Any) -> list[Cause]:
    if causes := string_map_causes(annotations, "metadata.annotations"):
        return causes
    found = [Cause("metadata.annotations", problem) for key in annotations if (problem := _key_problem(key.lower()))]
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > _ANNOTATIONS_LIMIT:
        found.append(Cause("metadata.annotations", f"Too long: must have at most {_ANNOTATIONS_LIMIT} bytes"))
    return found


def _owner_causes(refs: Any) -> list[Cause]:
    required = ("apiVersion", "kind", "name", "uid")
    missing = [f"[{index}].{name}" for index, ref in enumerate(refs) for name in required if not ref.get(name)]
    causes = [Cause(f"metadata.ownerReferences{place}", "Required value: must not be empty") for place in missing]
    uids = [ref.get("uid") for ref in refs]
    if len(set(uids)) < len(uids):
        causes.append(Cause("metadata.ownerReferences", "Duplicate value: two references with one uid"))
    controllers = [ref.get("name") for ref in refs if ref.get("controller")]
    if len(controllers) > 1:
        causes.append(
            Cause("metadata.ownerReferences", f"Invalid value: only one reference can have controller set to true, not {controllers}")
        )
    return causes
