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
    """The unit has other hardware than before."""
    ENDS = "Ends"
    """The unit has no hardware any more."""


@dataclass(frozen=True, slots=True)
class UnitMove:
    namespace: str
    job: str
    unit: str
    move: Move
    before: str
    """The unit's slice. "" if it had none."""
    after: str
    """The unit's slice. "" if it has none."""
    reason: str
    """If the unit ends, its reason afterwards. "" if the job does not want it any more, or if it does not end."""
    taken_by: str
    """The unit that gets this unit's former slice, as `namespace/job/unit`. "" if none gets it."""


@dataclass(frozen=True, slots=True)
class JobChange:
    """A job whose verdict or speed changes."""

    namespace: str
    job: str
    before: Verdict | None
    """None if the job is new."""
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
    """Compare two outlooks. Jobs that are only in `before` count as units that end."""
    old, new = {job.key: job for job in before}, {job.key: job for job in after}
    units_before, units_after = _places(old), _places(new)
    # Units that share hosts have slices of one name: who was there before gets nothing.
    owners = {
        unit.slice: "/".join(key) for key, unit in units_after.items() if key not in units_before or units_before[key].slice != unit.slice
    }
    moves = []
    for key in sorted(units_before.keys() | units_after.keys()):
        slice_before, slice_after = (units[key].slice if key in units else "" for units in (units_before, units_after))
        if slice_before == slice_after:
            continue
        taken_by = owners.get(slice_before, "") if slice_before else ""
        if not slice_before:
            move = Move.STARTS
        elif slice_after:
            move = Move.MOVES
        else:
            move = Move.ENDS
        reason = _reason(new.get(key[:2]), key[2]) if move is Move.ENDS else ""
        moves.append(UnitMove(*key, move, slice_before, slice_after, reason, taken_by))
    return Difference(
        tuple(moves), tuple(_job_change(old.get(key), job) for key, job in sorted(new.items()) if _changes(old.get(key), job))
    )


def unfit(before: Iterable[JobOutlook], after: Iterable[JobOutlook], asked: Collection[tuple[str, str]]) -> tuple[JobOutlook, ...]:
    """The jobs that lack hardware or do not train afterwards, if they were `asked` about or had what they need before."""
    fitted = {job.key for job in before if job.verdict is Verdict.FITS}
    bad = (Verdict.WAITS, Verdict.STALLED, Verdict.REFUSED)
    return tuple(job for job in after if job.verdict in bad and (job.key in asked or job.key in fitted))


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
