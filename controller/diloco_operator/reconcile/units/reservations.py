"""The nodes that a job has reserved: its units' nodes by the records, and nodes whose accelerators its bound pods request. Pure.

Everyone who may create pods can write one with the job's label, owner and annotations. So a pod that is not bound yet holds a node only as
part of a unit, and a unit holds no more than its pool's shape. A bound pod that requests no accelerators holds its node only if the records
say that its unit has it. Elsewhere it counts by its requests, like any other pod.

See docs/decisions/0086-reading-the-api.md. See docs/decisions/0130-what-occupies-a-node.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from diloco_operator.api import names
from diloco_operator.fleet.occupancy import Reservations
from diloco_operator.fleet.resources import Resources, most
from diloco_operator.fleet.slice_kinds import kinds_for
from diloco_operator.fleet.slices import Fleet, named_hosts
from diloco_operator.placement.requirements import with_accelerators
from diloco_operator.reconcile.context import ReconcileContext, own_learners
from diloco_operator.reconcile.observe.derived import Derived
from diloco_operator.reconcile.observe.job import Job
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord, read_units
from diloco_operator.reconcile.units.states import ABLE, state_of


def reservations(job: Job, pods: Sequence[PodView], fleet: Fleet) -> Reservations:
    """Return what a job has reserved by its status and its pods. An operator that has just started calls it for every job before the first
    reconcile, and for a job when not all writes of a plan have succeeded."""
    if job.spec is None or job.derived is None:
        return bound_nodes(job, pods, fleet)
    records = read_units(job.status)
    attempts = itertools.islice(_attempts(records, own_learners(job, pods, records).by_unit), job.spec.learners.max)
    return _together(job.derived, [*_slice_nodes(attempts, job.derived, fleet), *_bound(job, pods, records, fleet)])


def reserved_nodes(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> Reservations:
    """Return what a job has reserved after a reconcile, by these records and its pods."""
    observed = context.observed
    running = ((record.name, record.pool, record.slice) for record in records.values() if state_of(record) in ABLE)
    derived = observed.job.derived
    return _together(
        derived, [*_slice_nodes(running, derived, observed.fleet), *_bound(observed.job, observed.pods, records, observed.fleet)]
    )


def bound_nodes(job: Job, pods: Iterable[PodView], fleet: Fleet) -> Reservations:
    """Return the nodes with bound learner pods of this job that have not ended, if a pod requests accelerators or its unit has the node by
    status."""
    return _together(job.derived, _bound(job, pods, read_units(job.status), fleet))


class _Claim(NamedTuple):
    node: str
    unit: str
    pool: str
    takes: Resources


def _bound(job: Job, pods: Iterable[PodView], records: Mapping[str, UnitStatusRecord], fleet: Fleet) -> Iterator[_Claim]:
    for pod in pods:
        if pod.component != names.COMPONENT_LEARNER or pod.owner != job.uid or pod.uses is None:
            continue
        if pod.takes_accelerators or _was_granted(job, pod, records.get(pod.unit), fleet):
            yield _Claim(pod.node, pod.unit, pod.pool, pod.admitted.requests)


def _was_granted(job: Job, pod: PodView, record: UnitStatusRecord | None, fleet: Fleet) -> bool:
    """Return whether the unit of this pod has the pod's node by its record."""
    shape = job.derived.shapes.get(record.pool) if job.derived is not None and record is not None else None
    if shape is None or record is None:
        return False
    return any(host.node == pod.node for host in named_hosts(fleet, shape, record.slice))


def _together(derived: Derived | None, claims: Iterable[_Claim]) -> Reservations:
    """Join the claims on nodes. A unit with several attempts on a node takes there what the largest takes: a new attempt starts when the
    old one has gone."""
    whole: set[str] = set()
    shared: dict[tuple[str, str], Resources] = {}
    for node, unit, pool, takes in claims:
        shape = derived.shapes.get(pool) if derived is not None else None
        if shape is None or not shape.divides:  # of an unknown pool it is unknown whether its units share hosts
            whole.add(node)
        else:
            shared[node, unit] = most(takes, shared.get((node, unit), Resources()))
    parts = {(node, unit): part for (node, unit), part in shared.items() if node not in whole}
    return Reservations(frozenset({*whole, *(node for node, _ in shared)}), parts)


def _attempts(records: Mapping[str, UnitStatusRecord], learners: Mapping[str, Sequence[PodView]]) -> Iterator[tuple[str, str, str]]:
    """Yield unit, pool and slice of each unit: by the pods of a newer attempt than its record has, which an operator created that died
    before it wrote status, else by its record."""
    newer: dict[str, tuple[str, str, str]] = {}
    for unit, pods in learners.items():
        known = records[unit].attempt if unit in records else 0
        newest = max(pod.attempt for pod in pods)
        named = next((pod for pod in pods if pod.attempt == newest > known and pod.slice), None)
        if named is not None:
            newer[unit] = (unit, named.pool, named.slice)
    yield from newer.values()
    for record in records.values():
        if record.name not in newer and state_of(record) in ABLE and record.slice:
            yield record.name, record.pool, record.slice


def _slice_nodes(units: Iterable[tuple[str, str, str]], derived: Derived | None, fleet: Fleet) -> Iterator[_Claim]:
    """Yield the nodes of these units (unit, pool, slice). A slice that does not have the pool's shape holds nothing."""
    for unit, pool, name in units:
        shape = derived.shapes.get(pool) if derived is not None else None
        if derived is None or shape is None or not name:
            continue
        slices = fleet.resolve(shape, name) or ()
        kinds = {slice_.kind for slice_ in slices}
        if len(slices) <= shape.slots and len(kinds_for(shape, kinds)) == len(kinds):
            needs = with_accelerators(derived.needs[pool], shape)
            yield from (_Claim(host.node, unit, pool, needs) for slice_ in slices for host in slice_.hosts)
