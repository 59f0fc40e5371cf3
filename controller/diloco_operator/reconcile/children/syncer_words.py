"""Why the syncer does not serve, and what its volume lacks, in words. Pure."""

from __future__ import annotations

from diloco.error_line import error_line
from diloco.wording import plural

from diloco_operator.api import names
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile.observe.pods import PodView, Termination

# --- its pod ----------------------------------------------------------------------------------------------------------
POD_IS_CREATED = "its pod is being created"


def node_does_not_answer(node: str) -> str:
    return (
        f"its node {node} does not answer, so it is not known whether the old syncer has stopped, and two must not write to "
        "one volume. A new one starts when the node returns. If the machine is off for good: kubectl delete node "
        f"{node}, or kubectl taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute, which also frees "
        "the volume; if it runs but cannot be reached, switch it off first"
    )


def old_one_goes(pod: str, node: str) -> str:
    """The operator does not force-delete the old pod, because two syncers must not write to one volume."""
    return (
        f"Pod {pod} of an earlier job of this name is being deleted and has not gone yet. If it stays, look at its node {node}; if that "
        f"machine is off for good: kubectl delete node {node}"
    )


def pod_failed(pod: PodView, again: float | None = None) -> str:
    """A pod that succeeded does not come here: it ends the job. `again`: when the next one is created, if it pauses before that."""
    end = f" ({pod.termination.text})" if pod.termination else ""
    when = f" at {format_timestamp(again)}" if again is not None else ""
    why = "".join(f": {text}" for text in (pod.reason, pod.message) if text)
    return f"its pod failed{end}{why}; it is created again on the same volume{when}"


def node_goes(why: str) -> str:
    return f"{why}; it is created again on the same volume"


NOT_HEARD_YET = "its pod runs, and it has not served yet"
SPEC_CHANGED = "training or syncer.template changed; it is created again and goes on from its snapshot"


def restarts(count: int, last: Termination) -> str:
    cause = error_line(last.message)
    return f"it has restarted {plural(count, 'time')}, last after {last.text}" + (f": {cause[:300]}" if cause else "")


def pod_does_not_run(pod: PodView) -> str:
    waits = pod.unschedulable or pod.waiting
    return f"its pod is {pod.phase}" + (f": {waits}" if waits else "")


# --- its volume -------------------------------------------------------------------------------------------------------
def claim_is_created(claim: str) -> str:
    return f"waits for the volume claim {claim}"


def no_storage_class(claim: str) -> str:
    return (
        f"{names.VOLUME_CLAIMS.kind} {claim} has no StorageClass, because the cluster has no default one, and no volume without a "
        f"class fits it. Make a class the default: kubectl annotate storageclass NAME {names.DEFAULT_CLASS}=true. Or set "
        f"storageClassName of the chart and delete the claim (kubectl delete pvc {claim}), or make the job anew with "
        "spec.syncer.storage.className"
    )


def class_is_tried(claim: str, storage_class: str) -> str:
    return f"no scheduler has found a node for {names.VOLUME_CLAIMS.kind} {claim} of StorageClass {storage_class} yet"


def claim_not_bound(claim: str, storage_class: str, why: str) -> str:
    """`why`: in the words of kube-scheduler."""
    return (
        f"{names.VOLUME_CLAIMS.kind} {claim} of StorageClass {storage_class} is not bound: {why}. Check that the class "
        f"exists and that its provisioner runs: kubectl describe pvc {claim}"
    )


def waits_for_volume(problem: str) -> str:
    return f"waits for the syncer's volume: {problem}"


# --- what units wait for ------------------------------------------------------------------------------------------------
WAITS_FOR_CONFIGURATION = "waits for the job's configuration"


def waits_for_syncer(why: str) -> str:
    return f"waits for the syncer: {why}"
