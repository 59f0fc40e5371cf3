"""Which units contribute, by the syncer's report, and which are about to contribute again. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from diloco_operator.api.spec import unit_names
from diloco_operator.api.status import UnitState
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.report import Report, UnitPhase, UnitReport


@dataclass(frozen=True, slots=True)
class ContributingUnits:
    """Names of units."""

    contributing: frozenset[str] = frozenset()
    """Units whose present attempt contributes. If the last report is old: units that contributed when it came."""
    returning: frozenset[str] = frozenset()
    """Units that were connected when the syncer went away, and train on as soon as it is back. They are no reason for an alarm yet."""
    recheck_at: float | None = None
    """When the returning units count as missing. None if time alone does not change that."""


def contributing_units(context: ReconcileContext, records: Mapping[str, UnitStatusRecord], *, syncer_down: bool) -> ContributingUnits:
    """`returning` is filled only if fewer units contribute than the job needs here."""
    contributing = frozenset() if syncer_down else _contributing(context, records)
    if len(contributing) >= least_here(context) or context.finishing:
        return ContributingUnits(contributing)
    if context.report is None:
        return ContributingUnits(contributing, _training(records))
    until = context.syncer_since + context.observed.config.report_stale_after
    returning = _returning(context, records) if context.now < until else frozenset()
    return ContributingUnits(contributing, returning, until if returning else None)


def _contributing(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> frozenset[str]:
    if context.report is None:
        return _training(records)
    names = set()
    for record in records.values():
        reported = context.unit_report(record.name, record.attempt)
        if record.running and reported is not None and contributes(reported):
            names.add(record.name)
    return frozenset(names)


def contributing_outside(context: ReconcileContext) -> int:
    """Learners that contribute by a recent report, and that do not count for learners.min: outside the cluster, and of parts that people
    made."""
    clusters = {pool.cluster for pool in context.observed.job.away}
    of_parts = (unit for part in context.spec.parts if part.name not in clusters for unit in reported_units(context.report, part.units))
    return sum(contributes(learner) for learner in (*context.outside.values(), *of_parts) if learner is not None)


def reported_units(report: Report | None, names: Iterable[str]) -> list[UnitReport]:
    """Return the syncer's reports of these units. A unit that has not joined has none."""
    units = (report.units.get(name) for name in names) if report is not None else ()
    return [unit for unit in units if unit is not None]


def least_here(context: ReconcileContext) -> int:
    """Return how many units of this cluster must contribute: learners.min without those that contribute elsewhere."""
    return max(0, context.all_learners.min - counted_elsewhere(context).contributing)


class Elsewhere(NamedTuple):
    """Units in other clusters that count for learners.min and max."""

    desired: int = 0
    placed: int = 0
    contributing: int = 0


def counted_elsewhere(context: ReconcileContext) -> Elsewhere:
    """Count the units of the parts that this operator makes."""
    if context.shares is None:
        return Elsewhere()
    names = [name for pool in context.observed.job.away for name in unit_names(pool.name, pool.learners.max)]
    jobs = [view.job for view in context.observed.parts.values() if view.job is not None]
    return Elsewhere(
        0 if context.suspended else context.shares.elsewhere,
        sum(pool.placed for job in jobs for pool in job.pools.values()),
        sum(map(contributes, reported_units(context.report, names))),
    )


def contributes(learner: UnitReport) -> bool:
    return learner.phase in (UnitPhase.CONTRIBUTING, UnitPhase.DONE)


def _training(records: Mapping[str, UnitStatusRecord]) -> frozenset[str]:
    return frozenset(record.name for record in records.values() if record.state is UnitState.TRAINING)


def _returning(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> frozenset[str]:
    """Units whose pods are all older than the syncer's pod: only the syncer was replaced."""
    names = set()
    for record in records.values():
        if record.state in (UnitState.TRAINING, UnitState.JOINING):
            pods = context.attempt_pods(record)
            if pods and all(pod.running_since is not None and pod.running_since < context.syncer_since for pod in pods):
                names.add(record.name)
    return frozenset(names)
