"""How many slices of a shape the fleet has, or accelerators if hosts are divided, and who has them. Pure."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from diloco_operator.accelerators import CATALOGUE
from diloco_operator.fleet.nearby import nearby
from diloco_operator.fleet.node import NodeView, natural_sort_key
from diloco_operator.fleet.node_tallies import NodeTallies
from diloco_operator.fleet.occupancy import Occupancy
from diloco_operator.fleet.resources import amount_of
from diloco_operator.fleet.slice_index import Entry, SliceIndex
from diloco_operator.fleet.slice_kinds import kinds_for, kinds_with_other_devices, silent_kinds, slice_hosts
from diloco_operator.fleet.slices import Holder, Shape, SliceCounts, SliceKind, SliceState, UsedHosts
from diloco_operator.fleet.use import excludes_units

REASONS = 3
"""How many unusable slices `SliceCounts` explains one by one."""


@dataclass(frozen=True, slots=True)
class SliceCounting:
    """Counts slices. It reads the inventory's own data, which change."""

    nodes: Mapping[str, NodeView]
    occupancy: Occupancy
    tallies: NodeTallies
    indexes: Mapping[SliceKind, SliceIndex]
    entries: Mapping[str, Entry]
    """Node -> the entry of its slice."""

    def counts(self, shape: Shape, job: str, job_nodes: Mapping[str, int]) -> SliceCounts:
        """See `Fleet.counts`."""
        counts = self._accelerator_counts if self.divides(shape) else self._slice_counts
        odd = self.tallies.odd_nodes(CATALOGUE[shape.accelerator].resource, REASONS)
        return replace(counts(shape, job, job_nodes), nearby=nearby(shape, self.indexes), odd=odd)

    def divides(self, shape: Shape) -> bool:
        """Whether `counts` counts accelerators, because some host has more of them than a unit takes."""
        return shape.divides and any(kind.chips_per_host > shape.chips_per_host for kind in kinds_for(shape, self.indexes))

    def kinds(self, shape: Shape) -> tuple[SliceKind, ...]:
        """Return the kinds of slices that `counts` counts for this shape."""
        return (*kinds_for(shape, self.indexes), *silent_kinds(shape, self.indexes))

    def states(self) -> dict[tuple[SliceKind, SliceState], int]:
        """Return (kind, state) -> how many slices."""
        slices: dict[tuple[SliceKind, SliceState], int] = {}
        for kind, index in self.indexes.items():
            used = len(index.used)
            free = sum(index.entries[key].filed is SliceState.FREE for key in index.free)
            rest = len(index.entries) - free - used - len(index.reserved)
            counts = (free, used, len(index.reserved), rest)  # in the order of `SliceState`
            slices |= dict(zip(((kind, state) for state in SliceState), counts, strict=True))
        return slices

    def _slice_counts(self, shape: Shape, job: str, job_nodes: Mapping[str, int]) -> SliceCounts:
        indexes = {kind: self.indexes[kind] for kind in self.kinds(shape)}
        other = kinds_with_other_devices(shape, self.indexes)
        job_entries = (self.entries[node] for node in job_nodes if node in self.entries)
        kept = {(entry.kind, entry.key) for entry in job_entries if entry.kind in indexes}
        held: Counter[str] = Counter()
        ending = unusable_count = 0
        why: list[str] = []
        for kind, index in indexes.items():
            for key in index.reserved:
                if (kind, key) not in kept:
                    entry = index.entries[key]
                    holder = self._holder(entry, job)
                    if holder:
                        held[holder] += 1
                    elif not entry.why_not:
                        ending += 1
            for key in index.unusable:
                entry = index.entries[key]
                if (kind, key) in kept or (entry.reserved and self._holder(entry, job)):
                    continue
                unusable_count += 1
                if len(why) < REASONS:
                    why.append(entry.why_not)
        used = [index.entries[key] for index in indexes.values() for key in index.used]
        first = min(used, key=lambda entry: entry.key) if used else None
        return SliceCounts(
            total=sum(len(index.entries) for index in indexes.values()),
            of_job=len(kept),
            ending=ending,
            holders=_holders(held),
            unusable=tuple(why),
            unusable_count=unusable_count,
            other_devices=tuple(sorted({name for kind in other for name, _ in kind.devices})),
            other_devices_count=sum(len(self.indexes[kind].entries) for kind in other),
            used=len(used),
            used_by=self._first_user(first) if first is not None else "",
            used_by_count=sum(sum(entry.used.values()) for entry in used),
            used_hosts=self._used_hosts(first) if first is not None and slice_hosts(first.kind) > 1 else None,
        )

    def _accelerator_counts(self, shape: Shape, job: str, job_nodes: Mapping[str, int]) -> SliceCounts:
        resource = CATALOGUE[shape.accelerator].resource
        entries = [entry for kind in self.kinds(shape) for entry in self.indexes[kind].entries.values()]
        total = keeps = ending = unusable_count = used = users = 0
        held: Counter[str] = Counter()
        why: list[str] = []
        scattered: dict[str, int] = {}
        for entry in entries:
            node = entry.key[1]
            has = amount_of(self.nodes[node].allocatable, resource)
            taken = Counter(dict.fromkeys(self.occupancy.jobs(node), 0))
            for (each, _), part in self.occupancy.parts(node).items():
                taken[each] += amount_of(part, resource)
            others = sum(amount_of(use.requests, resource) for use in self.occupancy.uses(node))
            for each in taken:
                taken[each] = taken[each] or has  # a job without parts has reserved all of the node
            reserved, keeps_on_node = taken.pop(job, 0), job_nodes.get(node, 0)
            held.update(taken)
            # What the job keeps or gets and what it has reserved change one after the other. The larger counts, else the difference would
            # seem free in between.
            free = max(0, has - max(reserved, keeps_on_node) - taken.total() - others)
            if entry.why_not:
                unusable_count += free
                why += [entry.why_not][: REASONS - len(why)]
            elif 0 < free < shape.chips_per_host:
                scattered[node] = free
            total, keeps, ending, used = total + has, keeps + keeps_on_node, ending + max(0, reserved - keeps_on_node), used + others
            users += sum(entry.used.values())
        in_use = [entry for entry in entries if entry.used]
        return SliceCounts(
            total=total,
            of_job=keeps,
            ending=ending,
            holders=_holders(held),
            unusable=tuple(why),
            unusable_count=unusable_count,
            used=used,
            used_by=self._first_user(min(in_use, key=lambda entry: entry.key)) if in_use else "",
            used_by_count=users,
            hosts=len(entries),
            scattered=tuple(sorted(scattered.items(), key=lambda each: (-each[1], each[0]))),
        )

    def _holder(self, entry: Entry, job: str) -> str:
        """Return the first other job that has reserved a host of this slice. "" if no other has."""
        return min((each for node in entry.nodes for each in self.occupancy.jobs(node) if each != job), default="")

    def _first_user(self, entry: Entry, node: str = "") -> str:
        """Return the first pod that uses accelerators of this slice, on `node` or else on the first of its used nodes."""
        resource = CATALOGUE[entry.kind.accelerator].resource
        return min(str(use) for use in self.occupancy.uses(node or min(entry.used)) if excludes_units(use, resource))

    def _used_hosts(self, entry: Entry) -> UsedHosts:
        nodes = heapq.nsmallest(REASONS, entry.used, key=natural_sort_key)
        users = tuple((node, self._first_user(entry, node)) for node in nodes)
        return UsedHosts(entry.key[1], slice_hosts(entry.kind), len(entry.used), users)


def _holders(held: Counter[str]) -> tuple[Holder, ...]:
    return tuple(Holder(name, held[name]) for name in sorted(held, key=lambda name: (-held[name], name)) if held[name])
