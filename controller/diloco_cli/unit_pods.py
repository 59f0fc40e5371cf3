"""The pods of a unit, by attempt and host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diloco_operator.api.names import COMPONENT_LEARNER, LABEL_ATTEMPT, LABEL_COMPONENT, LABEL_HOST, LABEL_JOB, LABEL_UNIT, PODS
from diloco_operator.kube.client import Client, Obj


@dataclass(frozen=True, slots=True)
class UnitPod:
    """The pod of one host of one attempt."""

    name: str
    uid: str
    attempt: int
    host: int
    node: str
    """"" if the pod is not bound yet."""
    ended: bool
    """True also if the pod is being deleted."""

    @classmethod
    def of(cls, pod: Obj) -> UnitPod:
        meta = pod["metadata"]
        labels = meta["labels"]
        has_ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed") or "deletionTimestamp" in meta
        return cls(
            meta["name"], meta["uid"], int(labels[LABEL_ATTEMPT]), int(labels[LABEL_HOST]), pod["spec"].get("nodeName") or "", has_ended
        )


def unit_selector(job: str, unit: str) -> str:
    return f"{LABEL_JOB}={job},{LABEL_UNIT}={unit},{LABEL_COMPONENT}={COMPONENT_LEARNER}"


async def unit_pods(client: Client, namespace: str, job: str, unit: str) -> list[UnitPod]:
    """All pods of the unit, sorted by attempt and host."""
    pods = await client.list(PODS, namespace, label_selector=unit_selector(job, unit))
    return sorted(map(UnitPod.of, pods.items), key=lambda pod: (pod.attempt, pod.host))


def of_newest_attempt(pods: Sequence[UnitPod]) -> list[UnitPod]:
    newest = max((pod.attempt for pod in pods), default=0)
    return [pod for pod in pods if pod.attempt == newest]
