"""The parts that this job's operator makes in other clusters, one for each cluster that `pools[].cluster` names. Pure.

See docs/decisions/0284-parts-in-other-clusters.md. See docs/decisions/0285-numbers-of-parts.md.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from diloco_operator.api import names
from diloco_operator.api.addresses import Address
from diloco_operator.api.spec import Pool
from diloco_operator.kube.client import Obj
from diloco_operator.plan import Patch, WantedPart
from diloco_operator.reconcile.children import home_words
from diloco_operator.reconcile.children.outside import external_address, load_balancer_hosts
from diloco_operator.reconcile.children.part_manifest import part_manifest
from diloco_operator.reconcile.context import ReconcileContext, Rejection
from diloco_operator.reconcile.observe.job import Job
from diloco_operator.reconcile.observe.state import ObservedState

GONE_AFTER = 600.0
"""Seconds for which an operator that works on a deleted job waits for the end of its parts."""


def wanted_parts(context: ReconcileContext, *, suspend: bool) -> tuple[WantedPart, ...] | None:
    """Return each part as it should be. None: they stay as they are, because the job has none, or because the spec, a certificate or the
    syncer's address is not there to say how they should be. `suspend`: parts that exist give their hardware back, and no other is made."""
    job, children, shares, derived = context.observed.job, context.observed.children, context.shares, context.observed.job.derived
    assert derived is not None, "the derived values of a spec that can be read are there"
    if context.spec_refused:
        return None
    if shares is None:
        return () if names.FINALIZER_PARTS in job.finalizers else None
    if names.FINALIZER_PARTS not in job.finalizers:  # the API server refuses it
        return None
    address = _address(context)
    if address is None:
        return None
    spec = context.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    training = json.loads(derived.job_file)["training"]
    parts = []
    # A cluster whose pools are all switched off has no part.
    for cluster in dict.fromkeys(pool.cluster for pool in job.away if pool.learners.max):
        secret = children.certificates.get(names.part_secret_name(job.name, cluster))
        if secret is None or secret.owner != job.uid:
            return None
        at = {"address": str(address), "secretName": names.home_secret_name(job.name)}
        pools = [pool for pool in job.away if pool.cluster == cluster]
        units = sum(shares.numbers[pool.name] for pool in pools)
        # A part without units is suspended. Its pools keep their sizes, as a job must have room for a unit.
        entries = [_pool(pool, shares.numbers[pool.name] if units else pool.learners.max) for pool in pools]
        manifest = part_manifest(job.name, spec, entries, training, at)
        manifest["spec"]["suspend"] = suspend or not units
        manifest["metadata"]["labels"] = {names.LABEL_HOME: job.uid}
        parts.append(WantedPart(cluster, secret.name, secret.version, derived.job_file, manifest, may_be_made=bool(units) and not suspend))
    return tuple(parts)


def _address(context: ReconcileContext) -> Address | None:
    """Return where parts find the syncer. None if its load balancer has no address yet."""
    ingress = load_balancer_hosts(context.observed.job, context.observed.children.external_service)
    return external_address(context.spec.syncer.external_address, ingress)


def parts_problem(context: ReconcileContext) -> str:
    """Return what keeps all parts from being made or changed, and what to do. "" if nothing here does."""
    if (refused := finalizer_refused(context)) is not None:
        return refused.text
    if context.spec_refused or _address(context) is not None:
        return ""
    return home_words.no_address(names.external_service_name(context.observed.job.name))


def _pool(pool: Pool, units: int) -> Obj:
    entry: dict[str, Any] = pool.model_dump(mode="json", by_alias=True, exclude_none=True)
    del entry["cluster"]
    if not entry.get("topology"):
        entry.pop("topology", None)
    entry["learners"] = {"min": min(pool.learners.min, units), "max": units}
    return entry


def with_finalizer(context: ReconcileContext) -> Patch | None:
    """Return the patch that adds the finalizer. None if the job has it already, has no parts, or the API server refuses the patch: then
    no part is made, and units here go on."""
    job = context.observed.job
    if context.shares is None or names.FINALIZER_PARTS in job.finalizers or job.deleting or finalizer_refused(context) is not None:
        return None
    return _finalizers(job, (*job.finalizers, names.FINALIZER_PARTS))


def finalizer_refused(context: ReconcileContext) -> Rejection | None:
    """Return why the finalizer cannot be added now. None if it can."""
    return context.rejection((names.DILOCO_JOBS.kind, context.observed.job.name))


class Release(NamedTuple):
    """Whether a deleted job still waits for its parts."""

    parts: tuple[WantedPart, ...] | None = None
    """See `Plan.parts`."""
    patches: tuple[Patch, ...] = ()
    given_up: tuple[str, ...] = ()
    """Clusters for which it has waited too long."""
    due: float | None = None
    """When it stops waiting. None if it does not wait."""


def release_from_parts(observed: ObservedState, now: float) -> Release:
    """Let a deleted job go once its parts are gone, or once it has waited for too long."""
    job = observed.job
    due = max(job.deleted_at, observed.listening_since) + GONE_AFTER
    if names.FINALIZER_PARTS not in job.finalizers:
        return Release()
    left = tuple(cluster for cluster, view in observed.parts.items() if view.job is not None or view.left)
    if now < due and not all(observed.parts[cluster].unknown for cluster in left):
        return Release((), due=due)
    return Release((), (_finalizers(job, tuple(each for each in job.finalizers if each != names.FINALIZER_PARTS)),), left)


def _finalizers(job: Job, wanted: tuple[str, ...]) -> Patch:
    meta = {"uid": job.uid, "resourceVersion": job.version, "finalizers": list(wanted)}
    return Patch(names.DILOCO_JOBS, job.namespace, job.name, {"metadata": meta})
