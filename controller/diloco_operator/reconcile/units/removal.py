"""What is removed of a job's units: pods, host lists, and what grantors hold. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from diloco_operator.plan import Delete, Patch
from diloco_operator.reconcile.children.learners import outdated_host_lists
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.grantors.registry import grantor_patches
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units.cleanup import PodCleanup, prune_pods


class Removal(NamedTuple):
    patches: Sequence[Patch]
    deletes: Sequence[Delete]
    deadlines: Sequence[float]
    """When pods must be deleted, or deleted by force."""


def remove_outdated(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> Removal:
    """Remove the pods of attempts that are over or drain, given the records as they will be once this plan's status is written."""
    return _removal(context, records, prune_pods(context, records))


def remove_all(context: ReconcileContext, pods: PodCleanup) -> Removal:
    """Remove these pods of a job that is over, all its host lists, and all that grantors hold."""
    return _removal(context, {}, pods)


def _removal(context: ReconcileContext, records: Mapping[str, UnitStatusRecord], pods: PodCleanup) -> Removal:
    deletes = (*pods.deletes, *outdated_host_lists(context, records))
    return Removal(grantor_patches(context, records), deletes, pods.deadlines)
