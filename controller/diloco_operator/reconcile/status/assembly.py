"""`status` as it goes to the API server, and whether it is worth a write. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diloco.contract import Result

from diloco_operator.api.conditions import ConditionType
from diloco_operator.api.job import UnitState
from diloco_operator.kube.timestamps import format_timestamp, parse_timestamp
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.state import Job
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord, write_unit
from diloco_operator.reconcile.status.conditions import Statements, contributors, merge
from diloco_operator.reconcile.units.scaling import Scaling

_UNIT_FIGURES = ("tokensPerSecond", "weight", "staleness", "tokens", "steps", "refused")


def figures(context: ReconcileContext, record: UnitStatusRecord) -> dict[str, Any]:
    """What moves with every outer step, from the syncer's report; without a fresh one it stays. An attempt that ended has no speed."""
    seen = context.report.units.get(record.name) if context.report is not None else None
    done = record.state is UnitState.COMPLETED  # its last figures stay for the final account
    if seen is None:
        return {} if record.running or done else {"tokensPerSecond": 0.0, "weight": 0.0}
    counts = {"tokens": seen.tokens, "steps": seen.steps, "refused": dict(seen.refused)}
    if done:
        return counts
    present = seen.attempt == record.attempt and record.running
    return {
        **counts,
        "tokensPerSecond": round(seen.tokens_per_second, 1) if present else 0.0,
        "weight": round(seen.weight, 4) if present else 0.0,
        "staleness": seen.staleness,
    }


def assemble(
    job: Job,
    statements: Statements,
    context: ReconcileContext | None,
    scaling: Scaling | None,
    now: float,
    *,
    result: Result | None = None,
    syncer_down: bool = False,
) -> dict[str, Any]:
    """The whole status. Without a world (the spec cannot be read) everything but the conditions stays."""
    old = job.status
    conditions = merge(old.get("conditions") or (), statements, job.generation, now)
    if context is None or scaling is None:
        return {**old, "observedGeneration": job.generation, "conditions": conditions}
    records = [scaling.records[name] for name in _ordered(scaling.records, context)]
    active = contributors(context, scaling.records, syncer_down) if not _is_over(statements) else set()
    learners = context.spec.learners
    pools = _pools(context, scaling, active)
    status: dict[str, Any] = {
        "observedGeneration": job.generation,
        "conditions": conditions,
        "progress": _progress(context, old.get("progress") or {}, result),
        "learners": {
            "desired": scaling.desired,
            "placed": scaling.placed,
            "contributing": len(active),
            "min": learners.min,
            "max": learners.max,
        },
        "units": [write_unit(record) | figures(context, record) for record in records],
        "poolSummary": ", ".join(f"{pool['name']} {pool['contributing']}/{pool['placed']}" for pool in pools)[:1024],
        "pools": pools,
    }
    return status


def _is_over(statements: Statements) -> bool:
    return any(statements[kind].status == "True" for kind in (ConditionType.COMPLETE, ConditionType.FAILED, ConditionType.SUSPENDED))


def _ordered(records: Mapping[str, UnitStatusRecord], context: ReconcileContext) -> list[str]:
    position = {name: index for index, name in enumerate(context.pools)}
    return sorted(records, key=lambda name: (position.get(records[name].pool, len(position)), records[name].pool, records[name].number))


def _progress(context: ReconcileContext, old: Mapping[str, Any], result: Result | None) -> dict[str, Any]:
    found = {"step": 0, "tokens": 0, "tokensPerSecond": 0.0, **old, "steps": context.spec.training.steps}
    report = context.report
    if result is not None:
        found |= {"step": result.step, "steps": result.steps, "tokens": result.tokens, "tokensPerSecond": 0.0}
        found |= _known(loss=result.loss, heldOutLoss=result.held_out_loss)
        found.pop("estimatedCompletion", None)
    elif report is not None:
        found |= {"step": report.t, "tokens": report.tokens, "tokensPerSecond": round(report.tokens_per_second, 1)}
        found |= _known(loss=report.loss, heldOutLoss=report.held_out_loss)
        found.pop("estimatedCompletion", None)
        if report.step_seconds > 0 and report.t < report.steps:
            left = (report.steps - report.t) * report.step_seconds
            found["estimatedCompletion"] = format_timestamp(float(round(report.received_at + left)))
    else:
        found["tokensPerSecond"] = 0.0
        found.pop("estimatedCompletion", None)
    return found


def _known(**figures: float | None) -> dict[str, float]:
    return {key: round(value, 6) for key, value in figures.items() if value is not None}


def _pools(context: ReconcileContext, scaling: Scaling, active: set[str]) -> list[dict[str, Any]]:
    outcomes = {outcome.pool: outcome for outcome in scaling.placement.pools} if scaling.placement is not None else {}
    found = []
    for pool in context.spec.pools:
        mine = [r for r in scaling.records.values() if r.pool == pool.name]
        outcome = outcomes.get(pool.name)
        found.append(
            {
                "name": pool.name,
                "placed": sum(1 for r in mine if r.slice),
                "contributing": sum(1 for r in mine if r.name in active),
                "reason": str(outcome.reason) if outcome else "",
                "message": outcome.message if outcome else "",
            }
        )
    return found


def worth_writing(old: Mapping[str, Any], new: dict[str, Any], now: float, interval: float) -> tuple[dict[str, Any] | None, float | None]:
    """(status to write or None, when to look again or None). Changes of figures alone wait until `interval` has passed."""
    last = (old.get("progress") or {}).get("updatedAt")
    if last is not None and "progress" in new:
        new["progress"]["updatedAt"] = last
    old = _ours(old)
    if old == new:
        return None, None
    due = parse_timestamp(last) + interval if last else now
    if now < due and _essence(old) == _essence(new):
        return None, due
    if "progress" in new:
        new["progress"]["updatedAt"] = format_timestamp(now)
    return new, None


_OUR_CONDITIONS = frozenset(ConditionType)


def _ours(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without the conditions that others have added: they are not in what we write, and stay in what there is."""
    conditions = status.get("conditions") or ()
    ours = [each for each in conditions if each["type"] in _OUR_CONDITIONS]
    return status if len(ours) == len(conditions) else {**status, "conditions": ours}


def _essence(status: Mapping[str, Any]) -> dict[str, Any]:
    """Without the figures that move with every outer step."""
    units = [{k: v for k, v in unit.items() if k not in _UNIT_FIGURES} for unit in status.get("units") or ()]
    return {**{k: v for k, v in status.items() if k != "progress"}, "units": units}
