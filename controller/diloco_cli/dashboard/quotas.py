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
"""Characters of a quantity."""
_REQUESTS = "requests."
_ACCELERATORS = {each.resource for each in CATALOGUE.values() if each.resource}


class Allowance(NamedTuple):
    """What one quota says of one resource."""

    quota: str
    """`ResourceQuota team/gpus`, `ClusterQueue research`."""
    flavor: str
    """The flavor of Kueue; "": the quota has none."""
    resource: str
    used: str
    """As a Kubernetes quantity."""
    allowed: str
    waiting: int | None = None
    """Workloads that wait in the queue; None: nothing queues for it."""


def in_order(found: Iterable[Allowance]) -> list[Allowance]:
    """Return accelerators before all else, then by name."""
    return sorted(found, key=lambda each: (each.resource.removeprefix(_REQUESTS) not in _ACCELERATORS, each[:3]))


def of_quota(obj: Obj) -> tuple[Allowance, ...]:
    """Return what a ResourceQuota says. Raises MalformedField."""
    meta = fields(obj, "metadata")
    name = f"ResourceQuota {string(meta, 'namespace')}/{string(meta, 'name')}"
    hard, used = fields(fields(obj, "spec"), "hard", "spec"), fields(fields(obj, "status"), "used", "status")
    return tuple(Allowance(name, "", resource, _amount(used, resource), _amount(hard, resource)) for resource in hard)


def of_queue(obj: Obj) -> tuple[Allowance, ...]:
    """Return what a ClusterQueue of Kueue says. Raises MalformedField."""
    status, name = fields(obj, "status"), f"ClusterQueue {string(fields(obj, 'metadata'), 'name')}"
    used = {
        (string(flavor, "name"), string(resource, "name")): _amount(resource, "total")
        for flavor in objects(status, "flavorsUsage", "status")
        for resource in objects(flavor, "resources")
    }
    waiting = whole_number(status, "pendingWorkloads", "status")
    return tuple(
        Allowance(name, *key, used.get(key, "0"), _amount(resource, "nominalQuota"), waiting)
        for group in objects(fields(obj, "spec"), "resourceGroups", "spec")
        for flavor in objects(group, "flavors")
        for resource in objects(flavor, "resources")
        if (key := (string(flavor, "name"), string(resource, "name")))
    )


def _amount(holder: Fields, resource: str) -> str:
    """Return a quantity, which YAML may have made a number."""
    return clip(str(holder.get(resource) or 0), _AMOUNT)
