"""The pods of a unit, by attempt and host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diloco_operator.api.names import COMPONENT_LEARNER, LABEL_ATTEMPT, LABEL_COMPONENT, LABEL_HOST, LABEL_JOB, LABEL_UNIT, PODS
from diloco_operator.kube.client import Client, Obj
from diloco_operator.kube.fields import controller_uid, fields, label_number, needed_string, string
from diloco_operator.kube.pods import ENDED


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
        """Raises MalformedField."""
        meta, status = fields(pod, "metadata"), fields(pod, "status")
        labels = fields(meta, "labels", "metadata")
        return cls(
            name=needed_string(meta, "name", "metadata"),
            uid=needed_string(meta, "uid", "metadata"),
            attempt=label_number(string(labels, LABEL_ATTEMPT, "metadata.labels")),
            host=label_number(string(labels, LABEL_HOST, "metadata.labels")),
            node=string(fields(pod, "spec"), "nodeName", "spec"),
            ended=string(status, "phase", "status") in ENDED or "deletionTimestamp" in meta,
        )


def unit_selector(job: str, unit: str) -> str:
    return f"{LABEL_JOB}={job},{LABEL_UNIT}={unit},{LABEL_COMPONENT}={COMPONENT_LEARNER}"


def owned_by(job: str, pods: Iterable[Obj]) -> dict[UnitPod, Obj]:
    """Return the pods of a unit, sorted by attempt and host. `job` is the job's uid: pods that it does not own are left out, since every
    user who may create pods can give them a unit's labels. Raises MalformedField."""
    owned = {UnitPod.of(pod): pod for pod in pods if controller_uid(fields(pod, "metadata")) == job}
    numbered = (pod for pod in owned if pod.attempt >= 0 and pod.host >= 0)
    return {pod: owned[pod] for pod in sorted(numbered, key=lambda pod: (pod.attempt, pod.host))}


async def unit_pods(client: Client, job: Obj, unit: str) -> list[UnitPod]:
    """All pods of the unit, sorted by attempt and host. Raises MalformedField."""
    meta = job["metadata"]
    pods = await client.list(PODS, meta["namespace"], label_selector=unit_selector(meta["name"], unit))
    return list(owned_by(meta["uid"], pods.items))


def of_newest_attempt(pods: Sequence[UnitPod]) -> list[UnitPod]:
    newest = max((pod.attempt for pod in pods), default=0)
    return [pod for pod in pods if pod.attempt == newest]
