"""What came of the ProvisioningRequest for the nodes of a unit. Pure.

See docs/decisions/0173-provisioning-requests.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from diloco_operator.api import names
from diloco_operator.api.durations import format_duration
from diloco_operator.api.job import Pool
from diloco_operator.kube.fields import clip
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.plan import Create
from diloco_operator.reconcile.children.learners import LearnerPods
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.grantors import Grantor, cannot_ask, grantor_of
from diloco_operator.reconcile.observe.provisioning import RequestState, RequestView
from diloco_operator.reconcile.observe.rejected_writes import UNIT
from diloco_operator.reconcile.observe.state import PodView
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units.delegation import is_waiting
from diloco_operator.reconcile.units.timeouts import all_bound

_WORDS = 400
"""Characters of what an autoscaler says."""


class Answer(NamedTuple):
    """To the request of a unit that waits."""

    problem: str = ""
    """Why no nodes come of it; "": they may still come, or are there."""
    message: str = ""
    """Without a problem: what the unit waits for."""
    recheck_at: float | None = None
    granted: bool = False
    """The nodes are there."""


def read_answer(context: ReconcileContext, record: UnitStatusRecord, pods: Sequence[PodView]) -> Answer | None:
    """Of a unit that waits, with `pods` those of its attempt. None: its request has nothing more to say, or it has none."""
    pool = context.pools.get(record.pool)
    by_request = pool is not None and grantor_of(context.spec, pool) is Grantor.PROVISIONING_REQUEST
    name = names.provisioning_request_name(context.observed.job.name, record.name, record.attempt)
    request = context.observed.children.requests.get(name)
    if all_bound(pods) or any(pod.grantor is not Grantor.PROVISIONING_REQUEST for pod in pods):
        return None
    if pool is None or not by_request:
        return None if pods or request is None else Answer(f"provisioning.mode of pool {record.pool} was changed")
    if request is None:
        # Its pods may still find the nodes; without any, no autoscaler works on it any more.
        return (
            None
            if pods
            else Answer(
                cannot_ask(context.spec, pool, context.observed.without)
                or f"ProvisioningRequest {name} was deleted, but not by the operator"
            )
        )
    if problem := _problem(context, pool, request):
        return Answer(problem)
    answer = _waiting(context, record, pool, request)
    whole = len(pods) >= context.shapes[record.pool].hosts or any(pod.ended or pod.deletion is not None for pod in pods)
    return None if whole and not answer.problem else answer


def _problem(context: ReconcileContext, pool: Pool, request: RequestView) -> str:
    what = f"ProvisioningRequest {request.name}"
    if request.owner != context.observed.job.uid:
        return f"{what} exists and does not belong to this job; delete or rename it, or give the job another name"
    if request.deleting:
        return f"{what} was deleted, but not by the operator"
    if (request.class_name, request.parameters) != (pool.provisioning.class_name, pool.provisioning.parameters):
        return f"provisioning.class or provisioning.parameters of pool {pool.name} were changed"
    if request.state is RequestState.NONSENSE:
        return f"{what} says what cannot be: {clip(request.problem, _WORDS)}"
    ends = {
        RequestState.FAILED: f"{what} failed",
        RequestState.REVOKED: f"the nodes of {what} are taken away",
        RequestState.EXPIRED: f"the nodes of {what} were kept for too short a time, and its pods were not bound",
    }
    return f"{ends[request.state]}; it says: {clip(request.words, _WORDS)}" if request.state in ends else ""


def _waiting(context: ReconcileContext, record: UnitStatusRecord, pool: Pool, request: RequestView) -> Answer:
    granted = request.state is RequestState.PROVISIONED
    asked = min(request.created, context.now)
    since = min(request.since, context.now) if granted else asked
    due = max(since, asked) + pool.provisioning.timeout
    says = f"it says: {clip(request.words, _WORDS)}" if request.words else "it has said nothing yet"
    words = f"asked the autoscaler for nodes at {format_timestamp(asked)} by ProvisioningRequest {request.name}; {says}"
    if context.now >= due:
        limit = f"{format_duration(pool.provisioning.timeout)} (provisioning.timeout of pool {pool.name})"
        return Answer(f"no nodes came within {limit}: {words}")
    if granted and (rejection := context.rejection((UNIT, record.name))) is not None:
        return Answer("", f"its nodes are there, and its pods are not: {rejection.message}", min(due, rejection.retry_at))
    return Answer("", words, due, granted)


def granted_pods(context: ReconcileContext, pods: LearnerPods, records: Mapping[str, UnitStatusRecord]) -> list[Create]:
    """The pods of units whose nodes are there, but for those that exist: a create may have failed, or an operator died."""
    creates: list[Create] = []
    for record in records.values():
        mine = [pod for pod in context.learners.get(record.name, ()) if pod.attempt == record.attempt]
        if not is_waiting(record) or not context.up_to_date(record):
            continue
        answer = read_answer(context, record, mine)
        if answer is not None and answer.granted:
            there = {pod.name for pod in mine}
            made = pods.of_delegated(record, Grantor.PROVISIONING_REQUEST)
            creates += [create for create in made if create.obj["metadata"]["name"] not in there]
    return creates
