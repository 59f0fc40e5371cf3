"""What a pod requests of its node, counted as kube-scheduler counts it, and what is left of a node. Pure.

See docs/decisions/0130-what-occupies-a-node.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from diloco_operator.fleet.devices import Devices, claimed_devices, has_accelerators, is_extended_resource
from diloco_operator.kube.quantities import quantity

UNLISTED = 1 << 62
"""Room of a node for a resource that it does not list. Kubelets list cpu, memory and pods; simulated nodes need not."""
_POD_LEVEL = ("cpu", "memory")
"""Resources that a pod may request as a whole, beside `hugepages-*`."""


class Resources(NamedTuple):
    """What one pod requests, or the room of one node."""

    cpu: int = 0
    """Thousandths of a CPU."""
    memory: int = 0
    """Bytes."""
    pods: int = 0
    devices: Devices = ()

    @property
    def empty(self) -> bool:
        """Whether there is no amount except perhaps `pods`."""
        return not (self.cpu or self.memory or self.devices)

    def fits(self, room: Resources) -> bool:
        """Whether a node with this room has all of these resources."""
        if self.cpu > room.cpu or self.memory > room.memory or self.pods > room.pods:
            return False
        if not self.devices:
            return True
        available = dict(room.devices)
        return all(amount <= available.get(name, 0) for name, amount in self.devices)


# --- requests of a pod ------------------------------------------------------------------------------------------------
def pod_requests(spec: Mapping[str, Any]) -> dict[str, Fraction]:
    """Return every resource that a pod of this spec requests, with 1 for `pods`. Malformed parts of the spec request nothing: the API
    server rejects such a pod and explains why.

    Init containers run before the others, one at a time; those with restartPolicy Always (sidecars) go on running beside all that follows.
    This is `PodRequests` in https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/component-helpers/resource/helpers.go.
    """
    total: dict[str, Fraction] = {}
    for container in _objects(spec.get("containers")):
        _add(total, _requests(container))
    sidecars: dict[str, Fraction] = {}
    starting: dict[str, Fraction] = {}
    for container in _objects(spec.get("initContainers")):
        requested = _requests(container)
        if container.get("restartPolicy") == "Always":
            _add(total, requested)
            _add(sidecars, requested)
            requested = sidecars
        else:
            # Only the sidecars before it run beside it: those after it have not begun.
            _add(requested, sidecars)
        for name, amount in requested.items():
            starting[name] = max(starting.get(name, amount), amount)
    for name, amount in starting.items():
        total[name] = max(total.get(name, amount), amount)
    _override(total, spec.get("resources"))
    _add(total, _amounts(spec.get("overhead")))
    total["pods"] = Fraction(1)
    return total


def resources_of(spec: Mapping[str, Any]) -> Resources:
    """Return what a pod of this spec requests. Equal results are one object, because a cluster has many pods and few kinds of them."""
    requests = pod_requests(spec)
    devices = sorted((name, math.ceil(amount)) for name, amount in requests.items() if amount > 0 and is_extended_resource(name))
    return _shared(thousandths(requests.get("cpu", Fraction(0))), math.ceil(requests.get("memory", 0)), tuple(devices))


def learner_resources(spec: Mapping[str, Any]) -> Resources:
    """Return `resources_of` the pod of a unit, with the accelerators that it claims instead of requesting them."""
    requests, claimed = resources_of(spec), claimed_devices(spec)
    return (
        _shared(requests.cpu, requests.memory, tuple(sorted({**dict(requests.devices), **dict(claimed)}.items()))) if claimed else requests
    )


def takes_accelerators(spec: Mapping[str, Any]) -> bool:
    """Whether the pod of a unit with this spec requests or claims accelerators of the catalogue."""
    return has_accelerators(learner_resources(spec).devices)


@functools.lru_cache(maxsize=4096)
def _shared(cpu: int, memory: int, devices: Devices) -> Resources:
    return Resources(cpu, memory, 1, devices)


def thousandths(cpu: Fraction) -> int:
    """Return thousandths of a CPU, rounded up as by kube-scheduler."""
    return math.ceil(cpu * 1000)


def _override(total: dict[str, Fraction], resources: object) -> None:
    """Replace the requests of the containers by the requests of the pod as a whole. A limit counts as a request if nothing is requested."""
    if not isinstance(resources, dict):
        return
    for kind in ("requests", "limits"):
        for name, amount in _amounts(resources.get(kind)).items():
            if (name in _POD_LEVEL or name.startswith("hugepages-")) and (kind == "requests" or not total.get(name)):
                total[name] = amount


def _requests(container: Mapping[str, Any]) -> dict[str, Fraction]:
    """Return what the container requests. A limit without a request counts as a request."""
    resources = container.get("resources")
    return {**_amounts(resources.get("limits")), **_amounts(resources.get("requests"))} if isinstance(resources, dict) else {}


def _amounts(named: object) -> dict[str, Fraction]:
    amounts: dict[str, Fraction] = {}
    for name, text in named.items() if isinstance(named, dict) else ():
        try:
            amounts[name] = quantity(text)
        except ValueError:
            continue
    return amounts


def _add(total: dict[str, Fraction], amounts: Mapping[str, Fraction]) -> None:
    for name, amount in amounts.items():
        total[name] = total[name] + amount if name in total else amount


def _objects(value: object) -> Iterator[Mapping[str, Any]]:
    return (each for each in value if isinstance(each, dict)) if isinstance(value, list) else iter(())


# --- room of a node ---------------------------------------------------------------------------------------------------
def allocatable(status: Mapping[str, Any], devices: Devices) -> Resources:
    """Return what all pods of a node together may request, from the node's status and the devices that it offers."""
    listed = _amounts(status.get("allocatable") or status.get("capacity"))
    cpu, memory, pods = (listed.get(name) for name in ("cpu", "memory", "pods"))
    # Rounded down, as requests are rounded up: what fits here must fit for kube-scheduler, or the pod never starts.
    return Resources(
        UNLISTED if cpu is None else math.floor(cpu * 1000),
        UNLISTED if memory is None else math.floor(memory),
        UNLISTED if pods is None else math.floor(pods),
        devices,
    )


def left(has: Resources, used: Iterable[Resources]) -> Resources:
    """Return the room that is left. Amounts may be negative, because pods may still run after their node has lost the room for them."""
    cpu, memory, pods, devices = has.cpu, has.memory, has.pods, dict(has.devices)
    for each in used:
        cpu -= each.cpu
        memory -= each.memory
        pods -= each.pods
        for name, amount in each.devices:
            devices[name] = devices.get(name, 0) - amount
    return Resources(cpu, memory, pods, tuple(sorted(devices.items())))


def most(first: Resources, other: Resources) -> Resources:
    """Return the larger amount of each resource."""
    devices = dict(first.devices)
    for name, amount in other.devices:
        devices[name] = max(amount, devices.get(name, 0))
    larger = (max(first.cpu, other.cpu), max(first.memory, other.memory), max(first.pods, other.pods))
    return Resources(*larger, tuple(sorted(devices.items())))


def least(rooms: Iterable[Resources]) -> Resources:
    """Return the room that each of these nodes has."""
    first, *others = rooms
    if not others:
        return first
    devices = dict(first.devices)
    for room in others:
        in_room = dict(room.devices)
        devices = {name: min(amount, in_room[name]) for name, amount in devices.items() if name in in_room}
    rooms = (first, *others)
    return Resources(
        min(room.cpu for room in rooms), min(room.memory for room in rooms), min(room.pods for room in rooms), tuple(devices.items())
    )


# --- in words ---------------------------------------------------------------------------------------------------------
class Lack(NamedTuple):
    """A resource that a node has too little of, with amounts in words."""

    resource: str
    wanted: str
    has: str


def lack(needs: Resources, room: Resources) -> Lack | None:
    """Return the first resource that `room` has too little of. None if it has enough of all."""
    for resource in ("cpu", "memory", *(name for name, _ in needs.devices), "pods"):
        wanted, has = amount_of(needs, resource), amount_of(room, resource)
        if wanted > has:
            return Lack(resource, _in_words(resource, wanted), _in_words(resource, max(0, has)))
    return None


def amount_of(resources: Resources, resource: str) -> int:
    """Return the amount of a resource, in the unit of its field of `Resources`. 0 for a device that is not listed."""
    match resource:
        case "cpu":
            return resources.cpu
        case "memory":
            return resources.memory
        case "pods":
            return resources.pods
    return dict(resources.devices).get(resource, 0)


def _in_words(resource: str, amount: int) -> str:
    match resource:
        case "cpu":
            return f"{amount / 1000:g} CPU"
        case "memory":
            return f"{_bytes(amount)} of memory"
        case "pods":
            return f"room for {amount} pod{'' if amount == 1 else 's'}"
    return f"{amount} {resource}"


def _bytes(amount: int) -> str:
    for unit, size in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if amount >= size:
            return f"{amount / size:.4g}{unit}"
    return str(amount)
