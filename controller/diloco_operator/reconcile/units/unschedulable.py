"""A unit gives its slice up if no scheduler bound its pods there, or another operator's learner was there first. This is no failure: the
unit pauses, and tries other nodes first. Pure.

See docs/decisions/0102-failures-of-nodes-and-units.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from diloco.protocol.backoff import exponential

from diloco_operator.api.reasons import UnitReason
from diloco_operator.api.status import MAX_UNSCHEDULABLE_NODES, UnitState
from diloco_operator.fleet.devices import has_accelerators
from diloco_operator.fleet.use import PodUse
from diloco_operator.kube.timestamps import format_timestamp, parse_timestamp
from diloco_operator.plan import UnitRestart
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units import wait_words
from diloco_operator.reconcile.units.start_waits import NoPlace
from diloco_operator.reconcile.units.states import GAVE_SLICE_UP, State, state_of
from diloco_operator.reconcile.units.transitions import UnitEvent, transition


def node_taken(context: ReconcileContext, record: UnitStatusRecord, pods: Sequence[PodView]) -> NoPlace | None:
    """Return the node that an attempt which does not train yet shares with a learner of another operator, created earlier. None if it
    shares none.

    Two operators that choose a host at the same moment both get it if both pods fit. Both apply this rule, so that one of them leaves.
    """
    if record.state not in (UnitState.STARTING, UnitState.JOINING):
        return None
    for pod in pods:
        if pod.startup is not None and pod.startup.bound_at is None:
            continue
        others = (use for use in context.observed.fleet.uses(pod.node) if use.learner is not None)
        if pod.takes_accelerators:  # a learner that requests no accelerators takes nothing from this pod
            others = (use for use in others if has_accelerators(use.requests.devices))
        first = min(others, key=_created, default=None)
        if first is not None and _created(first) < (pod.created, pod.uid):
            return NoPlace(UnitReason.NODE_TAKEN, pod.node, wait_words.node_taken(first, pod.name, pod.node))
    return None


def _created(use: PodUse) -> tuple[float, str]:
    return use.learner or (0.0, "")


def give_slice_up(context: ReconcileContext, record: UnitStatusRecord, why: NoPlace) -> UnitStatusRecord:
    """Return the record of a unit that gives its slice up and pauses. The pause doubles each time in a row, else the unit would run through
    all slices."""
    in_a_row = record.unschedulable + 1
    not_before = context.now + _pause(context, record, in_a_row)
    withdrawn = why.reason in State.COOLING_DOWN.row.reasons
    given_up = wait_words.slice_given_up(record.attempt, in_a_row, why.why, withdrawn=withdrawn)
    return transition(
        record,
        UnitEvent.GAVE_UP_SLICE,
        context.now,
        why.reason,
        wait_words.pauses_after(given_up, not_before),
        grantor_said=given_up if withdrawn else "",
        not_before=not_before,
        unschedulable=in_a_row,
    )


def _pause(context: ReconcileContext, record: UnitStatusRecord, in_a_row: int) -> float:
    """Return seconds. The job's identity takes off up to half of them, so that two operators that disturb each other do not begin again at
    the same moment."""
    config = context.observed.config
    draw = hashlib.sha256(f"{context.observed.job.uid}/{record.name}/{record.attempt}".encode()).digest()[0] / 255
    return exponential(config.unschedulable_retry, config.unschedulable_retry_max, in_a_row) * (1 - draw / 2)


def nodes_to_avoid(context: ReconcileContext) -> dict[str, float]:
    """Return node that units of the job gave up lately, by its status -> when."""
    given_up = {
        raw["name"]: min(parse_timestamp(raw["since"]), context.now) for raw in context.observed.job.status.get("unschedulableNodes") or ()
    }
    oldest = context.now - context.observed.config.avoid_unschedulable
    return {name: since for name, since in given_up.items() if since > oldest}


def write_nodes(nodes: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return the newest of these nodes as status has them, at most `MAX_UNSCHEDULABLE_NODES`."""
    newest = sorted(nodes.items(), key=lambda item: (-item[1], item[0]))[:MAX_UNSCHEDULABLE_NODES]
    return [{"name": name, "since": format_timestamp(since)} for name, since in newest]


def slices_given_up(before: Mapping[str, UnitStatusRecord], after: Mapping[str, UnitStatusRecord]) -> tuple[UnitRestart, ...]:
    """Return the units that gave their slice up between two states of the records."""
    return tuple(UnitRestart(name, record.reason) for name, record in after.items() if gave_slice_up(before.get(name), record))


def gave_slice_up(before: UnitStatusRecord | None, after: UnitStatusRecord) -> bool:
    """Return whether the unit gave its slice up between two records. `before` is None if it had none."""
    return state_of(after) in GAVE_SLICE_UP and after.ended_attempt > (before.ended_attempt if before is not None else 0)
