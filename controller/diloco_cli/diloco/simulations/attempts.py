"""Attempts of units on virtual time, and their pods and nodes as the operator would see them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diloco_operator.api import names
from diloco_operator.kube.client import Obj
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile import Job, PodView, project_pod


@dataclass(slots=True)
class Attempt:
    """One attempt of a unit. Its pods run until it ends."""

    number: int
    slice: str
    nodes: tuple[str, ...]
    since: float
    """Virtual seconds."""
    trains: bool = False
    leaves: bool = False
    """The operator has asked the unit to leave, for a better slice."""


def pods_of(job: Job, unit: str, pool: str, attempt: Attempt, template_hash: str, begin: float) -> Iterator[PodView]:
    """A running pod for each host of the attempt. `begin` is when virtual time begins, in seconds since the epoch."""
    since = format_timestamp(begin + attempt.since)
    for host, node in enumerate(attempt.nodes):
        name = names.learner_pod_name(job.name, unit, attempt.number, host)
        yield project_pod(
            {
                "metadata": {
                    "name": name,
                    "namespace": job.namespace,
                    "uid": name,
                    "creationTimestamp": since,
                    "labels": {
                        names.LABEL_JOB: job.name,
                        names.LABEL_COMPONENT: names.COMPONENT_LEARNER,
                        names.LABEL_UNIT: unit,
                        names.LABEL_POOL: pool,
                        names.LABEL_ATTEMPT: str(attempt.number),
                        names.LABEL_HOST: str(host),
                    },
                    "annotations": {names.ANNOTATION_SLICE: attempt.slice, names.ANNOTATION_TEMPLATE_HASH: template_hash},
                    "ownerReferences": [{"uid": job.uid, "controller": True}],
                },
                "spec": {"nodeName": node},
                "status": {
                    "phase": "Running",
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "containerStatuses": [{"name": names.LEARNER_CONTAINER, "state": {"running": {"startedAt": since}}}],
                },
            }
        )


def ready(node: Obj) -> Obj:
    """The node with the condition Ready. A node from a file has no kubelet to report it."""
    return {**node, "status": {**node.get("status", {}), "conditions": [{"type": "Ready", "status": "True"}]}}


def speed(node: Obj) -> float:
    """How fast steps are on the node, relative to other nodes of the file. 1 without the annotation."""
    return float((node["metadata"].get("annotations") or {}).get(names.ANNOTATION_RELATIVE_SPEED, 1.0))
