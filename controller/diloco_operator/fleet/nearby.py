"""What the fleet has instead of the hardware that a pool needs: near misses, for explanations. Pure.

See docs/decisions/0176-explain.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from diloco_operator.accelerators import ACCELERATOR_LABELS, CPU, identify
from diloco_operator.fleet.node import NodeView
from diloco_operator.fleet.slice_index import SliceIndex
from diloco_operator.fleet.slice_kinds import kinds_for
from diloco_operator.fleet.slices import NearbySlices, Shape, SliceKind, is_divisible


class Oddity(NamedTuple):
    """A node with accelerators that no unit can use."""

    node: str
    what: str
    """Begins with `has`: the label that gives it away, or the topology that its kind does not come in."""


def nearby(shape: Shape, indexes: Mapping[SliceKind, SliceIndex]) -> tuple[NearbySlices, ...]:
    """Slices of the same accelerator of which no unit of this shape can be made, those with most free ones first. It costs as much as there
    are kinds, however many slices each has."""
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


def oddity(node: NodeView) -> Oddity:
    """Why a node is of no kind, for one of which `kind_of` says so."""
    identified = identify(node.labels)
    if identified is not None:
        accelerator, labels = identified
        topology = labels.topology_of(node.labels)
        has = f"topology {topology}, which {accelerator.name} does not come in" if topology else "no label with the topology of its slice"
        return Oddity(node.name, f"has {has}")
    label = next(key for key in ACCELERATOR_LABELS if key in node.labels)
    return Oddity(node.name, f"has {label}={node.labels[label]}")
