"""The nodes that a job has reserved: those of its units by its records, and those on which a pod of it has not ended. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from diloco_operator.api import names
from diloco_operator.api.job import UnitState
from diloco_operator.fleet.slices import Fleet, Shape
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.state import Job, PodView
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord, read_units

_DONE = (UnitState.FAILED, UnitState.COMPLETED)


def reservations(job: Job, pods: Sequence[PodView], fleet: Fleet) -> frozenset[str]:
    """Names of the nodes that a job has reserved by its status and its pods: for an operator that has just started (for every job,
    before the first reconcile), and for a job that is gone but still has pods."""
    shapes = job.derived.shapes if job.derived is not None else {}
    return _nodes(read_units(job.status), shapes, pods, fleet)


def reserved_nodes(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> frozenset[str]:
    """The same after a reconcile."""
    return _nodes(records, context.shapes, context.observed.pods, context.observed.fleet)


def pod_nodes(pods: Iterable[PodView]) -> frozenset[str]:
    """Nodes on which a learner pod has not ended."""
    return frozenset(pod.node for pod in pods if pod.component == names.COMPONENT_LEARNER and not pod.ended and pod.node)


def _nodes(records: Mapping[str, UnitStatusRecord], shapes: Mapping[str, Shape], pods: Sequence[PodView], fleet: Fleet) -> frozenset[str]:
    found = set(pod_nodes(pods))
    for record in records.values():
        shape = shapes.get(record.pool)
        if not record.slice or shape is None or record.state in _DONE:
            continue
        for slice_ in fleet.resolve(shape, record.slice) or ():
            found.update(host.node for host in slice_.hosts)
    return frozenset(found)
