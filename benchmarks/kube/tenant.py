"""A user who may only create jobs in one namespace, and whom the API server serves one request at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path

from diloco_operator.api import names
from diloco_operator.kube.client import Resource

from benchmarks.kube.rig import Rig

_ROLES = Resource("rbac.authorization.k8s.io", "v1", "Role", "roles")
_ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
_LEVELS = Resource("flowcontrol.apiserver.k8s.io", "v1", "PriorityLevelConfiguration", "prioritylevelconfigurations", namespaced=False)
_FLOWS = Resource("flowcontrol.apiserver.k8s.io", "v1", "FlowSchema", "flowschemas", namespaced=False)
_BEFORE_OTHERS = 500
"""Precedence of the FlowSchema. The built-in schemas for ServiceAccounts have 9000."""


async def tenant(bench: Rig, namespace: str) -> Path:
    """Give the namespace's default ServiceAccount these rights, one share of the API server's seats and no borrowed ones. Return its
    kubeconfig."""
    name = f"tenant-{namespace}"
    account = {"name": "default", "namespace": namespace}
    create = bench.client.create
    rules = [{"apiGroups": [names.DILOCO_JOBS.group], "resources": [names.DILOCO_JOBS.plural], "verbs": ["create"]}]
    await create(_ROLES, {"metadata": {"name": name, "namespace": namespace}, "rules": rules})
    binding = {
        "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": _ROLES.group, "kind": _ROLES.kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", **account}],
    }
    await create(_ROLE_BINDINGS, binding)
    queuing = {"queues": 1, "handSize": 1, "queueLengthLimit": 1000}
    limited = {
        "nominalConcurrencyShares": 1,
        "lendablePercent": 0,
        "borrowingLimitPercent": 0,
        "limitResponse": {"type": "Queue", "queuing": queuing},
    }
    await create(_LEVELS, {"metadata": {"name": name}, "spec": {"type": "Limited", "limited": limited}})
    requests = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}]
    rule = {"subjects": [{"kind": "ServiceAccount", "serviceAccount": account}], "resourceRules": requests}
    schema = {"priorityLevelConfiguration": {"name": name}, "matchingPrecedence": _BEFORE_OTHERS, "rules": [rule]}
    await create(_FLOWS, {"metadata": {"name": name}, "spec": schema})
    token = await asyncio.to_thread(bench.plane.token, namespace, account["name"])
    return bench.plane.kubeconfig_for(token, name)
