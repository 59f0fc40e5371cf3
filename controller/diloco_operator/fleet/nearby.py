"""What the fleet has instead of the hardware that a pool needs, for explanations. Pure.

See docs/decisions/0176-explain-and-doctor.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from diloco_operator.accelerators import CPU, identify
from diloco_operator.accelerators.unknown import unknown_accelerator
from diloco_operator.fleet.devices import telling
from diloco_operator.fleet.node import NodeView
from diloco_operator.fleet.slice_index import SliceIndex
from diloco_operator.fleet.slice_kinds import kinds_for
from diloco_operator.fleet.slices import NearbySlices, Shape, SliceKind, is_divisible


class Oddity(NamedTuple):
    """Why a pool that names a kind does not get the accelerators of some nodes. A message tells nodes with equal oddities together."""

    resource: str
    """The resource of their accelerators. "" if it is not known."""
    what: str
    """What the node has, to stand after `has`: devices and label, or a topology that its kind does not come in."""
    remedy: str
    """What a person can do about it. "" if nothing."""


def nearby(shape: Shape, indexes: Mapping[SliceKind, SliceIndex]) -> tuple[NearbySlices, ...]:
    """Return the slices of the same accelerator that cannot hold a unit of this shape, by kind, the kind with most free slices first. The
    cost grows with the number of kinds, not of slices."""
    if shape.accelerator == CPU:
        return ()
    same = [kind for kind in indexes if kind.accelerator == shape.accelerator and kind.chips_per_host]
    fitting = kinds_for(shape, same)
    counts = []
    for kind in same:
        if kind not in fitting:
            index = indexes[kind]
            # A divisible host is in `free` as long as one of its accelerators is, so its length says nothing of how many are.
            free = len(index.free) if not is_divisible(kind.accelerator) else 0
            counts.append(NearbySlices(kind, len(index.entries), free))
    return tuple(sorted(counts, key=lambda each: (-each.free, -each.total, each.kind)))


def oddity(node: NodeView, kind: SliceKind | None) -> Oddity | None:
    """Return what is odd about the accelerators of a node. None if nothing is. `kind` is `kind_of(node)`."""
    if kind is not None and kind.accelerator != CPU:
        return None
    identified = identify(node.kind_labels)
    if identified is not None:
        accelerator, labels = identified
        topology = labels.topology_of(node.labels)
        has = f"topology {topology}, which {accelerator.name} does not come in" if topology else "no label with the topology of its slice"
        return Oddity(accelerator.resource, has, "correct the label, or add the kind to the operator's catalogue file")
    unknown = unknown_accelerator(node.kind_labels, (name for name, _ in telling(node.devices)))
    return Oddity(*unknown) if unknown is not None else None
