"""What the caches keep of the objects that reconcile does not read as its own views. Pure."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace

from diloco_operator.api import names
from diloco_operator.certificates.view import CertificateSecret
from diloco_operator.fleet import PodUse
from diloco_operator.fleet.resources import resources_of
from diloco_operator.kube.client import Obj
from diloco_operator.kube.fields import fields, moment, needed_string, string, whole_number
from diloco_operator.reconcile import Child, Job, parse_job, project_child
from diloco_operator.reconcile.observe.part_secret import PartSecret
from diloco_operator.reconcile.observe.status_check import check_status


@dataclass(frozen=True, slots=True)
class JobObject[T]:
    """An object of a job: a ConfigMap, a Service or a volume claim."""

    job: str
    """Name of the job, by the label."""
    view: T


@dataclass(frozen=True, slots=True)
class JobSecret:
    job: str
    """Name of the job, by the label."""
    certificates: CertificateSecret
    read: bool
    """False if no known job owned the Secret when it came. No certificates of a job are read then."""
    part: PartSecret | None = None
    """What a Secret that a person brought from a job's home says."""


@dataclass(frozen=True, slots=True)
class PriorityClass:
    value: int
    default: bool
    """The class applies to pods that name none."""
    preempts: bool
    """A scheduler may end pods of lower priority to make room for pods of this class."""


@dataclass(frozen=True, slots=True)
class CachedJob:
    """A job between two reconciles. Its status is kept as JSON: as objects it would take five times the memory, 1.7 KB for each unit."""

    bare: Job
    """The job without its status."""
    status: bytes
    problem: str = ""
    """Which part of the status is malformed and left out, or ""."""

    @staticmethod
    def of(obj: Obj, previous: CachedJob | None) -> CachedJob:
        job = parse_job(obj, previous.bare if previous is not None else None)
        status, problem = check_status(obj.get("status"))
        return CachedJob(replace(job, status={}), status, problem)

    def whole(self) -> Job:
        """Return the job with a copy of its status for the caller."""
        return replace(self.bare, status=json.loads(self.status))


def project_use(obj: Obj, previous: PodUse | None) -> PodUse:
    """Return what a pod uses that is bound to a node and has not ended; `previous` itself if that is the same."""
    meta, spec = fields(obj, "metadata"), fields(obj, "spec")
    node, requests = needed_string(spec, "nodeName", "spec"), resources_of(spec)
    if previous is not None and previous.node == node and previous.requests == requests:
        return previous
    namespace, name = needed_string(meta, "namespace", "metadata"), needed_string(meta, "name", "metadata")
    labels = fields(meta, "labels", "metadata")
    if names.LABEL_JOB not in labels or labels.get(names.LABEL_COMPONENT) != names.COMPONENT_LEARNER or requests.empty:
        return PodUse(sys.intern(namespace), name, sys.intern(node), requests)
    learner = (moment(meta, "creationTimestamp", "metadata") or 0.0, string(meta, "uid", "metadata"))
    return PodUse(sys.intern(namespace), name, sys.intern(node), requests, learner)


def project_priority(obj: Obj) -> PriorityClass:
    return PriorityClass(
        value=whole_number(obj, "value"), default=obj.get("globalDefault") is True, preempts=obj.get("preemptionPolicy") != "Never"
    )


def project_object(obj: Obj, _previous: JobObject[Child] | None = None) -> JobObject[Child]:
    return JobObject(job_label(obj), project_child(obj))


def job_label(obj: Obj) -> str:
    """Return the name of the job that the object says it belongs to. Raises `MalformedField` without one."""
    return needed_string(fields(fields(obj, "metadata"), "labels", "metadata"), names.LABEL_JOB, "metadata.labels")
