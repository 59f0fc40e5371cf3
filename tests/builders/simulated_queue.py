"""A stand-in for Kueue on a stage: what its controller of pod groups does to pods (pkg/controller/jobs/pod of Kueue 0.16). tests/growth has
the real one."""

from __future__ import annotations

from typing import Any

from builders.pods import phase
from builders.stage import Stage
from builders.workloads import NO_QUOTA, a_workload, admits, finalizes, preempts, takes_up

GROUP, COUNT = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"
RETRIABLE = "kueue.x-k8s.io/retriable-in-group"


class SimulatedQueue:
    """Has quota for `quota` pod groups, which it admits in the order in which they came."""

    def __init__(self, stage: Stage, quota: int = 1) -> None:
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
