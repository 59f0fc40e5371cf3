"""Units that wait for nodes and would take a slice that is free meanwhile, in place of what they asked for. Pure.

kube-scheduler binds pods that wait to a slice that becomes free by itself. It cannot do so for a unit that has no pods yet, and not once it
has bound some of them to hosts beside which the others find no room.

See docs/decisions/0177-slices-while-waiting.md.
"""

from __future__ import annotations

from diloco_operator.api import names
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.grantors import Grantor, grantor_of
from diloco_operator.reconcile.observe.provisioning import RequestState
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units.delegation import is_waiting, stuck_at


def takes_slices(context: ReconcileContext, record: UnitStatusRecord) -> bool:
    """Whether placement may give this unit a slice, although it waits for nodes. Not to one that Kueue gives quota to: Kueue decides."""
    pool = context.pools.get(record.pool)
    if pool is None or not is_waiting(record):
        return False
    pods = [pod for pod in context.learners.get(record.name, ()) if pod.attempt == record.attempt]
    match grantor_of(context.spec, pool):
        case Grantor.PROVISIONING_REQUEST if not pods:
            return not _is_granted(context, record)
        case Grantor.AUTOSCALER | Grantor.PROVISIONING_REQUEST:
            due = stuck_at(context, pods)
            return due is not None and context.now >= due
        case _:
            return False


def awaits_grant(context: ReconcileContext, record: UnitStatusRecord) -> bool:
    """Whether nodes that are new may be those that this unit's request will grant in a moment."""
    pool = context.pools.get(record.pool)
    by_request = pool is not None and grantor_of(context.spec, pool) is Grantor.PROVISIONING_REQUEST
    return by_request and takes_slices(context, record)


def _is_granted(context: ReconcileContext, record: UnitStatusRecord) -> bool:
    name = names.provisioning_request_name(context.observed.job.name, record.name, record.attempt)
    request = context.observed.children.requests.get(name)
    return request is not None and request.state is RequestState.PROVISIONED
