"""What conditions say of units: how many contribute, and why each of the others does not. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from diloco.wording import and_more, plural

from diloco_operator.api.consequences import Follows
from diloco_operator.api.reasons import follows
from diloco_operator.api.status import UnitState
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord

NAMED = 4
"""Units, or other things, that a message names one by one."""
_STATES = {
    UnitState.PENDING: "is pending",
    UnitState.STARTING: "is starting",
    UnitState.JOINING: "is joining",
    UnitState.TRAINING: "has just stopped contributing",
    UnitState.DRAINING: "is draining",
    UnitState.BACKING_OFF: "is backing off",
    UnitState.FAILED: "has failed",
}


def contribution(contributing: int, placed: int, outside: int = 0) -> str:
    """`outside`: how many learners outside the cluster contribute."""
    wanted = max(placed, contributing)
    besides = f", and {outside} outside the cluster" if outside else ""
    if not wanted:
        return f"no learner has hardware{besides}"
    return f"{contributing} of {plural(wanted, 'learner contributes', 'learners contribute')}{besides}"


def missing_units(units: Sequence[UnitStatusRecord], waiting: Sequence[UnitStatusRecord]) -> str:
    """Name units that could contribute and do not: `v5p-0 is backing off (attempt 3 ended: exit 137 (OOMKilled); …); v5p-1 waits for a
    slice, see Placed`. `waiting`: units that only wait for a slice; the message of their pool says why."""
    named = [named_units(units)] if units else []
    if waiting:
        wait = "waits for a slice" if len(waiting) == 1 else "wait for slices"
        named.append(f"{several([record.name for record in waiting])} {wait}, see Placed")
    return "; ".join(named)


def named_units(units: Sequence[UnitStatusRecord]) -> str:
    """What each unit does, with its message."""
    more = [f"{len(units) - NAMED} more"] if len(units) > NAMED else []
    return "; ".join([*map(_described, units[:NAMED]), *more])


def _described(record: UnitStatusRecord) -> str:
    left = record.state is UnitState.JOINING and follows(record.reason, Follows.HAS_LEFT)
    text = f"{record.name} {'has left' if left else _STATES.get(record.state, str(record.state))}"
    return f"{text} ({record.message})" if record.message else text


def several(named: Sequence[str]) -> str:
    """`v5p-0, v5p-1, v5p-2, v5p-3 and 8 more`."""
    return and_more(named[:NAMED], len(named))


def refused_work(refused: int, merged: int) -> str:
    many = plural(refused, "contribution was", "contributions were")
    return f"{many} refused, {merged} merged; the syncer's log says why each is refused"
