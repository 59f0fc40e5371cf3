"""Chooses a node for a pod, or says why none fits. Pure; `scheduler` acts on it.

It considers nodeSelector, required affinity to nodes and between pods, taints and tolerations, unschedulable, readiness, and requests
against allocatable resources. A node that does not list a resource has none of it; but cpu, memory, ephemeral-storage and pods are then
unlimited, since simulated nodes need not list them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from diloco_operator.api.names import NODE_HOSTNAME
from diloco_operator.fleet.affinity import attracts, node_terms, only_nodes
from diloco_operator.fleet.resources import pod_requests
from diloco_operator.kube.client import Obj
from diloco_operator.kube.pods import has_ended
from diloco_operator.kube.quantities import quantity

from diloco_local.neighbours import Neighbours

_OPTIONAL = frozenset({"cpu", "memory", "ephemeral-storage", "pods"})
_OTHER_NODE = "node(s) didn't match Pod's node affinity/selector"
_HARD_EFFECTS = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Choice:
    """A node; or None, and in `message` the reason in the words of kube-scheduler."""

    node: str | None
    message: str = ""


def requests(pod: Obj) -> dict[str, Fraction]:
    """The resources that a pod requests, with `pods` among them."""
    return pod_requests(pod["spec"])


def tolerates(tolerations: Iterable[Mapping[str, Any]], taint: Mapping[str, Any]) -> bool:
    return any(
        (not toleration.get("effect") or toleration["effect"] == taint["effect"])
        and (toleration.get("key", "") in ("", taint["key"]))
        and (bool(toleration.get("key")) or toleration.get("operator") == "Exists")
        and (toleration.get("operator", "Equal") == "Exists" or toleration.get("value", "") == taint.get("value", ""))
        for toleration in tolerations
    )


def occupies_node(pod: Obj) -> bool:
    """Whether the pod uses resources of a node: it is bound and has not ended."""
    return bool(pod["spec"].get("nodeName")) and not has_ended(pod)


def used_resources(pods: Iterable[Obj]) -> dict[str, dict[str, Fraction]]:
    """Node -> resource -> what the pods there use."""
    taken: dict[str, dict[str, Fraction]] = {}
    for pod in pods:
        if occupies_node(pod):
            on_node = taken.setdefault(pod["spec"]["nodeName"], {})
            for name, amount in requests(pod).items():
                on_node[name] = on_node.get(name, Fraction(0)) + amount
    return taken


def labels_of(node: Obj) -> dict[str, str]:
    return {NODE_HOSTNAME: node["metadata"]["name"], **(node["metadata"].get("labels") or {})}


def unschedulable_reason(pod: Obj, node: Obj, taken: Mapping[str, Fraction], neighbours: Neighbours | None = None) -> str | None:
    """Why the pod cannot run on the node. None if it can. `taken`: what pods use on the node."""
    spec = pod["spec"]
    labels = labels_of(node)
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()) or not attracts(
        node_terms(spec.get("affinity")), labels, node["metadata"]["name"]
    ):
        return _OTHER_NODE
    tolerations = spec.get("tolerations") or []
    if node["spec"].get("unschedulable") and not tolerates(
        tolerations, {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    ):
        return "node(s) were unschedulable"
    for taint in node["spec"].get("taints") or ():
        if taint["effect"] in _HARD_EFFECTS and not tolerates(tolerations, taint):
            value = f": {taint['value']}" if taint.get("value") else ""
            return f"node(s) had untolerated taint {{{taint['key']}{value}}}"
    ready = {c["type"]: c["status"] for c in node.get("status", {}).get("conditions") or ()}.get("Ready")
    if ready != "True":
        return "node(s) were not ready"
    return _insufficient_resource(requests(pod), node, taken) or (neighbours.objection(pod, labels) if neighbours else None) or None


def _insufficient_resource(wanted: Mapping[str, Fraction], node: Obj, taken: Mapping[str, Fraction]) -> str | None:
    status = node.get("status", {})
    allocatable = status.get("allocatable") or status.get("capacity") or {}
    for name, amount in wanted.items():
        if name not in allocatable and name in _OPTIONAL:
            continue
        if amount and taken.get(name, Fraction(0)) + amount > quantity(allocatable.get(name, 0)):
            return "Too many pods" if name == "pods" else f"Insufficient {name}"
    return None


def choose(pod: Obj, nodes: Sequence[Obj], taken: Mapping[str, Mapping[str, Fraction]], neighbours: Neighbours | None = None) -> Choice:
    """Choose the feasible node with the fewest pods, by name among equals.

    Args:
        taken: see `used_resources`
        neighbours: the pods that use resources, for affinity between pods
    """
    feasible: list[tuple[Fraction, str]] = []
    counts: Counter[str] = Counter()
    named = only_nodes(node_terms(pod["spec"].get("affinity")))
    for node in nodes:
        name = node["metadata"]["name"]
        if named is not None and name not in named:  # the test below says the same, after a hundred times the work
            counts[_OTHER_NODE] += 1
            continue
        on_node = taken.get(name, {})
        reason = unschedulable_reason(pod, node, on_node, neighbours)
        if reason is None:
            feasible.append((on_node.get("pods", Fraction(0)), name))
        else:
            counts[reason] += 1
    if feasible:
        return Choice(min(feasible)[1])
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
    return Choice(None, f"0/{len(nodes)} nodes are available: {reasons}." if nodes else "no nodes available to schedule pods")
