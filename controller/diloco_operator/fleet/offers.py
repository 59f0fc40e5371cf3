"""What the hosts of a slice offer together, and what is left of a divided host. Pure.

See docs/decisions/0210-units-of-several-sizes.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from diloco_operator.accelerators import CATALOGUE
from diloco_operator.fleet.capacity import capacity_of
from diloco_operator.fleet.locality import locality_of
from diloco_operator.fleet.node import NodeView, Taint, natural_sort_key
from diloco_operator.fleet.occupancy import Occupancy
from diloco_operator.fleet.resources import Resources, amount_of, least, left
from diloco_operator.fleet.slice_index import Entry
from diloco_operator.fleet.slices import Slice, SliceKind


@dataclass(frozen=True, slots=True)
class Offers:
    """Computes what slices offer. It reads the inventory's own nodes and occupancy, which change."""

    nodes: Mapping[str, NodeView]
    occupancy: Occupancy

    def of(self, entry: Entry) -> Slice:
        """Return the slice of the entry, which keeps it: only what has changed since is computed again."""
        if entry.slice_ is None:
            nodes = [self.nodes[name] for name in sorted(entry.kinds, key=natural_sort_key)]
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

    def remainder(self, entry: Entry) -> Slice:
        """Return what is left of a divisible host, as a slice. It is the whole host if no part of it is used."""
        whole = self.of(entry)
        kind = entry.kind._replace(chips_per_host=min(entry.kind.chips_per_host, entry.left))
        in_part = whole.in_part or bool(entry.reserved)
        return replace(whole, kind=kind, room=self.room_left(whole), in_part=in_part) if in_part else whole

    def room_left(self, slice_: Slice) -> Resources:
        """Return what other pods and units leave of a divisible host. Nothing if a job has reserved all of it."""
        node = slice_.hosts[0].node
        room, parts = self._room(node), self.occupancy.parts(node)
        if self.occupancy.is_taken(node):
            return Resources()
        return left(room, parts.values()) if parts else room

    def devices_left(self, entry: Entry) -> int:
        """Return how many accelerators of a divisible host are left. Negative if the host has lost some that units have."""
        node = entry.key[1]
        if node not in self.nodes or self.occupancy.is_taken(node):
            return 0
        resource = CATALOGUE[entry.kind.accelerator].resource
        return amount_of(self._room(node), resource) - sum(amount_of(part, resource) for part in self.occupancy.parts(node).values())

    def _room(self, node: str) -> Resources:
        has, uses = self.nodes[node].allocatable, self.occupancy.uses(node)
        return left(has, (use.requests for use in uses)) if uses else has


def _shared_labels(nodes: Sequence[NodeView]) -> Mapping[str, str]:
    if len(nodes) == 1:
        return nodes[0].labels
    return dict(set(nodes[0].labels.items()).intersection(*(node.labels.items() for node in nodes[1:])))


def _foreign_taints(node: NodeView, kind: SliceKind) -> tuple[Taint, ...]:
    """Return the taints that a pool's template must tolerate."""
    # The operator itself adds tolerations for the taints of the accelerator to every pod.
    accelerator_taints = CATALOGUE[kind.accelerator].taints
    return tuple(taint for taint in node.taints if taint.effect != "PreferNoSchedule" and taint.key not in accelerator_taints)
