"""What changes between two outlooks: which units start, move, end, and who gets their slices. Pure."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from diloco_local.preview.outlook import JobOutlook, UnitOutlook, Verdict

type UnitKey = tuple[str, str, str]
"""Namespace, job and unit."""


class Move(enum.StrEnum):
    """What becomes of a unit."""

    STARTS = "Starts"
    MOVES = "Moves"
    """It has other hardware than before."""
    ENDS = "Ends"
    """It has no hardware any more."""


@dataclass(frozen=True, slots=True)
class UnitMove:
    namespace: str
    job: str
    unit: str
    move: Move
    before: str
    """Its slice; "": none."""
    after: str
    reason: str
    """Why it ends: the reason of the unit, or else of its pool, afterwards; "": the unit is gone, or runs."""
    taken_by: str
    """The unit that has its slice afterwards, as `namespace/job/unit`; "": none."""


@dataclass(frozen=True, slots=True)
class JobChange:
    """A job whose verdict or speed changes."""

    namespace: str
    job: str
    before: Verdict | None
    """None: the job is new."""
    after: Verdict
    placed_before: int
    placed_after: int
    tokens_before: float | None
    tokens_after: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    moves: tuple[UnitMove, ...]
    jobs: tuple[JobChange, ...]


def difference(before: Iterable[JobOutlook], after: Iterable[JobOutlook]) -> Difference:
    """Compare jobs that are in both, or new."""
    old, new = {job.key: job for job in before}, {job.key: job for job in after}
    had, has = _places(old), _places(new)
    owners = {unit.slice: "/".join(key) for key, unit in has.items()}
    moves = []
    for key in sorted(had.keys() | has.keys()):
        was, now = (each[key].slice if key in each else "" for each in (had, has))
        if was == now:
            continue
        taken = owners.get(was, "") if was else ""
        move = Move.STARTS if not was else Move.MOVES if now else Move.ENDS
        reason = _reason(new.get(key[:2]), key[2]) if move is Move.ENDS else ""
        moves.append(UnitMove(*key, move, was, now, reason, taken))
    return Difference(
        tuple(moves), tuple(_job_change(old.get(key), job) for key, job in sorted(new.items()) if _changes(old.get(key), job))
    )


def unfit(before: Iterable[JobOutlook], after: Iterable[JobOutlook], asked: Collection[tuple[str, str]]) -> tuple[JobOutlook, ...]:
    """Return jobs without what they need afterwards: of those that were `asked` about, and others that had theirs before."""
    had = {job.key for job in before if job.verdict is Verdict.FITS}
    wanted = (Verdict.WAITS, Verdict.STALLED, Verdict.REFUSED)
    return tuple(job for job in after if job.verdict in wanted and (job.key in asked or job.key in had))


def _places(jobs: Mapping[tuple[str, str], JobOutlook]) -> dict[UnitKey, UnitOutlook]:
    return {(*key, unit.name): unit for key, job in jobs.items() for unit in job.units}


def _reason(job: JobOutlook | None, unit: str) -> str:
    waiting = next((each for each in job.waiting if each.name == unit), None) if job is not None else None
    return waiting.reason if waiting is not None else ""


def _changes(was: JobOutlook | None, now: JobOutlook) -> bool:
    return was is None or (was.verdict, was.placed, was.tokens_per_second) != (now.verdict, now.placed, now.tokens_per_second)


def _job_change(was: JobOutlook | None, now: JobOutlook) -> JobChange:
    return JobChange(
        *now.key, was.verdict if was else None, now.verdict, was.placed if was else 0, now.placed,
        was.tokens_per_second if was else None, now.tokens_per_second,
    )  # fmt: skip
