"""What the fleet has instead of the hardware that a pool needs: near misses, for explanations. Pure.

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
    """Why nodes have accelerators that no pool gets for naming a kind. Nodes with equal oddities are told together."""

    resource: str
    """The resource of their accelerators; "" where it is not known."""
    what: str
    """Goes after `has`: the devices and the label, or the topology that its kind does not come in."""
    remedy: str


def nearby(shape: Shape, indexes: Mapping[SliceKind, SliceIndex]) -> tuple[NearbySlices, ...]:
    """Return slices of the same accelerator of which no unit of this shape can be made, those with most free ones first. It costs as much
    as there are kinds, however many slices each has."""
    if shape.accelerator == CPU:
        return ()
    same = [kind for kind in indexes if kind.accelerator == shape.accelerator and kind.chips_per_host]
    fitting = kinds_for(shape, same)
    found = []
    for kind in same:
        if kind not in fitting:
            index = indexes[kind]
            # A divisible host is offered as long as one of its accelerators is free; `used` and `reserved` say nothing of how many.
            free = len(index.free) if not is_divisible(kind.accelerator) else 0
            found.append(NearbySlices(kind, len(index.entries), free))
    return tuple(sorted(found, key=lambda each: (-each.free, -each.total, each.kind)))


def oddity(node: NodeView, kind: SliceKind | None) -> Oddity | None:
    """Find what is odd about a node of this kind (`kind_of`); None: nothing."""
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
