"""How much hardware namespaces and Kueue's queues allow, and how much of that is used. Pure.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from diloco_operator.accelerators import CATALOGUE
from diloco_operator.kube.client import Obj
from diloco_operator.kube.fields import Fields, clip, fields, objects, string, whole_number

_AMOUNT = 40
"""Most characters of a quantity that are shown."""
_REQUESTS = "requests."
_ACCELERATORS = {each.resource for each in CATALOGUE.values() if each.resource}


class Allowance(NamedTuple):
    """How much of one resource a quota allows, and how much is used."""

    quota: str
    """`ResourceQuota team/gpus`, `ClusterQueue research`."""
    flavor: str
    """Kueue's flavor, or "" for a ResourceQuota."""
    resource: str
    used: str
    """`used` and `allowed` are Kubernetes quantities."""
    allowed: str
    waiting: int | None = None
    """Workloads that wait in the queue, or None for a ResourceQuota, which has no queue."""


def in_order(allowances: Iterable[Allowance]) -> list[Allowance]:
    """Sort accelerators first, then by name."""
    return sorted(allowances, key=lambda allowance: (allowance.resource.removeprefix(_REQUESTS) not in _ACCELERATORS, allowance[:3]))


def of_quota(obj: Obj) -> tuple[Allowance, ...]:
    """One entry for each resource of a ResourceQuota. Raises MalformedField."""
    meta = fields(obj, "metadata")
    name = f"ResourceQuota {string(meta, 'namespace')}/{string(meta, 'name')}"
    hard, used = fields(fields(obj, "spec"), "hard", "spec"), fields(fields(obj, "status"), "used", "status")
    return tuple(Allowance(name, "", resource, _amount(used, resource), _amount(hard, resource)) for resource in hard)


def of_queue(obj: Obj) -> tuple[Allowance, ...]:
    """One entry for each flavor and resource of a ClusterQueue. Raises MalformedField."""
    status, name = fields(obj, "status"), f"ClusterQueue {string(fields(obj, 'metadata'), 'name')}"
    used = {
        (string(flavor, "name"), string(resource, "name")): _amount(resource, "total")
        for flavor in objects(status, "flavorsUsage", "status")
        for resource in objects(flavor, "resources")
    }
    waiting = whole_number(status, "pendingWorkloads", "status")
    allowances = []
    for group in objects(fields(obj, "spec"), "resourceGroups", "spec"):
        for flavor in objects(group, "flavors"):
            for resource in objects(flavor, "resources"):
                key = string(flavor, "name"), string(resource, "name")
                allowances.append(Allowance(name, *key, used.get(key, "0"), _amount(resource, "nominalQuota"), waiting))
    return tuple(allowances)


def _amount(holder: Fields, resource: str) -> str:
    """A quantity as text. YAML may have made it a number."""
    return clip(str(holder.get(resource) or 0), _AMOUNT)
