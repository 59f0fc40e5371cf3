"""Where the units of a job are on a fleet that is all its own, as the operator places them: allotment and reconcile on virtual time.

See docs/decisions/0228-reclaims-in-the-simulator.md.
"""

from __future__ import annotations

import copy
import datetime
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from diloco.simulation.slices import Group, PlacedUnit

from diloco_operator.allotment import Allotment
from diloco_operator.api.names import ANNOTATION_RELATIVE_SPEED
from diloco_operator.api.phases import Phase
from diloco_operator.api.status import UnitState
from diloco_operator.fleet import Inventory, Shape, project_node
from diloco_operator.fleet.capacity import CapacityType, capacity_of
from diloco_operator.fleet.slice_kinds import shape_of
from diloco_operator.kube.client import Obj
from diloco_operator.reconcile import Job, ObservedState, OperatorConfig, parse_job, reconcile
from diloco_operator.reconcile.observe.unit_status import read_units
from diloco_operator.reconcile.units.states import phase_of

_NOW = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
"""Any moment: where units go does not depend on the time. What could be a matter of time, such as hosts that are avoided, is not here."""
_MOST_ROUNDS = 20
"""Of reconcile and allotment, until nothing changes any more: slices are granted in one, and taken in the next."""


class SimulatedOperator:
    """Implements `simulation.slices.Placer` for one job with some maximum of units. No unit leaves its slice for a better one."""

    def __init__(self, job: Obj, nodes: Sequence[Obj], most: int) -> None:
        """`most` takes the place of `spec.learners.max`."""
        self._config = OperatorConfig()
        self._inventory = Inventory(self._config.disruption_signals)
        self._inventory.advance(_NOW.timestamp())
        self._allotment = Allotment(self._inventory)
        self._views = {view.name: view for view in (project_node(_ready(node)) for node in nodes)}
        for view in self._views.values():
            self._inventory.update_node(view)
        self._speeds = {node["metadata"]["name"]: _speed(node) for node in nodes}
        self._manifest = _with_most(job, most)
        self._job: Job = parse_job(self._manifest)
        assert self._job.spec is not None, "the job was validated before"
        self._most = most
        self._shapes = {pool.name: shape_of(pool) for pool in self._job.spec.pools}
        self._nodes_of = dict(self._groups())
        self._out: set[str] = set()
        self._group_of = {node: group for group, nodes in self._nodes_of.items() for node in nodes}
        self._settle()

    # --- what it says -------------------------------------------------------------------------------------------------

    @property
    def groups(self) -> tuple[Group, ...]:
        """Of the hardware that the job could use."""
        return tuple(
            Group(name, all(capacity_of(self._views[node].labels) is CapacityType.SPOT for node in nodes))
            for name, nodes in self._nodes_of.items()
        )

    def units(self) -> dict[str, PlacedUnit | None]:
        """See `Placer.units`."""
        found: dict[str, PlacedUnit | None] = {}
        for name, record in read_units(self._job.status).items():
            nodes = self._nodes(record.pool, record.slice)
            if nodes:
                shape = self._shapes[record.pool]
                speed = min(self._speeds[node] for node in nodes)
                groups = tuple(dict.fromkeys(self._group_of[node] for node in nodes))
                found[name] = PlacedUnit(max(1, shape.hosts * shape.chips_per_host), speed, groups)
            elif phase_of(record) is Phase.MISSING:
                found[name] = None
        return found

    @property
    def placed(self) -> tuple[PlacedUnit, ...]:
        """Those that have slices."""
        return tuple(place for place in self.units().values() if place is not None)

    @property
    def spares(self) -> dict[str, int]:
        """Slices for further units, by shape: two pools of a job may have the same slices."""
        used = Counter(str(self._shapes[each.pool]) for each in read_units(self._job.status).values() if each.slice)
        return {str(shape): _most_units(self._inventory, shape) - used[str(shape)] for shape in self._shapes.values()}

    @property
    def message(self) -> str:
        """Why there are not more units; "": there are as many as the job may have."""
        why = next((each["message"] for each in self._job.status.get("conditions", ()) if each["type"] == "Placed"), "")
        return why if len(self.placed) < self._most else ""

    # --- what happens -------------------------------------------------------------------------------------------------

    def gone(self, group: str) -> None:
        """See `Placer.gone`: its nodes are gone, as after a reclaim. Units that were there look for other slices."""
        self._out.add(group)
        for node in self._nodes_of[group]:
            self._inventory.remove_node(node)
        self._settle()

    def back(self, group: str) -> None:
        """See `Placer.back`."""
        self._out.discard(group)
        for node in self._nodes_of[group]:
            self._inventory.update_node(self._views[node])
        self._settle()

    # --- the parts ----------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Reconcile and allot until nothing changes."""
        key, before = self._job.key, None
        for _ in range(_MOST_ROUNDS):
            units = [self._without_pods(unit) for unit in self._job.status.get("units", ())]
            self._job = parse_job({**self._manifest, "status": {**self._job.status, "units": units}}, self._job)
            plan = reconcile(ObservedState(job=self._job, fleet=self._allotment.view(key), config=self._config), _NOW)
            self._inventory.set_reservations(key, *plan.reservations)
            if plan.request is not None:
                self._allotment.update(plan.request)
            if plan.status is not None:
                self._job = parse_job({**self._manifest, "status": plan.status.status}, self._job)
            concerned, now = self._allotment.refresh(), self.units()
            if not concerned and now == before:
                return
            before = now

    def _without_pods(self, unit: Mapping[str, Any]) -> dict[str, Any]:
        """As of a unit that has its slice, if that is still there, and no pods: here pods neither start nor end."""
        kept = {key: unit[key] for key in ("name", "pool", "reason", "message", "since") if key in unit}
        slice_ = unit["slice"] if self._nodes(unit["pool"], unit["slice"]) else ""
        return {**kept, "slice": slice_, "state": UnitState.PENDING.value, "attempt": 1, "endedAttempt": 1}  # the job has started

    def _nodes(self, pool: str, slice_: str) -> list[str]:
        """Of a slice that is whole; empty: it is not."""
        found = self._inventory.resolve(self._shapes[pool], slice_) if slice_ else None
        nodes = [host.node for each in found or () for host in each.hosts]
        return [] if any(self._group_of.get(node) in self._out for node in nodes) else nodes

    def _groups(self) -> Iterator[tuple[str, Collection[str]]]:
        """Name -> nodes."""
        for shape in self._shapes.values():
            for slice_ in self._inventory.slices(shape.one):
                yield slice_.hosts[0].node, [host.node for host in slice_.hosts]


def _with_most(job: Obj, most: int) -> Obj:
    obj = copy.deepcopy(job)
    meta = {"namespace": "default", **obj["metadata"], "uid": "simulated", "generation": 1, "creationTimestamp": _NOW.isoformat()}
    learners = obj["spec"]["learners"]
    learners["max"] = most
    learners["min"] = min(learners.get("min", 1), most)
    return {**obj, "metadata": meta}


def _most_units(inventory: Inventory, shape: Shape) -> int:
    """Units of this shape for which the fleet has slices."""
    counts = inventory.counts(shape.one)
    return counts.total // shape.chips_per_host if counts.hosts else counts.total // shape.slots


def _ready(node: Obj) -> Obj:
    """A node of a file has no kubelet that could say so."""
    return {**node, "status": {**node.get("status", {}), "conditions": [{"type": "Ready", "status": "True"}]}}


def _speed(node: Obj) -> float:
    return float((node["metadata"].get("annotations") or {}).get(ANNOTATION_RELATIVE_SPEED, 1.0))
