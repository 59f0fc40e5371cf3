"""What occupies nodes: pods that are bound to them, and reservations of jobs and units. It knows nothing of slices. Pure.

See docs/decisions/0130-what-occupies-a-node.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from diloco_operator.fleet.resources import Resources
from diloco_operator.fleet.use import PodUse, UnitKey

NONE: Mapping[Any, Any] = MappingProxyType({})

type HostParts = Mapping[tuple[str, str], Resources]
"""(node, unit) -> what the unit takes of the node."""


class Reservations(NamedTuple):
    """What one job has reserved."""

    nodes: frozenset[str] = frozenset()
    shared: HostParts = NONE
    """What its units take of the nodes that they share."""


class Change(NamedTuple):
    """What has changed because a job has other reservations."""

    nodes: Mapping[str, int]
    """Node whose reservation by this job changed -> 1 if the node was not reserved by any job before, -1 if it no longer is, else 0."""
    released: bool
    """Whether the job released something that other jobs may need."""


class Occupancy:
    """Pods and reservations by node. They may be on nodes that the fleet does not have."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[PodUse, ...]] = {}
        """Node -> all pods on it, even if a reservation covers them."""
        self._jobs: dict[str, set[str]] = {}
        """Node -> keys of the jobs that have reserved it. Several if they share it, or if something else than the operator made a pod."""
        self._units: dict[str, dict[UnitKey, Resources]] = {}
        """Node -> (job, unit) -> the part that the unit takes."""
        self._reservations: dict[str, frozenset[str]] = {}
        """Job -> the nodes that it has reserved."""
        self._shared: dict[str, HostParts] = {}
        """Job -> the parts of nodes that its units take."""

    def copy(self) -> Occupancy:
        copy = Occupancy()
        copy._pods = dict(self._pods)
        copy._jobs = {node: set(jobs) for node, jobs in self._jobs.items()}
        copy._units = {node: dict(units) for node, units in self._units.items()}
        copy._reservations = dict(self._reservations)
        copy._shared = dict(self._shared)
        return copy

    # --- pods --------------------------------------------------------------------------------------------------------
    def replace(self, old: PodUse | None, new: PodUse | None) -> None:
        """Replace a pod. `old` is None if the pod came, `new` is None if it went."""
        if new is not None:
            self._pods[new.node] = (*self._pods.get(new.node, ()), new)
        if old is not None:
            _put(self._pods, old.node, tuple(use for use in self._pods.get(old.node, ()) if use is not old))

    def uses(self, node: str) -> tuple[PodUse, ...]:
        """Return the pods on this node, without the pods of units that have reserved it."""
        pods = self._pods.get(node, ())
        return tuple(use for use in pods if not self.covers(use)) if self.has_units_pods(node) else pods

    def has_units_pods(self, node: str) -> bool:
        """Whether a pod of a unit is on this node, so that reservations change `uses`."""
        return any(use.unit is not None for use in self._pods.get(node, ()))

    def covers(self, use: PodUse) -> bool:
        """Whether the pod's job has reserved all of the node, or a part of it for the pod's unit."""
        if use.unit is None or use.unit[0] not in self._jobs.get(use.node, ()):
            return False
        units = self._units.get(use.node, NONE)
        return not use.unit[1] or use.unit in units or all(job != use.unit[0] for job, _ in units)

    # --- reservations ------------------------------------------------------------------------------------------------
    def reserve(self, job: str, nodes: Iterable[str], shared: HostParts = NONE) -> Change:
        """Reserve exactly these nodes for the job, and release the others that it had. `shared`: what its units take of nodes that they
        share."""
        new = frozenset(nodes)
        old = self._reservations.get(job, frozenset())
        before, now = self._shared.get(job, NONE), dict(shared)
        if new == old and before == now:
            return _NO_CHANGE
        _put(self._reservations, job, new)
        _put(self._shared, job, now)
        parts: dict[str, dict[UnitKey, Resources]] = {}
        for (node, unit), part in now.items():
            if before.get((node, unit)) != part:
                parts.setdefault(node, {})[job, unit] = part
        gone: dict[str, list[str]] = {}
        for node, unit in before.keys() - now.keys():
            gone.setdefault(node, []).append(unit)
        changed: dict[str, int] = {}
        for node in (old ^ new) | parts.keys() | gone.keys():
            was_reserved = node in self._jobs
            jobs, units = self._jobs.setdefault(node, set()), self._units.setdefault(node, {})
            if node in new:
                jobs.add(job)
            else:
                jobs.discard(job)
            units.update(parts.get(node, NONE))
            for unit in gone.get(node, ()):
                del units[job, unit]
            _put(self._jobs, node, jobs)
            _put(self._units, node, units)
            # Several jobs may have reserved the node: only the first and the last of them change whether it is reserved.
            changed[node] = int(bool(jobs)) - int(was_reserved)
        return Change(changed, bool(old - new) or any(now.get(key) != part for key, part in before.items()))

    def reservations(self, job: str) -> frozenset[str]:
        return self._reservations.get(job, frozenset())

    def has_reserved(self, job: str, node: str, unit: str) -> bool:
        """Whether this unit of the job has reserved a part of the node."""
        return (node, unit) in self._shared.get(job, NONE)

    def jobs(self, node: str) -> Collection[str]:
        """Return the keys of the jobs that have reserved this node. The collection is only valid until the next change."""
        return self._jobs.get(node, ())

    def parts(self, node: str) -> Mapping[UnitKey, Resources]:
        """Return what units take of this node, without jobs that have reserved all of it."""
        return self._units.get(node, NONE)

    def is_taken(self, node: str) -> bool:
        """Whether a job has reserved all of the node."""
        jobs = self._jobs.get(node)
        return jobs is not None and not jobs <= {job for job, _ in self._units.get(node, ())}


_NO_CHANGE = Change(NONE, released=False)


def _put[K, V](into: dict[K, V], key: K, value: V) -> None:
    """Set the value of the key, or remove the key if the value is empty."""
    if value:
        into[key] = value
    else:
        into.pop(key, None)
