"""Metadata of the objects other than pods. Pure."""

from __future__ import annotations

from diloco_operator.api import names
from diloco_operator.kube.client import Obj
from diloco_operator.reconcile.children.pods import owner_reference
from diloco_operator.reconcile.observe.state import Job


def owned(job: Job, name: str) -> Obj:
    """Of an object that belongs to the job and is deleted with it."""
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": {names.LABEL_JOB: job.name},
        "ownerReferences": [owner_reference(job)],
    }
