"""What the units of a part need of the job at home: a Secret that fits the part, with a certificate for each attempt. Pure.

See docs/decisions/0284-parts-in-other-clusters.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from diloco_operator.api import names
from diloco_operator.api.addresses import parse_address
from diloco_operator.reconcile.children import home_words
from diloco_operator.reconcile.children.pods import SyncerAccess
from diloco_operator.reconcile.context import ReconcileContext, Rejection
from diloco_operator.reconcile.observe.part_secret import Home
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord


def home_problem(context: ReconcileContext) -> str | None:
    """Return why no unit of a part may start, and what to do. None if nothing keeps them, and in a job whose syncer is in this cluster."""
    at, secret = context.spec.syncer.at, context.observed.children.part_secret
    if at is None:
        return None
    if secret is None:
        return home_words.no_secret(at.secret_name, context.observed.job.name, made=_is_made(context))
    if secret.home is None:
        return home_words.unusable(secret.name, secret.problem, made=_is_made(context))
    differences = list(_differences(context, secret.home))
    return home_words.other_training(differences, made=_is_made(context)) if differences else None


def _is_made(context: ReconcileContext) -> bool:
    """Whether the operator at home has made this part, not a user."""
    return names.LABEL_HOME in context.observed.job.labels


def first_report_awaited(context: ReconcileContext) -> str | None:
    """Return what a part without attempts on record waits for before it starts units: the syncer may know attempts that an earlier status
    had. None if there is a report, or none has come for too long: a part that is cut off starts its units all the same."""
    at = context.spec.syncer.at
    began = any(record.attempt for record in context.records_before.values()) or context.learners
    return home_words.first_report_due(at.address) if at is not None and not began and context.report_due is not None else None


def syncer_access(context: ReconcileContext) -> SyncerAccess | None:
    """Return how learner pods of a part join the job at home. None if the syncer is in this cluster. A part whose Secret cannot be used
    starts none."""
    at, secret = context.spec.syncer.at, context.observed.children.part_secret
    if at is None:
        return None
    part = secret.home.part if secret is not None and secret.home is not None else ""
    return SyncerAccess(str(parse_address(at.address)), at.secret_name, part)


def _differences(context: ReconcileContext, home: Home) -> Iterator[tuple[str, str, str]]:
    """Yield each field of spec.training that says something else at home: its path, its value here, its value there."""
    here, there = (training.model_dump(mode="json", by_alias=True) for training in (context.spec.training, home.job.training))
    yield from _different("spec.training", here, there)


def _different(path: str, here: Mapping[str, Any], there: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for key, value in here.items():
        if isinstance(value, dict):
            yield from _different(f"{path}.{key}", value, there[key])
        elif value != there[key]:
            yield f"{path}.{key}", home_words.value(value), home_words.value(there[key])


def certificate_missing(context: ReconcileContext, record: UnitStatusRecord) -> Rejection | None:
    """Return why the next attempt of a part's unit must not be created: home has signed no certificate for it. None if it may be."""
    secret = context.observed.children.part_secret
    home, attempt = (secret.home if secret is not None else None), context.next_attempt(record)
    if secret is None or home is None or attempt in home.signed.get(record.name, ()):
        return None
    name = context.observed.job.name
    text = home_words.no_certificate(secret.name, record.name, attempt, home.part, name, made=_is_made(context))
    # A new Secret reconciles the job at once.
    return Rejection((names.SECRETS.kind, secret.name), text, context.now + context.observed.config.resync_interval)
