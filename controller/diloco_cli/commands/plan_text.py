"""The page that `diloco plan` prints. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from diloco.wording import and_more, plural
from diloco_local.preview.difference import Difference, Move, UnitMove, difference
from diloco_local.preview.outlook import JobOutlook, UnitOutlook, Verdict, WaitingUnit
from diloco_local.preview.preview import Preview
from diloco_local.preview.speeds import Basis
from diloco_operator.api.consequences import Lack
from diloco_operator.api.reasons import PoolReason, lack_of

from diloco_cli.status_text import table
from diloco_cli.view_text import count, ordinal
from diloco_cli.wrapped_text import wrapped

_NAMED = 4
_VERDICTS = {
    Verdict.FITS: "fits",
    Verdict.WAITS: "its minimum does not fit",
    Verdict.STALLED: "has hardware, and does not train",
    Verdict.IDLE: "asks for nothing",
    Verdict.REFUSED: "refused",
}
_PASSED: Mapping[str, str] = {
    PoolReason.AT_MAXIMUM: "full",
    PoolReason.NO_FREE_SLICE: "no free slice",
    PoolReason.NO_MATCHING_NODES: "no such nodes",
    PoolReason.SWITCHED_OFF: "switched off",
    PoolReason.WAITING_FOR_NODES: "nodes were asked for",
    PoolReason.WAITING_FOR_QUOTA: "no quota yet",
    PoolReason.PODS_REFUSED: "pods refused",
    PoolReason.JOB_AT_MAXIMUM: "not needed",
    "": "not needed",
}
"""Short texts for why a unit is not in a pool that its job prefers."""


@dataclass(frozen=True, slots=True)
class Page:
    keys: Collection[tuple[str, str]]
    """Namespace and name of the jobs that are always shown. Others are shown if they change."""
    changes: tuple[str, ...]
    """The options that change the fleet, in words."""
    notes: tuple[str, ...]
    fleet: str
    """The fleet file, or "" for a cluster."""


def plan_text(outcome: Preview, page: Page, lacking: Sequence[JobOutlook], width: int = 0) -> str:
    """Render a preview. `lacking` are the jobs that do not fit or train in the end. A `width` of 0 does not wrap lines."""
    cost = outcome.spares_cost
    lines = _stage(outcome.now, outcome.planned, page.keys, width) + _cost_of_spares(cost.planned if cost else None, width)
    if outcome.changed is not None:
        lines += ["", *wrapped(f"AFTER {', '.join(page.changes)}", "", width), "", *_stage(outcome.planned, outcome.changed, (), width)]
        lines += _cost_of_spares(cost.changed if cost else None, width)
    lines += _footnotes([*outcome.planned, *(outcome.changed or ())], width)
    if not outcome.settled:
        lines += ["", *wrapped("Note: units still came and went after a virtual hour; this is how it was then.", "", width)]
    lines += [""] if page.notes else []
    for note in page.notes:
        lines += wrapped(f"Note: {note}", "", width)
    if lacking:
        named = and_more([f"{job.namespace}/{job.name}" for job in lacking[:_NAMED]], len(lacking))
        lines += ["", *wrapped(f"Without what {'it needs' if len(lacking) == 1 else 'they need'}: {named}", "", width)]
    return "\n".join(lines)


def _stage(before: Sequence[JobOutlook], after: Sequence[JobOutlook], keys: Collection[tuple[str, str]], width: int) -> list[str]:
    """Show the jobs in `keys` and all jobs that change from `before` to `after`."""
    change = difference(before, after)
    changed = {(item.namespace, item.job) for item in change.jobs} | {(item.namespace, item.job) for item in change.moves}
    old = {job.key: job for job in before}
    # Spares are no units: a job that keeps other slices free changes, too, but has no moves.
    changed |= {job.key for job in after if job.key in old and _spares_of(job) != _spares_of(old[job.key])}
    shown = [job for job in after if job.key in keys or job.key in changed]
    blocks = [_job(job, old.get(job.key), change, width) for job in shown]
    if left := len(after) - len(shown):
        other = "other " if shown else ""
        blocks.append([plural(left, f"{other}job stays as it is", f"{other}jobs stay as they are")])
    blocks = blocks or [["no jobs: nothing would run"]]
    return [line for index, block in enumerate(blocks) for line in (*([""] if index else ()), *block)]


def _job(job: JobOutlook, before: JobOutlook | None, change: Difference, width: int) -> list[str]:
    lines = wrapped(_headline(job, before), "", width)
    moves = {move.unit: move for move in change.moves if (move.namespace, move.job) == job.key}
    # Without moves the column BEFORE would repeat RUNS ON.
    show_before = before is not None and bool(moves)
    if job.message:
        lines += wrapped(job.message, "  ", width)
    rows = [_row(unit, job, moves.get(unit.name), show_before=show_before) for unit in job.units]
    ended = [_ended(move) for move in moves.values() if move.move is Move.ENDS] if show_before else []
    if rows or ended:
        speed = "TOKENS/S" if job.tokens_per_second is not None else "SPEED"
        header = ("UNIT", "RUNS ON", *(("BEFORE",) if show_before else ()), speed, "SHARE", "WHY")
        lines += [f"  {line}" for line in table(header, [*rows, *ended])]
    lines += _elsewhere(job, width)
    lines += _spares(job, width)
    lines += _waiting(job, width)
    return lines


def _elsewhere(job: JobOutlook, width: int) -> Iterator[str]:
    """Yield `2 units of pool far run in cluster tokyo, if they fit there`."""
    for pool in job.pools:
        if pool.cluster and job.verdict not in (Verdict.IDLE, Verdict.REFUSED):
            units = plural(pool.assigned, "unit")
            fit = ", if they fit there, which is not known here" if pool.assigned else ": others come first"
            yield from wrapped(f"{units} of pool {pool.name} in cluster {pool.cluster}{fit}", "  ", width)


def _spares_of(job: JobOutlook) -> list[int]:
    """Slices that each pool keeps free."""
    return [pool.spares.kept for pool in job.pools]


def _spares(job: JobOutlook, width: int) -> Iterator[str]:
    """Yield `pool v6e keeps 1 of 2 spares free: v6e-b`."""
    for pool in job.pools:
        spares = pool.spares
        if spares.asked and job.verdict not in (Verdict.IDLE, Verdict.REFUSED):
            less = f"{spares.kept} of " if spares.kept < spares.asked else ""
            which = f": {', '.join(spares.slices)}" if spares.slices else ""
            yield from wrapped(f"pool {pool.name} keeps {less}{plural(spares.asked, 'spare')} free{which}", "  ", width)


def _cost_of_spares(units: Sequence[str] | None, width: int) -> list[str]:
    """Tell which units would run if no slices were kept free. `units` is None if none are."""
    if units is None:
        return []
    named = f": {and_more(units[:_NAMED], len(units))}" if units else ""
    return ["", *wrapped(f"Without spares {plural(len(units), 'more unit')} would run{named}", "", width)]


def _headline(job: JobOutlook, before: JobOutlook | None) -> str:
    """Write `bytes-lm in namespace default: fits, 4 units (at least 2, at most 4), 1.2k tokens/s; before 3 units, 900 tokens/s`."""
    text = f"{job.name} in namespace {job.namespace}: {_VERDICTS[job.verdict]}"
    if job.verdict in (Verdict.IDLE, Verdict.REFUSED):
        return text
    text += f", {plural(job.placed, 'unit')} (at least {job.min}, at most {job.max}){_total(job)}"
    if before is not None and (before.placed, _total(before)) != (job.placed, _total(job)):
        text += f"; before {plural(before.placed, 'unit')}{_total(before)}"
    return text


def _total(job: JobOutlook) -> str:
    if not job.units:
        return ""
    if job.tokens_per_second is not None:
        return f", {_about(job.units)}{count(job.tokens_per_second)} tokens/s"
    return f", speed {job.relative:.2f}" if job.relative is not None else ""


def _about(units: Iterable[UnitOutlook]) -> str:
    return "about " if any(unit.speed.basis is not Basis.MEASURED for unit in units) else ""


def _row(unit: UnitOutlook, job: JobOutlook, move: UnitMove | None, *, show_before: bool) -> tuple[str, ...]:
    previous = (move.before if move is not None else unit.slice,) if show_before else ()
    share = f"{unit.share:.0%}" if unit.share is not None else "-"
    return (unit.name, unit.slice, *(slices or "-" for slices in previous), _speed(unit, job), share, _why(unit, move))


def _speed(unit: UnitOutlook, job: JobOutlook) -> str:
    speed = unit.speed
    if job.tokens_per_second is not None and speed.tokens_per_second is not None:
        return f"{'' if speed.basis is Basis.MEASURED else '~'}{count(speed.tokens_per_second)}"
    return f"{speed.relative:.2f}" if speed.relative is not None else "-"


def _why(unit: UnitOutlook, move: UnitMove | None) -> str:
    """Write `2nd choice; v5p: no free slice`."""
    reasons: dict[str, list[str]] = {}
    for pool in unit.passed:
        reasons.setdefault(pool.reason, []).append(pool.pool)
    passed = "".join(f"; {', '.join(pools)}: {_PASSED.get(reason, reason)}" for reason, pools in reasons.items())
    starts = {Move.STARTS: "starts; ", Move.MOVES: "moves; "}.get(move.move, "") if move is not None and move.before else ""
    return f"{starts}{ordinal(unit.choice)} choice{passed}"


def _ended(move: UnitMove) -> tuple[str, ...]:
    taken = f"; {move.taken_by} gets its slice" if move.taken_by else ""
    return (move.unit, "-", move.before, "-", "-", f"ends: {move.reason or 'no longer wanted'}{taken}")


def _footnotes(jobs: Sequence[JobOutlook], width: int) -> list[str]:
    """Explain speeds that were not measured, and what a plan leaves out."""
    units = [(job, unit.speed.basis) for job in jobs for unit in job.units]
    texts = []
    if any(basis is Basis.ESTIMATED for job, basis in units if job.tokens_per_second is not None):
        texts.append("~ estimated from what the job's units reach on other hardware, by the peaks of the catalogue")
    if any(job.tokens_per_second is None for job, _ in units):
        texts.append("Speeds are peaks of the catalogue, a unit of the job's fastest pool being 1: nothing is measured yet.")
    if any(lack_of(pool.reason) is Lack.GRANT for job in jobs for pool in job.pools):
        texts.append("A plan grants no nodes and no quota: what waits for them may start once they come.")
    return [line for text in texts for line in ("", *wrapped(text, "", width))]


def _waiting(job: JobOutlook, width: int) -> Iterator[str]:
    """Yield for each pool which units wait, why, and what would help."""
    by_pool: dict[str, list[WaitingUnit]] = {}
    for unit in job.waiting:
        by_pool.setdefault(unit.pool, []).append(unit)
    for pool in job.pools:
        units = by_pool.get(pool.name, [])
        if not units and not pool.waits:
            continue
        names = [unit.name for unit in units]
        what = and_more(names[:_NAMED], len(names)) if names else f"pool {pool.name}"
        short = " (below the minimum of the pool)" if pool.name in job.short else ""
        reason = pool.reason if pool.waits else "; ".join(dict.fromkeys(unit.reason for unit in units))
        message = pool.message if pool.waits else "; ".join(dict.fromkeys(unit.message for unit in units if unit.message))
        yield from wrapped(f"{what} {'wait' if len(names) > 1 else 'waits'}{short}: {reason}: {message}", "  ", width)
        for remedy in pool.remedies if pool.waits else ():
            yield from wrapped(remedy, "    - ", width)
