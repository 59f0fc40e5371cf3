"""Slices that a unit gives up because no scheduler bound its pods there: no failure, but a pause, and other nodes first. Pure.

See docs/decisions/0131-four-time-outs.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diloco.protocol.backoff import exponential

from diloco_operator.api.job import MAX_UNSCHEDULABLE_NODES, UnitState
from diloco_operator.api.reasons import UnitReason
from diloco_operator.kube.timestamps import format_timestamp, parse_timestamp
from diloco_operator.reconcile.config import OperatorConfig
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units.timeouts import UnboundPod


def after_unschedulable(record: UnitStatusRecord, pod: UnboundPod, config: OperatorConfig, now: float) -> UnitStatusRecord:
    """The record of a unit that gives its slice up. The pause doubles with each time in a row, or the unit would run through all slices."""
    in_a_row = record.unschedulable + 1
    not_before = now + exponential(config.unschedulable_retry, config.unschedulable_retry_max, in_a_row)
    times = f", {in_a_row} times in a row" if in_a_row > 1 else ""
    return record._replace(
        state=UnitState.PENDING,
        ended_attempt=record.attempt,
        slice="",
        reason=UnitReason.UNSCHEDULABLE,
        message=f"attempt {record.attempt} gave its slice up{times}: {pod.message}; the next one starts at {format_timestamp(not_before)}",
        since=now,
        not_before=not_before,
        unschedulable=in_a_row,
    )


def nodes_to_avoid(context: ReconcileContext) -> dict[str, float]:
    """Nodes that units of the job gave up lately, by its status -> when."""
    found = {
        raw["name"]: min(parse_timestamp(raw["since"]), context.now) for raw in context.observed.job.status.get("unschedulableNodes") or ()
    }
    oldest = context.now - context.observed.config.avoid_unschedulable
    return {name: since for name, since in found.items() if since > oldest}


def write_nodes(nodes: Mapping[str, float]) -> list[dict[str, Any]]:
    """For status, the newest at most `MAX_UNSCHEDULABLE_NODES`."""
    newest = sorted(nodes.items(), key=lambda item: (-item[1], item[0]))[:MAX_UNSCHEDULABLE_NODES]
    return [{"name": name, "since": format_timestamp(since)} for name, since in newest]


def unschedulable(before: Mapping[str, UnitStatusRecord], after: Mapping[str, UnitStatusRecord]) -> tuple[str, ...]:
    """Units that gave their slice up between two records."""
    none = UnitStatusRecord("", "")
    return tuple(
        name
        for name, record in after.items()
        if record.reason == UnitReason.UNSCHEDULABLE and record.ended_attempt > before.get(name, none).ended_attempt
    )
