"""Which certificates a job must have, where they are kept, and when they are made anew. Pure: keys and signatures come later.

The authority is in a Secret of its own that no pod mounts. The syncer has a Secret; learners share Secrets, `PER_SECRET` units in each,
so that many units cost few writes; a pod mounts its own items alone.

An authority that was lost, or deleted to be changed, is replaced without locking out who runs: a kubelet needs a while to bring new
files to a pod (`OperatorConfig.secret_propagation`). So first everybody is told to trust the new one besides the old; one such while
later everybody gets a certificate of the new one; yet another later the old one is trusted no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from diloco import contract

from diloco_operator.api import names
from diloco_operator.certificates.authority import AUTHORITY_LIFETIME, Leaf, Root
from diloco_operator.certificates.view import Certificate, CertificateSecret
from diloco_operator.kube.client import Obj
from diloco_operator.plan import WAVE_CERTIFICATES, WAVE_CONFIGURATION, WAVE_LEARNERS, Delete, IssueCertificates
from diloco_operator.reconcile.children.metadata import owned
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.state import Job

_RENEW = 1 / 3
"""A certificate is renewed when less than this share of its life is left."""


@dataclass(slots=True)
class CertificateCheck:
    """What stands in the way of certificates, before anything is made."""

    ready: bool = True
    """Pods may be made."""
    taken: list[str] = field(default_factory=list)
    """`Secret <name>` of objects that belong to somebody else."""
    deletes: list[Delete] = field(default_factory=list)


def check_certificates(context: ReconcileContext) -> CertificateCheck:
    """Secrets under our names that are not ours or go away, and an authority that cannot sign (any more), which is made anew."""
    step = CertificateCheck()
    job, children = context.observed.job, context.observed.children
    secrets = [*([children.authority] if children.authority else []), *children.certificates.values()]
    for secret in secrets:
        if not names.holds_certificates(secret.name, job.name):
            continue
        if secret.owner != job.uid:
            step.taken.append(f"{names.SECRETS.kind} {secret.name}")
            step.ready = False
        elif secret.deleting:
            step.ready = False
    own = children.authority
    if own is not None and own.owner == job.uid and not own.deleting and (why := _unusable(own, context.now)):
        step.deletes.append(Delete(names.SECRETS, job.namespace, own.name, own.uid, why=why))
        step.ready = False
    return step


def _unusable(secret: CertificateSecret, now: float) -> str:
    if secret.authority is None:
        return "it holds no authority that can sign; a new one is made"
    if secret.authority.root.expires - now <= AUTHORITY_LIFETIME * _RENEW:
        return "the authority must be renewed before it runs out"
    return ""


def certificates_to_issue(context: ReconcileContext, creates: Iterable[Obj]) -> list[IssueCertificates]:
    """What must be made before the pods in `creates`: for these, and for every pod that runs."""
    job, children = context.observed.job, context.observed.children
    own = children.authority
    if own is not None and (own.owner != job.uid or own.deleting or _unusable(own, context.now)):
        return []
    found: list[IssueCertificates] = []
    if own is None:
        secret = _secret(job, names.authority_secret_name(job.name))
        found.append(IssueCertificates(secret, job.uid, create_authority=True, wave=WAVE_CONFIGURATION))
    trust = _trust(context, own)
    identity = contract.syncer_identity(job.uid)
    host_name = contract.syncer_host_name(job.name, job.namespace)
    syncers = names.syncer_secret_name(job.name)
    wanted = {syncers: [Leaf(contract.TLS_IDENTITY_FILE, identity, (host_name,))]}
    for pool, unit, attempt in sorted(_attempts(context, creates)):
        leaf = Leaf(names.learner_secret_key(unit, attempt), contract.learner_identity(job.uid, unit, attempt))
        wanted.setdefault(names.learner_secret_name(job.name, pool, unit), []).append(leaf)
    for name, leaves in wanted.items():
        wave = WAVE_CERTIFICATES if name == syncers else WAVE_LEARNERS
        one = _settle(context, trust, name, leaves, children.certificates.get(name), wave)
        if one is not None:
            found.append(one)
    return found


def _attempts(context: ReconcileContext, creates: Iterable[Obj]) -> set[tuple[str, str, int]]:
    """(pool, unit, attempt) of every learner pod that runs, will run, or has not ended yet."""
    found = {(pod.pool, pod.unit, pod.attempt) for pods in context.learners.values() for pod in pods if not pod.ended}
    for pod in creates:
        labels: Mapping[str, str] = pod["metadata"]["labels"]
        found.add((labels[names.LABEL_POOL], labels[names.LABEL_UNIT], int(labels[names.LABEL_ATTEMPT])))
    return found


@dataclass(frozen=True, slots=True)
class _Trust:
    """Whom the job's pods trust at this moment."""

    present: Root | None
    """None: the authority is made by this plan."""
    earlier: tuple[Root, ...]
    """Still to be trusted."""
    signed: frozenset[str]
    """Ids of the authorities whose certificates are good enough for now."""


def _trust(context: ReconcileContext, own: CertificateSecret | None) -> _Trust:
    job, now = context.observed.job, context.now
    present = own.authority.root if own is not None and own.authority is not None else None
    spread = context.observed.config.secret_propagation
    mine = [secret for secret in context.observed.children.certificates.values() if secret.owner == job.uid]
    others = {r.id: r for secret in mine for r in secret.roots if (present is None or r.id != present.id) and r.expires > now}
    earlier = tuple(sorted(others.values(), key=lambda root: (root.made, root.id)))
    if present is None:
        return _Trust(None, earlier, frozenset(others))
    context.deadlines.append(present.expires - AUTHORITY_LIFETIME * _RENEW)
    known, spread_out = present.made + spread, present.made + 2 * spread
    if not earlier or now >= spread_out:
        return _Trust(present, (), frozenset({present.id}))
    context.deadlines.append(known if now < known else spread_out)
    return _Trust(present, earlier, frozenset({present.id, *others} if now < known else {present.id}))


def _settle(
    context: ReconcileContext, trust: _Trust, name: str, leaves: list[Leaf], secret: CertificateSecret | None, wave: int
) -> IssueCertificates | None:
    """One Secret; None: it is as it must be, or not ours to change."""
    observed = context.observed
    if secret is not None and (secret.owner != observed.job.uid or secret.deleting):
        return None
    there = secret.certificates if secret is not None else {}
    missing = tuple(leaf for leaf in leaves if not _good(context, trust, leaf, there.get(leaf.key)))
    roots = tuple(root.id for root in secret.roots) if secret is not None else ()
    if not missing and trust.present is not None and roots == (trust.present.id, *(root.id for root in trust.earlier)):
        return None
    keep = {leaf.key for leaf in leaves}
    return IssueCertificates(
        _secret(observed.job, name),
        observed.job.uid,
        uid=secret.uid if secret is not None else "",
        version=secret.version if secret is not None else "",
        authority=observed.children.authority.authority if observed.children.authority is not None else None,
        leaves=missing,
        drop=tuple(key for key in there if key not in keep),
        roots=tuple(root.pem for root in trust.earlier),
        wave=wave,
    )


def _good(context: ReconcileContext, trust: _Trust, leaf: Leaf, there: Certificate | None) -> bool:
    """Whether a certificate will do. When it will do no longer goes to the pass's deadlines."""
    if there is None or (there.identity, there.host_names) != (leaf.identity, leaf.host_names) or there.authority not in trust.signed:
        return False
    due = there.expires - context.observed.config.certificate_lifetime * _RENEW
    if context.now >= due:
        return False
    context.deadlines.append(due)
    return True


def _secret(job: Job, name: str) -> Obj:
    return {"apiVersion": "v1", "kind": names.SECRETS.kind, "metadata": owned(job, name)}
