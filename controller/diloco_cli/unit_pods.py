"""The pods of a unit, by attempt and host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diloco_operator.api.names import COMPONENT_LEARNER, LABEL_ATTEMPT, LABEL_COMPONENT, LABEL_HOST, LABEL_JOB, LABEL_UNIT, PODS
from diloco_operator.kube.client import Client, Obj


@dataclass(frozen=True, slots=True)
class UnitPod:
    """One host of one attempt."""

    name: str
    uid: str
    attempt: int
    host: int
    node: str
    """"": not bound yet."""
    ended: bool
    """It has ended, or it is being deleted."""

    @classmethod
    def of(cls, pod: Obj) -> UnitPod:
        meta = pod["metadata"]
        labels = meta["labels"]
        over = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed") or "deletionTimestamp" in meta
        return cls(meta["name"], meta["uid"], int(labels[LABEL_ATTEMPT]), int(labels[LABEL_HOST]), pod["spec"].get("nodeName") or "", over)


def unit_selector(job: str, unit: str) -> str:
    """Return the label selector of all pods of the unit."""
    return f"{LABEL_JOB}={job},{LABEL_UNIT}={unit},{LABEL_COMPONENT}={COMPONENT_LEARNER}"


async def unit_pods(client: Client, namespace: str, job: str, unit: str) -> list[UnitPod]:
    """Return all pods of the unit, sorted by attempt and host."""
    found = await client.list(PODS, namespace, label_selector=unit_selector(job, unit))
    return sorted(map(UnitPod.of, found.items), key=lambda pod: (pod.attempt, pod.host))


def of_newest_attempt(pods: Sequence[UnitPod]) -> list[UnitPod]:
    newest = max((pod.attempt for pod in pods), default=0)
    return [pod for pod in pods if pod.attempt == newest]
