"""Which slices fit a unit: what its pool asks of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from diloco_operator.accelerators import CATALOGUE
from diloco_operator.api.spec import Locality
from diloco_operator.fleet.affinity import NodeTerm, attracts
from diloco_operator.fleet.locality import Domain
from diloco_operator.fleet.node import Taint, Toleration
from diloco_operator.fleet.resources import Resources, amount_of
from diloco_operator.fleet.slice_kinds import kinds_for
from diloco_operator.fleet.slices import Shape, Slice, SliceKind
from diloco_operator.placement.domains import DEPTH


class SliceRequirements(NamedTuple):
    """Everything that decides which slices fit a unit. Units with equal requirements are interchangeable."""

    shape: Shape
    capacity: str
    node_selector: frozenset[tuple[str, str]] = frozenset()
    affinity: tuple[NodeTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    locality: Locality = Locality.ANY
    """How near to each other the slices of one unit must be. Always Any if a unit has one slice."""
    avoided: frozenset[str] = frozenset()
    """Nodes on which no unit of the job may start now."""
    needs: Resources = Resources()
    """What the pod of each host requests."""

    def fits(self, slice_: Slice) -> bool:
        """Whether a unit may run on this slice, or on it and others, beside what other pods use there. The slice is of its shape."""
        return (self.shape.divides or not slice_.in_part) and self.needs.fits(slice_.room) and self.admits(slice_)

    def admits(self, slice_: Slice) -> bool:
        """Whether a unit may run on this slice if it has room enough."""
        return self.attracts(slice_) and next(self.untolerated(slice_), None) is None

    def attracts(self, slice_: Slice) -> bool:
        """Whether a unit may run on this slice if it has room enough and no taints."""
        if len(slice_.locality) < DEPTH[self.locality]:
            return False
        if self.capacity and slice_.capacity != self.capacity:
            return False
        if self.avoided and any(host.node in self.avoided for host in slice_.hosts):
            return False
        if any(slice_.labels.get(key) != value for key, value in self.node_selector):
            return False
        return all(attracts(self.affinity, slice_.labels, host.node) for host in slice_.hosts)

    def untolerated(self, slice_: Slice) -> Iterator[Taint]:
        """Yield the taints that keep a unit from this slice."""
        return (taint for taint in slice_.taints if not any(t.tolerates(taint) for t in self.tolerations))

    def suits(self, slice_: Slice) -> bool:
        """Whether a unit may run on this slice, or on it and others, whatever shape the slice has."""
        return self.suits_kind(slice_.kind) and self.fits(slice_)

    def suits_kind(self, kind: SliceKind) -> bool:
        """Whether slices of this kind are of its shape."""
        return bool(kinds_for(self.shape, (kind,)))

    def domain(self, slice_: Slice) -> Domain:
        """Return the domain of this slice that all slices of one unit must share."""
        return slice_.locality[: DEPTH[self.locality]]

    def near_enough(self, slices: Sequence[Slice]) -> bool:
        """Whether these slices are near enough to each other for one unit."""
        return len({self.domain(slice_) for slice_ in slices}) <= 1


def with_accelerators(needs: Resources, shape: Shape) -> Resources:
    """Return the needs with at least the accelerators of the shape, if a unit of it may share its host."""
    resource = CATALOGUE[shape.accelerator].resource
    if not shape.divides or amount_of(needs, resource) >= shape.chips_per_host:
        return needs
    return needs._replace(devices=tuple(sorted({**dict(needs.devices), resource: shape.chips_per_host}.items())))
