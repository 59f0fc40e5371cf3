"""Required node affinity of a pod, as kube-scheduler reads it: which nodes the pod may run on, by their labels and names. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_NAME = "metadata.name"
"""The only field of a node that a term may name."""


def _compare(value: str | None, values: tuple[str, ...], sign: int) -> bool:
    try:
        return value is not None and sign * (int(value) - int(values[0])) > 0
    except (ValueError, IndexError):  # not a number: neither greater nor less
        return False


_OPERATORS: Mapping[str, Callable[[str | None, tuple[str, ...]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, values: _compare(value, values, 1),
    "Lt": lambda value, values: _compare(value, values, -1),
}


@dataclass(frozen=True, slots=True)
class Requirement:
    """An expression of a term."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def met(self, known: Mapping[str, str]) -> bool:
        """Whether a node with these labels or fields meets the expression."""
        # An unknown operator excludes no node: the API server rejects such a pod and explains why.
        test = _OPERATORS.get(self.operator)
        return test is None or test(known.get(self.key), self.values)


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """One of the alternatives of an affinity. All its requirements must be met."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str], name: str) -> bool:
        """Whether the node meets all requirements."""
        return all(each.met(labels) for each in self.labels) and all(each.met({_NAME: name}) for each in self.fields)


def node_terms(affinity: Mapping[str, Any] | None) -> tuple[NodeTerm, ...] | None:
    """Return the alternatives of a pod's `affinity`. None if it requires nothing. A term without expressions matches no node, so it is left
    out."""
    required = ((affinity or {}).get("nodeAffinity") or {}).get(REQUIRED)
    if not required:
        return None
    terms = (
        NodeTerm(_requirements(term.get("matchExpressions")), _requirements(term.get("matchFields")))
        for term in required.get("nodeSelectorTerms") or ()
    )
    return tuple(term for term in terms if term.labels or term.fields)


def attracts(terms: tuple[NodeTerm, ...] | None, labels: Mapping[str, str], name: str) -> bool:
    """Whether a pod with these terms may run on the node with these labels and this name."""
    return terms is None or any(term.matches(labels, name) for term in terms)


def only_nodes(terms: tuple[NodeTerm, ...] | None) -> frozenset[str] | None:
    """Return the names of the only nodes on which a pod with these terms may run. None if some term names no nodes, so that they may be
    any."""
    names: set[str] = set()
    for term in terms or ():
        named = [set(each.values) for each in term.fields if (each.key, each.operator) == (_NAME, "In")]
        if not named:
            return None
        names |= set.intersection(*named)
    return frozenset(names) if terms else None


def _requirements(raw: Any) -> tuple[Requirement, ...]:
    return tuple(Requirement(each["key"], each["operator"], tuple(each.get("values") or ())) for each in raw or ())
