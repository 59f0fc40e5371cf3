"""The nodes that a job has reserved: those of its units by its records, and those to which a pod of it is bound. Pure.

Every user with the right to create pods can write a pod with the job's label, owner and annotations. So a pod that is not bound yet
holds a node only as a part of a unit, and a unit holds no more than its pool's shape.

See docs/decisions/0133-hostile-objects.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from diloco_operator.api import names
from diloco_operator.api.job import UnitState
from diloco_operator.fleet.slice_kinds import kinds_for
from diloco_operator.fleet.slices import Fleet, Shape
from diloco_operator.reconcile.context import ReconcileContext, own_learners
from diloco_operator.reconcile.observe.state import Job, PodView
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord, read_units

_WITHOUT_SLICE = (UnitState.DRAINING, UnitState.FAILED, UnitState.COMPLETED)
"""Units that hold no more than what their pods are bound to: none of them starts any more."""


def reservations(job: Job, pods: Sequence[PodView], fleet: Fleet) -> frozenset[str]:
    """Names of the nodes that a job has reserved by its status and its pods: for an operator that has just started (for every job,
    before the first reconcile), and for a job of which not all writes of a plan succeeded."""
    if job.spec is None or job.derived is None:
        return bound_nodes(job, pods)
    records = read_units(job.status)
    attempts = itertools.islice(_attempts(records, own_learners(job, pods, records).by_unit), job.spec.learners.max)
    return frozenset({*bound_nodes(job, pods), *_slice_nodes(attempts, job.derived.shapes, fleet)})


def reserved_nodes(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> frozenset[str]:
    """The same after a reconcile."""
    observed = context.observed
    running = ((record.pool, record.slice) for record in records.values() if record.state not in _WITHOUT_SLICE)
    return frozenset({*bound_nodes(observed.job, observed.pods), *_slice_nodes(running, context.shapes, observed.fleet)})


def bound_nodes(job: Job, pods: Iterable[PodView]) -> frozenset[str]:
    """Nodes to which a learner pod of this job is bound and has not ended."""
    return frozenset(pod.node for pod in pods if pod.component == names.COMPONENT_LEARNER and pod.owner == job.uid and pod.uses is not None)


def _attempts(records: Mapping[str, UnitStatusRecord], learners: Mapping[str, Sequence[PodView]]) -> Iterator[tuple[str, str]]:
    """Pool and slice of each unit by its record, and by the pods of an attempt that is newer: an operator died before it recorded that."""
    for record in records.values():
        if record.state not in _WITHOUT_SLICE and record.slice:
            yield record.pool, record.slice
    for unit, pods in learners.items():
        known = records[unit].attempt if unit in records else 0
        newest = max(pod.attempt for pod in pods)
        if newest > known:
            named = [pod for pod in pods if pod.attempt == newest and pod.slice]
            yield from ((pod.pool, pod.slice) for pod in named[:1])


def _slice_nodes(units: Iterable[tuple[str, str]], shapes: Mapping[str, Shape], fleet: Fleet) -> Iterator[str]:
    """Of units, each with its pool and the name of its slice. A name that is not of the pool's shape holds nothing."""
    for pool, name in units:
        shape = shapes.get(pool)
        if shape is None or not name:
            continue
        slices = fleet.resolve(shape, name) or ()
        kinds = {slice_.kind for slice_ in slices}
        if len(slices) <= shape.slots and len(kinds_for(shape, kinds)) == len(kinds):
            yield from (host.node for slice_ in slices for host in slice_.hosts)
