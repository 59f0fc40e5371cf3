"""Which units contribute, by the syncer's report, and which are about to contribute again. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from diloco_operator.api.status import UnitState
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.report import UnitPhase


@dataclass(frozen=True, slots=True)
class ContributingUnits:
    """Names of units."""

    contributing: frozenset[str] = frozenset()
    """Units whose present attempt contributes. Without a recent report: those that did when the last one came."""
    returning: frozenset[str] = frozenset()
    """Units of a job that has trained that were there when the syncer went, and train on as soon as it is back. They are no alarm as long
    as a report would count."""
    recheck_at: float | None = None
    """When the returning ones count as missing."""


def contributing_units(context: ReconcileContext, records: Mapping[str, UnitStatusRecord], *, syncer_down: bool) -> ContributingUnits:
    """Find them; `returning` is filled only where fewer than `learners.min` contribute."""
    contributing = frozenset() if syncer_down else _contributing(context, records)
    if len(contributing) >= context.spec.learners.min or context.finishing:
        return ContributingUnits(contributing)
    if context.report is None:
        return ContributingUnits(contributing, _training(records))
    until = context.syncer_since + context.observed.config.report_stale_after
    returning = _returning(context, records) if context.now < until else frozenset()
    return ContributingUnits(contributing, returning, until if returning else None)


def _contributing(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> frozenset[str]:
    if context.report is None:
        return _training(records)
    found = set()
    for record in records.values():
        seen = context.unit_report(record.name, record.attempt)
        if record.running and seen is not None and seen.phase in (UnitPhase.CONTRIBUTING, UnitPhase.DONE):
            found.add(record.name)
    return frozenset(found)


def contributing_outside(context: ReconcileContext) -> int:
    """How many learners outside the cluster contribute, by a recent report."""
    return sum(1 for seen in context.outside.values() if seen is not None and seen.phase in (UnitPhase.CONTRIBUTING, UnitPhase.DONE))


def _training(records: Mapping[str, UnitStatusRecord]) -> frozenset[str]:
    return frozenset(r.name for r in records.values() if r.state is UnitState.TRAINING)


def _returning(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> frozenset[str]:
    """Return units all of whose pods are older than the syncer's: it was replaced, they were not."""
    found = set()
    for record in records.values():
        if record.state in (UnitState.TRAINING, UnitState.JOINING):
            pods = [pod for pod in context.learners.get(record.name, ()) if pod.attempt == record.attempt]
            if pods and all(pod.running_since is not None and pod.running_since < context.syncer_since for pod in pods):
                found.add(record.name)
    return frozenset(found)
