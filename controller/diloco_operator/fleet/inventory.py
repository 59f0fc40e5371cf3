"""The incremental index of the fleet: nodes in, slices out, and who holds which host.

Cost: `update_node`, `remove_node` and `set_holds` are O(log n) searches and one list move per host; `free` is lazy, so a
placement pays for the candidates that it looks at, not for the fleet.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from diloco_operator.api import names
from diloco_operator.fleet.health import DisruptionSigns, Silence, silence_of, turns, unusable
from diloco_operator.fleet.kinds import Kind, kind_of, kinds_for, slice_hosts
from diloco_operator.fleet.node import NodeView, Taint
from diloco_operator.fleet.slices import GROUP_SEPARATOR, Capacity, Census, Shape, Slice

REASONS = 3
"""How many unusable slices a census explains one by one."""

type _Key = tuple[str, str]
"""Node pool and name: the order in which slices are offered."""


@dataclass(slots=True)
class _Entry:
    part: Slice
    why_not: str
    """Why it cannot be used, "" when it can."""
    held: bool = False


@dataclass(slots=True)
class _Shelf:
    """All slices of one kind."""

    entries: dict[_Key, _Entry] = field(default_factory=dict)
    free: list[_Key] = field(default_factory=list)
    """Sorted: usable and not held."""
    held: int = 0
    unusable: dict[_Key, str] = field(default_factory=dict)

    def copy(self) -> _Shelf:
        entries = {key: _Entry(entry.part, entry.why_not, entry.held) for key, entry in self.entries.items()}
        return _Shelf(entries, list(self.free), self.held, dict(self.unusable))


class Inventory:
    """Implements `Fleet`. One per operator, for one thread; a `copy` is for whoever looks at the fleet while it changes."""

    def __init__(self, signs: DisruptionSigns) -> None:
        self._signs = signs
        self._now = 0.0
        """The last moment that `advance` was told."""
        self._turns: list[tuple[float, str]] = []
        """Heap: when a node becomes unusable, or usable again, by the mere passing of time."""
        self._nodes: dict[str, NodeView] = {}
        self._silence: Silence | None = None
        """None: to be worked out anew."""
        self._kinds: dict[str, Kind] = {}
        self._members: dict[str, dict[str, None]] = {}
        """Node pool of multi-host slices -> its nodes."""
        self._shelves: dict[Kind, _Shelf] = {}
        self._place: dict[str, tuple[Kind, _Key]] = {}
        """Node -> where its slice stands."""
        self._holders: dict[str, set[str]] = {}
        """Node -> keys of the jobs that hold it. More than one only when somebody else made pods by hand."""
        self._holds: dict[str, frozenset[str]] = {}

    def copy(self) -> Inventory:
        """The fleet as it is now, for ever."""
        found = Inventory(self._signs)
        found._now = self._now
        found._turns = list(self._turns)
        found._nodes = dict(self._nodes)
        found._silence = self._silence
        found._kinds = dict(self._kinds)
        found._members = {pool: dict(nodes) for pool, nodes in self._members.items()}
        found._shelves = {kind: shelf.copy() for kind, shelf in self._shelves.items()}
        found._place = dict(self._place)
        found._holders = {node: set(jobs) for node, jobs in self._holders.items()}
        found._holds = dict(self._holds)
        return found

    # --- time --------------------------------------------------------------------------------------------------------
    def advance(self, now: float) -> list[str]:
        """It is `now`, seconds since the epoch. Returns the nodes that became unusable or usable by that. Costs nothing otherwise."""
        self._now = now
        changed = []
        while self._turns and self._turns[0][0] <= now:
            _, name = heapq.heappop(self._turns)
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
        if (turn := turns(node, self._signs, self._now)) is not None:
            heapq.heappush(self._turns, (turn, node.name))
        kind = kind_of(node)
        if kind is None:
            return True
        self._kinds[node.name] = kind
        if slice_hosts(kind) > 1:
            pool = node.labels.get(names.NODE_POOL, "")
            self._members.setdefault(pool, {})[node.name] = None
            self._rebuild_pool(pool)
        else:
            self._put(
                kind, (node.labels.get(names.NODE_POOL, ""), node.name), self._single(node, kind), unusable(node, self._signs, self._now)
            )
        return True

    def remove_node(self, name: str) -> bool:
        """The node is gone. What was held on it stays held until its holder lets go."""
        if name not in self._nodes:
            return False
        self._detach(name)
        return True

    def node(self, name: str) -> NodeView | None:
        return self._nodes.get(name)

    @property
    def silence(self) -> Silence:
        if self._silence is None:
            self._silence = silence_of(self._nodes.values())
        return self._silence

    def _detach(self, name: str) -> None:
        old = self._nodes.pop(name, None)
        self._silence = None
        kind = self._kinds.pop(name, None)
        place = self._place.pop(name, None)
        if old is None or kind is None:
            return
        if place is not None:
            self._take_off(*place)
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
        nodes = [self._nodes[n] for n in sorted(self._members[pool], key=natural)]
        kind = self._kinds[nodes[0].name]
        for node in nodes:
            place = self._place.pop(node.name, None)
            if place is not None:
                self._take_off(*place)
        want = slice_hosts(kind)
        if not pool:
            why = f"node {nodes[0].name} has no label {names.NODE_POOL}, so nobody can tell which hosts are one slice"
        elif any(self._kinds[n.name] != kind for n in nodes):
            why = f"node pool {pool} mixes kinds of hosts"
        elif len(nodes) != want:
            why = f"node pool {pool} has {len(nodes)} of {want} hosts"
        else:
            why = next((w for n in nodes if (w := unusable(n, self._signs, self._now))), "")
        shared = dict(nodes[0].labels.items())
        for node in nodes[1:]:
            shared = {k: v for k, v in shared.items() if node.labels.get(k) == v}
        part = Slice(
            name=pool,
            hosts=tuple(n.host for n in nodes),
            accelerator=kind.accelerator,
            topology=kind.topology,
            chips_per_host=kind.chips_per_host,
            capacity=_capacity(nodes[0]),
            node_pool=pool,
            labels=shared,
            taints=tuple(dict.fromkeys(t for n in nodes for t in _hard_taints(n))),
        )
        self._put(kind, (pool, pool), part, why)

    def _single(self, node: NodeView, kind: Kind) -> Slice:
        return Slice(
            name=node.name,
            hosts=(node.host,),
            accelerator=kind.accelerator,
            topology=kind.topology,
            chips_per_host=kind.chips_per_host,
            capacity=_capacity(node),
            node_pool=node.labels.get(names.NODE_POOL, ""),
            labels=node.labels,
            taints=_hard_taints(node),
        )

    # --- shelves -----------------------------------------------------------------------------------------------------
    def _put(self, kind: Kind, key: _Key, part: Slice, why_not: str) -> None:
        shelf = self._shelves.setdefault(kind, _Shelf())
        entry = _Entry(part, why_not, held=any(h.node in self._holders for h in part.hosts))
        shelf.entries[key] = entry
        for host in part.hosts:
            self._place[host.node] = (kind, key)
        if why_not:
            shelf.unusable[key] = why_not
        if entry.held:
            shelf.held += 1
        elif not why_not:
            bisect.insort(shelf.free, key)

    def _take_off(self, kind: Kind, key: _Key) -> None:
        shelf = self._shelves.get(kind)
        entry = shelf.entries.pop(key, None) if shelf else None
        if shelf is None or entry is None:  # another host of the slice took it off already
            return
        shelf.unusable.pop(key, None)
        if entry.held:
            shelf.held -= 1
        elif not entry.why_not:
            del shelf.free[bisect.bisect_left(shelf.free, key)]
        if not shelf.entries:
            del self._shelves[kind]

    def _mark(self, name: str) -> None:
        """Node `name` gained its first holder or lost its last."""
        place = self._place.get(name)
        if place is None:
            return
        kind, key = place
        shelf = self._shelves[kind]
        entry = shelf.entries[key]
        held = any(h.node in self._holders for h in entry.part.hosts)
        if held == entry.held:
            return
        entry.held = held
        shelf.held += 1 if held else -1
        if entry.why_not:
            return
        if held:
            del shelf.free[bisect.bisect_left(shelf.free, key)]
        else:
            bisect.insort(shelf.free, key)

    # --- holds -------------------------------------------------------------------------------------------------------
    def set_holds(self, job: str, nodes: Iterable[str]) -> bool:
        """Job (any key of its own) holds exactly these nodes from now on. True when it let some go: others may want them."""
        new = frozenset(nodes)
        old = self._holds.get(job, frozenset())
        if new == old:
            return False
        if new:
            self._holds[job] = new
        else:
            self._holds.pop(job, None)
        for name in new - old:
            self._holders.setdefault(name, set()).add(job)
            self._mark(name)
        for name in old - new:
            holders = self._holders[name]
            holders.discard(job)
            if not holders:
                del self._holders[name]
            self._mark(name)
        return bool(old - new)

    def holds(self, job: str) -> frozenset[str]:
        return self._holds.get(job, frozenset())

    def holders(self, node: str) -> frozenset[str]:
        """Keys of the jobs that hold this node: those to look at when it changes."""
        return frozenset(self._holders.get(node, ()))

    # --- Fleet -------------------------------------------------------------------------------------------------------
    def free(self, shape: Shape) -> Iterator[Slice]:
        """See `Fleet.free`. The inventory must not change while the iterator is in use."""
        for kind in kinds_for(shape, self._shelves):
            shelf = self._shelves[kind]
            for key in shelf.free:
                yield shelf.entries[key].part

    def resolve(self, shape: Shape, name: str) -> tuple[Slice, ...] | None:
        found: list[Slice] = []
        for part in name.split(GROUP_SEPARATOR):
            members = self._members.get(part)
            node = next(iter(members)) if shape.topology and members else part
            place = self._place.get(node)
            if place is None:
                return None
            found.append(self._shelves[place[0]].entries[place[1]].part)
        return tuple(found)

    def usable(self, part: Slice) -> bool:
        place = self._place.get(part.hosts[0].node)
        if place is None:
            return False
        entry = self._shelves[place[0]].entries[place[1]]
        return not entry.why_not and entry.part.hosts == part.hosts

    def census(self, shape: Shape) -> Census:
        shelves = [self._shelves[k] for k in kinds_for(shape, self._shelves)]
        reasons = [why for shelf in shelves for why in list(shelf.unusable.values())[:REASONS]][:REASONS]
        return Census(
            total=sum(len(s.entries) for s in shelves),
            held=sum(s.held for s in shelves),
            unusable=tuple(reasons),
            unusable_count=sum(len(s.unusable) for s in shelves),
        )


def natural(name: str) -> tuple[object, ...]:
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


def _capacity(node: NodeView) -> Capacity:
    if node.labels.get(names.NODE_SPOT) == "true":
        return Capacity.SPOT
    return Capacity.RESERVED if node.labels.get(names.NODE_RESERVATION) else Capacity.ON_DEMAND


def _hard_taints(node: NodeView) -> tuple[Taint, ...]:
    """What a pod must tolerate; the accelerator's own taints are tolerated by every pod we make."""
    return tuple(t for t in node.taints if t.effect != "PreferNoSchedule" and t.key not in (names.RESOURCE_TPU, names.RESOURCE_GPU))
