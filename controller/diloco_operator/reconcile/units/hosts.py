"""Bad hosts: where attempts failed, which hosts the job avoids, and for how long. Pure.

See docs/decisions/0102-failures-of-nodes-and-units.md.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from diloco.protocol.backoff import exponential

from diloco_operator.api.consequences import Follows
from diloco_operator.api.reasons import UnitReason, follows
from diloco_operator.api.spec import Pool, Restart
from diloco_operator.api.status import MAX_HOST_FAILURES, MAX_HOSTS, HostFailure, HostStatus
from diloco_operator.fleet.locality import Domain
from diloco_operator.fleet.slices import Fleet, Slice, named_hosts
from diloco_operator.placement.requirements import SliceRequirements
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.host_status import JobHosts, read_hosts
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units import departure_words
from diloco_operator.reconcile.units.attempt_end import End, EndKind
from diloco_operator.reconcile.units.requirements import pool_requirements
from diloco_operator.reconcile.units.restarts import backoff_seconds
from diloco_operator.reconcile.units.states import IDLE, State, state_of
from diloco_operator.reconcile.units.transitions import UnitEvent, transition

FAILURES = 2
"""Attempts that must have failed on a host before the job avoids it."""
FIRST_AVOIDANCE, LONGEST_AVOIDANCE = 600.0, 86400.0
"""Seconds. A host that fails again after it was avoided is avoided for twice as long, up to a day."""
SHARE = 1 / 3
"""Share of the hosts that a job uses. If attempts failed on more of them, the program is to blame. One host may always be avoided."""
MOST_AVOIDED = 12
"""Hosts that one job avoids at once, at most. Status names more than these, so that it shows if there are more suspects."""
_HOSTS_PER_UNIT = 2
"""Hosts that the failures of a single unit can make suspect: a unit that fails wherever it goes is itself to blame."""
_MESSAGE_LIMIT = 512


class BlamedFailure(NamedTuple):
    """A failure that this reconcile puts on record, and the node where it began."""

    node: str
    failure: HostFailure
    why: str


def blame(record: UnitStatusRecord, attempt: int, end: End, pods: Sequence[PodView]) -> list[BlamedFailure]:
    """Return the failure for the host that the end of an attempt counts against. Empty if the end is no failure, or it is not known which
    host it began on. `pods`: all pods of the attempt."""
    if end.kind is not EndKind.FAILURE or follows(end.reason, Follows.NOT_THE_HOST):
        return []
    nodes = {end.node} if end.node else {pod.node for pod in pods}
    if len(nodes) != 1:  # such as hosts that fell silent together
        return []
    return [BlamedFailure(nodes.pop(), HostFailure(unit=record.name, attempt=attempt, at=end.at, reason=str(end.reason)), end.why)]


def judge_hosts(context: ReconcileContext, records: Mapping[str, UnitStatusRecord], failures: Iterable[BlamedFailure]) -> JobHosts:
    """Add the new failures to the hosts on record, and decide which hosts the job avoids now."""
    hosts = _known(context)
    for blamed in failures:
        _add(context, hosts, blamed)
    suspects = _suspects(hosts, context.now)
    bad = [node for node in suspects if _until(hosts[node]) > context.now]
    program = _blame_program(context, records, hosts, suspects) if bad else ""
    for node in bad:
        avoid = not program and _is_replaceable(context, records, hosts[node], suspects)
        hosts[node] = _avoided(hosts[node]) if avoid else _acquitted(hosts[node])
    hosts = {record.node: record for record in _most_important(hosts.values(), context.now)}
    avoided = {node: record.avoided_until for node, record in hosts.items() if record.avoided_until and record.avoided(context.now)}
    moments = [_forgotten_at(record, context.spec.learners.restart) for record in hosts.values()]
    return JobHosts(hosts, avoided, program, tuple(moment for moment in (*moments, *avoided.values()) if moment > context.now))


def _known(context: ReconcileContext) -> dict[str, HostStatus]:
    """Return the hosts on record, without failures that are forgotten by now."""
    hosts: dict[str, HostStatus] = {}
    budget = context.spec.learners.restart
    for node, record in read_hosts(context.observed.job.status).items():
        view = context.observed.fleet.node(node)
        # With another uid it is a new node of the same name, which starts clean.
        if not record.failures or (view is not None and record.uid and view.uid != record.uid):
            continue
        # An operator whose clock was ahead may have written times in the future.
        failures = tuple(failure.model_copy(update={"at": min(failure.at, context.now)}) for failure in record.failures)
        recent = tuple(failure for failure in failures if context.now - failure.at < budget.window)
        until = record.avoided_until
        if until is not None:
            until = min(until, context.now + LONGEST_AVOIDANCE)
        # The last failure stays, however old it is: the end of an avoidance counts from there.
        known = record.model_copy(update={"failures": recent or failures[-1:], "avoided_until": until})
        if context.now < _forgotten_at(known, budget):
            hosts[node] = known
    return hosts


def _forgotten_at(record: HostStatus, budget: Restart) -> float:
    """Return when a host counts as good again: when the restart window has passed since its last failure, and as much time since the end of
    an avoidance as the avoidance took."""
    after = record.last_failure + budget.window
    return after if record.avoided_until is None else max(after, record.avoided_until + _duration(record.avoidances))


def _duration(avoidances: int) -> float:
    return exponential(FIRST_AVOIDANCE, LONGEST_AVOIDANCE, max(1, avoidances))


def _add(context: ReconcileContext, hosts: dict[str, HostStatus], blamed: BlamedFailure) -> None:
    view = context.observed.fleet.node(blamed.node)
    # Built without validation: what a node's object says must not stop a reconcile.
    record = hosts.get(blamed.node) or HostStatus.model_construct(node=blamed.node, uid=view.uid if view is not None else "")
    new = blamed.failure
    if any((known.unit, known.attempt) == (new.unit, new.attempt) for known in record.failures):
        return
    message = f"{new.unit}, attempt {new.attempt}: {blamed.why}"[:_MESSAGE_LIMIT]
    hosts[blamed.node] = record.model_copy(update={"failures": (*record.failures, new)[-MAX_HOST_FAILURES:], "message": message})


def _suspects(hosts: Mapping[str, HostStatus], now: float) -> list[str]:
    """Return the hosts on which enough attempts failed, that are avoided now, or that failed again after an avoidance."""
    evidence = _evidence(hosts)
    return [node for node, record in hosts.items() if evidence[node] >= FAILURES or record.avoided(now) or _on_probation(record)]


def _on_probation(record: HostStatus) -> bool:
    return record.avoided_until is not None and record.last_failure >= record.avoided_until


def _until(record: HostStatus) -> float:
    """Return until when a suspect is avoided. The time counts from its last failure, so that only a failure can begin an avoidance."""
    if record.avoided_until is not None and record.last_failure < record.avoided_until:
        return record.avoided_until
    return record.last_failure + _duration(record.avoidances + 1)


def _evidence(hosts: Mapping[str, HostStatus]) -> dict[str, int]:
    """Return host -> number of failures that count against it. A unit's failures count only on the first hosts on which it failed."""
    hosts_of_unit: dict[str, list[str]] = {}
    count = dict.fromkeys(hosts, 0)
    failures = [(failure, node) for node, record in hosts.items() for failure in record.failures]
    for failure, node in sorted(failures, key=lambda item: (item[0].unit, item[0].attempt, item[0].at, item[1])):
        nodes = hosts_of_unit.setdefault(failure.unit, [])
        if node not in nodes:
            nodes.append(node)
        if nodes.index(node) < _HOSTS_PER_UNIT:
            count[node] += 1
    return count


def _blame_program(
    context: ReconcileContext, records: Mapping[str, UnitStatusRecord], hosts: Mapping[str, HostStatus], suspects: Sequence[str]
) -> str:
    """Return why the program must be to blame if attempts failed on all these hosts. "" if the hosts may be bad."""
    # Hosts on record count too: the job has used them, even if its units have left them since.
    used = set(hosts)
    for record in records.values():
        shape = context.shapes.get(record.pool)
        if shape is not None:
            used.update(host.node for host in named_hosts(context.observed.fleet, shape, record.slice))
    if len(suspects) <= min(MOST_AVOIDED, max(1, int(len(used) * SHARE))):
        return ""
    return departure_words.program_blamed(len(suspects), len(used))


def _is_replaceable(
    context: ReconcileContext, records: Mapping[str, UnitStatusRecord], record: HostStatus, suspects: Sequence[str]
) -> bool:
    """Return whether every pool whose attempts failed on the host has other, unsuspected hosts, whether these are free or not."""
    failed = {records[failure.unit].pool for failure in record.failures if failure.unit in records}
    return all(_has_other_host(context, pool, suspects) for pool in context.spec.pools if pool.name in failed)


def _has_other_host(context: ReconcileContext, pool: Pool, suspects: Sequence[str]) -> bool:
    requirements = pool_requirements(context, pool)
    return any(
        requirements.admits(slice_) and not any(host.node in suspects for host in slice_.hosts)
        for slice_ in context.observed.fleet.slices(requirements.shape)
    )


def _avoided(record: HostStatus) -> HostStatus:
    until = _until(record)
    if until == record.avoided_until:
        return record
    return record.model_copy(update={"avoidances": record.avoidances + 1, "avoided_until": until})


def _acquitted(record: HostStatus) -> HostStatus:
    if record.avoided_until is None:
        return record
    return record.model_copy(update={"avoided_until": None, "avoidances": max(0, record.avoidances - 1)})


def _most_important(hosts: Iterable[HostStatus], now: float) -> list[HostStatus]:
    """Return the hosts that status has room for, sorted by name. Avoided ones are chosen first, then those with the most failures."""
    kept = sorted(hosts, key=lambda record: (not record.avoided(now), -len(record.failures), -record.last_failure, record.node))[:MAX_HOSTS]
    return sorted(kept, key=lambda record: record.node)


# --- what follows for the units -----------------------------------------------------------------------------------------
def start_elsewhere(records: Mapping[str, UnitStatusRecord], hosts: JobHosts, budget: Restart, now: float) -> dict[str, UnitStatusRecord]:
    """Return the units. Given-up units start again if they would have budget left without their failures on one host that is avoided
    now."""
    units = dict(records)
    for name, record in records.items():
        if state_of(record) is not State.OUT_OF_RESTARTS or not record.failures:  # a large status has no room for them
            continue
        node, excused = _worst_host(record, hosts)
        if not excused or len(record.failures) - excused > budget.limit:
            continue
        not_before = record.failures[-1] + backoff_seconds(budget, len(record.failures))
        units[name] = transition(
            record,
            UnitEvent.EXCUSED,
            now,
            UnitReason.HOST_AVOIDED,
            departure_words.failures_excused(excused, len(record.failures), node, hosts.avoided[node]),
            restarts=record.restarts + 1,
            not_before=not_before,
        )
    return units


def _worst_host(record: UnitStatusRecord, hosts: JobHosts) -> tuple[str, int]:
    """Return the avoided host with most of the failures that used up the unit's restart budget, and how many. ("", 0) if no host is
    avoided."""
    counts = {node: sum(_counts(record, failure) for failure in hosts.records[node].failures) for node in hosts.avoided}
    return max(counts.items(), key=lambda item: item[1], default=("", 0))


def _counts(record: UnitStatusRecord, failure: HostFailure) -> bool:
    """Return whether the failure is one of those on the unit's record, which has forgotten older ones."""
    return failure.unit == record.name and failure.at >= record.failures[0]


def has_place_elsewhere(context: ReconcileContext, pool: str, nodes: Collection[str]) -> bool:
    """Return whether a slice without these nodes is free for a unit of the pool, beside one for each unit of the pool that waits."""
    if pool not in context.pools:
        return False
    waiting = sum(unit.pool == pool and state_of(unit) in IDLE for unit in context.records_before.values())
    requirements = pool_requirements(context, context.pools[pool])
    free = context.observed.fleet.free(requirements.shape, pool)
    places = (slice_ for slice_ in free if requirements.suits(slice_) and not any(host.node in nodes for host in slice_.hosts))
    return sum(1 for _ in itertools.islice(places, waiting + 1)) > waiting


class OtherSlices:
    """Free slices for the units of one pool that leave hosts which the job avoids. Without one, a unit whose restart budget is not used up
    goes on where it is: that costs no other job anything."""

    def __init__(self, fleet: Fleet, pool: str, requirements: SliceRequirements) -> None:
        self._fleet = fleet
        self._pool = pool
        self._requirements = requirements

    @functools.cached_property
    def _free(self) -> Counter[Domain]:
        """Domain -> free slices that are left."""
        requirements = self._requirements
        # Slices that are kept for no other job. This job gets them only when it asks for them.
        unwanted = (slice_ for slice_, job in self._fleet.kept(requirements.shape, self._pool) if not job)
        free = itertools.chain(self._fleet.free(requirements.shape, self._pool), unwanted)
        return Counter(requirements.domain(slice_) for slice_ in free if requirements.suits(slice_))

    def take_for(self, slices: Sequence[Slice]) -> bool:
        """Take free slices for a unit that has a bad host: in one domain, and as few as its good ones there allow. True if there were bad
        ones, and enough free ones: then the unit should leave."""
        good = [slice_ for slice_ in slices if not any(host.node in self._requirements.avoided for host in slice_.hosts)]
        if len(good) == len(slices):
            return False
        there = Counter(map(self._requirements.domain, good))
        lacks = {domain: len(slices) - there[domain] for domain, free in self._free.items() if there[domain] + free >= len(slices)}
        if not lacks:
            return False
        domain = min(lacks, key=lacks.__getitem__)
        self._free[domain] -= lacks[domain]
        return True
