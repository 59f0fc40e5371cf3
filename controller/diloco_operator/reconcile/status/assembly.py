"""`status` as it goes to the API server. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from diloco.contract import MOST_HELD_OUT_POINTS, MOST_LOSS_POINTS, MOST_PARTS, Result

from diloco_operator.api import names
from diloco_operator.api.conditions import ConditionType
from diloco_operator.api.goodput import MAX_KINDS
from diloco_operator.api.losses import format_losses, parse_losses
from diloco_operator.api.spec import Part, unit_names
from diloco_operator.api.state import OVER, JobState, syncer_runs
from diloco_operator.api.status import UnitState
from diloco_operator.api.unit_figures import DEFAULTS, FIGURES, KEYS
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile.children.made_parts import parts_problem
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.job import Job
from diloco_operator.reconcile.observe.part_view import PartView
from diloco_operator.reconcile.observe.throughput import write_pool
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord, write_unit
from diloco_operator.reconcile.status.conditions import programs_failed
from diloco_operator.reconcile.status.contributing import Elsewhere, contributes, counted_elsewhere, reported_units
from diloco_operator.reconcile.status.job_state import job_state
from diloco_operator.reconcile.status.model import model_status
from diloco_operator.reconcile.status.statements import Statements, merge
from diloco_operator.reconcile.status.write import PART_FIGURES
from diloco_operator.reconcile.units.scaling import Scaling
from diloco_operator.reconcile.units.spares import kept_spares
from diloco_operator.reconcile.units.unschedulable import write_nodes
from diloco_operator.report import Link, PartState, Report, ToldPart, UnitPhase, UnitReport

_LONGEST_MESSAGE = 1024


def figures(context: ReconcileContext, record: UnitStatusRecord) -> dict[str, Any]:
    """The figures of a unit that change with every outer step, by the syncer's report. A figure that is left out keeps its value on
    record. A unit whose attempt has ended has no speed."""
    reported = context.report.units.get(record.name) if context.report is not None else None
    done = record.state is UnitState.COMPLETED  # its last figures stay for the final account
    if reported is None:
        if record.running or done:
            return {}
        return {KEYS[name]: DEFAULTS[KEYS[name]] for name, figure in FIGURES.items() if figure.speed}
    present = reported.attempt == record.attempt and record.running
    changed: dict[str, Any] = {}
    for name, figure in FIGURES.items():
        key, value = KEYS[name], getattr(reported, name)
        if value is None or (done and not figure.kept_when_complete):
            continue  # the value on record stays
        if value is False and not record.figures.get(key):
            continue  # an absent figure counts as False, and to write it would cost a write
        if figure.speed and not present:
            value = DEFAULTS[key]
        if figure.digits is not None:
            value = round(value, figure.digits)
        elif isinstance(value, dict):
            value = dict(value)
        changed[key] = value
    return changed


def assemble(
    context: ReconcileContext,
    statements: Statements,
    scaling: Scaling,
    contributing: frozenset[str],
    *,
    result: Result | None = None,
    retry: int | None = None,
    syncer_down_since: float | None = None,
) -> dict[str, Any]:
    """Return the whole status.

    Args:
        result: what the syncer of a complete job left
        retry: the spec.retry that this reconcile acts on
    """
    job = context.observed.job
    learners, state = context.all_learners, job_state(statements, job.status)
    elsewhere = Elsewhere() if state.get("state") in OVER else counted_elsewhere(context)
    pools = [*_pools(context, scaling, contributing), *_pools_away(context)]
    tokens = _tokens_elsewhere(context, result)
    parts = _parts(context, state, tokens)
    model = model_status(context, result)
    # Never lower: the same spec.retry would start the job a second time.
    acted_on = max(retry or 0, job.status.get("retry") or 0)
    return {
        "observedGeneration": job.generation,
        **({"retry": acted_on} if acted_on else {}),
        **state,
        "conditions": merge(job.status.get("conditions") or (), statements, job.generation, context.now),
        "progress": _progress(context, job.status.get("progress") or {}, result),
        **({"model": model} if model is not None else {}),
        "learners": {
            "desired": scaling.desired + elsewhere.desired,
            "placed": scaling.placed + elsewhere.placed,
            "contributing": len(contributing) + elsewhere.contributing,
            "min": learners.min,
            "max": learners.max,
        },
        **({"outside": _ended(_outside(context), state, context.now, tokens)} if learners.outside else {}),
        **({"parts": parts} if parts else {}),
        **({"home": _home(context)} if context.is_part else {}),
        "units": [write_unit(_recent(context, record)) | figures(context, record) for record in _ordered(context, scaling.records)],
        **({"syncerDownSince": format_timestamp(syncer_down_since)} if syncer_down_since is not None else {}),
        **({"unschedulableNodes": write_nodes(scaling.avoid)} if scaling.avoid else {}),
        **({"hosts": [host.written() for host in context.hosts.records.values()]} if context.hosts.records else {}),
        "selector": f"{names.LABEL_JOB}={job.name},{names.LABEL_COMPONENT}={names.COMPONENT_LEARNER}",
        **_summed(pools),
    }


def with_parts(context: ReconcileContext, status: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a job that is over with what its parts say now: they give their hardware back after its end."""
    if not (context.spec.parts or status.get("parts")):
        return status
    ended = replace(context, report=None)  # the syncer has ended, and its last report says nothing about now
    here = [pool for pool in status.get("pools") or () if not pool.get("cluster")]
    return {**status, "parts": _parts(ended, status, _tokens_elsewhere(ended, None)), **_summed([*here, *_pools_away(ended)])}


def _summed(pools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    summary = ", ".join(f"{pool['name']} {pool['contributing']}/{pool['placed']}" for pool in pools)
    return {"poolSummary": summary[:1024], "pools": pools}


def _outside(context: ReconcileContext) -> list[dict[str, Any]]:
    """What the syncer says about each learner outside the cluster. Without a recent report everything stays as it was."""
    before = _by_name(context.observed.job.status.get("outside"))
    report = context.report
    if report is None:
        return [before.get(name, {"name": name}) for name in context.outside]
    entries = []
    for name, seen in context.outside.items():
        reported = _reported(seen, before.get(name), report.received_at) if seen is not None else {"name": name}
        entries.append({**reported, **({"message": seen.message[:_LONGEST_MESSAGE]} if seen is not None and seen.message else {})})
    return entries


def _ended(units: Iterable[dict[str, Any]], state: Mapping[str, Any], now: float, tokens: Mapping[str, int]) -> list[dict[str, Any]]:
    """Say of units that this operator does not run what became of them with the syncer, if it has ended. `state`: of the job. `tokens`: by
    unit."""
    if syncer_runs(state.get("state", "")):
        return list(units)
    phase = UnitPhase.DONE if state["state"] == JobState.COMPLETE else UnitPhase.DISCONNECTED
    last = {"state": phase.value, "since": format_timestamp(now)}
    return [
        {
            **unit,
            **(last if unit.get("state") in (UnitPhase.JOINING, UnitPhase.CONTRIBUTING) else {}),
            **({"tokens": tokens[unit["name"]]} if tokens.get(unit["name"]) else {}),
        }
        for unit in units
    ]


def _tokens_elsewhere(context: ReconcileContext, result: Result | None) -> dict[str, int]:
    """Tokens by unit, at least of those that this operator does not run. The job's result comes first, as a job trains on between the last
    report and its end. It may leave units out: those have the tokens of the last report, or else of status."""
    status = context.observed.job.status
    on_record = itertools.chain(status.get("outside") or (), *(part.get("units") or () for part in status.get("parts") or ()))
    return {
        **{unit["name"]: unit.get("tokens", 0) for unit in on_record},
        **({unit.unit: unit.tokens for unit in context.report.units.values()} if context.report is not None else {}),
        **({unit.unit: unit.tokens for unit in result.units} if result is not None else {}),
    }


def _parts(context: ReconcileContext, state: Mapping[str, Any], tokens: Mapping[str, int]) -> list[dict[str, Any]]:
    """What the syncer says about each part. Without a recent report everything stays as it was. `state`: of the job. `tokens`: by unit. Of
    the parts that the job had before, what they trained and cost stays: else it would count as that of this cluster."""
    before = _by_name(context.observed.job.status.get("parts"))
    report = context.report
    running = syncer_runs(state.get("state", ""))
    entries = []
    for part in context.spec.parts:
        old = before.get(part.name, {})
        if report is not None:
            heard = _heard(reported_units(report, part.units), old.get("units"), report.received_at) | _link(report, part)
        else:
            heard = {key: value for key, value in old.items() if key in _HEARD}
        total = max(_tokens_of(part, tokens), old.get("tokens", 0))
        if total or "units" in heard:
            heard["tokens"] = total
        if "units" in heard:
            heard["units"] = _ended(heard["units"], state, context.now, tokens)
            if not running:
                heard = {key: value for key, value in heard.items() if key not in _OF_NOW} | {"contributing": 0, "tokensPerSecond": 0.0}
        entries.append({"name": part.name, **heard, **_stated(context, part.name, old, running=running)})
    present = {part.name for part in context.spec.parts}
    gone = [
        {"name": name, "message": _GONE, "tokens": old.get("tokens", 0), **_stated(context, name, old, running=False)}
        for name, old in before.items()
        if name not in present and (old.get("tokens") or old.get("acceleratorHours"))
    ]
    return [*entries, *gone[:MOST_PARTS]]


_GONE = "the job has no units in this cluster any more"


def _tokens_of(part: Part, tokens: Mapping[str, int]) -> int:
    """Tokens of all units that the part has had, also of those beyond the present sizes of its pools."""
    pools = [pool.name for pool in part.pools]
    return sum(count for name, count in tokens.items() if any(names.unit_index(pool, name) is not None for pool in pools))


def _by_name(entries: Iterable[dict[str, Any]] | None) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in entries or ()}


_HEARD = ("units", "contributing", *PART_FIGURES)
"""What the syncer knows of a part."""
_OF_NOW = frozenset({"mergeShare", "roundTripSeconds", "receivedBytesPerSecond", "sentBytesPerSecond"})
"""What is measured of the link while units train."""


_TOLD_NOTHING = 180.0
"""Seconds after which a part whose operator tells the syncer nothing is silent. It tells its state once a minute."""


def _stated(context: ReconcileContext, name: str, old: Mapping[str, Any], *, running: bool) -> dict[str, Any]:
    """What the part says about itself, and what this operator knows of a part that it has made. `running`: whether the syncer runs."""
    view, report = context.observed.parts.get(name), context.report if running else None
    told = report.parts.get(name) if report is not None else None
    state = _part_state(view, told, old, running)
    silent_since = format_timestamp(view.silent_since) if view is not None and view.silent_since is not None else ""
    if view is None and state.state:  # an operator that has told nothing ever is an older one, and not silent
        silent_since = _told_nothing_since(report, told, context.now, old.get("silentSince", ""))
    problem = view.problem if view is not None else ""
    if view is not None and (running or view.job is not None):
        problem = parts_problem(context) or problem
    kept: Mapping[str, float] = old.get("acceleratorHours") or {}
    largest = {kind: max(held, kept.get(kind, 0.0)) for kind, held in state.accelerator_hours.items()}
    said = {
        "namespace": view.namespace if view is not None else "",
        "state": state.state,
        "message": (problem or state.message)[:_LONGEST_MESSAGE],
        "acceleratorHours": dict(itertools.islice(({**kept} | largest).items(), MAX_KINDS)),
        "productiveShare": state.productive_share,
        "silentSince": silent_since,
    }
    return {key: value for key, value in said.items() if value not in ("", {}, None)}


def _part_state(view: PartView | None, told: ToldPart | None, old: Mapping[str, Any], running: bool) -> PartState:
    """What the part's status says: as this operator reads it in a cluster that answers, else as the part's operator has told the syncer."""
    unknown = PartState(productive_share=old.get("productiveShare"))
    if view is not None and (view.silent_since is None or told is None):
        return view.job.state if view.job is not None else unknown
    if told is not None:
        return told.state
    # Nothing was told to this process of the syncer. Without a syncer, a state of before says nothing about now.
    return replace(unknown, state=old.get("state", ""), message=old.get("message", "")) if running else unknown


def _told_nothing_since(report: Report | None, told: ToldPart | None, now: float, before: str) -> str:
    """Since when the operator of a part has told the syncer nothing. "" if it has lately, or may not have had the time. `before`: as status
    has it."""
    if report is None:
        return before
    since = told.told_at if told is not None else report.connected_at
    # Two clocks give each report another second, and a write for each would tell nothing.
    return (before or format_timestamp(since)) if now - since > _TOLD_NOTHING else ""


def _heard(units: Sequence[UnitReport], units_before: Iterable[dict[str, Any]] | None, received_at: float) -> dict[str, Any]:
    if not units:
        return {}
    before = _by_name(units_before)
    return {
        "units": [_reported(unit, before.get(unit.unit), received_at) for unit in units],
        "contributing": sum(map(contributes, units)),
        "tokensPerSecond": round(sum(unit.tokens_per_second or 0.0 for unit in units if contributes(unit)), 1),
        "weight": round(sum(unit.weight or 0.0 for unit in units if contributes(unit)), 3),
        "lastHeard": format_timestamp(received_at - min(unit.seconds_since_alive for unit in units)),
    }


def _reported(unit: UnitReport, before: Mapping[str, Any] | None, received_at: float) -> dict[str, Any]:
    """A unit that this operator does not run. `before`: what status said of it."""
    seen = {"name": unit.unit, "state": unit.phase.value, "attempt": unit.attempt}
    same = before is not None and seen.items() <= before.items()
    since = before.get("since") if before is not None and same else None
    return {**seen, "since": since or format_timestamp(received_at), **({"tokens": unit.tokens} if unit.tokens else {})}


def _link(report: Report, part: Part) -> dict[str, Any]:
    """How the part's link to the syncer carries. What is not known is left out."""
    units = reported_units(report, part.units)
    training = [unit for unit in units if contributes(unit)]
    shares = [unit.merge_share for unit in training if unit.merge_share is not None]
    round_trips = [unit.round_trip_seconds for unit in training if unit.round_trip_seconds]
    rates = report.links.get(part.name, Link(0, 0))
    figures = {
        "mergeShare": round(fmean(shares), 2) if shares else None,
        "roundTripSeconds": round(min(round_trips), 4) if round_trips else None,
        "receivedBytesPerSecond": rates.received_bytes_per_second or None,
        "sentBytesPerSecond": rates.sent_bytes_per_second or None,
        "receivedBytes": sum(unit.received_bytes for unit in units) or None,
        "sentBytes": sum(unit.sent_bytes for unit in units) or None,
    }
    return {key: value for key, value in figures.items() if value is not None}


def _home(context: ReconcileContext) -> dict[str, Any]:
    """The job at home by the part's Secret, and when the syncer was last heard. What is not known now stays as it was."""
    written = {**(context.observed.job.status.get("home") or {})}
    secret, report = context.observed.children.part_secret, context.observed.report
    if secret is not None and secret.home is not None:
        home = secret.home
        written |= {"part": home.part, "namespace": home.job.namespace, "name": home.job.name, "uid": home.job.uid}
    return {**written, **({"lastHeard": format_timestamp(report.received_at)} if report is not None else {})}


def _recent(context: ReconcileContext, record: UnitStatusRecord) -> UnitStatusRecord:
    """Keep only the failures that can still count: `learners.restart.limit` may have been lowered."""
    most = context.spec.learners.restart.limit + 1
    return record._replace(failures=record.failures[-most:]) if len(record.failures) > most else record


def with_conditions(job: Job, statements: Statements, now: float) -> dict[str, Any]:
    """Return the status on record with new conditions and a new state."""
    conditions = merge(job.status.get("conditions") or (), statements, job.generation, now)
    return {**job.status, "observedGeneration": job.generation, **job_state(statements, job.status), "conditions": conditions}


def with_ends_of_programs(context: ReconcileContext, status: dict[str, Any], records: Mapping[str, UnitStatusRecord]) -> dict[str, Any]:
    """Add to the status of a complete job how its programs ended since that status was written."""
    if records == context.records_before:
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
    progress = {"step": 0, "tokens": 0, "tokensPerSecond": 0.0, **_with_history(old, context.observed.report)}
    progress["steps"] = context.spec.training.steps
    progress.pop("tokenBudget", None)
    progress.pop("estimatedCompletion", None)
    budget, report = context.spec.training.tokens, context.report
    if budget is not None:
        progress["tokenBudget"] = budget
    if result is not None:
        progress |= {"step": result.step, "steps": result.steps, "tokens": result.tokens, "tokensPerSecond": 0.0}
        progress |= _known(loss=result.loss, heldOutLoss=result.held_out_loss)
        progress |= _with_last_points(progress, result)
    elif report is not None:
        progress |= {"step": report.t, "tokens": report.tokens, "tokensPerSecond": round(report.tokens_per_second, 1)}
        progress.pop("heldOutLoss", None)  # a complete job that got more steps: these parameters are no longer the final ones
        cosine = round(report.cosine, 3) if report.cosine is not None else None
        progress |= _known(loss=report.loss, heldOutLoss=report.held_out_loss, cosine=cosine)
        if report.step_seconds > 0 and report.t < report.steps and report.ending is None:
            progress["estimatedCompletion"] = format_timestamp(float(round(report.received_at + _seconds_left(report, budget))))
    else:
        progress["tokensPerSecond"] = 0.0
        last_report = context.observed.report
        if last_report is not None and last_report.t > progress["step"]:  # the syncer is gone, but the steps of its last report are done
            progress |= {"step": last_report.t, "tokens": last_report.tokens}
    return progress


def _seconds_left(report: Report, budget: int | None) -> float:
    """How long the job takes from the report on until its last outer step, or until its budget of tokens is used up."""
    left = (report.steps - report.t) * report.step_seconds
    if budget is not None and report.tokens_per_second > 0:
        left = min(left, max(0.0, budget - report.tokens) / report.tokens_per_second)
    return left


def _with_history(progress: Mapping[str, Any], report: Report | None) -> dict[str, Any]:
    """Add the losses over outer steps that the syncer reported last. An old report will do: the past does not change."""
    extended = dict(progress)
    if report is None:
        return extended
    for key, points in (("losses", report.losses), ("heldOutLosses", report.held_out_losses)):
        if points:
            extended[key] = format_losses(points)
        else:
            extended.pop(key, None)
    return extended


def _with_last_points(progress: Mapping[str, Any], result: Result) -> dict[str, Any]:
    """Return both histories up to the result: the operator may not have got the syncer's last report."""
    losses = {}
    for key, loss, limit in (
        ("losses", result.loss, MOST_LOSS_POINTS),
        ("heldOutLosses", result.held_out_loss, MOST_HELD_OUT_POINTS),
    ):
        # One less: the result's own point follows, and the CRD bounds both together.
        before = [point for point in parse_losses(progress.get(key) or "") if point.step < result.step][: limit - 1]
        if loss is not None:
            losses[key] = format_losses([*before, (result.step, loss)])
    return losses


def _known(**figures: float | None) -> dict[str, float]:
    return {key: float(f"{value:.7g}") for key, value in figures.items() if value is not None}


def _pools_away(context: ReconcileContext) -> list[dict[str, Any]]:
    """The pools in other clusters, as these say."""
    if context.shares is None:
        return []
    before = _by_name(context.observed.job.status.get("pools"))
    entries = []
    for pool in context.observed.job.away:
        view = context.observed.parts.get(pool.cluster, PartView())
        seen = view.pool(pool.name, before.get(pool.name, {}))
        units = reported_units(context.report, unit_names(pool.name, pool.learners.max))
        entries.append(
            {
                "name": pool.name,
                "cluster": pool.cluster,
                "assigned": context.shares.numbers[pool.name],
                "placed": seen.placed,
                "contributing": sum(map(contributes, units)),
                "reason": seen.reason,
                "message": seen.message,
                **({"waitingSince": format_timestamp(seen.waiting_since)} if seen.waiting_since is not None else {}),
                **({"tokensPerSecond": seen.tokens_per_second} if seen.tokens_per_second else {}),
            }
        )
    return entries


def _pools(context: ReconcileContext, scaling: Scaling, contributing: frozenset[str]) -> list[dict[str, Any]]:
    outcomes = {outcome.pool: outcome for outcome in scaling.placement.pools} if scaling.placement is not None else {}
    waiting = {pool["name"]: pool["waitingSince"] for pool in context.observed.job.status.get("pools") or () if "waitingSince" in pool}
    spares = kept_spares(context, scaling.request, scaling.records.values())
    entries = []
    for pool in context.spec.pools:
        units = [unit for unit in scaling.records.values() if unit.pool == pool.name]
        outcome = outcomes.get(pool.name)
        short = outcome is not None and outcome.lack.of_slices
        entries.append(
            {
                "name": pool.name,
                "placed": sum(1 for unit in units if unit.slice),
                "contributing": sum(1 for unit in units if unit.name in contributing),
                **({"spares": spares[pool.name]} if pool.name in spares else {}),
                "reason": str(outcome.reason) if outcome else "",
                "message": outcome.causes if outcome else "",
                **({"remedies": [remedy.text for remedy in outcome.helps]} if outcome and outcome.helps else {}),
                **({"waitingSince": waiting.get(pool.name) or format_timestamp(context.now)} if short else {}),
                **write_pool(context.throughput[pool.name]),
            }
        )
    return entries
