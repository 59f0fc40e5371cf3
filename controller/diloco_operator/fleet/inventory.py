"""The incremental index of the fleet: nodes and other pods in, slices out, and which job has reserved which host.

Cost: a change of one node, of a reservation or of what another pod uses costs O(log n), however many hosts its slice has: what a slice
offers is computed only when it is read. `free` is lazy, so a placement pays for the candidates that it reads, not for the fleet.

See docs/decisions/0130-what-occupies-a-node.md.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from diloco_operator.accelerators import CATALOGUE, Sign, signs
from diloco_operator.api import names
from diloco_operator.fleet.capacity import capacity_of
from diloco_operator.fleet.devices import telling
from diloco_operator.fleet.health import DisruptionSignals, NotReadyCounts, count_not_ready, next_transition, unusable
from diloco_operator.fleet.locality import locality_of
from diloco_operator.fleet.nearby import Oddity, nearby, oddity
from diloco_operator.fleet.node import NodeView, Taint
from diloco_operator.fleet.resources import Resources, amount_of, least, left
from diloco_operator.fleet.slice_index import NONE, Entry, Key, SliceIndex
from diloco_operator.fleet.slice_kinds import kind_of, kinds_for, kinds_with_other_devices, silent_kinds, slice_hosts
from diloco_operator.fleet.slices import (
    GROUP_SEPARATOR,
    NOTHING_TAKEN,
    Holder,
    OddNodes,
    Shape,
    Slice,
    SliceCounts,
    SliceKind,
    SliceState,
    UsedHosts,
)
from diloco_operator.fleet.use import PodUse, UnitKey, shortage

REASONS = 3
"""How many unusable slices `SliceCounts` explains one by one."""

type Shares = Mapping[tuple[str, str], Resources]
"""Node and unit -> what the unit takes of the node."""


class Reservations(NamedTuple):
    """What one job has reserved."""

    nodes: frozenset[str] = frozenset()
    shares: Shares = MappingProxyType({})
    """Shares of the nodes of which its units take only parts."""


type Location = tuple[SliceKind, Key]
"""Where the inventory keeps a slice. Sorted, this is the order in which it offers slices."""


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
        self._pools: dict[str, Entry] = {}
        """Node pool of multi-host slices -> its entry."""
        self._indexes: dict[SliceKind, SliceIndex] = {}
        self._locations: dict[str, Entry] = {}
        """Node -> the entry of its slice."""
        self._odd: dict[Oddity, dict[str, None]] = {}
        """Nodes with accelerators that no pool gets for naming a kind, by why."""
        self._signs: Counter[Sign] = Counter()
        """How many nodes show each."""
        self._uses: dict[str, tuple[PodUse, ...]] = {}
        """Node (the fleet may not have it yet) -> the pods on it, those that a reservation covers among them."""
        self._reserved_by: dict[str, set[str]] = {}
        """Node -> keys of the jobs that have reserved it. Several only when a pod was made by other means than the operator."""
        self._reservations: dict[str, frozenset[str]] = {}
        self._shares: dict[str, Shares] = {}
        """Job -> the parts of nodes that its units take."""
        self._units: dict[str, dict[UnitKey, Resources]] = {}
        """Node -> job and unit -> the part that it takes."""
        self._changes: dict[Location, None] | None = None
        """Slices that changed since `take_changes`; None: no allotment asks for them."""

    def copy(self) -> Inventory:
        """Return the fleet as it is now, for a reader: it takes reservations, and no changes of nodes or of what other pods use."""
        # Now: the copy of an entry does not know its nodes, so that its slice could not be computed later.
        for index in self._indexes.values():
            for entry in index.entries.values():
                self._slice(entry)
        found = Inventory(self._signals)
        found._now = self._now
        found._nodes = dict(self._nodes)
        found._not_ready = self._not_ready
        found._indexes = {kind: index.copy() for kind, index in self._indexes.items()}
        found._locations = {node: found._indexes[entry.kind].entries[entry.key] for node, entry in self._locations.items()}
        found._pools = {pool: found._indexes[entry.kind].entries[entry.key] for pool, entry in self._pools.items()}
        found._odd = {why: dict(nodes) for why, nodes in self._odd.items()}
        found._signs = Counter(self._signs)
        found._uses = dict(self._uses)
        found._reserved_by = {node: set(jobs) for node, jobs in self._reserved_by.items()}
        found._reservations = dict(self._reservations)
        found._shares = dict(self._shares)
        found._units = {node: dict(units) for node, units in self._units.items()}
        return found

    # --- time --------------------------------------------------------------------------------------------------------
    def advance(self, now: float) -> list[str]:
        """Advance to `now`, seconds since the epoch. Returns the nodes that became unusable or usable by that."""
        self._now = now
        changed = []
        while self._transitions and self._transitions[0][0] <= now:
            _, name = heapq.heappop(self._transitions)
            node = self._nodes.get(name)
            # Transitions of nodes that changed since stay in the heap: health is judged anew, so one that is out of date does no harm.
            if node is not None:
                self._await_transition(node)
                self._note_health(node)
                changed.append(name)
        return changed

    def _await_transition(self, node: NodeView) -> None:
        if (transition := next_transition(node, self._signals, self._now)) is not None:
            heapq.heappush(self._transitions, (transition, node.name))

    # --- nodes -------------------------------------------------------------------------------------------------------
    def update_node(self, node: NodeView) -> bool:
        """Take a new or changed node. True when anything changed (a heartbeat changes nothing)."""
        old = self._nodes.get(node.name)
        if old == node:
            return False
        self._not_ready = None
        self._await_transition(node)
        entry = self._locations.get(node.name)
        # These make the slice. Otherwise each change of readiness would assemble a pool of 512 hosts anew, once for each of its nodes.
        if old is not None and (old.labels, old.devices, old.taints) == (node.labels, node.devices, node.taints):
            self._nodes[node.name] = node
            if entry is not None and old.allocatable != node.allocatable:
                entry.room_known = False
        else:
            kind = kind_of(node)
            if old is not None and (entry is None or entry.kinds[node.name] != kind or _pool(old) != _pool(node)):
                self._leave(old)
            self._nodes[node.name] = node
            self._note_oddity(old, node, kind)
            self._note_signs(old, node)
            if kind is not None:
                self._join(node, kind)
        self._note_health(node)
        return True

    def remove_node(self, name: str) -> bool:
        """Remove a node that is gone. It stays reserved until its job releases it."""
        node = self._nodes.get(name)
        if node is None:
            return False
        self._not_ready = None
        self._leave(node)
        self._note_oddity(node)
        self._note_signs(node)
        return True

    def node(self, name: str) -> NodeView | None:
        return self._nodes.get(name)

    @property
    def not_ready(self) -> NotReadyCounts:
        if self._not_ready is None:
            self._not_ready = count_not_ready(self._nodes.values())
        return self._not_ready

    @property
    def signs(self) -> Collection[Sign]:
        return self._signs.keys()

    def _note_signs(self, old: NodeView | None, new: NodeView | None = None) -> None:
        """Note that the labels of a node changed, or that it came or went."""
        if old is not None and new is not None and old.labels == new.labels:
            return
        if new is not None:
            self._signs.update(signs(new.labels))
        if old is not None:
            for sign in signs(old.labels):
                self._signs[sign] -= 1
                if not self._signs[sign]:
                    del self._signs[sign]

    def _join(self, node: NodeView, kind: SliceKind) -> None:
        """Note that the node belongs to a slice of this kind, as it did before or from now on."""
        several = slice_hosts(kind) > 1
        pool = _pool(node)
        entry = self._locations.get(node.name) or (self._pools.get(pool) if several else None)
        if entry is None:
            entry = Entry(kind, (pool, pool if several else node.name))
            self._indexes.setdefault(kind, SliceIndex()).entries[entry.key] = entry
            if several:
                self._pools[pool] = entry
        if node.name not in entry.kinds:
            self._locations[node.name] = entry
            entry.kinds[node.name] = kind
            entry.of_kind[kind] = entry.of_kind.get(kind, 0) + 1
            # A reservation outlasts its node: one that was away for a moment must not be offered to another job.
            entry.reserved += node.name in self._reserved_by
            self._note_use(entry, node.name)
        entry.slice_ = None
        if several:
            self._assemble(entry, pool)
        else:
            self._slice(entry)
        self._file(entry)

    def _leave(self, node: NodeView) -> None:
        del self._nodes[node.name]
        entry = self._locations.pop(node.name, None)
        if entry is None:
            return
        kind = entry.kinds.pop(node.name)
        entry.of_kind[kind] -= 1
        if not entry.of_kind[kind]:
            del entry.of_kind[kind]
        entry.unusable.pop(node.name, None)
        entry.used.pop(node.name, None)
        entry.reserved -= node.name in self._reserved_by
        entry.slice_ = None
        if not entry.kinds:
            self._drop(entry)
            if slice_hosts(kind) > 1:
                del self._pools[_pool(node)]
            return
        self._assemble(entry, _pool(node))
        self._file(entry)

    def _file(self, entry: Entry) -> None:
        """File an entry about which something changed."""
        if entry.divisible:
            entry.left = self._devices_left(entry)
        self._note_change(entry)
        self._indexes[entry.kind].file(entry)

    def _drop(self, entry: Entry) -> None:
        self._note_change(entry)
        index = self._indexes[entry.kind]
        index.remove(entry)
        if not index.entries:
            del self._indexes[entry.kind]

    def _assemble(self, entry: Entry, pool: str) -> None:
        """Assemble every node of one multi-host node pool to one slice, or to none while they do not fit together."""
        # The least, not the first: an operator that starts again sees nodes in another order, and must file the pool as before.
        kind = min(entry.of_kind)
        if kind != entry.kind:
            # Under the old kind first: there the allotment knows the slice, and must hear that it is gone.
            self._drop(entry)
            entry.kind = kind
            self._indexes.setdefault(kind, SliceIndex()).entries[entry.key] = entry
        expected = slice_hosts(kind)
        if not pool:
            entry.broken = f"node {next(iter(entry.kinds))} has no label {names.NODE_POOL}, so it is unknown which hosts are one slice"
        elif len(entry.of_kind) > 1:
            entry.broken = f"node pool {pool} mixes kinds of hosts"
        elif len(entry.kinds) != expected:
            entry.broken = f"node pool {pool} has {len(entry.kinds)} of {expected} hosts"
        else:
            entry.broken = ""

    def _note_oddity(self, old: NodeView | None, new: NodeView | None = None, kind: SliceKind | None = None) -> None:
        """Note what is odd about a node; `kind`: of the new one."""
        before = oddity(old, kind_of(old)) if old is not None else None
        now = oddity(new, kind) if new is not None else None
        if before == now:
            return
        if old is not None and before is not None:
            nodes = self._odd[before]
            del nodes[old.name]
            _put(self._odd, before, nodes)
        if new is not None and now is not None:
            self._odd.setdefault(now, {})[new.name] = None

    # --- what is known of each host ------------------------------------------------------------------------------------
    def _note_health(self, node: NodeView) -> None:
        entry = self._locations.get(node.name)
        if entry is None:
            return
        why = unusable(node, self._signals, self._now) or _silent(node, entry.kinds[node.name])
        if why:
            entry.unusable[node.name] = why
        else:
            entry.unusable.pop(node.name, None)
        self._file(entry)

    def _note_use(self, entry: Entry, node: str) -> None:
        resource = CATALOGUE[entry.kind.accelerator].resource
        count = sum(_takes(use, resource) for use in self.uses(node))
        if count:
            entry.used[node] = count
        else:
            entry.used.pop(node, None)
        entry.room_known = False

    # --- what others use -----------------------------------------------------------------------------------------------
    def replace_use(self, old: PodUse | None, new: PodUse | None) -> bool:
        """Note that another pod uses `new` now instead of `old`. True when a slice that is free has more room by that: jobs may wait for
        it."""
        if old is new:
            return False
        if new is not None:
            self._uses[new.node] = (*self._uses.get(new.node, ()), new)
        if old is not None:
            rest = tuple(use for use in self._uses.get(old.node, ()) if use is not old)
            if rest:
                self._uses[old.node] = rest
            else:
                self._uses.pop(old.node, None)
        for use in (new, old):
            if use is not None and not self._is_covered(use) and (entry := self._locations.get(use.node)) is not None:
                self._note_use(entry, use.node)
                self._file(entry)
        # What its job's reservation covers took no room from others: that it goes makes none for them.
        if old is None or self._is_covered(old):
            return False
        entry = self._locations.get(old.node)
        return entry is not None and entry.offered

    def uses(self, node: str) -> tuple[PodUse, ...]:
        """Return the pods on this node that count: all but those of units that have reserved it."""
        found = self._uses.get(node, ())
        return tuple(use for use in found if not self._is_covered(use)) if any(use.unit is not None for use in found) else found

    def _is_covered(self, use: PodUse) -> bool:
        """Return whether its job has reserved the node for its unit, or all of the node."""
        if use.unit is None or use.unit[0] not in self._reserved_by.get(use.node, ()):
            return False
        units = self._units.get(use.node, NONE)
        return use.unit in units or all(job != use.unit[0] for job, _ in units)

    # --- reservations ------------------------------------------------------------------------------------------------
    def set_reservations(self, job: str, nodes: Iterable[str], shared: Shares = NONE) -> bool:
        """Reserve exactly these nodes for the job (any key of its own) from now on. `shared`: of these, the nodes of which its units take
        only parts. True when it released some of it: other jobs may need that."""
        new = frozenset(nodes)
        old = self._reservations.get(job, frozenset())
        before, now = self._shares.get(job, NONE), dict(shared)
        if new == old and before == now:
            return False
        _put(self._reservations, job, new)
        _put(self._shares, job, now)
        parts: dict[str, dict[UnitKey, Resources]] = {}
        for (node, unit), part in now.items():
            if before.get((node, unit)) != part:
                parts.setdefault(node, {})[job, unit] = part
        gone: dict[str, list[str]] = {}
        for node, unit in before.keys() - now.keys():
            gone.setdefault(node, []).append(unit)
        for name in (old ^ new) | parts.keys() | gone.keys():
            # `entry.reserved` counts nodes, and several jobs may have reserved one: only the first and the last of them change it.
            was_reserved = name in self._reserved_by
            jobs, units = self._reserved_by.setdefault(name, set()), self._units.setdefault(name, {})
            (jobs.add if name in new else jobs.discard)(job)
            units.update(parts.get(name, NONE))
            for unit in gone.get(name, ()):
                del units[job, unit]
            _put(self._reserved_by, name, jobs)
            _put(self._units, name, units)
            if (entry := self._locations.get(name)) is not None:
                entry.reserved += bool(jobs) - was_reserved
                # Pods of units count as used until a reservation covers them: otherwise a unit would keep itself off its own host.
                if any(use.unit is not None for use in self._uses.get(name, ())):
                    self._note_use(entry, name)
                self._file(entry)
        return bool(old - new) or any(now.get(key) != part for key, part in before.items())

    def has_reserved(self, job: str, node: str, unit: str) -> bool:
        """Return whether this unit of the job has reserved a part of the node."""
        return (node, unit) in self._shares.get(job, NONE)

    def reservations(self, job: str) -> frozenset[str]:
        """Return nodes that this job has reserved."""
        return self._reservations.get(job, frozenset())

    def reserved_by(self, node: str) -> frozenset[str]:
        """Return keys of the jobs that have reserved this node: those that a change of it concerns."""
        return frozenset(self._reserved_by.get(node, ()))

    # --- slices --------------------------------------------------------------------------------------------------------
    def _slice(self, entry: Entry) -> Slice:
        """Return what the hosts of the entry offer together."""
        if entry.slice_ is None:
            nodes = [self._nodes[name] for name in sorted(entry.kinds, key=natural_sort_key)]
            pool, name = entry.key
            labels = _shared_labels(nodes)
            entry.slice_ = Slice(
                name=name,
                hosts=tuple(node.host for node in nodes),
                kind=entry.kind,
                capacity=capacity_of(nodes[0].labels),
                node_pool=pool,
                labels=labels,
                taints=tuple(dict.fromkeys(taint for node in nodes for taint in _foreign_taints(node, entry.kind))),
                room=least(self._room(node.name) for node in nodes),
                locality=locality_of(labels),
                in_part=entry.divisible and bool(entry.used),
            )
        elif not entry.room_known:
            room = least(self._room(host.node) for host in entry.slice_.hosts)
            entry.slice_ = replace(entry.slice_, room=room, in_part=entry.divisible and bool(entry.used))
        entry.room_known = True
        return entry.slice_

    def _room(self, node: str) -> Resources:
        has, uses = self._nodes[node].allocatable, self.uses(node)
        return left(has, (use.requests for use in uses)) if uses else has

    # --- divisible hosts -----------------------------------------------------------------------------------------------
    def room_left(self, slice_: Slice) -> Resources:
        """Return what other pods and units leave of a divisible host; nothing if a unit has reserved all of it."""
        node = slice_.hosts[0].node
        room, units = self._room(node), self._units.get(node, NONE)
        if self._is_taken(node):
            return Resources()
        return left(room, units.values()) if units else room

    def _is_taken(self, node: str) -> bool:
        """Return whether a job has reserved all of it."""
        jobs = self._reserved_by.get(node)
        return jobs is not None and not jobs <= {job for job, _ in self._units.get(node, ())}

    def _devices_left(self, entry: Entry) -> int:
        """Return accelerators; less than 0 where the host has lost some that units have."""
        node = entry.key[1]
        if node not in self._nodes or self._is_taken(node):
            return 0
        resource = CATALOGUE[entry.kind.accelerator].resource
        return amount_of(self._room(node), resource) - sum(amount_of(part, resource) for part in self._units.get(node, NONE).values())

    def _remainder(self, entry: Entry) -> Slice:
        """Return what is left of a divisible host, or all of it."""
        whole = self._slice(entry)
        kind = entry.kind._replace(chips_per_host=min(entry.kind.chips_per_host, entry.left))
        in_part = whole.in_part or bool(entry.reserved)
        return replace(whole, kind=kind, room=self.room_left(whole), in_part=in_part) if in_part else whole

    # --- changes -----------------------------------------------------------------------------------------------------
    def track_changes(self) -> None:
        """Remember from now on for `take_changes` which slices changed; at first all."""
        self._changes = {(kind, key): None for kind, index in self._indexes.items() for key in index.entries}

    def take_changes(self) -> Iterable[Location]:
        """Return where slices came, went or changed, in themselves or in who has them, since the last call."""
        found, self._changes = self._changes or {}, {}
        return found

    def _note_change(self, entry: Entry) -> None:
        if self._changes is not None:
            self._changes[entry.kind, entry.key] = None

    def location(self, node: str) -> Location | None:
        """Return where the slice with this node is; None: no slice has it."""
        entry = self._locations.get(node)
        return (entry.kind, entry.key) if entry is not None else None

    def slice_at(self, location: Location) -> Slice | None:
        """Return the slice that is there; None: none is any more."""
        kind, key = location
        entry = self._indexes[kind].entries.get(key) if kind in self._indexes else None
        return self._slice(entry) if entry is not None else None

    # --- Fleet -------------------------------------------------------------------------------------------------------
    def free(self, shape: Shape, pool: str = "") -> Iterator[Slice]:
        """Yield all free slices, in the order of node pools and names. The inventory must not change while the iterator is in use."""
        for kind in kinds_for(shape, self._indexes):
            index = self._indexes[kind]
            for key in index.free:
                entry = index.entries[key]
                if not entry.divisible:
                    yield self._slice(entry)
                # Who takes whole hosts gets untouched ones only: its pods would wait beside what others have.
                elif not (entry.used or entry.reserved) or (shape.divides and entry.left >= shape.chips_per_host):
                    yield self._remainder(entry)

    def slices(self, shape: Shape) -> Iterator[Slice]:
        """See `Fleet.slices`. The inventory must not change while the iterator is in use."""
        for kind in kinds_for(shape, self._indexes):
            for entry in self._indexes[kind].entries.values():
                yield self._slice(entry)

    def every_slice(self) -> Iterator[Slice]:
        """Yield the slices of all kinds, in whatever state. The inventory must not change while the iterator is in use."""
        for index in self._indexes.values():
            for entry in index.entries.values():
                yield self._slice(entry)

    def kept(self, shape: Shape, pool: str = "") -> Iterator[tuple[Slice, str]]:
        """Yield nothing: the inventory offers all."""
        return iter(())

    def resolve(self, shape: Shape, name: str) -> tuple[Slice, ...] | None:
        found: list[Slice] = []
        for member in name.split(GROUP_SEPARATOR):
            entry = (self._pools.get(member) if shape.topology else None) or self._locations.get(member)
            if entry is None:
                return None
            found.append(self._slice(entry))
        return tuple(found)

    def usable(self, slice_: Slice) -> bool:
        entry = self._locations.get(slice_.hosts[0].node)
        # Less than nothing is left of a host that has lost accelerators which units have.
        if entry is None or entry.broken or entry.unusable or (entry.left < 0 if entry.divisible else entry.used):
            return False
        # A pool that was made anew under its old name has other hosts: pods that are pinned to the old ones would wait for ever.
        return self._slice(entry).hosts == slice_.hosts

    def is_free(self, slice_: Slice) -> bool:
        """Return whether `free` offers this slice."""
        entry = self._locations.get(slice_.hosts[0].node)
        if entry is None or not entry.offered or self._slice(entry).hosts != slice_.hosts:
            return False
        if not entry.divisible:
            return True
        return slice_.room.fits(self.room_left(slice_)) if slice_.in_part else not (entry.used or entry.reserved)

    def shortage(self, slice_: Slice, needs: Resources) -> str:
        nodes = [self._nodes[host.node] for host in slice_.hosts if host.node in self._nodes]
        return next((why for node in nodes if (why := shortage(node, self.uses(node.name), needs))), "")

    def counts(self, shape: Shape, job: str = "", own: Mapping[str, int] = NOTHING_TAKEN) -> SliceCounts:
        counts = self._accelerator_counts if self.divides(shape) else self._slice_counts
        return replace(counts(shape, job, own), nearby=nearby(shape, self._indexes), odd=self._odd_nodes(shape))

    def _odd_nodes(self, shape: Shape) -> tuple[OddNodes, ...]:
        """Return the odd nodes of the vendor of the shape's accelerator; most nodes first."""
        resource = CATALOGUE[shape.accelerator].resource
        found = ((why, nodes) for why, nodes in self._odd.items() if resource and why.resource in ("", resource))
        most = heapq.nsmallest(REASONS, found, key=lambda each: (-len(each[1]), each[0]))
        return tuple(OddNodes(why.what, why.remedy, len(nodes), next(iter(nodes))) for why, nodes in most)

    def _slice_counts(self, shape: Shape, job: str, own: Mapping[str, int]) -> SliceCounts:
        indexes = {kind: self._indexes[kind] for kind in self.kinds(shape)}
        other = kinds_with_other_devices(shape, self._indexes)
        keeps = {location for node in own if (location := self.location(node)) is not None and location[0] in indexes}
        held: Counter[str] = Counter()
        ending = unusable_count = 0
        why: list[str] = []
        for kind, index in indexes.items():
            for key in index.reserved:
                if (kind, key) not in keeps:
                    entry = index.entries[key]
                    holder = self._holder(entry, job)
                    held[holder] += bool(holder)
                    ending += not holder and not entry.why_not
            for key in index.unusable:
                entry = index.entries[key]
                if (kind, key) in keeps or (entry.reserved and self._holder(entry, job)):
                    continue
                unusable_count += 1
                if len(why) < REASONS:
                    why.append(entry.why_not)
        used = [index.entries[key] for index in indexes.values() for key in index.used]
        first = min(used, key=lambda entry: entry.key) if used else None
        return SliceCounts(
            total=sum(len(index.entries) for index in indexes.values()),
            own=len(keeps),
            ending=ending,
            holders=tuple(Holder(name, held[name]) for name in sorted(held, key=lambda name: (-held[name], name)) if held[name]),
            unusable=tuple(why),
            unusable_count=unusable_count,
            other_devices=tuple(sorted({name for kind in other for name, _ in kind.devices})),
            other_devices_count=sum(len(self._indexes[kind].entries) for kind in other),
            used=len(used),
            used_by=self._first_user(first) if first is not None else "",
            used_by_count=sum(sum(entry.used.values()) for entry in used),
            used_hosts=self._used_hosts(first) if first is not None and slice_hosts(first.kind) > 1 else None,
        )

    def divides(self, shape: Shape) -> bool:
        """Return whether `counts` counts accelerators: some host has more of them than a unit takes."""
        return shape.divides and any(kind.chips_per_host > shape.chips_per_host for kind in kinds_for(shape, self._indexes))

    def _accelerator_counts(self, shape: Shape, job: str, own: Mapping[str, int]) -> SliceCounts:
        resource = CATALOGUE[shape.accelerator].resource
        entries = [entry for kind in self.kinds(shape) for entry in self._indexes[kind].entries.values()]
        total = keeps = ending = unusable_count = used = users = 0
        held: Counter[str] = Counter()
        why: list[str] = []
        scattered: dict[str, int] = {}
        for entry in entries:
            node = entry.key[1]
            has = amount_of(self._nodes[node].allocatable, resource)
            taken = Counter(dict.fromkeys(self._reserved_by.get(node, ()), 0))
            for (each, _), part in self._units.get(node, NONE).items():
                taken[each] += amount_of(part, resource)
            others = sum(amount_of(use.requests, resource) for use in self.uses(node))
            for each in taken:
                taken[each] = taken[each] or has  # it has reserved all of the node
            mine, here = taken.pop(job, 0), own.get(node, 0)
            held.update(taken)
            # Reservation and pods of a unit come one after the other: the larger counts, or its share would seem free in between.
            free = max(0, has - max(mine, here) - taken.total() - others)
            if entry.why_not:
                unusable_count += free
                why += [entry.why_not][: REASONS - len(why)]
            elif 0 < free < shape.chips_per_host:
                scattered[node] = free
            total, keeps, ending, used = total + has, keeps + here, ending + max(0, mine - here), used + others
            users += sum(entry.used.values())
        in_use = [entry for entry in entries if entry.used]
        return SliceCounts(
            total=total,
            own=keeps,
            ending=ending,
            holders=tuple(Holder(name, held[name]) for name in sorted(held, key=lambda name: (-held[name], name)) if held[name]),
            unusable=tuple(why),
            unusable_count=unusable_count,
            used=used,
            used_by=self._first_user(min(in_use, key=lambda entry: entry.key)) if in_use else "",
            used_by_count=users,
            hosts=len(entries),
            scattered=tuple(sorted(scattered.items(), key=lambda each: (-each[1], each[0]))),
        )

    def kinds(self, shape: Shape) -> tuple[SliceKind, ...]:
        """Return the kinds of slice that `counts` counts for this shape."""
        return (*kinds_for(shape, self._indexes), *silent_kinds(shape, self._indexes))

    def _holder(self, entry: Entry, job: str) -> str:
        """Return the first other job that has reserved a host of this slice; "" if only `job` has."""
        others = (each for host in self._slice(entry).hosts for each in self._reserved_by.get(host.node, ()) if each != job)
        return min(others, default="")

    def _first_user(self, entry: Entry, node: str = "") -> str:
        """Return the first of the pods that use the accelerators of this slice, or of one node of it."""
        resource = CATALOGUE[entry.kind.accelerator].resource
        return min(str(use) for use in self.uses(node or min(entry.used)) if _takes(use, resource))

    def _used_hosts(self, entry: Entry) -> UsedHosts:
        nodes = heapq.nsmallest(REASONS, entry.used, key=natural_sort_key)
        users = tuple((node, self._first_user(entry, node)) for node in nodes)
        return UsedHosts(entry.key[1], slice_hosts(entry.kind), len(entry.used), users)

    def states(self) -> dict[tuple[SliceKind, SliceState], int]:
        """Return slices of each kind by state."""
        found: dict[tuple[SliceKind, SliceState], int] = {}
        for kind, index in self._indexes.items():
            used = len(index.used)
            free = sum(index.entries[key].filed is SliceState.FREE for key in index.free)
            rest = len(index.entries) - free - used - len(index.reserved)
            counts = (free, used, len(index.reserved), rest)
            found |= dict(zip(((kind, state) for state in SliceState), counts, strict=True))
        return found


def natural_sort_key(name: str) -> tuple[object, ...]:
    """Order host-2 before host-10, as the index of a host in its slice goes."""
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


def _put[K, V](into: dict[K, V], key: K, value: V) -> None:
    """Put the value there, or take it out if it is empty."""
    if value:
        into[key] = value
    else:
        into.pop(key, None)


def _pool(node: NodeView) -> str:
    return node.labels.get(names.NODE_POOL, "")


def _silent(node: NodeView, kind: SliceKind) -> str:
    """Return why nothing can start on a node whose device plugin does not offer its accelerators; "" if it does."""
    resource = CATALOGUE[kind.accelerator].resource
    if not resource or dict(node.devices).get(resource):
        return ""
    vendor = resource.partition("/")[0]
    others = [name for name, amount in telling(node.devices) if amount > 0 and name.partition("/")[0] == vendor]
    why = f"it offers {others[0]}, which is no whole accelerator" if others else "its device plugin has not reported any"
    return f"node {node.name} offers no {resource} now: {why}"


def _shared_labels(nodes: Sequence[NodeView]) -> Mapping[str, str]:
    if len(nodes) == 1:
        return nodes[0].labels
    return dict(set(nodes[0].labels.items()).intersection(*(node.labels.items() for node in nodes[1:])))


def _takes(use: PodUse, resource: str) -> bool:
    """Return whether no unit may run beside this pod: it requests accelerators of the host; on a host without any it is a learner of
    another operator."""
    return amount_of(use.requests, resource) > 0 if resource else use.learner is not None


def _foreign_taints(node: NodeView, kind: SliceKind) -> tuple[Taint, ...]:
    """Return what a pool's template must tolerate: the operator adds tolerations for the taints of the accelerator to every pod."""
    own = CATALOGUE[kind.accelerator].taints
    return tuple(taint for taint in node.taints if taint.effect != "PreferNoSchedule" and taint.key not in own)
