"""What occupies nodes: pods that are bound to them, and which job and unit has reserved them. It knows nothing of slices. Pure.

See docs/decisions/0130-what-occupies-a-node.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from diloco_operator.fleet.resources import Resources
from diloco_operator.fleet.use import PodUse, UnitKey

NONE: Mapping[Any, Any] = MappingProxyType({})

type Shares = Mapping[tuple[str, str], Resources]
"""Node and unit -> what the unit takes of the node."""


class Reservations(NamedTuple):
    """What one job has reserved."""

    nodes: frozenset[str] = frozenset()
    shares: Shares = NONE
    """Shares of the nodes of which its units take only parts."""


class Change(NamedTuple):
    """What other reservations of a job have changed."""

    nodes: Mapping[str, int]
    """Each node that the job has, had, or has in another part -> 1: it is reserved from now on, by any job; -1: no longer; 0: as before."""
    released: bool
    """Whether the job released some of what it had: other jobs may need that."""


class Occupancy:
    """Pods and reservations by node; a node of either may be one that the fleet does not have."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[PodUse, ...]] = {}
        """Node -> the pods on it, those that a reservation covers among them."""
        self._jobs: dict[str, set[str]] = {}
        """Node -> keys of the jobs that have reserved it. Several only when a pod was made by other means than the operator."""
        self._units: dict[str, dict[UnitKey, Resources]] = {}
        """Node -> job and unit -> the part that it takes."""
        self._reservations: dict[str, frozenset[str]] = {}
        self._shares: dict[str, Shares] = {}
        """Job -> the parts of nodes that its units take."""

    def copy(self) -> Occupancy:
        found = Occupancy()
        found._pods = dict(self._pods)
        found._jobs = {node: set(jobs) for node, jobs in self._jobs.items()}
        found._units = {node: dict(units) for node, units in self._units.items()}
        found._reservations = dict(self._reservations)
        found._shares = dict(self._shares)
        return found

    # --- pods --------------------------------------------------------------------------------------------------------
    def replace(self, old: PodUse | None, new: PodUse | None) -> None:
        """Note that `new` is on its node now instead of `old`, which was noted before; None: no pod is."""
        if new is not None:
            self._pods[new.node] = (*self._pods.get(new.node, ()), new)
        if old is not None:
            _put(self._pods, old.node, tuple(use for use in self._pods.get(old.node, ()) if use is not old))

    def uses(self, node: str) -> tuple[PodUse, ...]:
        """Return the pods on this node that count: all but those of units that have reserved it."""
        found = self._pods.get(node, ())
        return tuple(use for use in found if not self.covers(use)) if self.has_units_pods(node) else found

    def has_units_pods(self, node: str) -> bool:
        """Return whether a pod of a unit is on this node: a change of reservations changes whether it counts."""
        return any(use.unit is not None for use in self._pods.get(node, ()))

    def covers(self, use: PodUse) -> bool:
        """Return whether its job has reserved the node for its unit, or all of the node."""
        if use.unit is None or use.unit[0] not in self._jobs.get(use.node, ()):
            return False
        units = self._units.get(use.node, NONE)
        return not use.unit[1] or use.unit in units or all(job != use.unit[0] for job, _ in units)

    # --- reservations ------------------------------------------------------------------------------------------------
    def reserve(self, job: str, nodes: Iterable[str], shares: Shares = NONE) -> Change:
        """Reserve exactly these nodes for the job (any key of its own) from now on. `shares`: of these, the nodes of which its units take
        only parts."""
        new = frozenset(nodes)
        old = self._reservations.get(job, frozenset())
        before, now = self._shares.get(job, NONE), dict(shares)
        if new == old and before == now:
            return _NO_CHANGE
        _put(self._reservations, job, new)
        _put(self._shares, job, now)
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
            (jobs.add if node in new else jobs.discard)(job)
            units.update(parts.get(node, NONE))
            for unit in gone.get(node, ()):
                del units[job, unit]
            _put(self._jobs, node, jobs)
            _put(self._units, node, units)
            # Several jobs may have reserved one node: only the first and the last of them change whether it is reserved.
            changed[node] = bool(jobs) - was_reserved
        return Change(changed, bool(old - new) or any(now.get(key) != part for key, part in before.items()))

    def reservations(self, job: str) -> frozenset[str]:
        """Return nodes that this job has reserved."""
        return self._reservations.get(job, frozenset())

    def has_reserved(self, job: str, node: str, unit: str) -> bool:
        """Return whether this unit of the job has reserved a part of the node."""
        return (node, unit) in self._shares.get(job, NONE)

    def jobs(self, node: str) -> Collection[str]:
        """Return keys of the jobs that have reserved this node. To be read before the next change."""
        return self._jobs.get(node, ())

    def parts(self, node: str) -> Mapping[UnitKey, Resources]:
        """Return what units take of this node; without the jobs that have reserved all of it."""
        return self._units.get(node, NONE)

    def is_taken(self, node: str) -> bool:
        """Return whether a job has reserved all of it."""
        jobs = self._jobs.get(node)
        return jobs is not None and not jobs <= {job for job, _ in self._units.get(node, ())}


_NO_CHANGE = Change(NONE, released=False)


def _put[K, V](into: dict[K, V], key: K, value: V) -> None:
    """Put the value there, or take it out if it is empty."""
    if value:
        into[key] = value
    else:
        into.pop(key, None)
