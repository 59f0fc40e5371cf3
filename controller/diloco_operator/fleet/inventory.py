"""The incremental index of the fleet: nodes and other pods go in, slices come out, and it keeps which job has reserved which host.

A change of a node, of a reservation or of what another pod uses costs O(log n), however many hosts the slice has, because what a slice
offers is computed only when it is read. `free` is lazy, so a placement pays for the candidates that it reads, not for the fleet.

See docs/decisions/0130-what-occupies-a-node.md.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping

from diloco_operator.accelerators import CATALOGUE, NVIDIA_GPU, Sign
from diloco_operator.api import names
from diloco_operator.fleet.devices import telling
from diloco_operator.fleet.health import DisruptionSignals, NotReadyCounts, count_not_ready, next_transition, unusable
from diloco_operator.fleet.node import NodeView
from diloco_operator.fleet.node_tallies import NodeTallies
from diloco_operator.fleet.occupancy import NONE, HostParts, Occupancy
from diloco_operator.fleet.offers import Offers
from diloco_operator.fleet.resources import Resources
from diloco_operator.fleet.slice_counting import SliceCounting
from diloco_operator.fleet.slice_index import Entry, Key, SliceIndex
from diloco_operator.fleet.slice_kinds import kind_of, kinds_for, slice_hosts
from diloco_operator.fleet.slices import (
    GROUP_SEPARATOR,
    NOTHING_TAKEN,
    Shape,
    Slice,
    SliceCounts,
    SliceKind,
)
from diloco_operator.fleet.use import PodUse, excludes_units, shortage

type Location = tuple[SliceKind, Key]
"""Where the inventory keeps a slice. It offers slices in the order of their locations."""


class Inventory:
    """Implements `Fleet`. An operator has one, in one thread. A `copy` serves a reader while the fleet changes."""

    def __init__(self, signals: DisruptionSignals) -> None:
        self._signals = signals
        self._now = 0.0
        """The time of the last `advance`."""
        self._transitions: list[tuple[float, str]] = []
        """A heap of (when, node): a node becomes unusable, or usable again, just because time passes."""
        self._nodes: dict[str, NodeView] = {}
        self._not_ready: NotReadyCounts | None = None
        """None if they must be counted again."""
        self._pools: dict[str, Entry] = {}
        """Node pool of a slice with several hosts -> its entry."""
        self._indexes: dict[SliceKind, SliceIndex] = {}
        self._locations: dict[str, Entry] = {}
        """Node -> the entry of its slice."""
        self._tallies = NodeTallies()
        self._occupancy = Occupancy()
        self._changes: dict[Location, None] | None = None
        """Slices that changed since `take_changes`. None if no allotment asks for them."""
        self._connect()

    def _connect(self) -> None:
        """Give the readers of nodes, slices and occupancy, which offer and count, access to them."""
        self._offers = Offers(self._nodes, self._occupancy)
        self.counting = SliceCounting(self._nodes, self._occupancy, self._tallies, self._indexes, self._locations)

    def copy(self) -> Inventory:
        """Return the fleet as it is now, for a reader. It takes reservations, but no changes of nodes or of what other pods use."""
        # The copy of an entry does not know its nodes, so its slice cannot be computed later.
        for index in self._indexes.values():
            for entry in index.entries.values():
                self._offers.of(entry)
        copy = Inventory(self._signals)
        copy._now = self._now
        copy._nodes = dict(self._nodes)
        copy._not_ready = self._not_ready
        copy._indexes = {kind: index.copy() for kind, index in self._indexes.items()}
        copy._locations = {node: copy._indexes[entry.kind].entries[entry.key] for node, entry in self._locations.items()}
        copy._pools = {pool: copy._indexes[entry.kind].entries[entry.key] for pool, entry in self._pools.items()}
        copy._tallies = self._tallies.copy()
        copy._occupancy = self._occupancy.copy()
        copy._connect()
        return copy

    # --- time --------------------------------------------------------------------------------------------------------
    def advance(self, now: float) -> list[str]:
        """Advance to `now`, in seconds since the epoch. Returns the nodes that may have become unusable or usable."""
        self._now = now
        changed = []
        while self._transitions and self._transitions[0][0] <= now:
            _, name = heapq.heappop(self._transitions)
            node = self._nodes.get(name)
            # Transitions of nodes that changed since stay in the heap. They do no harm, because health is judged anew.
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
        """Take a new or changed node. Returns whether anything changed; a heartbeat changes nothing."""
        old = self._nodes.get(node.name)
        if old == node:
            return False
        self._not_ready = None
        self._await_transition(node)
        entry = self._locations.get(node.name)
        # Only what `_made_of` returns makes a slice. Else each change of readiness of a node would assemble its pool of 512 hosts anew.
        if old is not None and _made_of(old) == _made_of(node):
            self._nodes[node.name] = node
            if entry is not None and old.allocatable != node.allocatable:
                entry.room_known = False
        else:
            kind = kind_of(node)
            if old is not None and (entry is None or entry.kinds[node.name] != kind or _pool(old) != _pool(node)):
                self._leave(old)
            self._nodes[node.name] = node
            self._tallies.note(old, node, kind)
            if kind is not None:
                self._join(node, kind)
        self._note_health(node)
        return True

    def remove_node(self, name: str) -> bool:
        """Remove a node that is gone. It stays reserved until its job releases it. Returns whether it was known."""
        node = self._nodes.get(name)
        if node is None:
            return False
        self._not_ready = None
        self._leave(node)
        self._tallies.note(node, None)
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
        return self._tallies.signs

    def _join(self, node: NodeView, kind: SliceKind) -> None:
        """Put the node into a slice of this kind, or update the slice if it is there already."""
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
            # A reservation outlasts its node: a node that was away for a moment must not be offered to another job.
            if self._occupancy.jobs(node.name):
                entry.reserved += 1
            self._note_use(entry, node.name)
        entry.slice_ = None
        if several:
            self._assemble(entry, pool)
        else:
            self._offers.of(entry)
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
        if self._occupancy.jobs(node.name):
            entry.reserved -= 1
        entry.slice_ = None
        if not entry.kinds:
            self._drop(entry)
            if slice_hosts(kind) > 1:
                del self._pools[_pool(node)]
            return
        self._assemble(entry, _pool(node))
        self._file(entry)

    def _file(self, entry: Entry) -> None:
        """Update the index after a change of the entry."""
        if entry.divisible:
            entry.left = self._offers.devices_left(entry)
        self._note_change(entry)
        self._indexes[entry.kind].file(entry)

    def _drop(self, entry: Entry) -> None:
        self._note_change(entry)
        index = self._indexes[entry.kind]
        index.remove(entry)
        if not index.entries:
            del self._indexes[entry.kind]

    def _assemble(self, entry: Entry, pool: str) -> None:
        """Make one slice of all nodes of a node pool, or say in `broken` why they are none."""
        # The least kind, not the first: a restarted operator sees nodes in another order, and must file the pool as before.
        kind = min(entry.of_kind)
        if kind != entry.kind:
            # The allotment knows the slice under its old kind, and must hear that it is gone there.
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
        count = sum(excludes_units(use, resource) for use in self._occupancy.uses(node))
        if count:
            entry.used[node] = count
        else:
            entry.used.pop(node, None)
        entry.room_known = False

    # --- what others use -----------------------------------------------------------------------------------------------
    def replace_use(self, old: PodUse | None, new: PodUse | None) -> bool:
        """Note that another pod uses `new` now instead of `old`; either may be None. Returns whether a free slice may have more room now:
        jobs may wait for that."""
        if old is new:
            return False
        self._occupancy.replace(old, new)
        for use in (new, old):
            if use is not None and not self._occupancy.covers(use) and (entry := self._locations.get(use.node)) is not None:
                self._note_use(entry, use.node)
                self._file(entry)
        # A pod that its job's reservation covers took no room from others, so they get none when it goes.
        if old is None or self._occupancy.covers(old):
            return False
        entry = self._locations.get(old.node)
        return entry is not None and entry.offered

    def uses(self, node: str) -> tuple[PodUse, ...]:
        return self._occupancy.uses(node)

    # --- reservations ------------------------------------------------------------------------------------------------
    def set_reservations(self, job: str, nodes: Iterable[str], shared: HostParts = NONE) -> bool:
        """Reserve exactly these nodes for the job; `shared` has what its units take of the nodes that they share. Returns whether the job
        released something that other jobs may need."""
        changed, released = self._occupancy.reserve(job, nodes, shared)
        for node, change in changed.items():
            if (entry := self._locations.get(node)) is not None:
                entry.reserved += change
                # Pods of units count as used until a reservation covers them. Then they must not keep the unit off its own host.
                if self._occupancy.has_units_pods(node):
                    self._note_use(entry, node)
                self._file(entry)
        return released

    def has_reserved(self, job: str, node: str, unit: str) -> bool:
        """Whether this unit of the job has reserved a part of the node."""
        return self._occupancy.has_reserved(job, node, unit)

    def reservations(self, job: str) -> frozenset[str]:
        return self._occupancy.reservations(job)

    def reserved_by(self, node: str) -> frozenset[str]:
        """Return the keys of the jobs that have reserved this node. A change of the node concerns them."""
        return frozenset(self._occupancy.jobs(node))

    def room_left(self, slice_: Slice) -> Resources:
        """See `Offers.room_left`."""
        return self._offers.room_left(slice_)

    # --- changes -----------------------------------------------------------------------------------------------------
    def track_changes(self) -> None:
        """Begin to remember changed slices for `take_changes`. At first all count as changed."""
        self._changes = {(kind, key): None for kind, index in self._indexes.items() for key in index.entries}

    def take_changes(self) -> Iterable[Location]:
        """Return the locations at which a slice, or who has it, changed since the last call."""
        changes, self._changes = self._changes or {}, {}
        return changes

    def _note_change(self, entry: Entry) -> None:
        if self._changes is not None:
            self._changes[entry.kind, entry.key] = None

    def location(self, node: str) -> Location | None:
        """Return the location of the slice that this node is part of. None if it is part of none."""
        entry = self._locations.get(node)
        return (entry.kind, entry.key) if entry is not None else None

    def slice_at(self, location: Location) -> Slice | None:
        """Return the slice at this location. None if it is gone."""
        kind, key = location
        entry = self._indexes[kind].entries.get(key) if kind in self._indexes else None
        return self._offers.of(entry) if entry is not None else None

    # --- Fleet -------------------------------------------------------------------------------------------------------
    def free(self, shape: Shape, pool: str = "") -> Iterator[Slice]:
        """Yield all free slices, in the order of node pools and names. The inventory must not change while the iterator is in use."""
        for kind in kinds_for(shape, self._indexes):
            index = self._indexes[kind]
            for key in index.free:
                entry = index.entries[key]
                if not entry.divisible:
                    yield self._offers.of(entry)
                # A unit that takes whole hosts gets only unused hosts: its pods would wait for what others have.
                elif not (entry.used or entry.reserved) or (shape.divides and entry.left >= shape.chips_per_host):
                    yield self._offers.remainder(entry)

    def slices(self, shape: Shape) -> Iterator[Slice]:
        """See `Fleet.slices`. The inventory must not change while the iterator is in use."""
        for kind in kinds_for(shape, self._indexes):
            for entry in self._indexes[kind].entries.values():
                yield self._offers.of(entry)

    def every_slice(self) -> Iterator[Slice]:
        """Yield all slices, in whatever state. The inventory must not change while the iterator is in use."""
        for index in self._indexes.values():
            for entry in index.entries.values():
                yield self._offers.of(entry)

    def kept(self, shape: Shape, pool: str = "") -> Iterator[tuple[Slice, str]]:
        """Yield nothing, because the inventory itself keeps no slice for a job."""
        return iter(())

    def resolve(self, shape: Shape, name: str) -> tuple[Slice, ...] | None:
        slices: list[Slice] = []
        for member in name.split(GROUP_SEPARATOR):
            entry = (self._pools.get(member) if shape.topology else None) or self._locations.get(member)
            if entry is None:
                return None
            slices.append(self._offers.of(entry))
        return tuple(slices)

    def usable(self, slice_: Slice) -> bool:
        entry = self._locations.get(slice_.hosts[0].node)
        # `left` is negative if a host has lost accelerators that units have.
        if entry is None or entry.broken or entry.unusable or (entry.left < 0 if entry.divisible else entry.used):
            return False
        # A node pool that was made anew under its old name has other hosts. Pods that are pinned to the old ones would wait for ever.
        return self._offers.of(entry).hosts == slice_.hosts

    def is_free(self, slice_: Slice) -> bool:
        """Whether `free` offers this slice."""
        entry = self._locations.get(slice_.hosts[0].node)
        if entry is None or not entry.offered or self._offers.of(entry).hosts != slice_.hosts:
            return False
        if not entry.divisible:
            return True
        return slice_.room.fits(self._offers.room_left(slice_)) if slice_.in_part else not (entry.used or entry.reserved)

    def shortage(self, slice_: Slice, needs: Resources) -> str:
        for host in slice_.hosts:
            if host.node in self._nodes and (why := shortage(self._nodes[host.node], self._occupancy.uses(host.node), needs)):
                return why
        return ""

    def wanted_before(self, shape: Shape, *, starts: bool) -> bool:
        """Return False, because the inventory knows of no jobs that wait."""
        return False

    def counts(self, shape: Shape, job: str = "", job_nodes: Mapping[str, int] = NOTHING_TAKEN) -> SliceCounts:
        return self.counting.counts(shape, job, job_nodes)


def _pool(node: NodeView) -> str:
    return node.labels.get(names.NODE_POOL, "")


def _made_of(node: NodeView) -> tuple[object, ...]:
    return node.labels, node.devices, node.taints, node.product


def _silent(node: NodeView, kind: SliceKind) -> str:
    """Return why nothing can start on the node if its device plugin does not offer its accelerators. "" if it does."""
    resource = CATALOGUE[kind.accelerator].resource
    if not resource or dict(node.devices).get(resource):
        return ""
    vendor = resource.partition("/")[0]
    others = [name for name, amount in telling(node.devices) if amount > 0 and name.partition("/")[0] == vendor]
    if node.product:
        none = f"DRA offers {node.product} there, which is not what its labels say"
    elif resource == NVIDIA_GPU:
        none = "no device plugin has reported any, and no ResourceSlice offers any"
    else:
        none = "no device plugin has reported any, and what only DRA offers is no slice"
    why = f"it offers {others[0]}, which is no whole accelerator" if others else none
    return f"node {node.name} offers no {resource} now: {why}"
