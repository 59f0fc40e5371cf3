"""The allotment of slices to jobs, kept up to date: requests and changes of the fleet go in, grants and revocations come out.

The result depends only on the present requests and the present fleet. After a change, only jobs that it can concern are allotted again:
jobs that are connected with it through slices that they could use. One flow over these jobs decides, in another thread if the caller
wishes.

See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from diloco_operator.allotment.allotted import NOTHING_ALLOTTED, Allotted
from diloco_operator.allotment.classes import SliceClasses
from diloco_operator.allotment.decision import Steps, decide
from diloco_operator.allotment.flow import Answer, answer
from diloco_operator.allotment.hosts import SharedHosts, parts_of
from diloco_operator.allotment.supply import PresentSupply
from diloco_operator.allotment.view import AllottedFleet
from diloco_operator.allotment.waiting import WaitingJobs, only_waits
from diloco_operator.fleet.inventory import Inventory, Location
from diloco_operator.fleet.slices import Slice, group_name, is_divisible
from diloco_operator.placement.request import HeldUnit, JobRequest, PoolRequest
from diloco_operator.placement.requirements import SliceRequirements


class Allotment:
    """The allotment over all jobs of one operator. Jobs are named by their keys (`Job.key`). Not thread-safe."""

    def __init__(self, fleet: Inventory) -> None:
        self._fleet = fleet
        self._requests: dict[str, JobRequest] = {}
        self._active: dict[str, None] = {}
        """Jobs that want slices, or whose units may be revoked. Jobs that only wait are in `_waiting` instead."""
        self._waiting = WaitingJobs()
        self._holders: dict[str, set[str]] = {}
        """Node -> jobs with units that are to stay on it."""
        self._classes = SliceClasses()
        self._shared = SharedHosts(fleet, self._classes)
        self._supply = PresentSupply(self._classes, self._shared, self._locations)
        self._results: dict[str, Allotted] = {}
        """Job -> what it gets and gives, if that is anything."""
        self._kept: dict[str, str] = {}
        """Key of a free slice -> the job that it is granted to, or for whose minimum it waits."""
        self._masks: dict[str, int] = {}
        """Job -> the bits of its requirements."""
        self._stale = 0
        """Bits of the requirements that a change since the last refresh can concern."""
        self._left_for_steps = 0
        """Bits of the requirements that `refresh` left for `in_steps`."""
        self._undecided = 0
        """Bits of the requirements on which a decision ran out of time, so that `in_steps` decides again."""
        self._deciding = 0
        """Bits of the requirements that `in_steps` decides on now, 0 if it does not run."""
        self._deferred: dict[str, JobRequest | None] = {}
        """Job -> a request that waits for the end of `in_steps`. None if the job is gone."""
        self._deferred_changes: dict[Location, None] = {}
        """Slices whose changes wait for the end of `in_steps`."""
        fleet.track_changes()

    # --- what changes ------------------------------------------------------------------------------------------------------
    def knows(self, job: str) -> bool:
        return self._request(job) is not None

    def update(self, request: JobRequest) -> None:
        """Replace the job's request. A request that concerns slices which `in_steps` decides on counts only once that has ended."""
        self._forget_revocations(request)
        if self._must_wait(request):
            self._deferred[request.job] = request
        else:
            self._update(request)

    def remove(self, job: str) -> None:
        """Forget a job that is gone. What its last pods have is free once they have ended."""
        # First as a job that wants nothing: this gives back what it had, and marks the jobs that waited for that as stale.
        nothing = JobRequest(job)
        if self._must_wait(nothing):
            self._deferred[job] = None
        elif job in self._requests:
            self._update(nothing)
            del self._requests[job], self._masks[job]
            for node in self._results.pop(job, NOTHING_ALLOTTED).kept:
                self._kept.pop(node, None)

    def refresh(self, most: int | None = None) -> set[str]:
        """Allot again what changed. Returns the jobs that can act on it: they got slices, or must give some.

        Args:
            most: how many jobs a decision may concern. Larger ones, and those on units of several sizes, are left for `in_steps`. None: all
                are decided here.
        """
        concerned: set[str] = set()
        if most is None:
            self._left_for_steps = 0
        self._take_changes()
        while undecided := self._stale & ~(self._left_for_steps | self._deciding):
            # The component of the lowest bit. Whatever is not connected with it is decided apart.
            component = self._component(undecided & -undecided)
            if most is not None and (component & self._left_for_steps or self._takes_long(component, most)):
                self._left_for_steps |= component
            else:
                self._left_for_steps |= component  # if this raises, `in_steps` decides again
                concerned |= _at_once(self._allot(component))
                self._settle(component)
        return concerned

    @property
    def unfinished(self) -> bool:
        """Whether something is left for `in_steps`, or `in_steps` runs."""
        return bool(self._left_for_steps or self._undecided or self._deciding)

    def unsettled(self) -> list[int]:
        """Return the components that changed or are undecided, for `in_steps`: for each, the bits of the requirements that slices or jobs
        connect."""
        self._take_changes()
        self._stale |= self._undecided
        self._undecided = 0
        components: list[int] = []
        rest = self._stale
        while rest:
            components.append(self._component(rest & -rest))
            rest &= ~components[-1]
        return components

    def in_steps(self, component: int) -> Steps[set[str]]:
        """Do what `refresh` does, for one of the components of `unsettled`, in short steps. Returns the jobs that can act on it.

        The caller answers the problems wherever it likes. Between steps it may do other things, and call any other method of this object.
        What changes meanwhile in this component counts only after the last step: the result is right for the state at the beginning, and
        until then the last result stands. Other components are not held up.
        """
        self._take_changes()
        # The component may have grown, or have been decided, since the caller asked for it.
        component = self._deciding = self._component(component & self._stale)
        concerned: set[str] = set()
        try:
            if component:
                concerned = yield from self._allot(component)
                # Only now: if the caller gives up in between, the component must be decided again.
                self._settle(component)
        finally:
            # Also if the caller gives up.
            self._end_deferring()
        return concerned

    def _settle(self, component: int) -> None:
        self._stale &= ~component
        self._left_for_steps &= ~component

    def _must_wait(self, request: JobRequest) -> bool:
        """Whether a request concerns slices that `in_steps` decides on, or the job's last one waits for its end."""
        job, deciding = request.job, self._deciding
        if not deciding:
            return False
        if job in self._deferred or self._masks.get(job, 0) & deciding:
            return True
        if any(self._classes.is_connected(requirements, deciding) for requirements in requirements_of(request)):
            return True
        changed = _changed_nodes(self._requests.get(job), request)
        classes = (self._classes.class_at(location) for location in self._locations(changed))
        return any(class_ is not None and class_.mask & deciding for class_ in classes)

    def _is_decided_on(self, location: Location) -> bool:
        """Whether `in_steps` decides on the slice at this location, or would do so after its change."""
        class_, slice_ = self._classes.class_at(location), self._fleet.slice_at(location)
        if class_ is not None and class_.mask & self._deciding:
            return True
        if slice_ is None or (class_ is not None and class_.members[location] == slice_):
            return False
        return self._classes.meets_any(slice_, self._deciding)

    def _end_deferring(self) -> None:
        deferred, changes = self._deferred, self._deferred_changes
        # Cleared first, else the calls below would defer the same things again.
        self._deciding, self._deferred, self._deferred_changes = 0, {}, {}
        self._read_slices(changes)
        for job, request in deferred.items():
            if request is None:
                self.remove(job)
            else:
                # Not `_update`: the new result may revoke a unit from a slice that the unit has left meanwhile.
                self.update(request)

    # --- what it gives -------------------------------------------------------------------------------------------------------
    def of(self, job: str) -> Allotted:
        """Return what the job gets and gives by the last decision."""
        return self._results.get(job, NOTHING_ALLOTTED)

    def spares(self, job: str) -> dict[str, list[str]]:
        """Return pool -> names of its spares: the free slices that are kept for it beside its units' slices."""
        request, granted = self._request(job), self.of(job).granted
        spares: dict[str, list[str]] = {}
        for pool in request.pools if request is not None else ():
            if pool.spares and (slices := granted.get(pool.name)):
                slots = pool.requirements.shape.slots
                names = [group_name(slices[index : index + slots]) for index in range(0, len(slices), slots)]
                spares[pool.name] = names[: pool.spares]
        return spares

    def view(self, job: str) -> AllottedFleet:
        """Return the fleet as this job may use it. Slices of its units count as granted, even before they are reserved."""
        granted = dict(self.of(job).granted)
        request = self._request(job)
        for pool in request.pools if request is not None else ():
            shape = pool.requirements.shape
            occupied = [slice_ for unit in pool.units for slice_ in self._slices(unit)] if not shape.divides else self._own_parts(job, pool)
            if occupied:
                granted[pool.name] = (*occupied, *granted.get(pool.name, ()))
        return AllottedFleet(self._fleet, granted, self._kept, self._requests, self._results, job)

    # --- the parts -------------------------------------------------------------------------------------------------------------
    def _request(self, job: str) -> JobRequest | None:
        """Return the last request of the job, even if it does not count yet. None if there is none."""
        return self._deferred[job] if job in self._deferred else self._requests.get(job)

    def _update(self, request: JobRequest) -> None:
        old = self._requests.get(request.job)
        # Each status write makes a new request. One that changes no decision must not cost an allotment of all jobs that compete.
        if old == request or (old is not None and not self.of(request.job).revoked and what_decides(old) == what_decides(request)):
            self._requests[request.job] = request
            return
        self._take_changes()
        self._requests[request.job] = request
        for requirements in requirements_of(request):
            self._classes.use(requirements)
        before = self._masks.get(request.job, 0)
        for requirements in requirements_of(old) if old is not None else ():
            before |= self._classes.drop(requirements)
        if self._waiting.discard(request.job):
            self._stale |= before
        self._masks[request.job] = mask = self._mask(request)
        self._active.pop(request.job, None)
        if mask and only_waits(request):
            if self._waiting.add(request, mask):
                self._stale |= mask
        else:
            self._stale |= mask
            if mask and (any(pool.wanted or pool.moving or pool.spares for pool in request.pools) or request.may_give):
                self._active[request.job] = None
        self._hold(request.job, whole_nodes(old) if old is not None else frozenset(), whole_nodes(request))
        self._read(self._shared.assign(request.job, parts_of(old), parts_of(request)))

    def _forget_revocations(self, request: JobRequest) -> None:
        """Forget the revocation of units that have other nodes now: a unit must leave only the slice that it had when it was revoked."""
        allotted = self.of(request.job)
        if not allotted.revoked:
            return
        before, now = places(self._request(request.job)), places(request)
        revoked = {unit: winner for unit, winner in allotted.revoked.items() if before.get(unit) == now.get(unit)}
        self._results[request.job] = replace(allotted, revoked=revoked)

    def _own_parts(self, job: str, pool: PoolRequest) -> list[Slice]:
        """Return the parts of hosts that units of the pool have but the job has not reserved yet."""
        parts = []
        for unit in pool.units:
            if not any(self._fleet.has_reserved(job, node, unit.name) for node in unit.nodes):
                parts += [replace(slice_, part=unit.name, room=pool.requirements.needs, in_part=True) for slice_ in self._slices(unit)]
        return parts

    def _slices(self, unit: HeldUnit) -> Iterable[Slice]:
        slices = (self._fleet.slice_at(location) for location in self._locations(unit.nodes))
        return (slice_ for slice_ in slices if slice_ is not None)

    def _mask(self, request: JobRequest) -> int:
        mask = 0
        for requirements in requirements_of(request):
            mask |= 1 << self._classes.number(requirements)
        return mask

    def _hold(self, job: str, before: frozenset[str], now: frozenset[str]) -> None:
        for node in before - now:
            self._holders[node].discard(job)
            if not self._holders[node]:
                del self._holders[node]
        for node in now - before:
            self._holders.setdefault(node, set()).add(job)
        self._read(before ^ now)

    def _read(self, nodes: Iterable[str]) -> None:
        self._read_slices(self._locations(nodes))

    def _locations(self, nodes: Iterable[str]) -> dict[Location, None]:
        locations = (self._fleet.location(node) for node in nodes)
        return {location: None for location in locations if location is not None}

    def _take_changes(self) -> None:
        self._read_slices(self._fleet.take_changes())

    def _read_slices(self, locations: Iterable[Location]) -> None:
        for location in locations:
            if self._deciding and self._is_decided_on(location):
                self._deferred_changes[location] = None
            else:
                self._stale |= self._read_slice(location)

    def _read_slice(self, location: Location) -> int:
        """Read one slice anew. Returns the bits of the requirements that a change of it concerns."""
        if is_divisible(location[0].accelerator):
            return self._shared.read(location, whole=location[1][1] in self._holders)
        slice_ = self._fleet.slice_at(location)
        if slice_ is None or not self._fleet.usable(slice_):
            return self._classes.remove(location)
        held = any(host.node in self._holders for host in slice_.hosts)
        free = self._fleet.is_free(slice_)
        return self._classes.put(location, slice_, free=free and not held, leaving=not free and not held)

    def _component(self, mask: int) -> int:
        """Return the bits of all requirements that are connected with these: slices meet both, or a job has both."""
        masks = self._classes.masks() | self._waiting.masks() | {self._masks[job] for job in self._active}
        again = True
        while again:
            touching = [other for other in masks if other & mask]
            masks.difference_update(touching)
            before = mask
            for other in touching:
                mask |= other
            again = mask != before
        return mask

    def _allot(self, component: int) -> Steps[set[str]]:
        """Allot to the jobs of a component. The results change in the last step. Returns the jobs that can act on it."""
        jobs = self.competing(component)
        self._waiting.note(component, *self._most_units(component))
        allotted: dict[str, Allotted] = {}
        if jobs:
            requests = [self._requests[job] for job in jobs]
            decided = yield from decide(component, requests, self._supply)
            allotted = decided.allotted
            if not decided.is_complete:
                self._undecided |= component
        concerned = set()
        # Also jobs that no longer compete but still have a result.
        had = {job for job in self._results if self._masks.get(job, 0) & component or not (job in self._active or job in self._waiting)}
        for job in had | allotted.keys():
            before, now = self.of(job), allotted.get(job, NOTHING_ALLOTTED)
            if now == NOTHING_ALLOTTED:
                self._results.pop(job, None)
            else:
                self._results[job] = now
            for node in before.kept - now.kept:
                if self._kept.get(node) == job:
                    del self._kept[node]
            if now.adds_to(before):
                concerned.add(job)
        for job in allotted:
            for node in allotted[job].kept:
                self._kept[node] = job
        return concerned

    def competing(self, component: int) -> list[str]:
        """Return the jobs that can get or give slices with these requirements, and one more of each line."""
        jobs = [job for job in self._active if self._masks[job] & component]
        return [*jobs, *self._waiting.first(component, *self._most_units(component))]

    def _takes_long(self, component: int, most: int) -> bool:
        """Return whether more than `most` jobs compete, or units of several sizes do: whole numbers take longer than a flow."""
        jobs = self.competing(component)
        sizes: dict[str, set[tuple[int, int]]] = {}
        for job in jobs:
            for pool in self._requests[job].pools:
                shape = pool.requirements.shape
                sizes.setdefault(shape.accelerator, set()).add((shape.slots, shape.chips_per_host))
        return len(jobs) > most or any(len(of_kind) > 1 for of_kind in sizes.values())

    def _most_units(self, component: int) -> tuple[int, int]:
        """Return how many units fit at most into slices that are free or being left, and where units of others may have to leave."""
        free = sum(class_.most_units for class_ in self._classes if class_.mask & component)
        free += sum(host.accelerators_left for host in self._shared.within(component))
        return free, sum(most_units(self._requests[job]) for job in self._active if self._masks[job] & component)


def _at_once[T](steps: Steps[T]) -> T:
    answered: Answer | None = None
    while True:
        try:
            problem = steps.send(answered)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        answered = answer(problem) if problem is not None else None


# --- What follows from one request alone ------------------------------------------------------------------------------
def requirements_of(request: JobRequest) -> list[SliceRequirements]:
    return [each for pool in request.pools for each in (pool.requirements, pool.preferred) if each is not None]


def whole_nodes(request: JobRequest) -> frozenset[str]:
    """Return the nodes that the job does not share with others."""
    whole = (unit.nodes for pool in request.pools if not pool.requirements.shape.divides for unit in pool.units)
    return (request.occupied - {node for node, _ in request.shared}).union(*whole)


def _changed_nodes(before: JobRequest | None, now: JobRequest) -> frozenset[str]:
    """Return the nodes where the job has more, less or another part than before."""
    whole = (whole_nodes(before) if before is not None else frozenset()) ^ whole_nodes(now)
    return whole | {node for (node, _), _ in parts_of(before).items() ^ parts_of(now).items()}


def places(request: JobRequest | None) -> dict[str, tuple[str, ...]]:
    """Return unit -> its nodes. Empty if there is no request."""
    return {unit.name: unit.nodes for pool in request.pools for unit in pool.units} if request is not None else {}


def most_units(request: JobRequest) -> int:
    """Return how many units of other jobs fit at most where units of this job may leave."""
    if not request.may_give:
        return 0
    return sum(len(pool.units) * pool.requirements.shape.smallest_units for pool in request.pools)


def what_decides(request: JobRequest) -> JobRequest:
    """Return the request without details of units that change no decision."""
    # `settling` only matters if units may be asked to leave.
    if not request.may_give:
        request = _with_units(request, lambda unit: unit._replace(settling=False))
    # `leaving_rank` says which unit leaves first. While none must leave, it matters only where units have several sizes.
    if len({pool.requirements.shape.size for pool in request.pools}) > 1:
        return request
    return _with_units(request, lambda unit: unit._replace(leaving_rank=0))


def _with_units(request: JobRequest, change: Callable[[HeldUnit], HeldUnit]) -> JobRequest:
    return replace(request, pools=tuple(replace(pool, units=tuple(sorted(map(change, pool.units)))) for pool in request.pools))
