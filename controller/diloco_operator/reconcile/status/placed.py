"""Whether the units of a job have hardware: the condition Placed. Pure.

See docs/decisions/0231-states-reasons-words.md.
"""

from __future__ import annotations

from diloco_operator.api.reasons import PlacedReason
from diloco_operator.api.status import UnitState
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.grantors.interface import NODES, Grant
from diloco_operator.reconcile.grantors.registry import chooser_of, grantor_of
from diloco_operator.reconcile.status import placed_words
from diloco_operator.reconcile.status.contributing import counted_elsewhere
from diloco_operator.reconcile.status.placed_words import Hardware
from diloco_operator.reconcile.status.statements import Statement
from diloco_operator.reconcile.units.scaling import Scaling
from diloco_operator.reconcile.units.states import State, state_of


def placed(context: ReconcileContext, scaling: Scaling) -> Statement:
    elsewhere, least = counted_elsewhere(context), context.all_learners.min
    hardware = Hardware(
        placed=scaling.placed + elsewhere.placed,
        desired=scaling.desired + elsewhere.desired,
        least=least,
        given_up=sum(record.state is UnitState.FAILED for record in scaling.records.values()),
        pools=scaling.placement.pools if scaling.placement is not None else (),
    )
    if hardware.placed >= max(hardware.desired, least):
        return Statement(PlacedReason.ALL_PLACED, hardware.count())
    if hardware.placed >= least:
        return Statement(PlacedReason.MINIMUM_PLACED, placed_words.not_all_placed(hardware))
    if context.spec_refused:
        return Statement(PlacedReason.SPEC_INVALID, placed_words.nothing_starts(hardware))
    if scaling.given_back:
        return Statement(PlacedReason.CANNOT_START, placed_words.cannot_start(hardware))
    if hardware.placed + scaling.rejected + scaling.barred >= least:
        rejected = (record for record in scaling.records.values() if state_of(record) is State.PODS_REFUSED)
        refusals = {record.name: record.message for record in rejected}
        return Statement(PlacedReason.PODS_REFUSED, placed_words.pods_refused(hardware, refusals))
    chooser = chooser_of(context.spec)
    if chooser is not None and (missing := chooser.missing(context.observed.unreadable)):
        return Statement(chooser.missing_reason, placed_words.no_grantor(hardware, missing))
    if (grant := _awaited(context, scaling)) is not None:
        return Statement(grant.job, placed_words.not_all_placed(hardware))
    return Statement(PlacedReason.INSUFFICIENT_CAPACITY, placed_words.too_few(hardware))


def _awaited(context: ReconcileContext, scaling: Scaling) -> Grant | None:
    """What the first unit that waits for a grantor waits for. None if no unit waits for one."""
    first = next((record for record in scaling.records.values() if state_of(record) is State.WAITING_FOR_GRANTOR), None)
    if first is None:
        return None
    grantor = grantor_of(context.spec, context.pools[first.pool])
    return grantor.gives if grantor is not None else NODES
