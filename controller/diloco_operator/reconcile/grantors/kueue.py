"""Kueue gives quota to units: each unit is a pod group, which no scheduler may bind before it is admitted. Pure.

Kueue counts a group until all of its pods have ended and one of them says that no other will follow. So an attempt that follows another in
the same group keeps its quota. If no attempt follows, the group must be released, or it holds its quota for ever.

The operator sets the scheduling gate itself. Kueue's webhook would set it too. But if Kueue does not manage pods, or not those of the
namespace, nothing would hold the pods back, and they would run past every quota.

See docs/decisions/0173-requests-and-quota.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from sys import intern

from diloco_operator.api import names
from diloco_operator.api.consequences import Follows
from diloco_operator.api.reasons import PlacedReason, UnitReason, follows
from diloco_operator.api.spec import Pool, Spec
from diloco_operator.api.status import UnitState
from diloco_operator.kube.client import Obj, Resource
from diloco_operator.kube.fields import Fields, MalformedField, fields, moment, objects, string, text
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.plan import Patch
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.grantors.interface import NODES, QUOTA, Grantor, PodPlace, PodWait, Watched
from diloco_operator.reconcile.observe.clocks import between
from diloco_operator.reconcile.observe.pod_marks import PodGroup
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.observe.rejected_writes import WriteKey
from diloco_operator.reconcile.observe.startup import PodStartup
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord

_CONDITION = "status.conditions[]"


@dataclass(frozen=True, slots=True)
class Workload:
    """What Kueue says about a pod group."""

    admitted_at: float | None
    """Since when the group has its quota, and its pods may go to nodes. None: it waits."""
    words: str
    """Why it waits, in Kueue's words. "": it does not wait, or Kueue has not said why."""


def project_workload(obj: Obj) -> Workload:
    """Project the raw Workload object. If its status cannot be read, `words` says so, and the group counts as waiting."""
    try:
        return _workload(obj)
    except MalformedField as error:
        return Workload(None, f"its Workload cannot be read: {error}")


def _workload(obj: Obj) -> Workload:
    status = fields(obj, "status")
    conditions = {string(condition, "type", _CONDITION): condition for condition in objects(status, "conditions", "status")}
    admitted, reserved = conditions.get("Admitted", {}), conditions.get("QuotaReserved", {})
    if admitted.get("status") == "True":
        return Workload(moment(admitted, "lastTransitionTime", _CONDITION) or 0.0, "")
    if reserved.get("status") == "True":  # admission checks come after the quota, such as that of a ProvisioningRequest
        return Workload(None, _checks(status) or text(admitted, "message", _CONDITION))
    return Workload(None, text(reserved, "message", _CONDITION))


def _checks(status: Fields) -> str:
    """Return the messages of the admission checks that are not ready."""
    pending = (check for check in objects(status, "admissionChecks", "status") if check.get("state") != "Ready")
    return "; ".join(filter(None, (text(check, "message", "status.admissionChecks[]") for check in pending)))


WORKLOADS = Watched(
    names.WORKLOADS,
    project_workload,
    verbs="",
    purpose="jobs with `queueName`: what Kueue says of their quota",
    without="no unit of a job with queueName starts, and the job says so.",
)
_LABEL_LIMIT = 63
_ROLE = "learner"
"""The role of all pods of a group. Otherwise Kueue would tell roles apart by affinity and ports, in which a unit's pods and attempts
differ, and it replaces a pod only by one of the same role."""


class Kueue(Grantor):
    """Holds pods back until their group has quota, chooses the flavor of their hardware, and may take quota from one group for another."""

    name, asked, gives = "Kueue", "Kueue", QUOTA
    chooses = reads_priority = True
    missing_reason = PlacedReason.KUEUE_MISSING
    watches = (WORKLOADS,)
    evictions = ("TerminationTarget",)

    def grants(self, spec: Spec, pool: Pool) -> bool:
        return bool(spec.queue_name)

    def missing(self, unreadable: Mapping[Resource, str]) -> str:
        if (why := unreadable.get(names.WORKLOADS)) is None:
            return ""
        return (
            f"spec.queueName is set, but the operator finds no Kueue: {why}. Install Kueue 0.15 or newer with its integration for pods, or "
            "give the operator the rights that docs/install.md lists; or suspend the job and remove queueName. No unit starts without quota"
        )

    def blocker(self, context: ReconcileContext, record: UnitStatusRecord) -> str:
        """Return a pod of the unit that may still run. Kueue would count a new pod beside it as one too many, and delete it."""
        waiting = (pod.name for pod in context.learners.get(record.name, ()) if pod.group is not None and _may_run(context, pod))
        return next(waiting, "")

    def places(self, context: ReconcileContext, record: UnitStatusRecord, places: Sequence[PodPlace]) -> Sequence[PodPlace]:
        """Put the pods into the attempt's group and the job's queue, with the job's WorkloadPriorityClass if its labels name one."""
        labels = {names.KUEUE_QUEUE: context.spec.queue_name, names.KUEUE_GROUP: _pod_group(context, record)}
        if priority := context.observed.job.labels.get(names.KUEUE_PRIORITY):
            labels[names.KUEUE_PRIORITY] = priority
        annotations = {names.KUEUE_GROUP_COUNT: str(len(places)), names.KUEUE_ROLE: _ROLE}
        gates = ({"name": names.KUEUE_GATE},)
        return [place.with_annotations(annotations)._replace(labels=labels, gates=gates) for place in places]

    def pod_wait(self, context: ReconcileContext, pod: PodView, startup: PodStartup, since: float) -> PodWait:
        """Return the pod's wait: for quota, without limit, and then for a node, which may not exist yet."""
        workload = WORKLOADS.among(context.observed.children).get(pod.group.name) if pod.group is not None else None
        admitted_at = workload.admitted_at if workload is not None else None
        if startup.gated or admitted_at is None:
            queue = pod.group.queue if pod.group is not None else context.spec.queue_name
            return PodWait(QUOTA.unit, f"waits for quota in queue {queue}; {_state(workload)}", None)
        began = between(since, admitted_at, context.now, context.now)
        return PodWait(NODES.unit, f"has its quota since {format_timestamp(began)} and waits for a node", began, speaker="the autoscaler")

    def group(self, meta: Fields, labels: Fields, annotations: Fields) -> PodGroup | None:
        name = string(labels, names.KUEUE_GROUP, "metadata.labels", limit=_LABEL_LIMIT)
        if not name:
            return None
        finalizers = meta.get("finalizers")
        return PodGroup(
            name=intern(name),
            queue=intern(string(labels, names.KUEUE_QUEUE, "metadata.labels", limit=_LABEL_LIMIT)),
            held=isinstance(finalizers, list) and names.KUEUE_FINALIZER in finalizers,
            released=annotations.get(names.KUEUE_RETRIABLE) == "false",
        )

    def holds(self, pod: PodView) -> bool:
        return _counts(pod)

    def patches(self, context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> Sequence[Patch]:
        """Release every group in which no attempt runs and none will follow."""
        unneeded = (
            group
            for unit, pods in context.learners.items()
            for group in _groups(pods)
            if not _is_needed(context, records.get(unit), group, pods)
        )
        pods = itertools.chain.from_iterable(context.learners.values())
        return _patches(pods, context.unreachable, unneeded, lambda key: context.rejection(key) is not None)

    def orphan_patches(
        self, pods: Sequence[PodView], unreachable: Callable[[str], bool], rejected: Callable[[WriteKey], bool]
    ) -> Sequence[Patch]:
        """Release the pods' groups, and mark pods as failed whose nodes do not answer."""
        return _patches(pods, unreachable, _groups(pods), rejected)


def _state(workload: Workload | None) -> str:
    """Say how far Kueue is with a pod group. `workload` is None if Kueue has made none for it."""
    if workload is None:
        return (
            "Kueue has not taken it up yet; if this lasts, check that Kueue's integration for pods is on and manages this namespace "
            "(managedJobsNamespaceSelector)"
        )
    if workload.admitted_at is not None:
        return "Kueue has admitted it, and lets its pods go to nodes in a moment"
    if workload.words:
        return f"Kueue says: {workload.words}"
    # Kueue 0.17 and later pass over a Workload that is like one that did not fit, and write nothing into it (kueue#12769).
    return "Kueue has said nothing of it: it has not come to it yet, or passed over it because one like it did not fit"


# --- the group of an attempt ------------------------------------------------------------------------------------------
def _pod_group(context: ReconcileContext, record: UnitStatusRecord) -> str:
    """Return the name of the group for the record's attempt: the group of earlier attempts if it may follow them, or a new one."""
    job = context.observed.job
    pods = context.learners.get(record.name, ())
    begun = next((pod.group.name for pod in pods if pod.attempt == record.attempt and pod.group is not None), "")
    if names.is_pod_group(begun, job.name, job.uid, record.name):  # an operator died before it had created all pods of the attempt
        return begun
    return _kept(context, record, pods) or names.pod_group_name(job.name, job.uid, record.name, record.attempt)


def _kept(context: ReconcileContext, record: UnitStatusRecord, pods: Sequence[PodView]) -> str:
    """Return the group in which the unit's next attempt may follow and keep the quota, or "" if there is none."""
    grouped = [pod for pod in pods if pod.group is not None]
    if not grouped:
        return ""
    last = max(grouped, key=lambda pod: pod.attempt)
    assert last.group is not None
    job, name, queue = context.observed.job, last.group.name, last.group.queue
    group = [pod for pod in grouped if pod.group is not None and pod.group.name == name]
    if queue != context.spec.queue_name or not context.is_known(record.pool, last.template_hash):
        return ""  # the new pods would not be like those of the Workload
    if not names.is_pod_group(name, job.name, job.uid, record.name) or not all(map(_is_replaceable, group)):
        return ""
    return name if any(pod.held for pod in group) and not _is_released(group) else ""


def _is_replaceable(pod: PodView) -> bool:
    """Return whether Kueue accepts a new pod in the place of this one. If this one may still run, or has succeeded, Kueue deletes the new
    one as one too many."""
    return pod.phase == "Failed" or pod.never_runs


# --- what Kueue is told -----------------------------------------------------------------------------------------------
def _patches(
    pods: Iterable[PodView], unreachable: Callable[[str], bool], unneeded: Iterable[list[PodView]], rejected: Callable[[WriteKey], bool]
) -> list[Patch]:
    """Return patches that mark lost pods as failed, and that release groups in which nothing follows.

    A pod is lost if Kueue counts it, it was asked to go, and its node does not answer. Its kubelet cannot report its end, and until
    that is reported, Kueue accepts no successor in its place, and its group is not over. So the operator does it, as Kubernetes' garbage
    collector does for pods of nodes that are gone. This is safe, because the syncer refuses what an old attempt sends.

    Args:
        unneeded: the groups in which nothing follows.
        rejected: whether a write must not be tried now. Such a write is left out, and nothing waits for it.
    """
    ended = [_failed(pod) for pod in pods if pod.deletion is not None and _counts(pod) and unreachable(pod.node)]
    patched = {patch.name for patch in ended}
    marks = (_mark(group) for group in unneeded if not _is_over(group))
    patches = (*ended, *(mark for mark in marks if mark.name not in patched))
    return [patch for patch in patches if not rejected((patch.resource.kind, patch.name))]


def _failed(pod: PodView) -> Patch:
    message = f"node {pod.node} does not answer, and the unit goes on without it"
    body = {"metadata": {"uid": pod.uid}, "status": {"phase": "Failed", "reason": UnitReason.NODE_LOST.value, "message": message}}
    return Patch(names.PODS, pod.namespace, pod.name, body, subresource="status")


def _mark(group: Sequence[PodView]) -> Patch:
    """Release the group: one pod of it says that no other will follow."""
    pod = min(group, key=lambda pod: (pod.attempt, pod.host))
    meta = {"uid": pod.uid, "annotations": {names.KUEUE_RETRIABLE: "false"}}
    return Patch(names.PODS, pod.namespace, pod.name, {"metadata": meta})


def _counts(pod: PodView) -> bool:
    return pod.held and not pod.ended and not pod.never_runs


def _groups(pods: Iterable[PodView]) -> Iterator[list[PodView]]:
    """Yield the groups that Kueue still counts, each with all its pods."""
    groups: dict[tuple[str, str], list[PodView]] = {}
    for pod in pods:
        if pod.group is not None:
            groups.setdefault((pod.owner, pod.group.name), []).append(pod)
    yield from (group for group in groups.values() if any(pod.held for pod in group))


def _is_over(group: Sequence[PodView]) -> bool:
    return _is_released(group) or all(pod.phase == "Succeeded" for pod in group)


def _is_released(group: Sequence[PodView]) -> bool:
    return any(pod.group.released for pod in group if pod.group)


def _is_needed(context: ReconcileContext, record: UnitStatusRecord | None, group: Sequence[PodView], pods: Sequence[PodView]) -> bool:
    """Return whether an attempt of the unit runs in the group, or the next one will follow in it."""
    if record is None or record.state in (UnitState.FAILED, UnitState.COMPLETED):
        return False
    # If it has left its quota, it starts anew in another group. After any other end it keeps its group.
    if record.state in (UnitState.DRAINING, UnitState.PENDING) and follows(record.reason, Follows.QUOTA_LEFT):
        return False
    if record.running:
        return _name(group) == _pod_group(context, record)
    # While the spec is refused nothing starts, and a person may take days to correct it.
    comes_back = not context.spec_refused and _name(group) == _kept(context, record, pods)
    return comes_back or any(_may_run(context, pod) for pod in group)


def _name(group: Sequence[PodView]) -> str:
    return next(pod.group.name for pod in group if pod.group is not None)


def _may_run(context: ReconcileContext, pod: PodView) -> bool:
    """Return whether a process of the pod may still run, and its end will be reported, by its kubelet or the operator."""
    return context.lingers(pod) or _awaits_end(context, pod)


def _awaits_end(context: ReconcileContext, pod: PodView) -> bool:
    """Return whether the operator has to report the end of this pod, because its node does not answer. If the API server rejects that
    write, nothing waits for it."""
    return _counts(pod) and context.unreachable(pod.node) and context.rejection((names.PODS.kind, pod.name)) is None
