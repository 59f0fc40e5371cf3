"""Required affinity and anti-affinity between pods, as kube-scheduler reads it. Pure; `scheduling` uses it.

A term selects pods by their labels and namespaces, and compares nodes by one label, the topology key. A node without that label shares no
domain with another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from diloco_operator.fleet.affinity import REQUIRED, Requirement
from diloco_operator.kube.client import Obj

_NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""The label that every namespace has."""


@dataclass(frozen=True, slots=True)
class _Term:
    selector: tuple[Requirement, ...]
    namespaces: tuple[str, ...]
    by_label: tuple[Requirement, ...] | None
    """Further namespaces: those whose name meets these requirements. None if the term has no namespaceSelector."""
    topology_key: str

    def selects(self, pod: Obj) -> bool:
        meta = pod["metadata"]
        namespace = meta.get("namespace", "default")
        in_namespace = namespace in self.namespaces or (
            self.by_label is not None and all(requirement.met({_NAMESPACE_NAME: namespace}) for requirement in self.by_label)
        )
        return in_namespace and all(requirement.met(meta.get("labels") or {}) for requirement in self.selector)


@dataclass(slots=True)
class Neighbours:
    """The pods that are bound, each with the labels of its node."""

    placed: list[tuple[Obj, Mapping[str, str]]] = field(default_factory=list)
    _guarded: list[tuple[_Term, Mapping[str, str]]] = field(default_factory=list)
    """Anti-affinity of these pods, each with the labels of the node."""

    @classmethod
    def of(cls, pods: Iterable[Obj], nodes: Mapping[str, Mapping[str, str]]) -> Neighbours:
        """The pods that are bound to one of `nodes` (name -> labels)."""
        neighbours = cls()
        for pod in pods:
            if (labels := nodes.get(pod["spec"].get("nodeName", ""))) is not None:
                neighbours.add(pod, labels)
        return neighbours

    def add(self, pod: Obj, labels: Mapping[str, str]) -> None:
        """Add a pod. `labels`: of the node that it is bound to."""
        self.placed.append((pod, labels))
        self._guarded += [(term, labels) for term in _terms(pod, "podAntiAffinity")]

    def objection(self, pod: Obj, labels: Mapping[str, str]) -> str:
        """Why the pod cannot run on a node with these labels. "" if it can."""
        for term in _terms(pod, "podAffinity"):
            if not self._is_near(term, pod, labels):
                return "node(s) didn't match pod affinity rules"
        for term in _terms(pod, "podAntiAffinity"):
            if any(_share(term, labels, other) and term.selects(each) for each, other in self.placed):
                return "node(s) didn't match pod anti-affinity rules"
        if any(_share(term, labels, other) and term.selects(pod) for term, other in self._guarded):
            return "node(s) didn't satisfy existing pods anti-affinity rules"
        return ""

    def _is_near(self, term: _Term, pod: Obj, labels: Mapping[str, str]) -> bool:
        if term.topology_key not in labels:
            return False
        selected = [other for each, other in self.placed if term.selects(each)]
        # The first of a group of pods that must be together may go anywhere: it selects itself, and no other pod is placed yet.
        return any(_share(term, labels, other) for other in selected) or (not selected and term.selects(pod))


def _share(term: _Term, labels: Mapping[str, str], other_labels: Mapping[str, str]) -> bool:
    return term.topology_key in labels and labels[term.topology_key] == other_labels.get(term.topology_key)


def _terms(pod: Obj, kind: str) -> list[_Term]:
    affinity = pod["spec"].get("affinity") or {}
    return [_term(raw, pod["metadata"].get("namespace", "default")) for raw in (affinity.get(kind) or {}).get(REQUIRED) or ()]


def _term(raw: Mapping[str, Any], namespace: str) -> _Term:
    by_label = raw.get("namespaceSelector")
    named = tuple(raw.get("namespaces") or ())
    return _Term(
        selector=_selector(raw.get("labelSelector") or {}),
        namespaces=named or ((namespace,) if by_label is None else ()),
        by_label=_selector(by_label) if by_label is not None else None,
        topology_key=raw["topologyKey"],
    )


def _selector(raw: Mapping[str, Any]) -> tuple[Requirement, ...]:
    equal = [Requirement(key, "In", (value,)) for key, value in (raw.get("matchLabels") or {}).items()]
    return (
        *equal,
        *(Requirement(each["key"], each["operator"], tuple(each.get("values") or ())) for each in raw.get("matchExpressions") or ()),
    )
