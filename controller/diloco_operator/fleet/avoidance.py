"""A view of the fleet for a job that avoids some nodes. Pure.

See docs/decisions/0102-failures-of-nodes-and-units.md.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass

from diloco_operator.accelerators import Sign
from diloco_operator.fleet.health import NotReadyCounts
from diloco_operator.fleet.node import NodeView
from diloco_operator.fleet.resources import Resources
from diloco_operator.fleet.slices import NOTHING_TAKEN, Fleet, Shape, Slice, SliceCounts
from diloco_operator.fleet.use import PodUse


@dataclass(frozen=True, slots=True)
class FleetWithout:
    """A `Fleet` that offers no free slice with one of these nodes, or, with `last`, offers those last."""

    fleet: Fleet
    avoid: Container[str]
    last: bool = False

    def free(self, shape: Shape, pool: str) -> Iterator[Slice]:
        """See `Fleet.free`."""
        avoided: list[Slice] = []
        for slice_ in self.fleet.free(shape, pool):
            if any(host.node in self.avoid for host in slice_.hosts):
                avoided.append(slice_)
            else:
                yield slice_
        if self.last:
            yield from avoided

    def kept(self, shape: Shape, pool: str) -> Iterator[tuple[Slice, str]]:
        """See `Fleet.kept`."""
        return self.fleet.kept(shape, pool)

    def slices(self, shape: Shape) -> Iterator[Slice]:
        """See `Fleet.slices`."""
        return self.fleet.slices(shape)

    def resolve(self, shape: Shape, name: str) -> tuple[Slice, ...] | None:
        """See `Fleet.resolve`."""
        return self.fleet.resolve(shape, name)

    def usable(self, slice_: Slice) -> bool:
        """See `Fleet.usable`."""
        return self.fleet.usable(slice_)

    def shortage(self, slice_: Slice, needs: Resources) -> str:
        """See `Fleet.shortage`."""
        return self.fleet.shortage(slice_, needs)

    def counts(self, shape: Shape, job: str = "", own: Mapping[str, int] = NOTHING_TAKEN) -> SliceCounts:
        """See `Fleet.counts`."""
        return self.fleet.counts(shape, job, own)

    def uses(self, node: str) -> tuple[PodUse, ...]:
        """See `Fleet.uses`."""
        return self.fleet.uses(node)

    def node(self, name: str) -> NodeView | None:
        """See `Fleet.node`."""
        return self.fleet.node(name)

    @property
    def not_ready(self) -> NotReadyCounts:
        """See `Fleet.not_ready`."""
        return self.fleet.not_ready

    @property
    def signs(self) -> Collection[Sign]:
        """See `Fleet.signs`."""
        return self.fleet.signs
