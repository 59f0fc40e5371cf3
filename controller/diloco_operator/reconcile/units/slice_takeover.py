"""Units that wait for nodes and would take a slice that is free meanwhile, in place of what they asked for. Pure.

kube-scheduler binds pods that wait to a slice that becomes free by itself. It cannot do so once it has bound some of them to hosts beside
which the others find no room.

See docs/decisions/0171-delegated-units.md.
"""

from __future__ import annotations

from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.grantors.registry import grantor_of
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units.delegation import stuck_at
from diloco_operator.reconcile.units.states import State, state_of


def takes_slices(context: ReconcileContext, record: UnitStatusRecord) -> bool:
    """Return whether placement may give this unit a slice, although it waits for nodes. Not where its grantor chooses the place."""
    pool = context.pools.get(record.pool)
    grantor = grantor_of(context.spec, pool) if pool is not None else None
    if grantor is None or grantor.chooses or state_of(record) is not State.WAITING_FOR_GRANTOR:
        return False
    pods = [pod for pod in context.learners.get(record.name, ()) if pod.attempt == record.attempt]
    due = stuck_at(context, pods)
    return due is not None and context.now >= due
