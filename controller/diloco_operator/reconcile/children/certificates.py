"""Which certificates a job must have, where they are kept, and when they are renewed. Pure: keys and signatures come later.

The authority has a Secret of its own that no pod mounts. The syncer has a Secret. Learners share Secrets, `PER_SECRET` units in each,
so that many units cost few writes; a pod mounts only its own items.

An authority that is lost, or deleted so that it changes, is replaced without locking out running pods. A kubelet needs up to
`OperatorConfig.secret_propagation` seconds to bring new files to a pod. So the operator first tells all pods to trust the new authority
beside the old one. That time later all pods get certificates of the new authority, and after the same time again the old one is dropped.

See docs/decisions/0095-certificates.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from diloco import contract

from diloco_operator.api import names
from diloco_operator.certificates.authority import AUTHORITY_LIFETIME, Leaf, Root
from diloco_operator.certificates.view import Certificate, CertificateSecret
from diloco_operator.kube.client import Obj
from diloco_operator.plan import WAVE_CERTIFICATES, WAVE_CONFIGURATION, WAVE_LEARNERS, Create, Delete, IssueCertificates
from diloco_operator.reconcile.children.outside import external_hosts
from diloco_operator.reconcile.children.parts import attempt_leaf, part_leaves
from diloco_operator.reconcile.context import ReconcileContext, Rejection
from diloco_operator.reconcile.metadata import owned
from diloco_operator.reconcile.observe.job import Job

_RENEW = 1 / 3
"""A certificate is renewed when less than this share of its life is left."""


@dataclass(frozen=True, slots=True)
class CertificateCheck:
    """What prevents the job from having its certificates."""

    ready: bool
    """Nothing does, so pods may be created."""
    taken: Sequence[str]
    """`Secret <name>` of objects that do not belong to the job."""
    deletes: Sequence[Delete]
    rejected: Sequence[Rejection]
    """Secrets that the API server rejected and whose retry is not due yet."""


NO_CERTIFICATES = CertificateCheck(True, (), (), ())
"""A part has none of its own: home has signed them."""


def check_certificates(context: ReconcileContext) -> CertificateCheck:
    """Look for Secrets under the job's names that are not the job's or are being deleted, and for an authority that can no longer sign."""
    job, children = context.observed.job, context.observed.children
    secrets = [*([children.authority] if children.authority else []), *children.certificates.values()]
    named = [secret for secret in secrets if names.holds_certificates(secret.name, job.name)]
    taken = [f"{names.SECRETS.kind} {secret.name}" for secret in named if secret.owner != job.uid]
    deleting = any(secret.deleting for secret in named if secret.owner == job.uid)
    authority = children.authority
    defect = _unusable(authority, context.now) if authority is not None and authority.owner == job.uid and not authority.deleting else ""
    deletes = [Delete(names.SECRETS, job.namespace, authority.name, authority.uid, why=defect)] if authority is not None and defect else []
    keys = [key for key in context.observed.rejected_writes if key[0] == names.SECRETS.kind]
    rejected = [rejection for key in keys if (rejection := context.rejection(key)) is not None]
    return CertificateCheck(not (taken or deleting or deletes or rejected), taken, deletes, rejected)


def _unusable(secret: CertificateSecret, now: float) -> str:
    if secret.authority is None:
        return "it holds no authority that can sign; a new one is made"
    if secret.authority.root.expires - now <= AUTHORITY_LIFETIME * _RENEW:
        return "the authority must be renewed before it runs out"
    return ""


class CertificatesToIssue(NamedTuple):
    secrets: Sequence[IssueCertificates] = ()
    deadlines: Sequence[float] = ()


def certificates_to_issue(context: ReconcileContext, learners: Iterable[Create]) -> CertificatesToIssue:
    """What must be issued for the pods in `learners`, before they are created, and for every pod that runs."""
    job, children = context.observed.job, context.observed.children
    authority = children.authority
    if context.is_part:
        return CertificatesToIssue()
    if authority is not None and (authority.owner != job.uid or authority.deleting or _unusable(authority, context.now)):
        return CertificatesToIssue()
    all_secrets: list[IssueCertificates] = []
    if authority is None:
        secret = _secret(job, names.authority_secret_name(job.name))
        all_secrets.append(IssueCertificates(secret, job.uid, create_authority=True, wave=WAVE_CONFIGURATION))
    trust = _trust(context, authority)
    deadlines = list(trust.deadlines)
    identity = contract.syncer_identity(job.uid)
    host_name = contract.syncer_host_name(job.name, job.namespace)
    syncers = names.syncer_secret_name(job.name)
    hosts = (host_name, *external_hosts(job, context.spec, children.external_service))
    wanted = {syncers: [Leaf(contract.TLS_IDENTITY_FILE, identity, hosts, connects=False)]}
    for outside in context.spec.learners.outside:
        leaf = Leaf(names.outside_key(outside), contract.learner_identity(job.uid, outside, names.OUTSIDE_ATTEMPT))
        wanted.setdefault(names.outside_secret_name(job.name), []).append(leaf)
    for part in context.spec.parts:
        wanted[names.part_secret_name(job.name, part.name)] = part_leaves(context, part)
    for pool, unit, attempt in sorted(_attempts(context, learners)):
        wanted.setdefault(names.learner_secret_name(job.name, pool, unit), []).append(attempt_leaf(job, unit, attempt))
    for name, leaves in wanted.items():
        wave = WAVE_CERTIFICATES if name == syncers else WAVE_LEARNERS
        to_issue, renewals = _issue(context, trust, name, leaves, children.certificates.get(name), wave)
        if to_issue is not None:
            all_secrets.append(to_issue)
        deadlines += renewals
    allowed = []
    for secret_to_issue in all_secrets:
        rejection = context.rejection((names.SECRETS.kind, secret_to_issue.obj["metadata"]["name"]))
        if rejection is None:
            allowed.append(secret_to_issue)
        elif secret_to_issue.create_authority:
            return CertificatesToIssue((), [*deadlines, rejection.retry_at])  # without an authority nothing can be signed
        else:
            deadlines.append(rejection.retry_at)
    return CertificatesToIssue(allowed, deadlines)


def _attempts(context: ReconcileContext, learners: Iterable[Create]) -> set[tuple[str, str, int]]:
    """(pool, unit, attempt) of every learner pod that has not ended or is in `learners`."""
    attempts = {(pod.pool, pod.unit, pod.attempt) for pods in context.learners.values() for pod in pods if not pod.ended}
    for create in learners:
        if create.resource != names.PODS:
            continue
        labels: Mapping[str, str] = create.obj["metadata"]["labels"]
        attempts.add((labels[names.LABEL_POOL], labels[names.LABEL_UNIT], int(labels[names.LABEL_ATTEMPT])))
    return attempts


@dataclass(frozen=True, slots=True)
class _Trust:
    """The authorities that the job's pods trust at this moment."""

    present: Root | None
    """None if this plan makes the authority."""
    earlier: tuple[Root, ...]
    """Earlier authorities that are still trusted."""
    signed: frozenset[str]
    """Ids of the authorities whose certificates need not be replaced yet."""
    deadlines: tuple[float, ...] = ()
    """When the next step of a rotation is due."""


def _trust(context: ReconcileContext, authority_secret: CertificateSecret | None) -> _Trust:
    job, now = context.observed.job, context.now
    present = authority_secret.authority.root if authority_secret is not None and authority_secret.authority is not None else None
    spread = context.observed.config.secret_propagation
    job_secrets = [secret for secret in context.observed.children.certificates.values() if secret.owner == job.uid]
    others = {
        other.id: other
        for secret in job_secrets
        for other in secret.roots
        if (present is None or other.id != present.id) and other.expires > now
    }
    earlier = tuple(sorted(others.values(), key=lambda root: (root.made, root.id)))
    if present is None:
        return _Trust(None, earlier, frozenset(others))
    renewal = present.expires - AUTHORITY_LIFETIME * _RENEW
    known, spread_out = present.made + spread, present.made + 2 * spread
    if not earlier or now >= spread_out:
        return _Trust(present, (), frozenset({present.id}), (renewal,))
    if now >= known:
        return _Trust(present, earlier, frozenset({present.id}), (renewal, spread_out))
    return _Trust(present, earlier, frozenset({present.id, *others}), (renewal, known))


def _issue(
    context: ReconcileContext, trust: _Trust, name: str, leaves: list[Leaf], secret: CertificateSecret | None, wave: int
) -> tuple[IssueCertificates | None, list[float]]:
    """Return what to issue in one Secret, and when its certificates must be renewed. Nothing (None) is issued if the Secret is complete or
    is not the job's."""
    observed = context.observed
    if secret is not None and (secret.owner != observed.job.uid or secret.deleting):
        return None, []
    existing = secret.certificates if secret is not None else {}
    renewals = [_renewal(context, trust, leaf, existing.get(leaf.key)) for leaf in leaves]
    missing = tuple(leaf for leaf, renewal in zip(leaves, renewals, strict=True) if renewal is None)
    deadlines = [renewal for renewal in renewals if renewal is not None]
    roots = tuple(root.id for root in secret.roots) if secret is not None else ()
    if not missing and trust.present is not None and roots == (trust.present.id, *(root.id for root in trust.earlier)):
        return None, deadlines
    keep = {leaf.key for leaf in leaves}
    to_issue = IssueCertificates(
        _secret(observed.job, name),
        observed.job.uid,
        uid=secret.uid if secret is not None else "",
        version=secret.version if secret is not None else "",
        authority=observed.children.authority.authority if observed.children.authority is not None else None,
        leaves=missing,
        drop=tuple(key for key in existing if key not in keep),
        roots=tuple(root.pem for root in trust.earlier),
        wave=wave,
    )
    return to_issue, deadlines


def _renewal(context: ReconcileContext, trust: _Trust, leaf: Leaf, existing: Certificate | None) -> float | None:
    """When the certificate `existing` must be renewed. None if it must be issued now: it is due, missing or wrong."""
    if (
        existing is None
        or (existing.identity, existing.host_names) != (leaf.identity, leaf.host_names)
        or existing.authority not in trust.signed
    ):
        return None
    due = existing.expires - context.observed.config.certificate_lifetime * _RENEW
    return due if context.now < due else None


def _secret(job: Job, name: str) -> Obj:
    return {"apiVersion": "v1", "kind": names.SECRETS.kind, "metadata": owned(job, name)}
