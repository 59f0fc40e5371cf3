"""What becomes of the volume claim when its job is deleted: `syncer.storage.retain`. Pure.

With Delete the claim has an owner reference to the job, and the garbage collector deletes it with the job. With Keep it has none: an
annotation says whose claim it is, and a label finds it. If the field changes, so does an existing claim. Another annotation names the image
that can read the volume, for `kubectl diloco export` when the job is gone.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from diloco_operator.api import names
from diloco_operator.api.spec import Retain
from diloco_operator.plan import Patch
from diloco_operator.reconcile.children.pods import syncer_image
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.metadata import owned, owner_reference
from diloco_operator.reconcile.observe.children import Child
from diloco_operator.reconcile.observe.job import Job


@dataclass(frozen=True, slots=True)
class Retention:
    """Whether the claim has the retention of the spec, and what changes it."""

    patches: tuple[Patch, ...] = ()
    settled: bool = True
    """The claim is as the spec wants it, or the job has none. Before that the job must not be deleted: its deletion would take a claim that
    should stay, or leave one that should go."""
    refused: str = ""
    """Why the API server rejects the change, "" if it does not."""
    retry_at: float | None = None
    """When a rejected change is tried again."""


def claim_metadata(job: Job, name: str, retain: Retain, image: str) -> dict[str, Any]:
    """Metadata of a new claim. `image`: the syncer's."""
    meta = owned(job, name)
    meta["annotations"] = {names.ANNOTATION_SYNCER_IMAGE: image}
    if retain is Retain.KEEP:
        del meta["ownerReferences"]
        meta["labels"][names.LABEL_RETAIN] = Retain.KEEP.value
        meta["annotations"][names.ANNOTATION_JOB_UID] = job.uid
    return meta


def is_claim_of(claim: Child, job: Job) -> bool:
    """Whether the claim is the job's: by the controller among its owner references, or by the annotation if it has no controller."""
    return (claim.owner or claim.kept_for) == job.uid


def retained(claim: Child, job: Job) -> Retain:
    """What happens to the job's claim if the job is deleted now."""
    return Retain.DELETE if claim.owner == job.uid or any(_is_to(owner, job) for owner in _others(claim)) else Retain.KEEP


def claim_retention(context: ReconcileContext) -> Retention:
    """How the claim must change to follow the spec."""
    job, claim, wanted = context.observed.job, context.observed.children.volume_claim, context.spec.syncer.storage.retain
    if claim is None:
        unseen = wanted is Retain.KEEP and bool(context.observed.missing_rights)
        return Retention(settled=not unseen)
    follows, image = _follows(claim, job, wanted), syncer_image(context.spec, context.observed.config)
    # A claim that goes with its job needs no current image in its annotation: the export of the model can ask the job.
    named = wanted is Retain.DELETE or claim.syncer_image == image
    if claim.deleting or not is_claim_of(claim, job) or (follows and named):
        return Retention()
    if (rejection := context.rejection((names.VOLUME_CLAIMS.kind, claim.name))) is not None:
        return Retention(settled=follows, refused="" if follows else rejection.text, retry_at=rejection.retry_at)
    others = [owner for owner in _others(claim) if not _is_to(owner, job)]
    keep = wanted is Retain.KEEP
    meta = {
        "uid": claim.uid,
        "resourceVersion": claim.version,
        "ownerReferences": others if keep else [*others, owner_reference(job)],
        "labels": {names.LABEL_RETAIN: Retain.KEEP.value if keep else None},
        "annotations": {names.ANNOTATION_JOB_UID: job.uid if keep else None, names.ANNOTATION_SYNCER_IMAGE: image},
    }
    return Retention((Patch(names.VOLUME_CLAIMS, job.namespace, claim.name, {"metadata": meta}),), settled=follows)


def _follows(claim: Child, job: Job, wanted: Retain) -> bool:
    if retained(claim, job) is not wanted:
        return False
    if wanted is Retain.DELETE:
        return not claim.retain and claim.owner == job.uid
    return claim.retain == Retain.KEEP and claim.kept_for == job.uid


def _others(claim: Child) -> list[dict[str, Any]]:
    owners: list[dict[str, Any]] = json.loads(claim.other_owners) if claim.other_owners else []
    return owners


def _is_to(owner: dict[str, Any], job: Job) -> bool:
    return owner.get("uid") == job.uid
