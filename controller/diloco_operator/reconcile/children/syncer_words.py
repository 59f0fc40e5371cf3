"""Why the syncer does not serve, and what its volume lacks, in words: a class for each sentence, with what it names. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diloco.error_line import error_line
from diloco.wording import plural

from diloco_operator.api import names
from diloco_operator.reconcile.context import Rejection
from diloco_operator.reconcile.observe.pods import PodView, Termination
from diloco_operator.reconcile.sentences import Sentence


# --- its pod ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PodIsCreated:
    def words(self) -> str:
        return "its pod is being created"


@dataclass(frozen=True, slots=True)
class PodIsRejected:
    rejection: Rejection

    def words(self) -> str:
        return self.rejection.text


@dataclass(frozen=True, slots=True)
class NodeDoesNotAnswer:
    node: str

    def words(self) -> str:
        return (
            f"its node {self.node} does not answer, so it is not known whether the old syncer has stopped, and two must not write to "
            "one volume. A new one starts when the node returns. If the machine is off for good: kubectl delete node "
            f"{self.node}, or kubectl taint node {self.node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute, which also frees "
            "the volume; if it runs but cannot be reached, switch it off first"
        )


@dataclass(frozen=True, slots=True)
class PodFailed:
    """One that succeeded ends the job."""

    pod: PodView

    def words(self) -> str:
        pod = self.pod
        end = f" ({pod.termination.text})" if pod.termination else ""
        return f"its pod failed{end}{': ' + pod.reason if pod.reason else ''}; it is created again on the same volume"


@dataclass(frozen=True, slots=True)
class NodeGoes:
    why: str

    def words(self) -> str:
        return f"{self.why}; it is created again on the same volume"


@dataclass(frozen=True, slots=True)
class SpecChanged:
    def words(self) -> str:
        return "training or syncer.template changed; it is created again and goes on from its snapshot"


@dataclass(frozen=True, slots=True)
class Restarts:
    count: int
    last: Termination

    def words(self) -> str:
        cause = error_line(self.last.message)
        return f"it has restarted {plural(self.count, 'time')}, last after {self.last.text}" + (f": {cause[:300]}" if cause else "")


@dataclass(frozen=True, slots=True)
class PodDoesNotRun:
    pod: PodView

    def words(self) -> str:
        waits = self.pod.unschedulable or self.pod.waiting
        return f"its pod is {self.pod.phase}" + (f": {waits}" if waits else "")


# --- its volume -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ClaimIsCreated:
    claim: str

    def words(self) -> str:
        return f"waits for the volume claim {self.claim}"


@dataclass(frozen=True, slots=True)
class NoStorageClass:
    claim: str

    def words(self) -> str:
        return (
            f"{names.VOLUME_CLAIMS.kind} {self.claim} has no StorageClass, because the cluster has no default one, and no volume without a "
            f"class fits it. Make a class the default: kubectl annotate storageclass NAME {names.DEFAULT_CLASS}=true. Or set "
            f"storageClassName of the chart and delete the claim (kubectl delete pvc {self.claim}), or make the job anew with "
            "spec.syncer.storage.className"
        )


@dataclass(frozen=True, slots=True)
class ClaimNotBound:
    claim: str
    storage_class: str
    why: str
    """In the words of kube-scheduler."""

    def words(self) -> str:
        return (
            f"{names.VOLUME_CLAIMS.kind} {self.claim} of StorageClass {self.storage_class} is not bound: {self.why}. Check that the class "
            f"exists and that its provisioner runs: kubectl describe pvc {self.claim}"
        )


@dataclass(frozen=True, slots=True)
class WaitsForVolume:
    problem: Sentence

    def words(self) -> str:
        return f"waits for the syncer's volume: {self.problem.words()}"


# --- what units wait for ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ObjectsRejected:
    rejected: Sequence[Rejection]

    def words(self) -> str:
        return "; ".join(rejection.text for rejection in self.rejected)


@dataclass(frozen=True, slots=True)
class WaitsForConfiguration:
    def words(self) -> str:
        return "waits for the job's configuration"


@dataclass(frozen=True, slots=True)
class WaitsForSyncer:
    why: Sentence

    def words(self) -> str:
        return f"waits for the syncer: {self.why.words()}"
