"""The fleet as one job may use it: it sees only those free slices that the allotment has granted to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from diloco_operator.accelerators import CATALOGUE, Sign
from diloco_operator.allotment.allotted import NOTHING_ALLOTTED, Allotted
from diloco_operator.fleet.health import NotReadyCounts
from diloco_operator.fleet.inventory import Inventory, Location
from diloco_operator.fleet.node import NodeView
from diloco_operator.fleet.resources import Resources
from diloco_operator.fleet.slices import NOTHING_TAKEN, Holder, Shape, Slice, SliceCounts
from diloco_operator.fleet.use import PodUse
from diloco_operator.placement.request import JobRequest

HOLDERS = 3
"""For how many of the other jobs with slices `counts` works out surplus and priority: for those with most slices."""


class AllottedFleet:
    """Implements `Fleet` for one job."""

    def __init__(
        self,
        fleet: Inventory,
        granted: Mapping[str, tuple[Slice, ...]],
        kept: Mapping[str, str],
        requests: Mapping[str, JobRequest],
        results: Mapping[str, Allotted],
        job: str = "",
    ) -> None:
        """Show the fleet to one job.

        Args:
            granted: pool of this job -> slices that are granted to it.
            kept: key of a free slice -> the job that it is granted to, or for whose minimum it waits.
            requests, results: of all jobs, by key.
        """
        self._fleet = fleet
        self._granted = granted
        self._kept = kept
        self._requests = requests
        self._results = results
        self._job = job

    def copy(self) -> AllottedFleet:
        """Return a copy for a thread, because the event loop goes on to change what this view shows."""
        return AllottedFleet(
            self._fleet.copy(), dict(self._granted), dict(self._kept), dict(self._requests), dict(self._results), self._job
        )

    def reserved_by(self, node: str) -> frozenset[str]:
        return self._fleet.reserved_by(node)

    def free(self, shape: Shape, pool: str) -> Iterator[Slice]:
        """Yield the slices that are granted to the pool and still free."""
        return (slice_ for slice_ in self._granted.get(pool, ()) if self._fleet.is_free(slice_))

    def kept(self, shape: Shape, pool: str) -> Iterator[tuple[Slice, str]]:
        granted = {slice_.key for slice_ in self._granted.get(pool, ())}
        # A part's key begins with its node, so of several jobs that get parts of a host only one is named.
        winners = {key.partition("/")[0]: job for key, job in self._kept.items()}
        for slice_ in self._fleet.free(shape):
            if slice_.key not in granted:
                winner = winners.get(slice_.key, "")
                yield slice_, "" if winner == self._job else winner

    def slices(self, shape: Shape) -> Iterator[Slice]:
        return self._fleet.slices(shape)

    def resolve(self, shape: Shape, name: str) -> tuple[Slice, ...] | None:
        return self._fleet.resolve(shape, name)

    def usable(self, slice_: Slice) -> bool:
        return self._fleet.usable(slice_)

    def shortage(self, slice_: Slice, needs: Resources) -> str:
        return self._fleet.shortage(slice_, needs)

    def counts(self, shape: Shape, job: str = "", job_nodes: Mapping[str, int] = NOTHING_TAKEN) -> SliceCounts:
        counts = self._fleet.counts(shape, job, job_nodes)
        holders = (self._with_surplus(holder, shape) for holder in counts.holders[:HOLDERS])
        return replace(counts, holders=(*holders, *counts.holders[HOLDERS:])) if counts.holders else counts

    def _with_surplus(self, holder: Holder, shape: Shape) -> Holder:
        request = self._requests.get(holder.job)
        if request is None or not request.pools:
            return holder

        kinds = self._fleet.counting.kinds(shape)
        resource = CATALOGUE[shape.accelerator].resource if self._fleet.counting.divides(shape) else ""

        def locate(node: str) -> Location | None:
            location = self._fleet.location(node)
            return location if location is not None and location[0] in kinds else None

        return _with_surplus(holder, request, self._results.get(holder.job, NOTHING_ALLOTTED), locate, resource=resource)

    def wanted_before(self, shape: Shape, *, starts: bool) -> bool:
        request_of_job = self._requests.get(self._job)
        for job, request in self._requests.items():
            if job == self._job or (starts and request_of_job is not None and request_of_job.order < request.order):
                continue
            if any(pool.wanted and pool.requirements.shape.accelerator == shape.accelerator for pool in request.pools):
                return True
        return False

    def uses(self, node: str) -> tuple[PodUse, ...]:
        return self._fleet.uses(node)

    def node(self, name: str) -> NodeView | None:
        return self._fleet.node(name)

    @property
    def signs(self) -> Collection[Sign]:
        return self._fleet.signs

    @property
    def not_ready(self) -> NotReadyCounts:
        return self._fleet.not_ready


def _with_surplus(
    holder: Holder, request: JobRequest, allotted: Allotted, locate: Callable[[str], Location | None], *, resource: str = ""
) -> Holder:
    """Add to a holder the slices that its units are leaving, and those that it could lose without falling below a minimum.

    Args:
        request, allotted: the holder's.
        locate: returns the location of the slice on a node, or None if `holder` does not count that slice.
        resource: name of the devices that `holder` counts. "" if it counts slices.
    """
    staying = {location for node in request.occupied if (location := locate(node)) is not None}
    spare: list[tuple[int, int, bool]] = []
    counted = accelerators = 0
    for pool in request.pools:
        units = [unit for unit in pool.units if unit.name not in allotted.revoked]
        located = 0
        for unit in units:
            locations = {location for node in unit.nodes if (location := locate(node)) is not None}
            if locations:
                located += 1
            staying |= locations
        shape, held = pool.requirements.shape, len(units) + pool.counted_for_min
        slots = shape.hosts * shape.chips_per_host if resource else shape.slots
        accelerators += located * slots
        counted += 0 if pool.scavenged else held
        spare.append((slots, located if pool.scavenged else min(located, max(0, held - pool.min)), pool.scavenged))
    above_minimum, surplus = max(0, counted - request.min), 0
    for slots, present, scavenged in reversed(spare):  # the pool that the job prefers least gives first
        count = present if scavenged else min(present, above_minimum)
        above_minimum -= 0 if scavenged else count
        surplus += count * slots
    lasting = sum(dict(part.devices).get(resource, 0) for (node, _), part in request.shared.items() if locate(node) is not None)
    leaving = max(0, holder.slices - (accelerators + lasting if resource else len(staying)))
    return replace(holder, leaving=leaving, surplus=surplus, priority=request.priority)
