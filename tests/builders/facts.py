"""What the doctor reads of a cluster on which nothing is wrong, for tests that change one thing of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from builders.jobs import Obj
from builders.nodes import a_gpu_node, a_node
from diloco_cli.checks import Check, Facts, Finding, Level, Reach, Review, examine
from diloco_cli.checks.rights import caller_rights, operator_rights
from diloco_operator.api import names
from diloco_operator.api.crd import build_crd
from diloco_operator.kube.client import Resource
from diloco_operator.kube.lease import LEASES, Lease, write_lease
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile import OperatorConfig

NOW = 1_795_208_460.0
TEAM = "team"


def a_deployment(*arguments: str, ready: int = 1, version: str = "1.0", namespace: str = "diloco-system") -> Obj:
    """The operator's, as the chart makes it."""
    labels = {"app.kubernetes.io/version": version}
    spec = {"replicas": 1, "template": {"spec": {"containers": [{"name": "operator", "args": ["run", *arguments]}]}}}
    return {
        "metadata": {"name": "diloco-operator", "namespace": namespace, "labels": labels},
        "spec": spec,
        "status": {"readyReplicas": ready},
    }


def a_class(name: str, *, default: bool = False) -> Obj:
    return {"metadata": {"name": name, "annotations": {names.DEFAULT_CLASS: "true"} if default else {}}}


def a_namespace(labels: Obj | None = None, annotations: Obj | None = None) -> Obj:
    """The namespace of the command."""
    return {"metadata": {"name": TEAM, "labels": labels or {}, "annotations": annotations or {}}}


def a_lease(node: str, ahead: float = 0.0) -> Obj:
    """Return the lease of a kubelet whose clock is `ahead` seconds ahead of the API server's."""
    return {"metadata": {"name": node}, "spec": {"renewTime": format_timestamp(NOW + ahead)}}


def an_election(holder: str = "diloco-operator-7c9f-x2b4d_1", *, ago: float = 1.0, name: str = "diloco-operator") -> Obj:
    """Return the Lease of the operator's leader, renewed `ago` seconds ago."""
    lease = Lease(holder, 15.0, format_timestamp(NOW - 600), format_timestamp(NOW - ago), 0)
    return {"metadata": {"name": name, "namespace": "diloco-system"}, "spec": write_lease(lease)}


def the_crd() -> Obj:
    return {**build_crd(), "status": {"conditions": [{"type": "Established", "status": "True"}]}}


def a_service(*families: str) -> Obj:
    """`kubernetes`, by which pods reach the API server."""
    return {"metadata": {"name": "kubernetes", "namespace": "default"}, "spec": {"ipFamilies": list(families)}}


def facts(objects: dict[Resource, Any] | None = None, **changed: Any) -> Facts:
    """Nothing is wrong, but for what is `changed`; `objects` replaces those of some kinds."""
    there: dict[Resource, Any] = {
        names.NODES: [a_node("cpu-0"), a_gpu_node("gpu-0")],
        names.STORAGE_CLASSES: [a_class("standard", default=True)],
        LEASES: [a_lease("cpu-0"), a_lease("gpu-0", -9.0)],
        names.DEPLOYMENTS: [a_deployment()],
        names.CUSTOM_RESOURCES: [the_crd()],
        names.SERVICES: [a_service("IPv4")],
        names.NAMESPACES: [a_namespace()],
        names.QUOTAS: [],
        names.LIMIT_RANGES: [],
        names.PODS: [],
        names.VOLUME_CLAIMS: [],
    }
    well = Facts(
        namespace=TEAM,
        now=NOW,
        ahead=0.0,
        version="1.0",
        kubernetes={"major": "1", "minor": "36", "gitVersion": "v1.36.3"},
        groups=frozenset(),
        objects=there | (objects or {}),
        config=OperatorConfig(),
        elections=[an_election()],
        own_rights=[Review(right, True) for right in caller_rights(TEAM)],
        operator_rights=[Review(right, True) for right in operator_rights(TEAM)],
        reach=Reach("lm-h100-0-a1-0", "lm-syncer.lm.team.svc:7077", ""),
    )
    return dataclasses.replace(well, **changed)


def of(found: Facts, check: Check) -> Sequence[Finding]:
    """The findings of one check."""
    return [each for each in examine(found) if each.check == check]


def one(found: Facts, check: Check) -> Finding:
    """The only finding of one check."""
    [finding] = of(found, check)
    return finding


def worst(found: Facts) -> Level:
    levels = {each.level for each in examine(found)}
    return next(level for level in (Level.ERROR, Level.WARNING, Level.OK) if level in levels)
