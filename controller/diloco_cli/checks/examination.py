"""The table of all checks, in the order in which they are shown. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import NamedTuple

from diloco_cli.checks import job, namespace, nodes, operators, rights, server, storage
from diloco_cli.checks.model import Check, Facts, Finding, NotRead, warning


class Scope(enum.Enum):
    """What a check needs to know."""

    CLUSTER = enum.auto()
    NAMESPACE = enum.auto()
    JOB = enum.auto()


class Row(NamedTuple):
    check: Check
    scope: Scope
    run: Callable[[Facts], Iterable[Finding]]
    """It yields at least one finding, `ok` if nothing is wrong, so that the user sees that it ran. May raise `NotRead`."""


CHECKS = (
    Row(Check.KUBERNETES, Scope.CLUSTER, server.kubernetes),
    Row(Check.CRD, Scope.CLUSTER, operators.crd),
    Row(Check.OPERATOR, Scope.CLUSTER, operators.operator),
    Row(Check.LEASE, Scope.CLUSTER, operators.leases),
    Row(Check.OPERATOR_RIGHTS, Scope.CLUSTER, rights.of_operator),
    Row(Check.CLOCKS, Scope.CLUSTER, server.clocks),
    Row(Check.ADDRESS_FAMILY, Scope.CLUSTER, server.address_family),
    Row(Check.NODES, Scope.CLUSTER, nodes.accelerators),
    Row(Check.DRIVERS, Scope.CLUSTER, nodes.drivers),
    Row(Check.DEVICES, Scope.CLUSTER, nodes.devices),
    Row(Check.GRANTORS, Scope.CLUSTER, server.grantors),
    Row(Check.STORAGE_CLASS, Scope.CLUSTER, storage.classes),
    Row(Check.USERS, Scope.CLUSTER, server.users),
    Row(Check.YOUR_RIGHTS, Scope.NAMESPACE, rights.of_caller),
    Row(Check.QUOTA, Scope.NAMESPACE, namespace.quota),
    Row(Check.POD_SECURITY, Scope.NAMESPACE, namespace.pod_security),
    Row(Check.SERVICE_MESH, Scope.NAMESPACE, namespace.service_mesh),
    Row(Check.JOB, Scope.JOB, job.conditions),
    Row(Check.POOLS, Scope.JOB, job.pools),
    Row(Check.VOLUME, Scope.JOB, storage.volume),
    Row(Check.SYNCER, Scope.JOB, job.syncer),
)


_WHERE_THE_SYNCER_IS = {Check.STORAGE_CLASS, Check.VOLUME}
"""Checks that say nothing about a part: its syncer, with the volume, is in another cluster."""


def examine(facts: Facts) -> tuple[Finding, ...]:
    """Run all checks. If something could not be read, each check that needs it has a finding that says so."""
    scopes = {Scope.CLUSTER: True, Scope.NAMESPACE: bool(facts.namespace), Scope.JOB: facts.job is not None}
    findings: list[Finding] = []
    for row in CHECKS:
        if not scopes[row.scope] or (facts.is_part and row.check in _WHERE_THE_SYNCER_IS):
            continue
        try:
            findings += row.run(facts)
        except NotRead as missing:
            what, why, remedy = missing.unreadable
            findings.append(warning(row.check, what, f"not checked: {why}", remedy))
    return tuple(findings)
