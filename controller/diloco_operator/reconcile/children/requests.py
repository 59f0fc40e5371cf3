"""ProvisioningRequests: the objects by which the nodes of a unit are asked for, all or none, and when they are not needed any more. Pure.

See docs/decisions/0173-provisioning-requests.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from diloco_operator.api import names
from diloco_operator.api.job import Pool, UnitState
from diloco_operator.kube.client import Obj, Resource
from diloco_operator.plan import WAVE_LEARNERS, WAVE_SYNCER, Create, Delete
from diloco_operator.reconcile.children.metadata import owner_reference
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.provisioning import RequestView
from diloco_operator.reconcile.observe.state import Child, Job
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord


def consuming(pool: Pool, name: str) -> dict[str, str]:
    """Annotations of the pods for which the request of this name brings nodes."""
    return {names.CONSUME_REQUEST: name, names.REQUEST_CLASS: pool.provisioning.class_name}


def request_objects(context: ReconcileContext, record: UnitStatusRecord, pod: Obj) -> list[Create]:
    """The PodTemplate and the ProvisioningRequest for an attempt whose pods are like `pod`; without those that are there. The template
    comes first: a request without one fails."""
    job, pool = context.observed.job, context.pools[record.pool]
    there = context.observed.children
    name = names.provisioning_request_name(job.name, record.name, record.attempt)
    queued = pool.provisioning.class_name == names.QUEUED_PROVISIONING
    template = {
        **_object(job, record, name, {names.WARDEN_POLICIES: "true"} if queued else {}),
        "template": {"metadata": {key: pod["metadata"][key] for key in ("labels", "annotations")}, "spec": pod["spec"]},
    }
    spec: Obj = {
        "provisioningClassName": pool.provisioning.class_name,
        "podSets": [{"podTemplateRef": {"name": name}, "count": context.shapes[record.pool].hosts}],
    }
    if pool.provisioning.parameters:
        spec["parameters"] = dict(pool.provisioning.parameters)
    creates = []
    if name not in there.pod_templates:
        creates.append(Create(names.POD_TEMPLATES, template, wave=WAVE_SYNCER))
    if name not in there.requests:
        creates.append(Create(names.PROVISIONING_REQUESTS, {**_object(job, record, name), "spec": spec}, wave=WAVE_LEARNERS))
    return creates


def _object(job: Job, record: UnitStatusRecord, name: str, labels: Mapping[str, str] | None = None) -> Obj:
    own = {names.LABEL_JOB: job.name, names.LABEL_UNIT: record.name, names.LABEL_ATTEMPT: str(record.attempt)}
    return {
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "labels": {**own, **(labels or {})},
            "ownerReferences": [owner_reference(job)],
        }
    }


def outdated_requests(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> list[Delete]:
    """Requests, and their templates, of attempts that are over or drain, given the records as they will be once this plan's status is
    written. Those of an attempt that runs stay: its pods name them."""
    there = context.observed.children
    return [
        *_outdated(context, names.PROVISIONING_REQUESTS, there.requests.values(), records),
        *_outdated(context, names.POD_TEMPLATES, there.pod_templates.values(), records),
    ]


def _outdated(
    context: ReconcileContext, resource: Resource, found: Iterable[RequestView | Child], records: Mapping[str, UnitStatusRecord]
) -> list[Delete]:
    job = context.observed.job
    return [
        Delete(resource, job.namespace, each.name, each.uid, why=f"the nodes for attempt {each.attempt} of {each.unit} are not asked for")
        for each in found
        if each.owner == job.uid and not each.deleting and not _is_needed(each, records.get(each.unit))
    ]


def _is_needed(found: RequestView | Child, record: UnitStatusRecord | None) -> bool:
    return record is not None and record.running and record.attempt == found.attempt and record.state is not UnitState.DRAINING
