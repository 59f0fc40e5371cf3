"""The incremental index of the fleet: nodes in, slices out, and which job has reserved which host.

Cost: `update_node`, `remove_node` and `set_reservations` are O(log n) searches and one list move per host; `free` is lazy, so a
placement pays for the candidates that it reads, not for the fleet.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from diloco_operator.accelerators import CATALOGUE
from diloco_operator.api import names
from diloco_operator.fleet.health import DisruptionSignals, NotReadyCounts, count_not_ready, next_transition, unusable
from diloco_operator.fleet.locality import locality_of
from diloco_operator.fleet.node import NodeView, Taint
from diloco_operator.fleet.slice_kinds import kind_of, kinds_for, kinds_with_other_devices, slice_hosts
from diloco_operator.fleet.slices import GROUP_SEPARATOR, CapacityType, Shape, Slice, SliceCounts, SliceKind

REASONS = 3
"""How many unusable slices `SliceCounts` explains one by one."""

type _Key = tuple[str, str]
"""Node pool and name: the order in which slices are offered."""


@dataclass(slots=True)
class _Entry:
    slice_: Slice
    why_not: str
    """Why it cannot be used, "" when it can."""
    reserved: bool = False


@dataclass(slots=True)
class _SliceIndex:
    """All slices of one kind."""

    entries: dict[_Key, _Entry] = field(default_factory=dict)
    free: list[_Key] = field(default_factory=list)
    """Sorted: usable and not reserved."""
    reserved: int = 0
    unusable: dict[_Key, str] = field(default_factory=dict)

    def copy(self) -> _SliceIndex:
        entries = {key: _Entry(entry.slice_, entry.why_not, entry.reserved) for key, entry in self.entries.items()}
        return _SliceIndex(entries, list(self.free), self.reserved, dict(self.unusable))


class Inventory:
    """Implements `Fleet`. One per operator, for one thread; a `copy` serves a reader while the fleet changes."""

    def __init__(self, signals: DisruptionSignals) -> None:
        self._signals = signals
        self._now = 0.0
        """The time of the last `advance`."""
        self._transitions: list[tuple[float, str]] = []
        """Heap: when a node becomes unusable, or usable again, by the passing of time alone."""
        self._nodes: dict[str, NodeView] = {}
        self._not_ready: NotReadyCounts | None = None
        """None: must be counted again."""
        self._kinds: dict[str, SliceKind] = {}
        self._members: dict[str, dict[str, None]] = {}
        """Node pool of multi-host slices -> its nodes."""
        self._indexes: dict[SliceKind, _SliceIndex] = {}
        self._locations: dict[str, tuple[SliceKind, _Key]] = {}
        """Node -> the index and key of its slice."""
        self._reserved_by: dict[str, set[str]] = {}
        """Node -> keys of the jobs that have reserved it. Several only when a pod was made by other means than the operator."""
        self._reservations: dict[str, frozenset[str]] = {}

    def copy(self) -> Inventory:
        """The fleet as it is now; it never changes."""
        found = Inventory(self._signals)
        found._now = self._now
        found._transitions = list(self._transitions)
        found._nodes = dict(self._nodes)
        found._not_ready = self._not_ready
        found._kinds = dict(self._kinds)
        found._members = {pool: dict(nodes) for pool, nodes in self._members.items()}
        found._indexes = {kind: index.copy() for kind, index in self._indexes.items()}
        found._locations = dict(self._locations)
        found._reserved_by = {node: set(jobs) for node, jobs in self._reserved_by.items()}
        found._reservations = dict(self._reservations)
        return found

    # --- time --------------------------------------------------------------------------------------------------------
    def advance(self, now: float) -> list[str]:
        """It is `now`, seconds since the epoch. Returns the nodes that became unusable or usable by that."""
        self._now = now
        changed = []
        while self._transitions and self._transitions[0][0] <= now:
            _, name = heapq.heappop(self._transitions)
            node = self._nodes.get(name)
            if node is not None:
                self._detach(name)
                self.update_node(node)
                changed.append(name)
        return changed

    # --- nodes -------------------------------------------------------------------------------------------------------
    def update_node(self, node: NodeView) -> bool:
        """Take a new or changed node. True when anything changed (a heartbeat changes nothing)."""
        if self._nodes.get(node.name) == node:
            return False
        self._detach(node.name)
        self._nodes[node.name] = node
        if (transition := next_transition(node, self._signals, self._now)) is not None:
            heapq.heappush(self._transitions, (transition, node.name))
        kind = kind_of(node)
        if kind is None:
            return True
        self._kinds[node.name] = kind
        if slice_hosts(kind) > 1:
            pool = node.labels.get(names.NODE_POOL, "")
            self._members.setdefault(pool, {})[node.name] = None
            self._rebuild_pool(pool)
        else:
            self._insert(
                kind, (node.labels.get(names.NODE_POOL, ""), node.name), self._single(node, kind), unusable(node, self._signals, self._now)
            )
        return True

    def remove_node(self, name: str) -> bool:
        """The node is gone. It stays reserved until its job releases it."""
        if name not in self._nodes:
            return False
        self._detach(name)
        return True

    def node(self, name: str) -> NodeView | None:
        return self._nodes.get(name)

    @property
    def not_ready(self) -> NotReadyCounts:
        if self._not_ready is None:
            self._not_ready = count_not_ready(self._nodes.values())
        return self._not_ready

    def _detach(self, name: str) -> None:
        old = self._nodes.pop(name, None)
        self._not_ready = None
        kind = self._kinds.pop(name, None)
        location = self._locations.pop(name, None)
        if old is None or kind is None:
            return
        if location is not None:
            self._remove(*location)
        if slice_hosts(kind) > 1:
            pool = old.labels.get(names.NODE_POOL, "")
            members = self._members[pool]
            del members[name]
            if members:
                self._rebuild_pool(pool)
            else:
                del self._members[pool]

    def _rebuild_pool(self, pool: str) -> None:
        """Every node of one multi-host node pool together is one slice, or none while one of them cannot be used."""
        nodes = [self._nodes[n] for n in sorted(self._members[pool], key=natural_sort_key)]
        kind = self._kinds[nodes[0].name]
        for node in nodes:
            location = self._locations.pop(node.name, None)
            if location is not None:
                self._remove(*location)
        expected = slice_hosts(kind)
        if not pool:
            why = f"node {nodes[0].name} has no label {names.NODE_POOL}, so it is unknown which hosts are one slice"
        elif any(self._kinds[n.name] != kind for n in nodes):
            why = f"node pool {pool} mixes kinds of hosts"
        elif len(nodes) != expected:
            why = f"node pool {pool} has {len(nodes)} of {expected} hosts"
        else:
            why = next((w for n in nodes if (w := unusable(n, self._signals, self._now))), "")
        shared = dict(nodes[0].labels.items())
        for node in nodes[1:]:
            shared = {k: v for k, v in shared.items() if node.labels.get(k) == v}
        slice_ = Slice(
            name=pool,
            hosts=tuple(n.host for n in nodes),
            kind=kind,
            capacity=_capacity(nodes[0]),
            node_pool=pool,
            labels=shared,
            taints=tuple(dict.fromkeys(t for n in nodes for t in _foreign_taints(n, kind))),
            locality=locality_of(shared),
        )
        self._insert(kind, (pool, pool), slice_, why)

    def _single(self, node: NodeView, kind: SliceKind) -> Slice:
        return Slice(
            name=node.name,
            hosts=(node.host,),
            kind=kind,
            capacity=_capacity(node),
            node_pool=node.labels.get(names.NODE_POOL, ""),
            labels=node.labels,
            taints=_foreign_taints(node, kind),
            locality=locality_of(node.labels),
        )

    # --- indexes -----------------------------------------------------------------------------------------------------
    def _insert(self, kind: SliceKind, key: _Key, slice_: Slice, why_not: str) -> None:
        index = self._indexes.setdefault(kind, _SliceIndex())
        entry = _Entry(slice_, why_not, reserved=any(h.node in self._reserved_by for h in slice_.hosts))
        index.entries[key] = entry
        for host in slice_.hosts:
            self._locations[host.node] = (kind, key)
        if why_not:
            index.unusable[key] = why_not
        if entry.reserved:
            index.reserved += 1
        elif not why_not:
            bisect.insort(index.free, key)

    def _remove(self, kind: SliceKind, key: _Key) -> None:
        index = self._indexes.get(kind)
        entry = index.entries.pop(key, None) if index else None
        if index is None or entry is None:  # another host of the slice removed it already
            return
        index.unusable.pop(key, None)
        if entry.reserved:
            index.reserved -= 1
        elif not entry.why_not:
            del index.free[bisect.bisect_left(index.free, key)]
        if not index.entries:
            del self._indexes[kind]

    def _update_reserved(self, name: str) -> None:
        """Node `name` gained its first reservation or lost its last."""
        location = self._locations.get(name)
        if location is None:
            return
        kind, key = location
        index = self._indexes[kind]
        entry = index.entries[key]
        reserved = any(h.node in self._reserved_by for h in entry.slice_.hosts)
        if reserved == entry.reserved:
            return
        entry.reserved = reserved
        index.reserved += 1 if reserved else -1
        if entry.why_not:
            return
        if reserved:
            del index.free[bisect.bisect_left(index.free, key)]
        else:
            bisect.insort(index.free, key)

    # --- reservations ------------------------------------------------------------------------------------------------
    def set_reservations(self, job: str, nodes: Iterable[str]) -> bool:
        """Job (any key of its own) reserves exactly these nodes from now on. True when it released some: other jobs may need them."""
        new = frozenset(nodes)
        old = self._reservations.get(job, frozenset())
        if new == old:
            return False
        if new:
            self._reservations[job] = new
        else:
            self._reservations.pop(job, None)
        for name in new - old:
            self._reserved_by.setdefault(name, set()).add(job)
            self._update_reserved(name)
        for name in old - new:
            jobs = self._reserved_by[name]
            jobs.discard(job)
            if not jobs:
                del self._reserved_by[name]
            self._update_reserved(name)
        return bool(old - new)

    def reservations(self, job: str) -> frozenset[str]:
        """Nodes that this job has reserved."""
        return self._reservations.get(job, frozenset())

    def reserved_by(self, node: str) -> frozenset[str]:
        """Keys of the jobs that have reserved this node: those that a change of it concerns."""
        return frozenset(self._reserved_by.get(node, ()))

    # --- Fleet -------------------------------------------------------------------------------------------------------
    def free(self, shape: Shape) -> Iterator[Slice]:
        """See `Fleet.free`. The inventory must not change while the iterator is in use."""
        for kind in kinds_for(shape, self._indexes):
            index = self._indexes[kind]
            for key in index.free:
                yield index.entries[key].slice_

    def resolve(self, shape: Shape, name: str) -> tuple[Slice, ...] | None:
        found: list[Slice] = []
        for member in name.split(GROUP_SEPARATOR):
            members = self._members.get(member)
            node = next(iter(members)) if shape.topology and members else member
            location = self._locations.get(node)
            if location is None:
                return None
            found.append(self._indexes[location[0]].entries[location[1]].slice_)
        return tuple(found)

    def usable(self, slice_: Slice) -> bool:
        location = self._locations.get(slice_.hosts[0].node)
        if location is None:
            return False
        entry = self._indexes[location[0]].entries[location[1]]
        return not entry.why_not and entry.slice_.hosts == slice_.hosts

    def counts(self, shape: Shape) -> SliceCounts:
        indexes = [self._indexes[k] for k in kinds_for(shape, self._indexes)]
        other = kinds_with_other_devices(shape, self._indexes)
        reasons = [why for index in indexes for why in list(index.unusable.values())[:REASONS]][:REASONS]
        return SliceCounts(
            total=sum(len(s.entries) for s in indexes),
            reserved=sum(s.reserved for s in indexes),
            unusable=tuple(reasons),
            unusable_count=sum(len(s.unusable) for s in indexes),
            other_devices=tuple(sorted({name for kind in other for name, _ in kind.devices})),
            other_devices_count=sum(len(self._indexes[kind].entries) for kind in other),
        )


def natural_sort_key(name: str) -> tuple[object, ...]:
    """Orders host-2 before host-10, as the index of a host in its slice goes."""
    parts: list[object] = []
    digits = ""
    for char in name:
        if char.isdigit():
            digits += char
            continue
        if digits:
            parts.append((0, int(digits)))
            digits = ""
        parts.append((1, char))
    if digits:
        parts.append((0, int(digits)))
    return tuple(parts)


def _capacity(node: NodeView) -> CapacityType:
    if node.labels.get(names.NODE_SPOT) == "true":
        return CapacityType.SPOT
    return CapacityType.RESERVED if node.labels.get(names.NODE_RESERVATION) else CapacityType.ON_DEMAND


def _foreign_taints(node: NodeView, kind: SliceKind) -> tuple[Taint, ...]:
    """What a pool's template must tolerate: the operator adds tolerations for the taints of the accelerator to every pod."""
    own = CATALOGUE[kind.accelerator].taints
    return tuple(taint for taint in node.taints if taint.effect != "PreferNoSchedule" and taint.key not in own)
