"""Metadata of the objects of a job. Pure."""

from __future__ import annotations

from diloco_operator.api import names
from diloco_operator.kube.client import Obj
from diloco_operator.reconcile.observe.job import Job


def owned(job: Job, name: str) -> Obj:
    """Return the metadata of an object that belongs to the job and is deleted with it."""
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": {names.LABEL_JOB: job.name},
        "ownerReferences": [owner_reference(job)],
    }


def owner_reference(job: Job) -> Obj:
    """Return the reference to the job as controller: if the job is deleted, garbage collection deletes the object."""
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": job.name, "uid": job.uid, "controller": True}
