"""The syncer's pod: made first, mended by the kubelet, made again when its node took it, replaced when its job file changed. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from diloco_operator.api import names
from diloco_operator.plan import WAVE_SYNCER, Create, Delete
from diloco_operator.reconcile.children.pods import syncer_pod
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.state import PodView
from diloco_operator.reconcile.units.attempt_end import exit_text


@dataclass(slots=True)
class SyncerChanges:
    creates: list[Create] = field(default_factory=list)
    deletes: list[Delete] = field(default_factory=list)
    ready_for_learners: bool = False
    """Its pod exists and stays, or is made by this plan before theirs: learners that start now will find it."""
    down: str = ""
    """Why it does not serve, in words; "" when its container runs."""
    taken: str = ""
    """Its name belongs to somebody else's pod."""


def syncer_changes(context: ReconcileContext, children_ready: bool) -> SyncerChanges:
    """One step towards one running syncer that was made from the present spec."""
    job, spec, config = context.observed.job, context.spec, context.observed.config
    step = SyncerChanges()
    assert job.derived is not None, "a spec that can be read has been worked out"
    want = job.derived.syncer_hash
    pod = context.syncer
    name = names.syncer_pod_name(job.name)
    if pod is None:
        if any(other.name == name for other in context.observed.pods):
            step.taken = f"Pod {name}"
        elif children_ready:
            step.creates.append(Create(names.PODS, syncer_pod(job, spec, config, want), wave=WAVE_SYNCER))
            step.ready_for_learners = True
        step.down = "its pod is being made"
        return step
    step.down = _why_down(context, pod)
    if pod.deletion is not None:
        if context.unreachable(pod.node):
            step.down = (
                f"its node {pod.node} does not answer, so nobody can tell that the old syncer has stopped, and two must not write one "
                "volume. A new one starts when the node returns. If the machine is off for good: kubectl delete node "
                f"{pod.node}, or kubectl taint node {pod.node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute, which also frees "
                f"the volume; if it runs but cannot be reached, switch it off first"
            )
        return step
    why = _why_replace(context, pod, want, children_ready)
    if why:
        step.deletes.append(Delete(names.PODS, job.namespace, pod.name, pod.uid, why=why))
        step.down = why
        return step
    step.ready_for_learners = True
    return step


def _why_replace(context: ReconcileContext, pod: PodView, want: str, children_ready: bool) -> str:
    if pod.phase == "Failed":
        end = f" ({exit_text(pod.termination)})" if pod.termination else ""
        return f"its pod failed{end}{': ' + pod.reason if pod.reason else ''}; it is made again on the same volume"
    if eviction_reason := context.eviction_reason(pod.node):
        return f"{eviction_reason}; it is made again on the same volume"
    if children_ready and pod.template_hash != want:
        return "training or syncer.template changed; it is made again and goes on from its snapshot"
    return ""


def _why_down(context: ReconcileContext, pod: PodView) -> str:
    if pod.running_since is not None and not pod.ended:
        return ""
    if pod.restarts and pod.termination is not None:
        detail = pod.termination.message.strip().splitlines()
        return f"it has restarted {pod.restarts} times, last after {exit_text(pod.termination)}" + (
            f": {detail[0][:300]}" if detail else ""
        )
    return f"its pod is {pod.phase}" + (f": {waits}" if (waits := pod.unschedulable or pod.waiting) else "")
