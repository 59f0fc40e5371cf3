"""Workloads of Kueue, and what Kueue does to the pods of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders.pods import phase
from diloco_operator.api import names
from diloco_operator.kube.client import Obj
from diloco_operator.kube.timestamps import format_timestamp

if TYPE_CHECKING:
    from builders.stage import Stage

NO_QUOTA = "couldn't assign flavors to pod set learner: insufficient unused quota for nvidia.com/gpu in flavor h100, 8 more needed"
"""In the words of Kueue 0.16."""
GROUP, COUNT = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"
RETRIABLE = "kueue.x-k8s.io/retriable-in-group"
GATE = {"name": "kueue.x-k8s.io/admission"}
FINALIZER = "kueue.x-k8s.io/managed"


def workloads_crd() -> Obj:
    """The CustomResourceDefinition of Workloads, as far as the operator reads them."""
    resource = names.WORKLOADS
    kinds = {"kind": resource.kind, "listKind": f"{resource.kind}List", "plural": resource.plural, "singular": "workload"}
    anything: Obj = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    whole = {"type": "object", "properties": {"spec": anything, "status": anything}}
    version = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": whole},
        "subresources": {"status": {}},
    }
    return {
        "metadata": {"name": f"{resource.plural}.{resource.group}", "annotations": {"api-approved.kubernetes.io": "unapproved"}},
        "spec": {"group": resource.group, "names": kinds, "scope": "Namespaced", "versions": [version]},
    }


def a_workload(group: str = "group", *, says: str = "", admitted_at: float | None = None, **status: Any) -> Obj:
    """The Workload of a pod group that waits, about which Kueue says this, or that has its quota since `admitted_at`."""
    conditions = [{"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": says}] if says else []
    if admitted_at is not None:
        since = {"lastTransitionTime": format_timestamp(admitted_at)}
        conditions = [{"type": kind, "status": "True", "reason": kind, **since} for kind in ("QuotaReserved", "Admitted")]
    meta = {"name": group, "namespace": "team", "uid": f"uid-{group}", "resourceVersion": "1", "creationTimestamp": "2026-11-20T12:00:00Z"}
    return {"metadata": meta, "status": {"conditions": conditions, **status}}


def takes_up(pod: Obj) -> None:
    """What Kueue's webhook does to a new pod of a group, and the API server to one with a gate."""
    pod["metadata"]["finalizers"] = [FINALIZER]
    pod["spec"]["schedulingGates"] = [GATE]
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "Scheduling is blocked"}
    pod["status"]["conditions"] = [gated]


def admits(pod: Obj) -> None:
    """What Kueue does to a pod whose group has its quota: any scheduler may bind it now."""
    pod["spec"]["schedulingGates"] = []
    pod["status"]["conditions"] = []


def preempts(pod: Obj, now: float, grace: int = 30) -> None:
    """What Kueue does to a pod that runs, when another workload needs its quota."""
    pod["status"].setdefault("conditions", []).append(
        {"type": "TerminationTarget", "status": "True", "reason": "WorkloadEvicted", "message": "Preempted to accommodate a workload"}
    )
    pod["metadata"]["deletionTimestamp"] = format_timestamp(now + grace)


def finalizes(pod: Obj) -> None:
    """What Kueue does to a pod whose successor is there, or whose group is over."""
    pod["metadata"].pop("finalizers", None)


class SimulatedQueue:
    """What Kueue's controller of pod groups does to the pods of a stage (pkg/controller/jobs/pod of Kueue 0.16), made by
    `Stage.with_quota`. Has quota for `quota` pod groups, which it admits in the order in which they came. tests/cluster/growth has the
    real one."""

    def __init__(self, stage: Stage, quota: int) -> None:
        self.stage, self.quota = stage, quota
        self.admitted: list[str] = []
        """Groups that have quota."""
        self.excess: list[str] = []
        """Pods that it deleted, because the group had enough."""
        self._known: set[str] = set()

    def play(self, rounds: int = 4) -> None:
        """Kueue and the operator, one after the other, until nothing changes."""
        for _ in range(rounds):
            self.act()
            self.stage.settle()

    def act(self) -> None:
        """Once, as far as it goes."""
        for pod in self._pods():
            if pod["metadata"]["uid"] not in self._known:
                self._known.add(pod["metadata"]["uid"])
                takes_up(pod)
        groups: dict[str, list[dict[str, Any]]] = {}
        for pod in self._pods():
            groups.setdefault(pod["metadata"]["labels"][GROUP], []).append(pod)
        for name, pods in groups.items():
            self._count(name, pods)
        for name in [name for name in self.admitted if name not in groups]:
            self._end(name, [])
        for name, pods in groups.items():
            self._admit(name, [pod for pod in pods if pod["metadata"]["name"] in self.stage.pods])

    def preempt(self, group: str) -> None:
        """Another workload takes the quota of a group."""
        self.admitted.remove(group)
        self.quota -= 1
        for pod in self._pods():
            if pod["metadata"]["labels"][GROUP] == group and phase(pod) == "Running":
                preempts(pod, self.stage.now)

    def _pods(self) -> list[dict[str, Any]]:
        return [pod for pod in self.stage.pods.values() if GROUP in pod["metadata"]["labels"]]

    def _count(self, name: str, pods: list[dict[str, Any]]) -> None:
        for pod in pods:  # Kubernetes' garbage collector of pods, every 20 s
            if "deletionTimestamp" in pod["metadata"] and not pod["spec"].get("nodeName"):
                pod["status"]["phase"] = "Failed"
        ended = all(phase(pod) in ("Succeeded", "Failed") for pod in pods)
        released = any(pod["metadata"]["annotations"].get(RETRIABLE) == "false" for pod in pods)
        total = int(pods[0]["metadata"]["annotations"][COUNT])
        succeeded = sum(phase(pod) == "Succeeded" for pod in pods)
        if (ended and released) or succeeded == total:
            self._end(name, pods)
            return
        active = [pod for pod in pods if phase(pod) != "Failed"]
        for pod in active[total:]:
            self.excess.append(pod["metadata"]["name"])
            del self.stage.pods[pod["metadata"]["name"]]
        replaced = [pod for pod in pods if phase(pod) == "Failed"][: max(0, len(pods) - total)]
        self._finalize(replaced)

    def _end(self, name: str, pods: list[dict[str, Any]]) -> None:
        self._finalize(pods)
        self.stage.workloads.pop(name, None)
        if name in self.admitted:
            self.admitted.remove(name)

    def _finalize(self, pods: list[dict[str, Any]]) -> None:
        for pod in pods:
            finalizes(pod)
            if "deletionTimestamp" in pod["metadata"]:
                self.stage.pods.pop(pod["metadata"]["name"], None)

    def _admit(self, name: str, pods: list[dict[str, Any]]) -> None:
        gated = [pod for pod in pods if pod["spec"].get("schedulingGates") and phase(pod) == "Pending"]
        if not gated:
            return
        if name not in self.admitted and len(self.admitted) >= self.quota:
            self.stage.workloads[name] = a_workload(name, says=NO_QUOTA)
            return
        if name not in self.admitted:
            self.admitted.append(name)
            self.stage.workloads[name] = a_workload(name, admitted_at=self.stage.now)
        for pod in gated:
            admits(pod)
