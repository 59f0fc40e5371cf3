"""Units that must leave before placement looks at them, in the order in which the causes outweigh each other. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units.revocations import leave_revoked
from diloco_operator.reconcile.units.roll_out import replace_outdated
from diloco_operator.reconcile.units.stopping import leave_removed_pools
from diloco_operator.reconcile.units.stragglers import leave_slow_hosts


def depart(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> dict[str, UnitStatusRecord]:
    """Return all units, of which those drain that were made from another template, whose pool has gone, whose slice another job gets, or
    whose host is slow."""
    records = replace_outdated(context, records)
    records = leave_removed_pools(context, records)
    records = leave_revoked(context, records)
    return leave_slow_hosts(context, records)
