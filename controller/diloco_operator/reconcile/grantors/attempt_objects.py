"""Objects that grantors are asked with: one for an attempt of a unit, which is deleted with it. Pure.

See docs/decisions/0171-delegated-units.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from diloco_operator.api import names
from diloco_operator.api.status import UnitState
from diloco_operator.kube.client import Obj, Resource
from diloco_operator.plan import Delete
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.metadata import owner_reference
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord


class AttemptObject(Protocol):
    """How an adapter reads such an object, such as a `Child`."""

    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def owner(self) -> str:
        """uid of the job that owns it."""

    @property
    def deleting(self) -> bool: ...
    @property
    def unit(self) -> str: ...
    @property
    def attempt(self) -> int:
        """By the labels; another's object may have neither unit nor attempt."""


def object_name(context: ReconcileContext, record: UnitStatusRecord) -> str:
    """Return the same for every kind of object of the attempt."""
    return names.provisioning_request_name(context.observed.job.name, record.name, record.attempt)


def attempt_object(context: ReconcileContext, record: UnitStatusRecord, labels: Mapping[str, str] | None = None) -> Obj:
    """Return the metadata of an object of the record's attempt. `labels`: beside those of job, unit and attempt."""
    job = context.observed.job
    own = {names.LABEL_JOB: job.name, names.LABEL_UNIT: record.name, names.LABEL_ATTEMPT: str(record.attempt)}
    return {
        "metadata": {
            "name": object_name(context, record),
            "namespace": job.namespace,
            "labels": {**own, **(labels or {})},
            "ownerReferences": [owner_reference(job)],
        }
    }


def outdated(
    context: ReconcileContext, resource: Resource, found: Iterable[AttemptObject], records: Mapping[str, UnitStatusRecord]
) -> list[Delete]:
    """Return those of attempts that are over or drain, given the records as they will be once this plan's status is written. Those of an
    attempt that runs stay: its pods name them."""
    job = context.observed.job
    why = "the nodes for attempt {} of {} are not asked for"
    return [
        Delete(resource, job.namespace, each.name, each.uid, why=why.format(each.attempt, each.unit))
        for each in found
        if each.owner == job.uid and not each.deleting and not _is_needed(each, records.get(each.unit))
    ]


def _is_needed(found: AttemptObject, record: UnitStatusRecord | None) -> bool:
    return record is not None and record.running and record.attempt == found.attempt and record.state is not UnitState.DRAINING
