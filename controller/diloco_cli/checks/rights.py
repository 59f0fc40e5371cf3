"""Checks of the operator's rights, and of the user's. Pure.

See docs/decisions/0105-rights-and-networks.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from diloco_operator.api import names
from diloco_operator.api.crd import CRD_NAME
from diloco_operator.kube.client import Resource
from diloco_operator.reconcile.grantors.registry import WATCHES

from diloco_cli.checks.model import Check, Facts, Finding, Right, error, ok, read, warning

_NAMESPACED: tuple[tuple[Resource, str, str], ...] = (
    (names.DILOCO_JOBS, "", "list watch patch delete"),
    (names.DILOCO_JOBS, "status", "update"),
    (names.DILOCO_JOBS, "finalizers", "update"),
    (names.PODS, "", "get list watch create patch delete"),
    (names.PODS, "status", "patch"),
    (names.CONFIG_MAPS, "", "get list watch create delete"),
    (names.SECRETS, "", "get list watch create patch delete"),
    (names.SERVICES, "", "get list watch create delete"),
    (names.VOLUME_CLAIMS, "", "get list watch create patch"),
    (names.EVENTS, "", "list create patch"),
    (names.CLAIM_TEMPLATES, "", "get create"),
    *((each.resource, "", f"list watch {each.verbs}".strip()) for each in WATCHES if each.resource != names.EVENTS),
)
"""What the operator needs in each namespace that it watches: kind, subresource and verbs, as in the chart's roles."""
_CLUSTER_WIDE = tuple((each, "list watch") for each in (names.NODES, names.PRIORITY_CLASSES, names.RESOURCE_SLICES))

_EXPORT = (
    (names.DILOCO_JOBS, "", "get"),
    (names.VOLUME_CLAIMS, "", "get"),
    (names.PODS, "", "get list create delete"),
    (names.PODS, "exec", "get create"),
)
_CHANGE = ((names.DILOCO_JOBS, "", "get patch watch"),)
COMMANDS: Mapping[str, tuple[tuple[Resource, str, str], ...]] = {
    "kubectl apply": ((names.DILOCO_JOBS, "", "get create patch"),),
    "kubectl delete": ((names.DILOCO_JOBS, "", "get delete"),),
    "status": ((names.DILOCO_JOBS, "", "get list"),),
    "units": ((names.DILOCO_JOBS, "", "get"),),
    "top": ((names.DILOCO_JOBS, "", "get list watch"),),
    "dashboard": (
        (names.DILOCO_JOBS, "", "list watch"),
        (names.EVENTS, "", "list watch"),
        (names.PODS, "", "list"),
        (names.PODS, "log", "get"),
    ),
    "logs": ((names.DILOCO_JOBS, "", "get"), (names.PODS, "", "list"), (names.PODS, "log", "get")),
    "report": (
        (names.DILOCO_JOBS, "", "get"),
        (names.EVENTS, "", "list"),
        (names.PODS, "", "list"),
        (names.PODS, "log", "get"),
    ),
    "explain": ((names.DILOCO_JOBS, "", "get"), (names.EVENTS, "", "list"), (names.NODES, "", "list")),
    "drain": (
        (names.DILOCO_JOBS, "", "get watch"),
        (names.PODS, "", "list"),
        (names.PODS, "eviction", "create"),
        (names.NODES, "", "patch"),
    ),
    "suspend": _CHANGE,
    "resume": _CHANGE,
    "retry": _CHANGE,
    "plan": ((names.NODES, "", "list"), (names.DILOCO_JOBS, "", "list"), (names.PODS, "", "list")),
    "export": _EXPORT,
    "snapshots": _EXPORT,
    "join-bundle": (
        (names.DILOCO_JOBS, "", "get"),
        (names.CONFIG_MAPS, "", "get"),
        (names.SECRETS, "", "get"),
        (names.SERVICES, "", "get"),
    ),
    "part": (
        (names.DILOCO_JOBS, "", "get patch"),
        (names.CONFIG_MAPS, "", "get"),
        (names.SECRETS, "", "get"),
        (names.SERVICES, "", "get"),
    ),
    "submit": (
        (names.DILOCO_JOBS, "", "get create delete watch"),
        (names.CONFIG_MAPS, "", "get create patch"),
        (names.NODES, "", "list"),
    ),
    "init": ((names.NODES, "", "list"),),
}
"""Kind, subresource and verbs that each command needs. `doctor` is missing, because each of its checks tells what it may not read."""


def operator_rights(namespace: str) -> list[Right]:
    """Rights that the operator needs to work on jobs of the namespace. For "" only those that it needs cluster-wide."""
    rights = [Right(verb, resource) for resource, verbs in _CLUSTER_WIDE for verb in verbs.split()]
    rights.append(Right("get", names.CUSTOM_RESOURCES, name=CRD_NAME))
    if namespace:
        rights += [Right(verb, resource, namespace, part) for resource, part, verbs in _NAMESPACED for verb in verbs.split()]
    return rights


def caller_rights(namespace: str) -> list[Right]:
    """Rights that all commands together need in a namespace and cluster-wide."""
    return list(_purposes(namespace))


def _purposes(namespace: str) -> dict[Right, list[str]]:
    """The commands that need each right."""
    commands: dict[Right, list[str]] = {}
    for command, needs in COMMANDS.items():
        for resource, part, verbs in needs:
            for verb in verbs.split():
                commands.setdefault(Right(verb, resource, namespace if resource.namespaced else "", part), []).append(command)
    return commands


def of_operator(facts: Facts) -> Iterator[Finding]:
    """Find whether the operator has its rights in the namespace of the command."""
    reviews = read(facts.operator_rights)
    missing = [str(review.right) for review in reviews if not review.allowed]
    where = f"namespace {facts.namespace}" if facts.namespace else "cluster"
    if missing:
        remedy = f"add {facts.namespace} to watchNamespaces of the chart" if facts.namespace else "install the chart with rbac.create: true"
        yield error(Check.OPERATOR_RIGHTS, where, f"the operator may not {'; '.join(missing)}", remedy)
    elif reviews:
        yield ok(Check.OPERATOR_RIGHTS, where, f"the operator has the {len(reviews)} rights that it needs")
    else:
        yield warning(
            Check.OPERATOR_RIGHTS, where, "not checked: no operator was found", "install the chart, or see the line about the operator"
        )


def of_caller(facts: Facts) -> Iterator[Finding]:
    """Find which commands the user may not use."""
    purposes = _purposes(facts.namespace)
    missing = [review.right for review in read(facts.own_rights) if not review.allowed]
    for right in missing:
        where = f"namespace {right.namespace}" if right.namespace else "cluster"
        remedy = "ask an administrator; " + (
            "the cluster's role edit has what jobs need, view what status needs" if right.namespace else "it takes a ClusterRole"
        )
        yield warning(Check.YOUR_RIGHTS, where, f"you may not {right}: needed for {', '.join(purposes[right])}", remedy)
    if not missing:
        yield ok(Check.YOUR_RIGHTS, f"namespace {facts.namespace}", "you may use every command")
