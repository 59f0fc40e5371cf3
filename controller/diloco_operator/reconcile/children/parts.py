"""Parts of a job in other clusters: which certificates the job's home signs for each in advance. Pure.

Nothing in a part can sign. So home signs for the next attempts of each unit, and the Secret with them goes to the part's cluster. It moves
on with the attempts that the syncer has accepted, and with those that the part has used.

See docs/decisions/0284-parts-in-other-clusters.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from diloco import contract

from diloco_operator.api import names
from diloco_operator.api.spec import Part
from diloco_operator.certificates.authority import Leaf
from diloco_operator.certificates.view import Certificate
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.job import Job

ATTEMPTS: Final = 16
"""Attempts of each unit that have certificates: the newest that is known to be used, and those after it. `MAX_PART_UNITS` times as many
take 0.9 MB, and an API server takes 1.5 MiB."""


def part_leaves(context: ReconcileContext, part: Part) -> list[Leaf]:
    """The certificates of a part: to watch the syncer, and to join it as each attempt of its units."""
    job = context.observed.job
    secret = context.observed.children.certificates.get(names.part_secret_name(job.name, part.name))
    signed = _first_signed(secret.certificates if secret is not None else {}, job.uid)
    leaves = [Leaf(names.PART_IDENTITY, contract.part_identity(job.uid, part.name))]
    for unit in part.units:
        # Without a report the Secret shows how far the unit was: certificates in use must not give way to those of older attempts.
        known = signed.get(unit, 1)
        # A part can use no attempts beyond its certificates, whatever it says.
        used = min(_last_used(context, part, unit), known + ATTEMPTS - 1)
        first = max(known, used, context.last_reported(unit, known))
        leaves += [attempt_leaf(job, unit, attempt) for attempt in range(first, first + ATTEMPTS)]
    return leaves


def attempt_leaf(job: Job, unit: str, attempt: int) -> Leaf:
    """The certificate with which this attempt of a unit joins the job."""
    host_name = contract.learner_host_name(job.name, job.namespace, unit, attempt)
    return Leaf(names.learner_secret_key(unit, attempt), contract.learner_identity(job.uid, unit, attempt), (host_name,))


def _last_used(context: ReconcileContext, part: Part, unit: str) -> int:
    """Return the newest attempt of the unit by what its part says in status, or has told the syncer. 0 if it says nothing. Attempts that
    end before they join, such as those that find no hardware, are known to the part alone."""
    view, report = context.observed.parts.get(part.name), context.report
    told = report.parts.get(part.name) if report is not None else None
    states = (view.job.state if view is not None and view.job is not None else None, told.state if told is not None else None)
    return max((state.attempts.get(unit, 0) for state in states if state is not None), default=0)


def _first_signed(certificates: Mapping[str, Certificate], uid: str) -> dict[str, int]:
    """Unit -> the first attempt in the Secret. Keys without the right certificate do not count: everyone who may write Secrets can write
    any key."""
    first: dict[str, int] = {}
    for key, certificate in certificates.items():
        unit, attempt = names.attempt_of_key(key)
        if attempt and certificate.identity == contract.learner_identity(uid, unit, attempt):
            first[unit] = min(attempt, first.get(unit, attempt))
    return first
