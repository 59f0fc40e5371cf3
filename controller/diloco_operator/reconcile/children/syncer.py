"""The syncer's pod: created first, restarted by the kubelet, replaced when its node is lost or its job file changed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diloco.error_line import error_line
from diloco.wording import plural

from diloco_operator.api import names
from diloco_operator.plan import WAVE_SYNCER, Create, Delete
from diloco_operator.reconcile.children.pods import syncer_pod
from diloco_operator.reconcile.children.volume import Volume
from diloco_operator.reconcile.context import NodeHealth, ReconcileContext, Rejection
from diloco_operator.reconcile.observe.pods import PodView

_CREATED = "its pod is being created"


@dataclass(frozen=True, slots=True)
class SyncerChanges:
    """What to create and delete of the syncer's pod."""

    creates: Sequence[Create] = ()
    deletes: Sequence[Delete] = ()
    ready_for_learners: bool = False
    """Its pod exists and stays, or this plan creates it before theirs: learners that start now will find it."""
    down: str = ""
    """Why it does not serve, human-readable; "" when its container runs."""
    taken: Sequence[str] = ()
    """`Pod <name>`, when a pod of this name does not belong to the job."""
    rejected: Sequence[Rejection] = ()
    """The pod, if the API server rejected it and it is too early to try again."""
    deadlines: Sequence[float] = ()


def syncer_changes(context: ReconcileContext, *, may_create: bool) -> SyncerChanges:
    """Return one step towards one running syncer that was made from the present spec. `may_create`: what its pod needs is there, or
    planned."""
    job = context.observed.job
    pod = context.syncer
    if pod is None:
        return _create_syncer(context, may_create)
    down = _why_down(pod)
    if pod.deletion is not None:
        return SyncerChanges(down=_unreachable_message(pod) if context.unreachable(pod.node) else down)
    health = context.node_health(pod.node)
    if why := _why_replace(context, pod, health, may_create):
        return SyncerChanges(deletes=[Delete(names.PODS, job.namespace, pod.name, pod.uid, why=why)], down=why)
    deadlines = [health.recheck_at] if health.recheck_at is not None else []
    return SyncerChanges(ready_for_learners=True, down=down, deadlines=deadlines)


def _create_syncer(context: ReconcileContext, may_create: bool) -> SyncerChanges:
    job = context.observed.job
    name = names.syncer_pod_name(job.name)
    if any(other.name == name for other in context.observed.pods):
        return SyncerChanges(down=_CREATED, taken=[f"Pod {name}"])
    if not may_create:
        return SyncerChanges(down=_CREATED)
    assert job.derived is not None, "the derived values of a valid spec are there"
    pod = syncer_pod(job, context.spec, context.observed.config, job.derived.syncer_hash)
    creates, rejected = context.without_rejected([Create(names.PODS, pod, wave=WAVE_SYNCER)])
    if rejected:
        return SyncerChanges(down=rejected[0].text, rejected=rejected)
    return SyncerChanges(creates=creates, ready_for_learners=True, down=_CREATED)


def start_blocked_by(syncer: SyncerChanges, rejected: Sequence[Rejection], volume: Volume, *, ready: bool) -> str:
    """Return why no learner pod may be created yet; "" when they may. `ready`: configuration and certificates are there, or planned."""
    if rejected:
        return "; ".join(rejection.text for rejection in rejected)
    if not ready:
        return "waits for the job's configuration"
    if not syncer.ready_for_learners:
        return f"waits for the syncer: {syncer.down or _CREATED}"
    return volume.wait


def _unreachable_message(pod: PodView) -> str:
    return (
        f"its node {pod.node} does not answer, so it is not known whether the old syncer has stopped, and two must not write to "
        "one volume. A new one starts when the node returns. If the machine is off for good: kubectl delete node "
        f"{pod.node}, or kubectl taint node {pod.node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute, which also frees "
        f"the volume; if it runs but cannot be reached, switch it off first"
    )


def _why_replace(context: ReconcileContext, pod: PodView, health: NodeHealth, may_create: bool) -> str:
    if pod.ended:
        verb = "failed" if pod.phase == "Failed" else "has ended"
        end = f" ({pod.termination.text})" if pod.termination else ""
        return f"its pod {verb}{end}{': ' + pod.reason if pod.reason else ''}; it is created again on the same volume"
    if health.eviction_reason:
        return f"{health.eviction_reason}; it is created again on the same volume"
    if may_create and not _up_to_date(context, pod):
        return "training or syncer.template changed; it is created again and goes on from its snapshot"
    return ""


def _up_to_date(context: ReconcileContext, pod: PodView) -> bool:
    """Return whether the pod was made from what the user wrote."""
    derived = context.observed.job.derived
    assert derived is not None, "the derived values of a valid spec are there"
    return pod.template_hash in derived.known_syncer_hashes


def _why_down(pod: PodView) -> str:
    if pod.running_since is not None and not pod.ended:
        return ""
    if pod.restarts and pod.termination is not None:
        cause = error_line(pod.termination.message)
        return f"it has restarted {plural(pod.restarts, 'time')}, last after {pod.termination.text}" + (f": {cause[:300]}" if cause else "")
    return f"its pod is {pod.phase}" + (f": {waits}" if (waits := pod.unschedulable or pod.waiting) else "")
