"""Allotment and reconcile of the operator on virtual time. They place the units of one job on a fleet that no other job uses.

See docs/decisions/0209-simulator.md.
"""

from __future__ import annotations

import copy
import datetime
import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from diloco.simulation.slices import Group, PlacedUnit
from diloco.simulation.unit import TOKENS
from diloco_operator.allotment import Allotment
from diloco_operator.api import names
from diloco_operator.api.phases import Phase
from diloco_operator.api.status import UnitState
from diloco_operator.fleet import Inventory, Shape, project_node
from diloco_operator.fleet.capacity import CapacityType, capacity_of
from diloco_operator.fleet.slice_kinds import shape_of
from diloco_operator.fleet.slices import named_hosts
from diloco_operator.kube.client import Obj
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile import Job, ObservedState, OperatorConfig, PodView, parse_job, reconcile
from diloco_operator.reconcile.observe.throughput import AVERAGED, COUNTS_AFTER
from diloco_operator.reconcile.observe.unit_status import read_units
from diloco_operator.reconcile.units.states import phase_of

from diloco_cli.diloco.simulations.attempts import Attempt, pods_of, ready, speed

_BEGIN = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC).timestamp()
"""When virtual time begins, in seconds since the epoch. Any moment would do."""
_MOST_ROUNDS = 20
"""Most rounds of reconcile and allotment until nothing changes. A slice is granted in one round and taken in the next."""


class SimulatedOperator:
    """The `simulation.slices.Placer` of one job."""

    def __init__(self, job: Obj, nodes: Sequence[Obj], most: int) -> None:
        """`most` replaces `spec.learners.max`."""
        self._config = OperatorConfig()
        self._now = 0.0
        self._inventory = Inventory(self._config.disruption_signals)
        self._inventory.advance(_BEGIN)
        self._allotment = Allotment(self._inventory)
        self._views = {view.name: view for view in (project_node(ready(node)) for node in nodes)}
        for view in self._views.values():
            self._inventory.update_node(view)
        self._speeds = {node["metadata"]["name"]: speed(node) for node in nodes}
        self._manifest = _with_most(job, most)
        self._job: Job = parse_job(self._manifest)
        assert self._job.spec is not None, "the job was validated before"
        self._most = most
        self._pools = {pool.name: pool for pool in self._job.spec.pools}
        self._shapes = {pool.name: shape_of(pool) for pool in self._job.spec.pools}
        self._nodes_of = dict(self._groups())
        self._out: set[str] = set()
        self._group_of = {node: group for group, nodes in self._nodes_of.items() for node in nodes}
        self._attempts: dict[str, Attempt] = {}
        """Running attempts by unit."""
        self._last: dict[str, int] = {}
        """Number of each unit's last attempt."""
        self._ended_at: dict[str, float] = {}
        """When units that had trained lost their slices. Units that train again are removed."""
        self._recover_seconds: dict[str, float] = {}
        self._measured = dict.fromkeys(self._pools, 0.0)
        """Seconds in which a unit of each pool has trained."""
        self._tokens_per_second: dict[str, float] = {}
        self._settle()

    # --- what it says -------------------------------------------------------------------------------------------------

    @property
    def groups(self) -> tuple[Group, ...]:
        """Nodes that fail together, of all hardware that the job could use."""
        return tuple(
            Group(name, all(capacity_of(self._views[node].labels) is CapacityType.SPOT for node in nodes))
            for name, nodes in self._nodes_of.items()
        )

    def groups_named(self, pattern: str) -> list[str]:
        """Groups with a node whose name matches a pattern such as `h100-*`."""
        return [group for group, nodes in self._nodes_of.items() if any(fnmatchcase(node, pattern) for node in nodes)]

    @property
    def places(self) -> list[str]:
        """Zones and regions of the hardware that the job could use, sorted."""
        return sorted({place for node in self._group_of for place in self._places(node)})

    def units(self) -> dict[str, PlacedUnit | None]:
        """See `Placer.units`."""
        placed: dict[str, PlacedUnit | None] = {}
        for name, record in read_units(self._job.status).items():
            nodes = self._nodes(record.pool, record.slice)
            if nodes:
                placed[name] = self._placed(record.pool, nodes)
            elif phase_of(record) is Phase.MISSING:
                placed[name] = None
        return placed

    def _placed(self, pool: str, nodes: Collection[str]) -> PlacedUnit:
        shape = self._shapes[pool]
        return PlacedUnit(
            # Failures are counted by accelerator, so a CPU host counts as one: else it would never fail.
            accelerators=max(1, shape.hosts * shape.chips_per_host),
            speed=self._speed(nodes),
            groups=tuple(dict.fromkeys(self._group_of[node] for node in nodes)),
            processes=shape.hosts * (self._pools[pool].processes_per_host or 1),
            places=tuple(self._places(node) for node in nodes),
        )

    def _places(self, node: str) -> tuple[str, ...]:
        labels = self._views[node].labels
        return tuple(labels[label] for label in (names.NODE_ZONE, names.NODE_REGION) if labels.get(label))

    def _speed(self, nodes: Collection[str]) -> float:
        return min(self._speeds[node] for node in nodes)

    @property
    def leaving(self) -> tuple[str, ...]:
        """See `Placer.leaving`."""
        return tuple(name for name, attempt in self._attempts.items() if attempt.leaves)

    @property
    def placed(self) -> tuple[PlacedUnit, ...]:
        """The units that have slices."""
        return tuple(place for place in self.units().values() if place is not None)

    @property
    def spares(self) -> dict[str, int]:
        """How many more units would fit, by shape, because two pools may share slices."""
        used = Counter(str(self._shapes[unit.pool]) for unit in read_units(self._job.status).values() if unit.slice)
        return {str(shape): _most_units(self._inventory, shape) - used[str(shape)] for shape in self._shapes.values()}

    @property
    def message(self) -> str:
        """Why there are not more units, or "" if the job may not have more."""
        why = next((condition["message"] for condition in self._job.status.get("conditions", ()) if condition["type"] == "Placed"), "")
        return why if len(self.placed) < self._most else ""

    def due(self) -> float:
        """See `Placer.due`: when a throughput has been measured long enough to decide, or a unit may leave its slice."""
        moments = [attempt.since + self._config.minimum_hold for attempt in self._attempts.values()]
        for pool in self._training():
            moments += [self._now + after - self._measured[pool] for after in (COUNTS_AFTER, AVERAGED)]
        return min((moment for moment in moments if moment > self._now), default=math.inf)

    # --- what happens -------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """See `Placer.advance`."""
        # Asked before time moves, because afterwards `due` names a later moment.
        is_due = now >= self.due()
        for pool, speeds in self._training().items():
            self._measured[pool] += now - self._now
            self._tokens_per_second[pool] = TOKENS * statistics.median(speeds)
        self._now = now
        self._inventory.advance(_BEGIN + now)
        if is_due:
            self._settle()

    def trains(self, unit: str) -> None:
        """See `Placer.trains`."""
        self._attempts[unit].trains = True
        if (ended := self._ended_at.pop(unit, None)) is not None:
            self._recover_seconds[unit] = self._now - ended
        self._settle()

    def left(self, unit: str) -> None:
        """See `Placer.left`."""
        if (attempt := self._attempts.get(unit)) is not None and attempt.leaves:
            del self._attempts[unit]
            self._settle()

    def gone(self, group: str) -> None:
        """See `Placer.gone`. The nodes disappear, as after a reclaim, and their units look for other slices."""
        self._out.add(group)
        for node in self._nodes_of[group]:
            self._inventory.remove_node(node)
        for unit, attempt in [*self._attempts.items()]:
            if any(self._group_of[node] == group for node in attempt.nodes):
                del self._attempts[unit]
                if attempt.trains:
                    self._ended_at[unit] = self._now
        self._settle()

    def back(self, group: str) -> None:
        """See `Placer.back`."""
        self._out.discard(group)
        for node in self._nodes_of[group]:
            self._inventory.update_node(self._views[node])
        self._settle()

    # --- the parts ----------------------------------------------------------------------------------------------------

    def _training(self) -> dict[str, list[float]]:
        """Speeds of the units that train, by pool."""
        speeds: dict[str, list[float]] = {}
        for name, record in read_units(self._job.status).items():
            attempt = self._attempts.get(name)
            if attempt is not None and attempt.trains:
                speeds.setdefault(record.pool, []).append(self._speed(attempt.nodes))
        return speeds

    def _settle(self) -> None:
        """Reconcile and allot until nothing changes."""
        key, before = self._job.key, None
        now = datetime.datetime.fromtimestamp(_BEGIN + self._now, datetime.UTC)
        for _ in range(_MOST_ROUNDS):
            self._job = self._with_status(self._seen(self._job.status))
            observed = ObservedState(
                job=self._job,
                fleet=self._allotment.view(key),
                config=self._config,
                pods=tuple(self._pods()),
                slices_since={name: _BEGIN + attempt.since for name, attempt in self._attempts.items()},
                allotted=self._allotment.of(key),
            )
            plan = reconcile(observed, now)
            self._inventory.set_reservations(key, *plan.reservations)
            if plan.request is not None:
                self._allotment.update(plan.request)
            if plan.status is not None:
                self._job = self._with_status(plan.status.status)
            self._start_and_end()
            concerned, after = self._allotment.refresh(), (self.units(), self.leaving)
            # Both are needed: a grant concerns this job in one round, and its units take it in the next.
            if not concerned and after == before:
                return
            before = after

    def _with_status(self, status: Mapping[str, Any]) -> Job:
        return parse_job({**self._manifest, "status": status}, self._job)

    def _start_and_end(self) -> None:
        """Carry out what the operator decided: start the units that got a slice, and mark those that drain."""
        for name, record in read_units(self._job.status).items():
            attempt = self._attempts.get(name)
            nodes = self._nodes(record.pool, record.slice)
            if attempt is not None:
                attempt.leaves = record.state is UnitState.DRAINING
            elif nodes:
                self._last[name] = self._last.get(name, 1) + 1
                self._attempts[name] = Attempt(self._last[name], record.slice, tuple(nodes), self._now)

    def _seen(self, status: Mapping[str, Any]) -> dict[str, Any]:
        """The status, completed with what the operator would have observed of pods and syncer."""
        units = [self._unit_seen(unit) for unit in status.get("units", ())]
        pools = [self._pool_seen(pool) for pool in status.get("pools", ())]
        return {**status, "units": units, "pools": pools}

    def _unit_seen(self, unit: Mapping[str, Any]) -> dict[str, Any]:
        """The unit's status as its attempt has it. Without an attempt the unit has neither pods nor a slice."""
        name, attempt = unit["name"], self._attempts.get(unit["name"])
        kept = {key: unit[key] for key in ("name", "pool", "reason", "message", "cause") if key in unit}
        if name in self._recover_seconds:
            kept["recoverSeconds"] = self._recover_seconds[name]
        if attempt is None:
            number = self._last.get(name, 1)  # the simulated job has started already
            return {**kept, "slice": "", "state": UnitState.PENDING.value, "attempt": number, "endedAttempt": number}
        state = UnitState.TRAINING if attempt.trains else UnitState.JOINING
        if attempt.leaves:
            state = UnitState.DRAINING
        else:
            kept |= {"reason": "", "message": ""}
        return {
            **kept,
            "slice": attempt.slice,
            "state": state.value,
            "attempt": attempt.number,
            "endedAttempt": attempt.number - 1,
            "since": format_timestamp(_BEGIN + attempt.since),
            "templateHash": self._hash(unit["pool"]),
        }

    def _pool_seen(self, pool: Mapping[str, Any]) -> dict[str, Any]:
        """The pool's status with its average throughput, which is exact in a simulation."""
        name = pool["name"]
        if name not in self._tokens_per_second:
            return dict(pool)
        return {**pool, "tokensPerSecond": self._tokens_per_second[name], "measuredSeconds": min(AVERAGED, self._measured[name])}

    def _hash(self, pool: str) -> str:
        assert self._job.derived is not None, "the job was validated before"
        return self._job.derived.learner_hashes[pool]

    def _pods(self) -> Iterator[PodView]:
        pools = {name: record.pool for name, record in read_units(self._job.status).items()}
        for name, attempt in self._attempts.items():
            yield from pods_of(self._job, name, pools[name], attempt, self._hash(pools[name]), _BEGIN)

    def _nodes(self, pool: str, slice_: str) -> list[str]:
        """Nodes of a slice. Empty without a slice, or if one of its nodes is gone."""
        nodes = [host.node for host in named_hosts(self._inventory, self._shapes[pool], slice_)]
        return [] if any(self._group_of.get(node) in self._out for node in nodes) else nodes

    def _groups(self) -> Iterator[tuple[str, Collection[str]]]:
        """Yield each group's name with its nodes. A group is called after its first node."""
        for shape in self._shapes.values():
            for slice_ in self._inventory.slices(shape.slice_shape):
                yield slice_.hosts[0].node, [host.node for host in slice_.hosts]


def _with_most(job: Obj, most: int) -> Obj:
    obj = copy.deepcopy(job)
    meta = {"namespace": "default", **obj["metadata"], "uid": "simulated", "generation": 1, "creationTimestamp": format_timestamp(_BEGIN)}
    learners = obj["spec"]["learners"]
    learners["max"] = most
    # The API refuses a minimum above the maximum.
    learners["min"] = min(learners.get("min", 1), most)
    return {**obj, "metadata": meta}


def _most_units(inventory: Inventory, shape: Shape) -> int:
    """How many units of this shape the fleet has slices for."""
    counts = inventory.counts(shape.slice_shape)
    return counts.total // shape.chips_per_host if counts.hosts else counts.total // shape.slots
