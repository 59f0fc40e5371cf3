"""Checks of the operator and its CustomResourceDefinition: do they exist, fit each other, and work on the namespace? Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diloco.wording import and_more
from diloco_operator.api import names
from diloco_operator.api.crd import CRD_NAME
from diloco_operator.kube.client import Obj
from diloco_operator.kube.lease import deployment_of, read_lease
from diloco_operator.kube.timestamps import parse_timestamp
from diloco_operator.operator.crd_check import missing_parts

from diloco_cli.checks.model import Check, Facts, Finding, error, named, ok, read, warning

PART_OF = "app.kubernetes.io/part-of=diloco-operator,app.kubernetes.io/component=operator"
"""Label selector of the operator's Deployments."""
_VERSION = "app.kubernetes.io/version"
_SHOWN = 3
_ELECTION = 10.0
"""Seconds after the expiry of a lease within which another replica takes it."""
_INSTALL = "helm install diloco-operator helm/diloco-operator --namespace diloco-system --create-namespace"


def crd(facts: Facts) -> Iterator[Finding]:
    """Find whether the CustomResourceDefinition has all fields that this program knows."""
    where = f"customresourcedefinition {CRD_NAME}"
    definition = next((candidate for candidate in facts.of(names.CUSTOM_RESOURCES) if candidate["metadata"]["name"] == CRD_NAME), None)
    if definition is None:
        yield error(Check.CRD, where, "the cluster does not have it: there can be no jobs", f"install the chart: {_INSTALL}")
        return
    missing = list(missing_parts(definition))
    if missing:
        lacks = and_more(missing[:_SHOWN], len(missing))
        message = f"it is of another version than this program ({facts.version}): it lacks {lacks}"
        yield error(Check.CRD, where, message, "upgrade the chart with crds.enabled=true, or use the program of the chart's version")
    else:
        yield ok(Check.CRD, where, f"it has all of {names.API_VERSION}")


def operator(facts: Facts) -> Iterator[Finding]:
    """Find whether an operator runs and works on the namespace."""
    deployments = facts.of(names.DEPLOYMENTS)
    if not deployments:
        yield error(Check.OPERATOR, "cluster", "no Deployment of the operator was found: nothing works on jobs", _INSTALL)
        return
    working = [deployment for deployment in deployments if not facts.namespace or watches(deployment, facts.namespace)]
    if not working:
        message = f"no operator watches namespace {facts.namespace}: jobs there stay without status"
        yield error(Check.OPERATOR, _named(deployments), message, f"add {facts.namespace} to watchNamespaces of the chart")
        return
    for deployment in working:
        yield from _of(deployment, facts.version)
    if len(working) > 1 and facts.namespace:
        message = f"{len(working)} operators watch namespace {facts.namespace}: both write for every job"
        yield error(Check.OPERATOR, _named(working), message, "leave the namespace in watchNamespaces of one of them")


def _of(deployment: Obj, version: str) -> Iterator[Finding]:
    meta, status = deployment["metadata"], deployment.get("status") or {}
    where = _named([deployment])
    operator_version = str((meta.get("labels") or {}).get(_VERSION) or "")
    wanted = int((deployment.get("spec") or {}).get("replicas", 1))
    if not wanted:
        yield warning(
            Check.OPERATOR, where, "it has 0 replicas: jobs that run go on, and nothing acts on them", "raise replicas of the chart"
        )
    elif not status.get("readyReplicas"):
        remedy = f"kubectl logs -n {meta['namespace']} deployment/{meta['name']}; its /readyz names what it waits for"
        yield error(Check.OPERATOR, where, f"0 of {wanted} replicas are ready", remedy)
    elif operator_version and operator_version != version:
        remedy = "use the program of the operator's version, or upgrade the chart"
        yield warning(Check.OPERATOR, where, f"it is of version {operator_version}, and this program of {version}", remedy)
    else:
        yield ok(
            Check.OPERATOR, where, f"{status['readyReplicas']} of {wanted} replicas are ready, version {operator_version or 'unknown'}"
        )


def watches(deployment: Obj, namespace: str) -> bool:
    """Whether this operator works on jobs of the namespace, according to its arguments."""
    watched = _given(deployment, "--watch-namespace")
    return not watched or namespace in watched


def lease_of(deployment: Obj) -> tuple[str, str] | None:
    """Namespace and name of the Lease with which this operator elects its leader, by its arguments. None if there is no election."""
    if "--no-leader-elect" in arguments(deployment):
        return None
    namespaces = _given(deployment, "--leader-elect-namespace") or [deployment["metadata"]["namespace"]]
    lease_names = _given(deployment, "--leader-elect-lease-name") or [names.OPERATOR_LEASE]
    return namespaces[-1], lease_names[-1]  # of an option that is given twice, the last value counts


def leases(facts: Facts) -> Iterator[Finding]:
    """Find the leader of each operator that works on the namespace."""
    election_leases = {(item["metadata"]["namespace"], item["metadata"]["name"]): item for item in read(facts.elections)}
    working = [item for item in facts.of(names.DEPLOYMENTS) if not facts.namespace or watches(item, facts.namespace)]
    ready = [item for item in working if (item.get("status") or {}).get("readyReplicas")]
    if not ready:  # the check of the operator tells why
        yield ok(Check.LEASE, "cluster", "no replica of an operator is ready, so none has to lead")
    for deployment in ready:
        key = lease_of(deployment)
        if key is None:
            yield ok(Check.LEASE, _named([deployment]), "its only replica needs no election")
        else:
            yield _leader(deployment, "/".join(key), election_leases.get(key), facts.now)


def _leader(deployment: Obj, lease: str, obj: Obj | None, now: float) -> Finding:
    where, meta = _named([deployment]), deployment["metadata"]
    seen = read_lease(obj) if obj is not None else None
    try:
        silent = now - parse_timestamp(seen.renewed) if seen is not None and seen.holder else None
    except ValueError:
        silent = None
    if seen is None or silent is None or silent > seen.duration + _ELECTION:
        last = f"; {seen.holder} held it last, {silent:.0f} s ago" if seen is not None and silent is not None else ""
        logs = f"kubectl logs -n {meta['namespace']} deployment/{meta['name']}"
        return error(Check.LEASE, where, f"no replica holds the lease {lease}: nothing acts on jobs{last}", logs)
    if deployment_of(seen.holder) != meta["name"]:
        message = f"the lease {lease} is held by {seen.holder}, of another Deployment: this one waits, and nothing acts on its jobs"
        return error(Check.LEASE, where, message, "leave leaderElection.leaseName of the chart empty, so that each release has its own")
    return ok(Check.LEASE, where, f"{seen.holder} leads by the lease {lease}, since {seen.acquired}")


def arguments(deployment: Obj) -> list[str]:
    """Arguments of all containers of a Deployment."""
    containers = deployment["spec"]["template"]["spec"].get("containers") or ()
    return [str(argument) for container in containers for argument in container.get("args") or ()]


def _given(deployment: Obj, option: str) -> list[str]:
    """All values of an option among the operator's arguments."""
    return [value for name, _, value in (argument.partition("=") for argument in arguments(deployment)) if name == option]


def _named(deployments: Sequence[Obj]) -> str:
    return f"deployment {named([f'{deployment["metadata"]["namespace"]}/{deployment["metadata"]["name"]}' for deployment in deployments])}"
