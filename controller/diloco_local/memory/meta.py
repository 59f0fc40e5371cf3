"""Validation of metadata, the same for every kind: names and labels. Pure."""

from __future__ import annotations

import functools
import re

from diloco_operator.kube.client import Cause, Obj

from diloco_local.memory.values import show

_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

SUBDOMAIN, LABEL, SERVICE = "subdomain", "label", "service"
"""Rules for the names of a kind: DNS-1123 subdomain, DNS-1123 label, DNS-1035 label."""

_RULES = {
    SUBDOMAIN: (
        re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"),
        253,
        (
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
            "and must start and end with an alphanumeric character"
        ),
    ),
    LABEL: (
        re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"),
        63,
        (
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
            "and must start and end with an alphanumeric character"
        ),
    ),
    SERVICE: (
        re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"),
        63,
        (
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', "
            "start with an alphabetic character, and end with an alphanumeric character"
        ),
    ),
}


@functools.lru_cache(maxsize=65536)
def name_problem(rule: str, name: str) -> str | None:
    """The error of a name, or None."""
    pattern, limit, message = _RULES[rule]
    if len(name) > limit:
        return f"Invalid value: {show(name)}: must be no more than {limit} characters"
    return None if pattern.fullmatch(name) else f"Invalid value: {show(name)}: {message}"


@functools.lru_cache(maxsize=65536)
def _label_problem(key: str, value: str) -> str | None:
    prefix, slash, name = key.rpartition("/")
    if not _QUALIFIED.fullmatch(name) or (slash and name_problem(SUBDOMAIN, prefix)):
        return f"Invalid value: {show(key)}: must be a name, or a DNS subdomain, '/' and a name of at most 63 characters"
    if value and not _QUALIFIED.fullmatch(value):
        return f"Invalid value: {show(value)}: a label's value must be at most 63 alphanumeric characters, '-', '_' or '.'"
    return None


def metadata_causes(obj: Obj, rule: str) -> list[Cause]:
    """The errors of an object's name and labels. The operator makes both from names of jobs and pools, so users can get them wrong."""
    meta = obj["metadata"]
    problem = name_problem(rule, meta["name"])
    causes = [Cause("metadata.name", problem)] if problem else []
    for key, value in (meta.get("labels") or {}).items():
        if problem := _label_problem(key, value):
            causes.append(Cause("metadata.labels", problem))
    return causes
