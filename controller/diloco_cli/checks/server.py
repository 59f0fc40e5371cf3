"""Checks of the API server and the machines around it: versions, clocks, addresses, users, and who brings nodes. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from diloco.wording import plural
from diloco_operator.api import names
from diloco_operator.certificates.authority import BACKDATE
from diloco_operator.kube.client import Obj
from diloco_operator.kube.lease import LEASES
from diloco_operator.kube.timestamps import parse_timestamp
from diloco_operator.reconcile.grantors.registry import grantor_of

from diloco_cli.checks.model import Check, Facts, Finding, error, named, ok, read, warning
from diloco_cli.checks.operators import arguments

OLDEST_MINOR = 34
"""The oldest minor version of Kubernetes 1 that works, as in the chart's kubeVersion."""
_SLACK = 10.0
"""Seconds. Smaller differences of clocks cannot be seen, because a kubelet renews its lease every 10 s."""
_SILENT = 300.0
"""Seconds within which the kubelet of a Ready node renews its lease, however slow the API server is. If the lease is older, the node's
clock is behind."""
_CLUSTER = "cluster"
_SYNCHRONIZE = "synchronize its clock (chrony, systemd-timesyncd)"
_BY_ADDRESS = ("--health-address", "--metrics-address")
_GROUPS = {"kueue.x-k8s.io": "Kueue", "karpenter.sh": "Karpenter"}


def kubernetes(facts: Facts) -> Iterator[Finding]:
    """Find whether the API server is recent enough."""
    version = str(facts.kubernetes.get("gitVersion") or "unknown")
    minor = "".join(character for character in str(facts.kubernetes.get("minor") or "") if character.isdecimal())  # EKS says 31+
    if minor and int(minor) < OLDEST_MINOR and facts.kubernetes.get("major") == "1":
        yield error(Check.KUBERNETES, _CLUSTER, f"Kubernetes is {version}, and jobs need 1.{OLDEST_MINOR}", "upgrade the cluster")
    else:
        yield ok(Check.KUBERNETES, _CLUSTER, f"Kubernetes {version}")


# --- clocks -----------------------------------------------------------------------------------------------------------
def clocks(facts: Facts) -> Iterator[Finding]:
    """Compare the API server's clock with this machine's and with the nodes': a kubelet writes its time into its lease. More than an hour
    is an error, because certificates are valid from an hour before they are made."""
    findings: list[Finding] = []
    if abs(facts.ahead) > _SLACK:
        findings.append(_apart("this machine", -facts.ahead))
    leases = {lease["metadata"]["name"]: lease for lease in facts.of(LEASES)}
    seen = 0
    for node in facts.of(names.NODES):
        name = node["metadata"]["name"]
        renewed = str(((leases.get(name) or {}).get("spec") or {}).get("renewTime") or "")
        try:
            ahead = parse_timestamp(renewed) - facts.now
        except ValueError:
            continue  # a node without a kubelet, or of a provider that keeps no leases
        seen += 1
        if ahead > _SLACK or (ahead < -_SILENT and _is_ready(node)):
            findings.append(_apart(f"node {name}", ahead))
    nodes = f", and so do {plural(seen, 'node')}" if seen else "; no node has a lease that would tell"
    yield from findings or [ok(Check.CLOCKS, _CLUSTER, f"this machine and the API server agree within {_SLACK:.0f} s{nodes}")]


def _apart(where: str, ahead: float) -> Finding:
    message = f"its clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the API server's"
    if abs(ahead) > BACKDATE:
        return error(Check.CLOCKS, where, f"{message}: certificates of jobs are not valid there", _SYNCHRONIZE)
    return warning(Check.CLOCKS, where, message, _SYNCHRONIZE)


def _is_ready(node: Obj) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions)


# --- addresses --------------------------------------------------------------------------------------------------------
def address_family(facts: Facts) -> Iterator[Finding]:
    """Find the cluster's address families, by the Service `kubernetes`, and operators whose endpoints listen on another family."""
    services = [service for service in facts.of(names.SERVICES) if _is_api(service)]
    spec = services[0]["spec"] if services else {}
    families = [str(family) for family in spec.get("ipFamilies") or [_family(str(spec.get("clusterIP") or ""))]]
    wrong = [
        (deployment, argument)
        for deployment in facts.of(names.DEPLOYMENTS)
        for argument in arguments(deployment)
        if (listened := _listens(argument)) and listened not in families
    ]
    for deployment, argument in wrong:
        meta = deployment["metadata"]
        yield error(
            Check.ADDRESS_FAMILY,
            f"deployment {meta['namespace']}/{meta['name']}",
            f"{argument} is no address of this cluster ({', '.join(families)}): kubelets do not reach the operator's endpoints",
            "leave the address out (:8081 listens on every one): remove the argument from extraArgs of the chart",
        )
    if not wrong:
        yield ok(Check.ADDRESS_FAMILY, _CLUSTER, f"addresses are {', '.join(families)}")


def _is_api(service: Obj) -> bool:
    return (service["metadata"].get("namespace"), service["metadata"]["name"]) == ("default", "kubernetes")


def _listens(argument: str) -> str:
    """Family of the address on which an argument lets the operator listen. "" if the argument names no address."""
    option, _, value = argument.partition("=")
    return _family(value.rpartition(":")[0].strip("[]")) if option in _BY_ADDRESS else ""


def _family(address: str) -> str:
    try:
        return f"IPv{ipaddress.ip_address(address).version}"
    except ValueError:
        return ""


# --- users ------------------------------------------------------------------------------------------------------------
def users(facts: Facts) -> Iterator[Finding]:
    """Find whether both the cluster, as OpenShift does, and the operator assign users to pods."""
    openshift = "security.openshift.io" in facts.groups
    if openshift and read(facts.config).assign_users:
        yield error(
            Check.USERS,
            _CLUSTER,
            "OpenShift assigns users to pods, and refuses those that the operator assigns (SCC restricted-v2)",
            "set config.assignUsers: false in the chart's values",
        )
    elif openshift:
        yield ok(Check.USERS, _CLUSTER, "OpenShift assigns users to pods, and the operator leaves them out")
    else:
        yield ok(Check.USERS, _CLUSTER, "the cluster leaves the users of pods to the operator")


# --- who brings nodes -------------------------------------------------------------------------------------------------
def grantors(facts: Facts) -> Iterator[Finding]:
    """Find which programs bring nodes or quota, and whether the job asks for one that the cluster does not have."""
    programs = [name for group, name in _GROUPS.items() if group in facts.groups]
    missing: dict[str, dict[str, None]] = {}
    spec = facts.spec
    for pool in spec.pools if spec is not None else ():
        grantor = grantor_of(spec, pool) if spec is not None else None
        for watched in grantor.watches if grantor is not None else ():
            if watched.resource.group and watched.resource.group not in facts.groups:
                missing.setdefault(watched.resource.group, {})[pool.name] = None
    for group, pools in missing.items():
        program = _GROUPS.get(group, group)
        message = f"the cluster has no {program} ({group}), which pool {named(list(pools))} asks for nodes or quota"
        yield error(Check.GRANTORS, facts.job_name, message, f"install {program}, or change the job")
    if not missing:
        yield ok(Check.GRANTORS, _CLUSTER, f"the cluster has {', '.join(programs)}" if programs else "no Kueue or Karpenter")
