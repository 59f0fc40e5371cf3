"""What happened to the units of a job since the last reconcile, and to the hosts that they ran on. Pure."""

from __future__ import annotations

from dataclasses import replace

from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.units.hosts import judge_hosts, start_elsewhere
from diloco_operator.reconcile.units.lifecycle import Units, observe_units
from diloco_operator.reconcile.units.restarts import retry_given_up
from diloco_operator.reconcile.units.stragglers import blame_slow_hosts, mark_slow


def judge_units(context: ReconcileContext) -> tuple[ReconcileContext, Units]:
    """Return the units, and the context with the hosts that are to be avoided."""
    # 1. What became of each attempt.
    units = observe_units(context)
    # 2. Which units are slower than the others.
    units = units._replace(records=mark_slow(context, units.records))
    # 3. Which hosts are to blame for failures and slow steps.
    slow = blame_slow_hosts(context, units.records)
    context = replace(context, hosts=judge_hosts(context, units.records, [*units.failures, *slow]))
    # 4. Which units start elsewhere, or once more, because of that.
    records = start_elsewhere(units.records, context.hosts, context.spec.learners.restart, context.now)
    return context, units._replace(records=retry_given_up(context, records))
