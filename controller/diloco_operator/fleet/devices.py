"""Extended resources: the devices that a node offers and that a pod requests. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

type Devices = tuple[tuple[str, int], ...]
"""Extended resources with their amounts, sorted by name."""


def is_extended_resource(name: str) -> bool:
    """Whether Kubernetes counts this resource as extended: a name with a domain outside kubernetes.io. So cpu, memory, `hugepages-*` and
    `attachable-volumes-*` are none. As `IsExtendedResourceName` in
    https://github.com/kubernetes/kubernetes/blob/master/pkg/apis/core/v1/helper/helpers.go."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def offered_devices(capacity: Mapping[str, object], allocatable: Mapping[str, object]) -> Devices:
    """Devices of a node, from its status. One that the node has, but cannot allocate now, counts 0."""
    names = {name for name in (*capacity, *allocatable) if is_extended_resource(name)}
    amounts = allocatable or capacity
    return tuple((name, _count(amounts.get(name))) for name in sorted(names))


def requested_devices(pod: Mapping[str, Any]) -> Devices:
    """Devices that a pod with this spec requests, over all its containers. Parts of a malformed spec request nothing."""
    totals: dict[str, int] = {}
    for container in _containers(pod, "containers"):
        for name, amount in _requests(container):
            totals[name] = totals.get(name, 0) + amount
    for container in _containers(pod, "initContainers"):
        for name, amount in _requests(container):
            totals[name] = max(totals.get(name, 0), amount)
    return tuple(sorted(totals.items()))


def _containers(pod: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    found = pod.get(field)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _requests(container: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """A limit without a request is a request."""
    resources = container.get("resources")
    if not isinstance(resources, dict):
        return
    named: dict[str, object] = {}
    for kind in ("limits", "requests"):
        amounts = resources.get(kind)
        named |= amounts if isinstance(amounts, dict) else {}
    for name, amount in named.items():
        if is_extended_resource(name) and str(amount) != "0":
            yield name, _count(amount)


def _count(quantity: object) -> int:
    """Devices are whole numbers; anything else (missing, malformed) counts as none."""
    try:
        return int(str(quantity)) if quantity is not None else 0
    except ValueError:
        return 0
