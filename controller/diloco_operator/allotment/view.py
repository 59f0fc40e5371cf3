"""The fleet as one job may use it: of the free slices it sees those that the allotment has granted to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from diloco_operator.fleet.health import NotReadyCounts
from diloco_operator.fleet.inventory import Inventory
from diloco_operator.fleet.node import NodeView
from diloco_operator.fleet.resources import Resources
from diloco_operator.fleet.slices import Shape, Slice, SliceCounts
from diloco_operator.fleet.use import PodUse


class AllottedFleet:
    """Implements `Fleet` for one job."""

    def __init__(self, fleet: Inventory, granted: Mapping[Shape, tuple[Slice, ...]], kept: Mapping[str, str]) -> None:
        """`kept`: first node of a free slice -> the job that it is granted to."""
        self._fleet = fleet
        self._granted = granted
        self._kept = kept

    def over(self, fleet: Inventory) -> AllottedFleet:
        """The same on another inventory: a copy."""
        return AllottedFleet(fleet, self._granted, self._kept)

    def free(self, shape: Shape) -> Iterator[Slice]:
        """See `Fleet.free`: those granted for this shape, as long as they are free."""
        return (slice_ for slice_ in self._granted.get(shape, ()) if self._fleet.is_free(slice_))

    def kept(self, shape: Shape) -> Iterator[tuple[Slice, str]]:
        """See `Fleet.kept`."""
        granted = {slice_.hosts[0].node for slice_ in self._granted.get(shape, ())}
        for slice_ in self._fleet.free(shape):
            if (node := slice_.hosts[0].node) not in granted:
                yield slice_, self._kept.get(node, "")

    def slices(self, shape: Shape) -> Iterator[Slice]:
        """See `Fleet.slices`."""
        return self._fleet.slices(shape)

    def resolve(self, shape: Shape, name: str) -> tuple[Slice, ...] | None:
        return self._fleet.resolve(shape, name)

    def usable(self, slice_: Slice) -> bool:
        return self._fleet.usable(slice_)

    def shortage(self, slice_: Slice, needs: Resources) -> str:
        return self._fleet.shortage(slice_, needs)

    def counts(self, shape: Shape) -> SliceCounts:
        return self._fleet.counts(shape)

    def uses(self, node: str) -> tuple[PodUse, ...]:
        return self._fleet.uses(node)

    def node(self, name: str) -> NodeView | None:
        return self._fleet.node(name)

    @property
    def not_ready(self) -> NotReadyCounts:
        return self._fleet.not_ready
