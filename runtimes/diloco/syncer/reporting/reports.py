"""The syncer's view of the job as the wire's Report, and as the contract's Result. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from diloco.algorithm.core import Core
from diloco.algorithm.effects import LOST_WORK
from diloco.contract import ENDED_BY_PROGRAM, ENDED_BY_TOKENS, Result, UnitResult
from diloco.data.ledger import Ledger
from diloco.protocol.diloco_pb2 import Ending as EndingMessage
from diloco.protocol.diloco_pb2 import Link, LossPoint, PartReport, Report, UnitReport
from diloco.syncer.ending import Ending
from diloco.syncer.reporting.cluster_links import LinkRates
from diloco.syncer.reporting.loss_history import LossHistory
from diloco.syncer.reporting.unit_stats import Phase, UnitStats, UnitStatsTable
from diloco.wording import plural

RESULT_BYTES = 4096
"""A kubelet keeps this much of a termination message."""
_UNIT_MESSAGE = 512
"""Characters of one unit's message: the operator expects at most 1 KiB of a report for each unit."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a report holds besides core, ledger and unit statistics."""

    incarnation: bytes
    steps: int
    snapshot_t: int
    snapshot: str
    """Folder of the newest snapshot within the volume. Empty if there is none yet."""
    snapshot_copied: bool
    snapshot_error: str
    message: str
    complete: bool
    """Step T is reached, and the final snapshot is durable."""
    draining: bool
    evaluations: Mapping[str, tuple[float, int]]
    losses: LossHistory
    token_budget: int = 0
    """0 if the job has none."""
    ending: Ending | None = None
    cosine: float | None = None
    """Mean cosine between two contributions, over the newest merges. None if no merge had two."""
    links: Mapping[str, LinkRates] = field(default_factory=dict)
    """By cluster."""
    round_trips: Mapping[str, float] = field(default_factory=dict)
    """Seconds, by unit; without those that are not known."""
    parts: Sequence[PartReport] = ()


def make_report(facts: Facts, core: Core | None, ledger: Ledger, unit_stats: UnitStatsTable, now: float) -> Report:
    """Return the report at `now`, seconds on the clock of core and statistics."""
    units = [_unit(stats, core, ledger, now, facts.round_trips.get(stats.unit, 0.0)) for stats in unit_stats.all()]
    report = Report(
        incarnation=facts.incarnation,
        t=core.t if core else 0,
        steps=facts.steps,
        tokens=ledger.tokens,
        samples=ledger.samples,
        clock=now,
        tokens_per_second=sum(unit.tokens_per_second for unit in units),
        step_seconds=core.outer_step_seconds if core else 0.0,
        seeded=core is not None and core.seeded,
        parameters=core.layout.size if core else 0,
        done=facts.complete,
        snapshot_t=facts.snapshot_t,
        snapshot=facts.snapshot,
        snapshot_copied=facts.snapshot_copied,
        snapshot_error=facts.snapshot_error,
        message=facts.message,
        units=units,
        draining=facts.draining,
        token_budget=facts.token_budget,
        contributions=sum(unit.contributions for unit in units),
        work_refused=_work_refused(stats.refused for stats in unit_stats.all()),
        losses=[LossPoint(t=t, loss=loss) for t, loss in facts.losses.training.points],
        held_out_losses=[LossPoint(t=t, loss=loss) for t, loss in facts.losses.held_out.points],
        links=[
            Link(cluster=cluster, received_bytes_per_second=rates.received, sent_bytes_per_second=rates.sent)
            for cluster, rates in facts.links.items()
        ],
        parts=facts.parts,
    )
    if (ending := facts.ending) is not None:
        report.ending.CopyFrom(EndingMessage(cause=_CAUSES[ending.by], t=ending.t, unit=ending.unit, reason=ending.reason))
    if (loss := unit_stats.loss()) is not None:
        report.loss = loss
    if facts.cosine is not None:
        report.cosine = facts.cosine
    if (held_out := held_out_loss(facts.evaluations)) is not None:
        report.held_out_loss = held_out
    return report


_CAUSES = {ENDED_BY_TOKENS: EndingMessage.TOKENS, ENDED_BY_PROGRAM: EndingMessage.PROGRAM}


def held_out_loss(evaluations: Mapping[str, tuple[float, int]]) -> float | None:
    """Return the mean loss over the tokens that all units have evaluated. None without any. `evaluations` has (loss, tokens) by unit."""
    tokens = sum(count for _, count in evaluations.values())
    return math.fsum(loss * count for loss, count in evaluations.values()) / tokens if tokens else None


def make_result(facts: Facts, core: Core, ledger: Ledger, unit_stats: UnitStatsTable) -> Result:
    """Return the result. It has at most RESULT_BYTES as JSON: units are left out if needed, the totals never."""
    units = [
        UnitResult(
            unit=stats.unit,
            tokens=ledger.unit(stats.unit).tokens,
            steps=ledger.unit(stats.unit).steps,
            contributions=core.contributions_of(stats.unit).contributions,
        )
        for stats in unit_stats.all()
    ]
    message = "; ".join(text for text in (facts.message, facts.snapshot_error) if text)
    result = Result(
        step=core.t,
        steps=facts.steps,
        tokens=ledger.tokens,
        contributions=sum(unit.contributions for unit in units),
        refused=_work_refused(stats.refused for stats in unit_stats.all()),
        refusal=_dominant_refusal(unit_stats.all()),
        loss=unit_stats.loss(),
        held_out_loss=held_out_loss(facts.evaluations),
        units=units,
        message=message[:1024],
        snapshot=facts.snapshot,
        snapshot_copied=facts.snapshot_copied,
        ended_by=facts.ending.by if facts.ending is not None else "",
        end_reason=f"{facts.ending.unit}: {facts.ending.reason}" if facts.ending is not None and facts.ending.unit else "",
    )
    kept = len(units)
    while len(result_json(result)) > RESULT_BYTES:
        kept -= 1
        result = result.model_copy(
            update={
                "units": units[:kept],
                "message": f"{plural(len(units) - kept, 'unit is', 'units are')} left out here; {message[:512]}",
            }
        )
    return result


def _work_refused(refused: Iterable[Mapping[str, int]]) -> int:
    return sum(counts.get(reason.value, 0) for counts in refused for reason in LOST_WORK)


def _dominant_refusal(units: Sequence[UnitStats]) -> str:
    counts = {reason: sum(unit.refused.get(reason, 0) for unit in units) for reason in sorted(LOST_WORK)}
    reason = max(counts, key=lambda name: counts[name])
    if not counts[reason]:
        return ""
    message = next((unit.refusals[reason] for unit in units if reason in unit.refusals), "")
    return f"{counts[reason]} as {reason}{f', such as: {message[:_UNIT_MESSAGE]}' if message else ''}"


def ledger_text(ledger: Ledger) -> str:
    """Say for people how many samples were trained, and which leased sequence numbers were not."""
    totals = ledger.summary()
    gaps = [f"{start} to {end - 1}" for start, end, times in ledger.times_trained(0, totals.frontier) if not times]
    shown = ", ".join(gaps[:10]) + (f" and {plural(len(gaps) - 10, 'more range', 'more ranges')}" if len(gaps) > 10 else "")
    lacking = f"; not committed, as they came back or were under way at the end: {shown}" if gaps else ""
    if not totals.frontier:
        return "no sample was leased"
    return f"{plural(totals.committed, 'sample')} of sequence numbers 0 to {totals.frontier - 1} trained once each{lacking}"


def result_json(result: Result) -> bytes:
    """Return the result as the termination log has it."""
    return result.model_dump_json(by_alias=True, exclude_none=True).encode()


def _unit(one: UnitStats, core: Core | None, ledger: Ledger, now: float, round_trip: float) -> UnitReport:
    work = ledger.unit(one.unit)
    contributed = core.contributions_of(one.unit) if core else None
    report = UnitReport(
        unit=one.unit,
        attempt=one.attempt,
        state=one.phase.value,  # type: ignore[arg-type]
        steps=work.steps,
        tokens=work.tokens,
        tokens_per_second=one.rate.value(now) if one.phase is Phase.CONTRIBUTING else 0.0,
        weight=contributed.share if contributed else 0.0,
        staleness=core.staleness(one.unit) if core else 0,
        steps_per_sync=core.steps_per_sync(one.unit) if core else 0,
        contributions=contributed.contributions if contributed else 0,
        seconds_since_heard=now - one.heard_at if one.heard_at is not None else 0.0,
        refused=one.refused,
        message=one.message[:_UNIT_MESSAGE],
        local_step=one.local_step,
        step_seconds=one.step_seconds,
        recover_seconds=one.recover_seconds,
        own_data=one.own_data,
        holds_parameters=one.holds_parameters,
        left=one.left,
        received_bytes=one.received_bytes,
        sent_bytes=one.sent_bytes,
        resting_seconds=now - one.resting_since if one.resting_since is not None else 0.0,
        seconds_since_alive=one.seconds_since_alive(now),
        pause=one.pause,
        recovery=one.recovery,
        given=one.given,
        merge_share=core.merge_share(one.unit) if core else 0.0,
        round_trip_seconds=round_trip,
        pause_left=max(0.0, (one.paused_until or now) - now) if one.pause else 0.0,
    )
    if one.loss is not None:
        report.loss = one.loss
    return report
