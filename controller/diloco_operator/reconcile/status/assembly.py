"""`status` as it goes to the API server. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diloco.contract import MOST_HELD_OUT_POINTS, MOST_LOSS_POINTS, Result

from diloco_operator.api import names
from diloco_operator.api.conditions import ConditionType
from diloco_operator.api.losses import format_losses, parse_losses
from diloco_operator.api.status import UnitState
from diloco_operator.api.unit_figures import DEFAULTS, FIGURES, KEYS
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.job import Job
from diloco_operator.reconcile.observe.throughput import write_pool
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord, write_unit
from diloco_operator.reconcile.status.conditions import programs_failed
from diloco_operator.reconcile.status.job_state import job_state
from diloco_operator.reconcile.status.model import model_status
from diloco_operator.reconcile.status.statements import Statements, merge
from diloco_operator.reconcile.units.scaling import Scaling
from diloco_operator.reconcile.units.spares import kept_spares
from diloco_operator.reconcile.units.unschedulable import write_nodes
from diloco_operator.report import Report


def figures(context: ReconcileContext, record: UnitStatusRecord) -> dict[str, Any]:
    """Return the figures that change with every outer step, from the syncer's report; without a recent one they stay. An attempt that ended
    has no speed."""
    seen = context.report.units.get(record.name) if context.report is not None else None
    done = record.state is UnitState.COMPLETED  # its last figures stay for the final account
    if seen is None:
        return {} if record.running or done else {KEYS[name]: DEFAULTS[KEYS[name]] for name, figure in FIGURES.items() if figure.speed}
    present = seen.attempt == record.attempt and record.running
    found: dict[str, Any] = {}
    for name, figure in FIGURES.items():
        key, value = KEYS[name], getattr(seen, name)
        if value is None or (done and not figure.stays):
            continue  # what is on record stands
        if value is False and not record.figures.get(key):
            continue  # absent says the same, and costs no write
        if figure.speed and not present:
            value = DEFAULTS[key]
        found[key] = round(value, figure.digits) if figure.digits is not None else dict(value) if isinstance(value, dict) else value
    return found


def assemble(
    context: ReconcileContext,
    statements: Statements,
    scaling: Scaling,
    contributing: frozenset[str],
    *,
    result: Result | None = None,
    retry: int | None = None,
) -> dict[str, Any]:
    """Return the whole status. `retry`: the spec.retry that this reconcile acts on."""
    job = context.observed.job
    learners = context.spec.learners
    pools = _pools(context, scaling, contributing)
    model = model_status(context, result)
    return {
        "observedGeneration": job.generation,
        # Never lower: the same spec.retry would start the job a second time.
        **({"retry": acted} if (acted := max(retry or 0, job.status.get("retry") or 0)) else {}),
        **job_state(statements, job.status),
        "conditions": merge(job.status.get("conditions") or (), statements, job.generation, context.now),
        "progress": _progress(context, job.status.get("progress") or {}, result),
        **({"model": model} if model is not None else {}),
        "learners": {
            "desired": scaling.desired,
            "placed": scaling.placed,
            "contributing": len(contributing),
            "min": learners.min,
            "max": learners.max,
        },
        **({"outside": _outside(context)} if learners.outside else {}),
        "units": [write_unit(_recent(context, record)) | figures(context, record) for record in _ordered(context, scaling.records)],
        **({"unschedulableNodes": write_nodes(scaling.avoid)} if scaling.avoid else {}),
        **({"hosts": [host.written() for host in context.hosts.records.values()]} if context.hosts.records else {}),
        "selector": f"{names.LABEL_JOB}={job.name},{names.LABEL_COMPONENT}={names.COMPONENT_LEARNER}",
        "poolSummary": ", ".join(f"{pool['name']} {pool['contributing']}/{pool['placed']}" for pool in pools)[:1024],
        "pools": pools,
    }


def _outside(context: ReconcileContext) -> list[dict[str, Any]]:
    found = []
    for name, seen in context.outside.items():
        said = {"state": seen.phase.value, "message": seen.message[:_LONGEST_MESSAGE], "tokens": seen.tokens} if seen is not None else {}
        found.append({"name": name, **{key: value for key, value in said.items() if value}})
    return found


_LONGEST_MESSAGE = 1024


def _recent(context: ReconcileContext, record: UnitStatusRecord) -> UnitStatusRecord:
    """Return the record with as many failures as decide: the limit may have been lowered since."""
    most = context.spec.learners.restart.limit + 1
    return record._replace(failures=record.failures[-most:]) if len(record.failures) > most else record


def with_conditions(job: Job, statements: Statements, now: float) -> dict[str, Any]:
    """Return the status as it is, but for its conditions and its state."""
    conditions = merge(job.status.get("conditions") or (), statements, job.generation, now)
    return {**job.status, "observedGeneration": job.generation, **job_state(statements, job.status), "conditions": conditions}


def with_ends_of_programs(context: ReconcileContext, status: dict[str, Any], records: Mapping[str, UnitStatusRecord]) -> dict[str, Any]:
    """Return the status of a complete job, with what became of its programs since it was written."""
    if records == context.before:
        return status
    wrong = programs_failed(records.values())
    statements = {ConditionType.DEGRADED: wrong} if wrong is not None else {}
    conditions = merge(status["conditions"], statements, context.observed.job.generation, context.now)
    return {**status, "units": [write_unit(record) for record in _ordered(context, records)], "conditions": conditions}


def _ordered(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> list[UnitStatusRecord]:
    """Sort the records by the order of their pools, then by number."""
    position = {name: index for index, name in enumerate(context.pools)}
    return sorted(records.values(), key=lambda record: (position.get(record.pool, len(position)), record.pool, record.number))


def _progress(context: ReconcileContext, old: Mapping[str, Any], result: Result | None) -> dict[str, Any]:
    found = {"step": 0, "tokens": 0, "tokensPerSecond": 0.0, **_with_history(old, context.observed.report)}
    found["steps"] = context.spec.training.steps
    found.pop("tokenBudget", None)
    if (budget := context.spec.training.tokens) is not None:
        found["tokenBudget"] = budget
    report = context.report
    if result is not None:
        found |= {"step": result.step, "steps": result.steps, "tokens": result.tokens, "tokensPerSecond": 0.0}
        found |= _known(loss=result.loss, heldOutLoss=result.held_out_loss)
        found |= _with_last_points(found, result)
        found.pop("estimatedCompletion", None)
    elif report is not None:
        found |= {"step": report.t, "tokens": report.tokens, "tokensPerSecond": round(report.tokens_per_second, 1)}
        found.pop("heldOutLoss", None)  # of the final parameters: with more steps they are final no more
        cosine = round(report.cosine, 3) if report.cosine is not None else None
        found |= _known(loss=report.loss, heldOutLoss=report.held_out_loss, cosine=cosine)
        found.pop("estimatedCompletion", None)
        if report.step_seconds > 0 and report.t < report.steps and report.ending is None:
            left = (report.steps - report.t) * report.step_seconds
            if budget is not None and report.tokens_per_second > 0:
                left = min(left, max(0.0, budget - report.tokens) / report.tokens_per_second)
            found["estimatedCompletion"] = format_timestamp(float(round(report.received_at + left)))
    else:
        found["tokensPerSecond"] = 0.0
        found.pop("estimatedCompletion", None)
        last = context.observed.report
        if last is not None and last.t > found["step"]:  # of a syncer that is gone: what it did stays done
            found |= {"step": last.t, "tokens": last.tokens}
    return found


def _with_history(progress: Mapping[str, Any], report: Report | None) -> dict[str, Any]:
    """Return `progress` with the loss over outer steps as the syncer last reported it. The past stays true when a report is no longer
    recent."""
    found = dict(progress)
    if report is None:
        return found
    for key, points in (("losses", report.losses), ("heldOutLosses", report.held_out_losses)):
        found.pop(key, None)
        found |= {key: format_losses(points)} if points else {}
    return found


def _with_last_points(progress: Mapping[str, Any], result: Result) -> dict[str, Any]:
    """Return both histories up to the result: the operator may not have got the syncer's last report."""
    found = {}
    for key, loss, most in (
        ("losses", result.loss, MOST_LOSS_POINTS),
        ("heldOutLosses", result.held_out_loss, MOST_HELD_OUT_POINTS),
    ):
        # One less: the result's own point follows, and the CRD bounds both together.
        before = [each for each in parse_losses(progress.get(key) or "") if each.step < result.step][: most - 1]
        if loss is not None:
            found[key] = format_losses([*before, (result.step, loss)])
    return found


def _known(**figures: float | None) -> dict[str, float]:
    return {key: float(f"{value:.7g}") for key, value in figures.items() if value is not None}


def _pools(context: ReconcileContext, scaling: Scaling, contributing: frozenset[str]) -> list[dict[str, Any]]:
    outcomes = {outcome.pool: outcome for outcome in scaling.placement.pools} if scaling.placement is not None else {}
    waiting = {pool["name"]: pool["waitingSince"] for pool in context.observed.job.status.get("pools") or () if "waitingSince" in pool}
    spares = kept_spares(context, scaling.request, scaling.records.values())
    found = []
    for pool in context.spec.pools:
        mine = [r for r in scaling.records.values() if r.pool == pool.name]
        outcome = outcomes.get(pool.name)
        short = outcome is not None and outcome.lack.of_slices
        found.append(
            {
                "name": pool.name,
                "placed": sum(1 for r in mine if r.slice),
                "contributing": sum(1 for r in mine if r.name in contributing),
                **({"spares": spares[pool.name]} if pool.name in spares else {}),
                "reason": str(outcome.reason) if outcome else "",
                "message": outcome.causes if outcome else "",
                **({"remedies": [each.text for each in outcome.helps]} if outcome and outcome.helps else {}),
                **({"waitingSince": waiting.get(pool.name) or format_timestamp(context.now)} if short else {}),
                **write_pool(context.throughput[pool.name]),
            }
        )
    return found
