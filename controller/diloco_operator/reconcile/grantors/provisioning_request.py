"""ProvisioningRequests: the objects by which the nodes of a unit are asked for, all or none; its pods come when it is granted. Pure.

See docs/decisions/0173-requests-and-quota.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from diloco_operator.accelerators.labels import GKE_GPU, GKE_TPU, LabelDialect
from diloco_operator.api import names
from diloco_operator.api.spec import Pool, ProvisioningMode, Spec
from diloco_operator.kube.client import Obj, Resource
from diloco_operator.plan import WAVE_LEARNERS, WAVE_SYNCER, Create, Delete
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.grantors import provisioning_words
from diloco_operator.reconcile.grantors.attempt_objects import attempt_object, object_name, outdated
from diloco_operator.reconcile.grantors.interface import NODES, Answer, Grantor, PodPlace, Watched
from diloco_operator.reconcile.grantors.provisioning_view import RequestState, RequestView, project_request
from diloco_operator.reconcile.observe.children import project_child
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.observe.rejected_writes import UNIT
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord

_VERBS, _PURPOSE = "get create delete", "pools with `provisioning.mode: ProvisioningRequest`"
_WITHOUT = "pools whose provisioning.mode is ProvisioningRequest get no nodes, and their units say so."
REQUESTS = Watched(names.PROVISIONING_REQUESTS, project_request, _VERBS, _PURPOSE, _WITHOUT, problem=lambda request: request.problem)
TEMPLATES = Watched(names.POD_TEMPLATES, project_child, _VERBS, _PURPOSE, _WITHOUT)
_ENDS = (RequestState.FAILED, RequestState.REVOKED, RequestState.EXPIRED)


class ProvisioningRequests(Grantor):
    """An autoscaler that is asked for the nodes of all pods of a unit at once, and says what comes of it."""

    name, asked, gives = "ProvisioningRequest", "the autoscaler (by ProvisioningRequest)", NODES
    pods_follow = True
    watches = (TEMPLATES, REQUESTS)

    def grants(self, spec: Spec, pool: Pool) -> bool:
        return pool.provisioning.mode is ProvisioningMode.PROVISIONING_REQUEST

    def missing(self, without: Mapping[Resource, str]) -> str:
        why = without.get(names.PROVISIONING_REQUESTS) or without.get(names.POD_TEMPLATES)
        remedy = "install an autoscaler that has them, give the operator the right, or set provisioning.mode to Autoscaler"
        return f"{why}; {remedy}" if why else ""

    def tolerations(self, pool: Pool) -> list[Obj]:
        if pool.provisioning.class_name != names.QUEUED_PROVISIONING:
            return []
        return [{"key": names.QUEUED_TAINT, "operator": "Equal", "value": "true", "effect": "NoSchedule"}]

    def dialects(self, pool: Pool) -> Collection[LabelDialect]:
        return (GKE_TPU, GKE_GPU) if pool.provisioning.class_name == names.QUEUED_PROVISIONING else ()

    def places(self, context: ReconcileContext, record: UnitStatusRecord, places: Sequence[PodPlace]) -> Sequence[PodPlace]:
        """Place the pods on the nodes that the request brings."""
        consuming = {
            names.CONSUME_REQUEST: object_name(context, record),
            names.REQUEST_CLASS: context.pools[record.pool].provisioning.class_name,
        }
        return [place.with_annotations(consuming) for place in places]

    def creates(self, context: ReconcileContext, record: UnitStatusRecord, attempt: Sequence[Create]) -> Sequence[Create]:
        """Return PodTemplate and ProvisioningRequest, without those that are there. The template comes first: a request without one
        fails."""
        pool, there = context.pools[record.pool], context.observed.children
        name, pod = object_name(context, record), next(create.obj for create in attempt if create.resource == names.PODS)
        queued = pool.provisioning.class_name == names.QUEUED_PROVISIONING
        template = {
            **attempt_object(context, record, {names.WARDEN_POLICIES: "true"} if queued else {}),
            "template": {"metadata": {key: pod["metadata"][key] for key in ("labels", "annotations")}, "spec": pod["spec"]},
        }
        spec: Obj = {
            "provisioningClassName": pool.provisioning.class_name,
            "podSets": [{"podTemplateRef": {"name": name}, "count": context.shapes[record.pool].hosts}],
        }
        if pool.provisioning.parameters:
            spec["parameters"] = dict(pool.provisioning.parameters)
        creates = []
        if name not in TEMPLATES.among(there):
            creates.append(Create(names.POD_TEMPLATES, template, wave=WAVE_SYNCER))
        if name not in REQUESTS.among(there):
            creates.append(Create(names.PROVISIONING_REQUESTS, {**attempt_object(context, record), "spec": spec}, wave=WAVE_LEARNERS))
        return creates

    def answer(self, context: ReconcileContext, record: UnitStatusRecord, pods: Sequence[PodView], *, chosen: bool) -> Answer | None:
        if any(pod.grantor != self.name for pod in pods):
            return None
        pool, request = context.pools.get(record.pool), _request(context, record)
        if pool is None or not chosen:
            return None if pods or request is None else Answer(provisioning_words.mode_changed(record.pool))
        if request is None and pods:  # they may still find the nodes
            return None
        if request is None:  # no autoscaler works on it any more
            missing = self.missing(context.observed.without)
            return Answer(missing or provisioning_words.request_deleted(object_name(context, record)))
        if (problem := _problem(context, pool, request)) is not None:
            return Answer(problem)
        answer = _waiting(context, record, pool, request)
        whole = len(pods) >= context.shapes[record.pool].hosts or any(pod.ended or pod.deletion is not None for pod in pods)
        return None if whole and answer.problem is None else answer

    def has_granted(self, context: ReconcileContext, record: UnitStatusRecord) -> bool:
        request = _request(context, record)
        return request is not None and request.state is RequestState.PROVISIONED

    def deletes(self, context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> Sequence[Delete]:
        there = context.observed.children
        return [
            *outdated(context, names.PROVISIONING_REQUESTS, REQUESTS.among(there).values(), records),
            *outdated(context, names.POD_TEMPLATES, TEMPLATES.among(there).values(), records),
        ]


def _request(context: ReconcileContext, record: UnitStatusRecord) -> RequestView | None:
    return REQUESTS.among(context.observed.children).get(object_name(context, record))


def _problem(context: ReconcileContext, pool: Pool, request: RequestView) -> str | None:
    """Return why no nodes come of the request; None: they may still come, or are there."""
    if request.owner != context.observed.job.uid:
        return provisioning_words.request_of_other(request.name)
    if request.deleting:
        return provisioning_words.request_deleted(request.name)
    if (request.class_name, request.parameters) != (pool.provisioning.class_name, pool.provisioning.parameters):
        return provisioning_words.parameters_changed(pool.name)
    if request.state is RequestState.NONSENSE:
        return provisioning_words.request_is_nonsense(request.name, request.problem)
    return provisioning_words.request_ended(request) if request.state in _ENDS else None


def _waiting(context: ReconcileContext, record: UnitStatusRecord, pool: Pool, request: RequestView) -> Answer:
    granted = request.state is RequestState.PROVISIONED
    asked = min(request.created, context.now)
    since = min(request.since, context.now) if granted else asked
    due = max(since, asked) + pool.provisioning.timeout
    wait = provisioning_words.request_waits(request, asked)
    if context.now >= due:
        return Answer(provisioning_words.no_nodes_in_time(pool.name, pool.provisioning.timeout, wait))
    if granted and (rejection := context.rejection((UNIT, record.name))) is not None:
        return Answer(what=provisioning_words.nodes_without_pods(rejection.message), recheck_at=min(due, rejection.retry_at))
    return Answer(None, wait, due, granted)
