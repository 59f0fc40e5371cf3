"""Units leave their slices for units of other jobs, as the allotment says. Pure.

See docs/decisions/0211-allotment-by-the-flow.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from diloco_operator.api.reasons import UnitReason
from diloco_operator.api.status import UnitState
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units.transitions import UnitEvent, transition

_ABLE = (UnitState.PENDING, UnitState.BACKING_OFF, UnitState.STARTING, UnitState.JOINING, UnitState.TRAINING)


def leave_revoked(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> dict[str, UnitStatusRecord]:
    """The units, of which those drain that the allotment has revoked. Those without processes leave their slices at once."""
    found = dict(records)
    for name, winner in context.observed.revoked.items():
        record = found.get(name)
        if record is None or not record.slice or record.state not in _ABLE:
            continue
        is_own = winner == context.observed.job.key
        goal = "because others are worth more to its job" if is_own else f"to job {'/'.join(winner.split('/')[:2])}"
        message = f"it leaves slice {record.slice} {goal}"
        event = UnitEvent.ASKED_TO_LEAVE if record.running else UnitEvent.MADE_WAY
        found[name] = transition(record, event, context.now, UnitReason.GAVE_WAY, message, since=context.now)
    return found
