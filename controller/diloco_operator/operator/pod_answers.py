"""Whether the API server admits the pods of each pool, remembered between a job's reconciles. Only in memory: a new operator asks again.

See docs/decisions/0206-before-units-leave.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace

from diloco_operator.api import names
from diloco_operator.fleet.admission import KnownAdmission, admitted_pod
from diloco_operator.kube.client import Obj
from diloco_operator.kube.fields import MalformedField, fields
from diloco_operator.operator.executor import ExecutionResult, Failure
from diloco_operator.operator.rejected_writes import rejected_again
from diloco_operator.plan import Create, Plan
from diloco_operator.reconcile.observe.pod_answers import PodAnswer
from diloco_operator.reconcile.observe.rejected_writes import RejectedWrite


class PodAnswers:
    def __init__(self) -> None:
        self._known: dict[str, PodAnswer] = {}

    @property
    def by_pool(self) -> Mapping[str, PodAnswer]:
        """The last answers; `note` replaces the mapping and never changes it."""
        return self._known

    def note(self, generation: int, plan: Plan, result: ExecutionResult, now: float) -> bool:
        """Remember the answers to a plan's dry runs and creates. Return whether a dry run was answered, so that the job can act on it."""
        refused = dict(_refused_creates(result))
        created_pools = {pool for create in plan.creates if (pool := _pool(create))} if result.ok else set()
        syncer = any(map(_is_syncer, plan.creates))
        if not (refused or result.answers or ((created_pools or syncer) and self._known)):
            return False
        known = {pool: answer for pool, answer in self._known.items() if answer.generation == generation and pool not in created_pools}
        if syncer:  # pods were admitted before the syncer used its part of a quota: those answers are too old to count now
            known = {pool: replace(answer, at=0.0) if answer.rejected is None else answer for pool, answer in known.items()}
        for check, failure in result.answers:
            before = known.get(check.pool)
            rejected = _rejected(failure, before, generation, now) if failure is not None else None
            known[check.pool] = PodAnswer(now, generation, rejected, before.in_vain if before is not None else 0)
        for pool, failure in refused.items():
            before = known.get(pool)
            known[pool] = PodAnswer(now, generation, _rejected(failure, before, generation, now), (before.in_vain if before else 0) + 1)
        self._known = known
        return bool(result.answers)


def _rejected(failure: Failure, before: PodAnswer | None, generation: int, now: float) -> RejectedWrite:
    last = before.rejected if before is not None else None
    if last is not None and not failure.is_rejection:
        return replace(last, at=now)  # a server that is away rejects nothing, and is asked again after the same pause
    return rejected_again(failure, last, generation, now)


def _refused_creates(result: ExecutionResult) -> Iterator[tuple[str, Failure]]:
    """Yield each pool with a pod that the API server refused."""
    for failure in result.failures:
        if isinstance(failure.write, Create) and not failure.transient and (pool := _pool(failure.write)):
            yield pool, failure


def _is_syncer(create: Create) -> bool:
    return create.resource == names.PODS and create.obj["metadata"]["labels"].get(names.LABEL_COMPONENT) == names.COMPONENT_SYNCER


def _pool(create: Create) -> str:
    """Return the pool of a learner's pod, or "" for anything else."""
    labels: Obj = create.obj["metadata"].get("labels") or {}
    return str(labels.get(names.LABEL_POOL, "")) if create.resource == names.PODS else ""


def dry_run_admissions(result: ExecutionResult, now: float) -> dict[str, KnownAdmission]:
    """What the API server would make of the pods of each pool. An answer that cannot be read is left out: the pod itself will show it."""
    admissions = {}
    for check, stored in result.admitted:
        with contextlib.suppress(MalformedField):
            template = check.pod["metadata"]["annotations"][names.ANNOTATION_TEMPLATE_HASH]
            admissions[check.pool] = KnownAdmission(template, now, admitted_pod(fields(stored, "spec")))
    return admissions
