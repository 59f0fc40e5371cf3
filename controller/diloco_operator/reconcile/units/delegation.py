"""Delegated units: which units ask for nodes, which are withdrawn, and which slice a unit got. Pure.

The pods of a delegated unit name no node. A grantor (`reconcile.grantors`) brings nodes, kube-scheduler binds the pods, and the operator
learns the slice from the binding. Until then the unit has a running attempt and no slice: it waits.

See docs/decisions/0171-delegated-units.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from diloco.wording import plural

from diloco_operator.api.consequences import Follows, Lack
from diloco_operator.api.reasons import UnitReason, follows
from diloco_operator.api.spec import Capacity
from diloco_operator.api.status import UnitState
from diloco_operator.fleet.slice_kinds import kinds_for
from diloco_operator.fleet.slices import Shape, Slice, group_name
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.placement import JobRequest, Placement, PoolOutcome, PoolRequest
from diloco_operator.placement.explain import while_asked, with_cause, with_remedy
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.grantors.interface import Grantor
from diloco_operator.reconcile.grantors.registry import cannot_ask, grantor_of
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units import departure_words, wait_words
from diloco_operator.reconcile.units.requirements import pool_requirements
from diloco_operator.reconcile.units.start_waits import NoPlace, all_bound, bound_at
from diloco_operator.reconcile.units.states import State, state_of
from diloco_operator.reconcile.units.worth import pool_worth
from diloco_operator.timeouts import RECONCILE


def _cool_until(records: Iterable[UnitStatusRecord], now: float) -> float | None:
    """Return when the last of these units has cooled down. None if no unit cools down now."""
    pauses = [record.not_before for record in records if state_of(record) is State.COOLING_DOWN and record.not_before is not None]
    return max((until for until in pauses if now < until), default=None)


# --- the slice of a unit ------------------------------------------------------------------------------------------------
class Binding(NamedTuple):
    """What the nodes of an attempt's pods say. Everything is empty while not all pods are bound, or not all nodes are known."""

    slice: str = ""
    problem: NoPlace | None = None
    """Why the unit cannot have these nodes. None if nothing is wrong with them."""
    recheck_at: float | None = None


def read_binding(context: ReconcileContext, record: UnitStatusRecord, pods: Sequence[PodView]) -> Binding:
    """Read where kube-scheduler has bound the pods of a delegated unit's running attempt.

    An autoscaler may bring nodes one by one, and a node gets its labels and devices bit by bit. So nodes that are not a whole slice have
    provisioning.timeout to become one."""
    shape = context.shapes.get(record.pool)
    if shape is None or len(pods) < shape.hosts or not all_bound(pods) or not context.up_to_date(record):
        due = stuck_at(context, pods)
        return Binding(recheck_at=due if due is not None and context.now < due else None)
    in_order = sorted(pods, key=lambda pod: pod.host)
    slices = [context.observed.fleet.resolve(shape, pod.node) for pod in in_order]
    known = [resolved[0] for resolved in slices if resolved]
    if len(known) == len(pods):
        nodes = [pod.node for pod in in_order]
        if (name := _one_slice(context, record, shape, nodes, known)) is not None:
            return Binding(name)
        # Judge whole slices only: while the nodes of a slice still come, they may look like several.
        if len({slice_.name for slice_ in known}) > 1 and shape.topology and all(len(each.hosts) >= shape.hosts for each in known):
            two = wait_words.bound_to_two_slices(sorted({slice_.name for slice_ in known}))
            return Binding(problem=NoPlace(UnitReason.NOT_PROVISIONED, "", two))
    timeout = context.pools[record.pool].provisioning.timeout
    due = max(bound_at(pod, context.now) or 0.0 for pod in pods) + timeout
    if context.now < due:
        return Binding(recheck_at=due)
    none = wait_words.no_slice(sorted({pod.node for pod in pods}), shape, record.pool, timeout)
    return Binding(problem=NoPlace(UnitReason.NOT_PROVISIONED, "", none))


def stuck_at(context: ReconcileContext, pods: Sequence[PodView]) -> float | None:
    """Return when a unit with some of its pods bound, and others not, counts as one that kube-scheduler cannot place. None if all pods are
    bound, or none is."""
    bound = [bound_at(pod, context.now) for pod in pods]
    last = max((moment for moment in bound if moment is not None), default=None)
    return last + RECONCILE.half_bound if last is not None and None in bound else None


def _one_slice(
    context: ReconcileContext, record: UnitStatusRecord, shape: Shape, nodes: Sequence[str], slices: Sequence[Slice]
) -> str | None:
    """Return the name of the slice, or group of hosts, that consists of these nodes. None if they are no slice of this shape."""
    kinds = {slice_.kind for slice_ in slices}
    if len(kinds_for(shape, kinds)) != len(kinds):
        return None
    if shape.topology:
        first = slices[0]
        return first.name if {host.node for host in first.hosts} == set(nodes) else None
    # Two pods on one host would share its accelerators, so each must have its own.
    if len(set(nodes)) < len(nodes) or not pool_requirements(context, context.pools[record.pool]).near_enough(slices):
        return None
    return group_name(slices)


# --- which units are asked for ---------------------------------------------------------------------------------------------
class Delegation(NamedTuple):
    asked: Sequence[tuple[str, str]] = ()
    """(pool, unit) of units for which nodes are asked now."""
    unneeded: Sequence[str] = ()
    """Units for which the job has no room any more: they wait for nodes, or keep their quota between two attempts."""
    deadlines: Sequence[float] = ()
    """When further units may be asked for."""


def delegate(context: ReconcileContext, request: JobRequest, placement: Placement, records: Mapping[str, UnitStatusRecord]) -> Delegation:
    """Decide which units ask for nodes.

    A unit that waits, or that keeps its quota between two attempts, is kept as long as the job has room for it. Nodes are asked first for
    the pools' minima, then for the job's minimum, and for more once every unit of the minima has its nodes; each time for the pools that
    are worth most first, among equals in the order of the spec."""
    return _Delegator(context, request, placement, records).decide()


class _Delegator:
    def __init__(
        self, context: ReconcileContext, request: JobRequest, placement: Placement, records: Mapping[str, UnitStatusRecord]
    ) -> None:
        self._context = context
        self._job = request
        self._records = records
        self._assigned = {assigned.unit for assigned in placement.assigned}
        placed = Counter(assigned.pool for assigned in placement.assigned)
        worth_by_pool = pool_worth(context, records.values())
        accepted = [pool for pool in request.pools if context.pools[pool.name].learners.max > 0]
        self._pools = sorted(accepted, key=lambda pool: -worth_by_pool[pool.name].value)
        """In the order in which the allotment would take a free slice from them."""
        self._settled = {pool.name: placed[pool.name] + pool.draining_or_completed for pool in request.pools}
        """Pool -> units that have hardware, or had it until a moment ago."""
        self._total = len(placement.assigned) + request.reserved
        self._waits: Counter[str] = Counter()
        self._asked: list[tuple[str, str]] = []
        self._deadlines: list[float] = []

    def decide(self) -> Delegation:
        unneeded = [*self._return(), *self._keep()]
        # Nodes take minutes to come, longer than the last steps take.
        if self._context.finishing:
            return Delegation((), unneeded)
        candidates = {pool.name: self._candidates(pool) for pool in self._pools}
        for pool in self._pools:
            self._ask(pool, candidates[pool.name], pool.min - self._settled[pool.name] - self._waits[pool.name])
        self._ask_anywhere(candidates, self._job.min)
        # Pools whose grantor cannot be asked do not count: they would keep the others from growing for ever.
        minima = all(self._settled[pool.name] >= pool.min for pool in self._pools if self._grantor(pool) is not None)
        if minima and self._total >= self._job.min:
            self._ask_anywhere(candidates, self._job.max)
        return Delegation(tuple(self._asked), unneeded, tuple(self._deadlines))

    def _return(self) -> list[str]:
        """Ask anew for units that keep their quota between two attempts: before others, which would wait for quota while these hold it.
        Return those that the job has no room for."""
        by_name = {pool.name: pool for pool in self._pools}
        unneeded = []
        for record in self._records.values():
            pool = by_name.get(record.pool)
            if pool is None or not self._keeps_quota(record):
                continue
            if self._room(pool) <= 0:
                unneeded.append(record.name)
                continue
            self._waits[record.pool] += 1
            if record.not_before is not None and self._context.now < record.not_before:
                self._deadlines.append(record.not_before)
            elif not self._context.finishing and self._grantor(pool) is not None:
                self._asked.append((record.pool, record.name))
        return unneeded

    def _keeps_quota(self, record: UnitStatusRecord) -> bool:
        between = record.attempt > 0 and not record.running and record.state in (UnitState.BACKING_OFF, UnitState.PENDING)
        return self._job.places_chosen and between and not follows(record.reason, Follows.QUOTA_LEFT)

    def _keep(self) -> list[str]:
        """Count the waiting units that the job has room for, first for the pools' minima, then the oldest. Return the others."""
        position = {pool.name: index for index, pool in enumerate(self._pools)}
        waiting = [record for record in self._records.values() if state_of(record) is State.WAITING_FOR_GRANTOR]
        waiting.sort(key=lambda record: (record.since or 0.0, position.get(record.pool, len(position)), record.number))
        short = {pool.name: pool.min - self._settled[pool.name] for pool in self._pools}
        first: list[UnitStatusRecord] = []
        rest: list[UnitStatusRecord] = []
        for record in waiting:
            if short.get(record.pool, 0) > 0:
                first.append(record)
                short[record.pool] -= 1
            else:
                rest.append(record)
        withdrawn = []
        for record in (*first, *rest):
            pool = next((pool for pool in self._pools if pool.name == record.pool), None)
            if pool is not None and not self._context.finishing and self._room(pool) > 0 and self._grantor(pool) is not None:
                self._waits[record.pool] += 1
            else:
                withdrawn.append(record.name)
        return withdrawn

    def _grantor(self, pool: PoolRequest) -> Grantor | None:
        spec, pools = self._context.spec, self._context.pools
        return grantor_of(spec, pools[pool.name]) if not cannot_ask(spec, pools[pool.name], self._context.observed.unreadable) else None

    def _room(self, pool: PoolRequest) -> int:
        """Return how many more units of the pool the job has room for."""
        in_pool = self._settled[pool.name] + self._waits[pool.name]
        in_job = self._job.max - self._total - self._waits.total()
        # A unit of the pool's minimum may wait even in a full job: once it has its nodes, a unit beyond the minimum of its pool leaves.
        return min(max(in_job, pool.min - in_pool), pool.max - in_pool)

    def _candidates(self, pool: PoolRequest) -> list[str]:
        """Return units without hardware that may ask for nodes now, the next one last, so that `pop` takes it."""
        if self._grantor(pool) is None:
            return []
        in_pool = [record for record in self._records.values() if record.pool == pool.name]
        until = _cool_until(in_pool, self._context.now)
        if until is not None:  # nodes that did not come for one unit would not come for the next one either
            self._deadlines.append(until)
            return []
        candidates = []
        for unit in (*(held.name for held in pool.units), *pool.new):
            record = self._records.get(unit)
            if unit in self._assigned or (record is not None and (record.running or self._keeps_quota(record))):
                continue
            if record is not None and record.not_before is not None and self._context.now < record.not_before:
                self._deadlines.append(record.not_before)
                continue
            candidates.append(unit)
        return candidates[::-1]

    def _ask_anywhere(self, candidates: Mapping[str, list[str]], target: int) -> None:
        for pool in self._pools:
            self._ask(pool, candidates[pool.name], target - self._total - self._waits.total())

    def _ask(self, pool: PoolRequest, candidates: list[str], count: int) -> None:
        for _ in range(min(count, self._room(pool), len(candidates))):
            self._asked.append((pool.name, candidates.pop()))
            self._waits[pool.name] += 1


ASK = "an autoscaler, which provisioning.mode of the pool asks"
"""What would help a pool without a grantor."""


# --- in words ----------------------------------------------------------------------------------------------------------
def not_needed(record: UnitStatusRecord, why: str) -> tuple[str, str]:
    """Return the message of a unit that the job has no room for any more, because of `why`, and what the unit's grantor had said last."""
    grantor_said = record.message if state_of(record) is State.WAITING_FOR_GRANTOR else record.grantor_said
    return departure_words.not_needed(why, grantor_said), grantor_said


def with_waiting(context: ReconcileContext, outcomes: Iterable[PoolOutcome], records: Mapping[str, UnitStatusRecord]) -> list[PoolOutcome]:
    """Return why pools do not have more units, with what grantors were asked for."""
    explained = []
    for outcome in outcomes:
        pool = context.pools[outcome.pool]
        grantor = grantor_of(context.spec, pool)
        if grantor is None:
            explained.append(with_remedy(outcome, ASK) if outcome.why and pool.capacity is not Capacity.SCAVENGED else outcome)
            continue
        in_pool = [record for record in records.values() if record.pool == pool.name]
        waiting = [record for record in in_pool if state_of(record) is State.WAITING_FOR_GRANTOR]
        until = _cool_until(in_pool, context.now)
        if outcome.why and (why := cannot_ask(context.spec, pool, context.observed.unreadable)):
            outcome = with_cause(outcome, why)
        elif waiting:
            summary = f"pool {pool.name} needs {plural(len(waiting), 'more slice', 'more slices')} of {context.shapes[pool.name]}"
            asked = f"{grantor.gives.words} for {'it' if len(waiting) == 1 else 'them'} {grantor.gives.verb} asked of {grantor.asked}"
            if pods := next(filter(all_bound, (context.attempt_pods(record) for record in waiting)), []):
                asked = f"{asked}; {wait_words.no_slice_yet(pods[0].unit, sorted({pod.node for pod in pods}))}"
            outcome = while_asked(outcome, grantor.gives.pool, summary, asked)
        elif outcome.lack is Lack.ROOM_IN_JOB:
            given_up = (record for record in in_pool if follows(record.reason, Follows.NOT_WANTED) and record.grantor_said)
            last = max(given_up, key=lambda record: (record.since or 0.0, record.number), default=None)
            if last is not None:
                outcome = with_cause(outcome, f"{last.name} until then: {last.grantor_said}")
        elif until is not None and outcome.why:
            more = f"{grantor.asked} brought no nodes in time and is asked again at {format_timestamp(until)}"
            outcome = with_cause(outcome, more)
        explained.append(outcome)
    return explained
