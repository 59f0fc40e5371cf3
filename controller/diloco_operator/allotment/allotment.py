"""The allotment of slices to jobs, kept up to date: requests and changes of the fleet in, grants and revocations out.

The result depends on nothing but the present requests and the present fleet. Only the jobs that a change can concern are allotted again:
those that are connected with it through slices that they could use.

See docs/decisions/0129-allotment.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from diloco_operator.allotment.classes import SliceClass, SliceClasses
from diloco_operator.allotment.request import NOTHING, AllotmentRequest, Allotted, HeldUnit
from diloco_operator.allotment.solve import Applicant, allot
from diloco_operator.allotment.view import AllottedFleet
from diloco_operator.fleet.inventory import Inventory, Location
from diloco_operator.fleet.slices import Slice
from diloco_operator.placement.matching import SliceRequirements


class Allotment:
    """Over all jobs of one operator, for one thread. Jobs are named by their keys (`Job.key`)."""

    def __init__(self, fleet: Inventory) -> None:
        self._fleet = fleet
        self._requests: dict[str, AllotmentRequest] = {}
        self._active: dict[str, None] = {}
        """Jobs that want slices, or of which units may be revoked."""
        self._holders: dict[str, set[str]] = {}
        """Node -> jobs whose units are there to stay."""
        self._classes = SliceClasses()
        self._results: dict[str, Allotted] = {}
        """Of jobs that get or give something."""
        self._kept: dict[str, str] = {}
        """First node of a free slice -> the job that it is granted to."""
        self._masks: dict[str, int] = {}
        """Job -> the bits of its requirements."""
        self._stale = 0
        """Bits of the requirements that a change since the last refresh can concern."""
        fleet.track_changes()

    # --- what changes ------------------------------------------------------------------------------------------------------
    def knows(self, job: str) -> bool:
        return job in self._requests

    def update(self, request: AllotmentRequest) -> None:
        """What the job has and wants from now on."""
        old = self._requests.get(request.job)
        if old == request or (old is not None and not self.of(request.job).revoked and _but_losses(old) == _but_losses(request)):
            self._requests[request.job] = request
            return
        self._take_changes()
        self._requests[request.job] = request
        for requirements in _requirements(request):
            self._classes.use(requirements)
        for requirements in _requirements(old) if old is not None else ():
            self._stale |= self._classes.drop(requirements)
        self._stale |= self._masks.get(request.job, 0)
        self._masks[request.job] = mask = self._mask(request)
        self._stale |= mask
        if mask and (any(pool.wanted or pool.moving for pool in request.pools) or _may_give(request)):
            self._active[request.job] = None
        else:
            self._active.pop(request.job, None)
        self._hold(request.job, _nodes(old) if old is not None else frozenset(), _nodes(request))

    def remove(self, job: str) -> None:
        """The job is gone. What its last pods have is free when they have ended."""
        old = self._requests.get(job)
        if old is None:
            return
        self.update(AllotmentRequest(job))
        del self._requests[job], self._masks[job]
        for node in self._results.pop(job, NOTHING).nodes:
            self._kept.pop(node, None)

    def refresh(self) -> set[str]:
        """Allot again what changed. Returns the jobs that can act on it: they got slices, or must give some."""
        self._take_changes()
        concerned: set[str] = set()
        while self._stale:
            component = self._component(self._stale & -self._stale)
            self._stale &= ~component
            concerned |= self._allot(component)
        return concerned

    # --- what it says --------------------------------------------------------------------------------------------------------
    def of(self, job: str) -> Allotted:
        """What the job gets and gives, as of the last refresh."""
        return self._results.get(job, NOTHING)

    def view(self, job: str) -> AllottedFleet:
        """The fleet as this job may use it. Slices that the job's request names already, but that it has not reserved yet, are its own."""
        granted = dict(self.of(job).granted)
        request = self._requests.get(job)
        for pool in request.pools if request is not None else ():
            own = [slice_ for unit in pool.units for slice_ in self._slices(unit)]
            if own:
                granted[pool.requirements.shape] = (*own, *granted.get(pool.requirements.shape, ()))
        return AllottedFleet(self._fleet, granted, self._kept, self._requests, self._results)

    # --- the parts -------------------------------------------------------------------------------------------------------------
    def _slices(self, unit: HeldUnit) -> Iterable[Slice]:
        found = (self._fleet.slice_at(location) for location in self._locations(unit.nodes))
        return (slice_ for slice_ in found if slice_ is not None)

    def _mask(self, request: AllotmentRequest) -> int:
        mask = 0
        for requirements in _requirements(request):
            mask |= 1 << self._classes.number(requirements)
        return mask

    def _hold(self, job: str, before: frozenset[str], now: frozenset[str]) -> None:
        for node in before - now:
            self._holders[node].discard(job)
            if not self._holders[node]:
                del self._holders[node]
        for node in now - before:
            self._holders.setdefault(node, set()).add(job)
        for location in self._locations(before ^ now):
            self._stale |= self._read_slice(location)

    def _locations(self, nodes: Iterable[str]) -> dict[Location, None]:
        found = (self._fleet.location(node) for node in nodes)
        return {location: None for location in found if location is not None}

    def _take_changes(self) -> None:
        for location in self._fleet.take_changes():
            self._stale |= self._read_slice(location)

    def _read_slice(self, location: Location) -> int:
        """Read one slice anew. Returns the bits of the requirements that its change concerns."""
        slice_ = self._fleet.slice_at(location)
        if slice_ is None or not self._fleet.usable(slice_):
            return self._classes.remove(location)
        held = any(host.node in self._holders for host in slice_.hosts)
        free = self._fleet.is_free(slice_)
        return self._classes.put(location, slice_, free=free and not held, leaving=not free and not held)

    def _component(self, mask: int) -> int:
        """All requirements that are connected with these: through slices that meet both, or through a job that has both."""
        masks = self._classes.masks() | {self._masks[job] for job in self._active}
        grown = True
        while grown:
            touching = [each for each in masks if each & mask]
            masks.difference_update(touching)
            before = mask
            for each in touching:
                mask |= each
            grown = mask != before
        return mask

    def _allot(self, component: int) -> set[str]:
        jobs = [job for job in self._active if self._masks[job] & component]
        had = {job for job in self._results if self._masks.get(job, 0) & component or job not in self._active}
        classes = [class_ for class_ in self._classes if class_.mask & component]
        found = allot((self._applicant(job) for job in jobs), classes) if jobs else {}
        concerned = set()
        for job in had | found.keys():
            before, now = self.of(job), found.get(job, NOTHING)
            if now == NOTHING:
                self._results.pop(job, None)
            else:
                self._results[job] = now
            for node in before.nodes - now.nodes:
                if self._kept.get(node) == job:
                    del self._kept[node]
            if now.nodes - before.nodes or now.revoked.keys() - before.revoked.keys():
                concerned.add(job)
        for job in found:
            for node in found[job].nodes:
                self._kept[node] = job
        return concerned

    def _applicant(self, job: str) -> Applicant:
        request = self._requests[job]
        numbers = [self._classes.number(pool.requirements) for pool in request.pools]
        preferred = [self._classes.number(pool.preferred or pool.requirements) for pool in request.pools]
        return Applicant(request, numbers, preferred, self._classes_of)

    def _classes_of(self, unit: HeldUnit) -> list[SliceClass]:
        return self._classes.classes_of(unit.nodes)


def _requirements(request: AllotmentRequest) -> list[SliceRequirements]:
    return [each for pool in request.pools for each in (pool.requirements, pool.preferred) if each is not None]


def _nodes(request: AllotmentRequest) -> frozenset[str]:
    return request.occupied.union(*(unit.nodes for pool in request.pools for unit in pool.units))


def _may_give(request: AllotmentRequest) -> bool:
    firm = [pool for pool in request.pools if not pool.scavenged]
    if sum(len(pool.units) + pool.lasting for pool in firm) > request.min:
        return True
    return any(pool.scavenged and pool.units for pool in request.pools)


def _but_losses(request: AllotmentRequest) -> AllotmentRequest:
    """Which of a job's units leaves first decides nothing while none must leave and all have equally many slices."""
    if len({pool.requirements.shape.slots for pool in request.pools}) > 1:
        return request
    pools = tuple(replace(pool, units=tuple(sorted(unit._replace(loss=0) for unit in pool.units))) for pool in request.pools)
    return replace(request, pools=pools)
