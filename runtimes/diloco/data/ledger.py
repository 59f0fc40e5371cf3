"""The ledger of the work: sequence numbers are leased to sessions of units, and committed when the model holds them (`watermark`).

Every number below the frontier is in exactly one of three states: committed, leased, or free. When a session ends, the numbers that it
leased and did not commit become free, and are the first to be leased again. So no number is lost, and none is committed twice. A number
is one sample in one epoch of the data (`sampling`), so each sample is committed at most once per epoch.

See docs/decisions/0003-sessions-and-work.md. See docs/decisions/0153-guards.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from diloco.algorithm.guards import Others, lower_median
from diloco.data.intervals import IntervalSet, Range
from diloco.wording import plural

FORMAT: Final = 1
"""Version of `Ledger.to_json`."""

BELIEVED_SAMPLES: Final = 64
"""Committed samples from which on the syncer believes a unit's count of their tokens."""
MOST_WORK: Final = 1 << 53
"""The most tokens of a job, and the most tokens or steps of one unit. No job comes near it, and the wire can carry sums of such counts."""


class LedgerError(ValueError):
    """A request that contradicts the ledger; the message says how."""


@dataclass(frozen=True, slots=True)
class WorkLease:
    """Sequence numbers [start, end), to train in this order."""

    id: int
    """Unique in the ledger's life, also across restores."""
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class UnitWork:
    """An amount of work: a unit's over all its attempts, or one session's since it began."""

    samples: int = 0
    tokens: int = 0
    steps: int = 0

    def __add__(self, other: UnitWork) -> UnitWork:
        return UnitWork(self.samples + other.samples, self.tokens + other.tokens, self.steps + other.steps)

    def __sub__(self, other: UnitWork) -> UnitWork:
        return UnitWork(self.samples - other.samples, self.tokens - other.tokens, self.steps - other.steps)


@dataclass(frozen=True)
class Usual:
    """What is usual in a job: lower medians over its units. One unit that claims too much does not change them, unless it is alone."""

    tokens_per_sample: float = 0.0
    """Tokens of a sample in units that train leased samples; 0 if not known."""
    tokens_per_step: float = 0.0
    """Tokens of a step in the same units; 0 if not known."""
    per_step_of: Mapping[str, float] = field(default_factory=dict)
    """Tokens of a step, by unit. Empty unless most units of the job feed themselves."""

    def per_step_of_others(self, unit: str) -> float:
        """The lower median of `per_step_of` without this unit; 0 if not known."""
        own = self.per_step_of.get(unit)
        return (self._others.median(own) or 0.0) if own is not None else lower_median(list(self.per_step_of.values()))

    @cached_property
    def _others(self) -> Others:
        return Others(list(self.per_step_of.values()))


@dataclass(frozen=True, slots=True)
class Summary:
    """The totals of a job. `committed + leased + free == frontier`, all in samples."""

    frontier: int
    """Numbers that have been leased at least once."""
    committed: int
    leased: int
    free: int
    tokens: int
    units: Mapping[str, UnitWork]


@dataclass(slots=True)
class _WorkSession:
    """One connection of one process of one attempt. Its counters start at 0."""

    unit: str
    done: UnitWork = field(default_factory=UnitWork)
    ahead: deque[Range] = field(default_factory=deque)
    """Ranges that are leased and not committed, in the order of the leases."""
    leased: int = 0
    """Samples in `ahead`."""
    over: bool = False
    """The session gets no more leases. What it still holds may be committed."""


class Ledger:
    """The work of one job. Deterministic. Its size grows with the number of gaps, not with the number of samples.

    A session has a name that no other session of the job has.
    """

    def __init__(self) -> None:
        self._frontier = 0
        self._free = IntervalSet()
        self._committed = IntervalSet()
        self._units: dict[str, UnitWork] = {}
        self._total = UnitWork()
        """The total of all units."""
        self._sampled = UnitWork()
        """The total of the units that have trained leased samples."""
        self._sessions: dict[str, _WorkSession] = {}
        self._next_lease = 1
        self.repaired: tuple[str, ...] = ()
        """Sentences for people about stored counts that could not be true."""

    # --- leases and commits -------------------------------------------------------------------------------------------

    def begin(self, session: str, unit: str) -> None:
        """Begin a session of the unit, with counters at 0. A second call changes nothing."""
        self._sessions.setdefault(session, _WorkSession(unit))

    def lease(self, session: str, n: int) -> WorkLease:
        """Lease 1 to `n` consecutive numbers: free ones if there are any, else new ones.

        Raises LedgerError for a session that has not begun or is over, and if n < 1.
        """
        record = self._session(session)
        if n < 1 or record.over:
            raise LedgerError(f"session {session} asks for {plural(n, 'sample')}" + (" after its end" if record.over else ""))
        taken = self._free.take(n)
        if taken is None:
            taken = (self._frontier, self._frontier + n)
            self._frontier += n
        record.ahead.append(taken)
        record.leased += taken[1] - taken[0]
        lease = WorkLease(self._next_lease, *taken)
        self._next_lease += 1
        return lease

    def leased_to(self, session: str) -> int:
        """Samples of all leases of the session since it began. Raises LedgerError if there is no such session."""
        record = self._session(session)
        return record.done.samples + record.leased

    def commit(self, session: str, done: UnitWork) -> UnitWork:
        """The model now holds this session's first `done.samples` samples. The counts are totals since the session began, so a repeated or
        late call changes nothing. Returns what is newly committed.

        A program that feeds itself counts tokens and steps and leaves the samples at 0.
        Raises LedgerError, and commits nothing, if there is no such session, for more samples than were leased to it, and for more samples
        with fewer tokens than before.
        """
        record = self._session(session)
        before = record.done
        new = UnitWork(done.samples, done.tokens, max(done.steps, before.steps)) - before
        if new.samples < 0 or (new.samples == 0 and new.tokens <= 0 and new.steps <= 0):
            return UnitWork()
        if new.tokens < 0:
            raise LedgerError(
                f"session {session}: {plural(done.samples, 'sample')} with {plural(done.tokens, 'token')} after "
                f"{plural(before.samples, 'sample')} with {before.tokens}: totals cannot shrink"
            )
        if new.samples > record.leased:
            raise LedgerError(
                f"session {session}: {plural(done.samples, 'sample')} done, but only {before.samples + record.leased} were leased to it"
            )
        for start, end in _take_first(record, new.samples):
            self._committed.add(start, end)
        record.done = before + new
        self._set(record.unit, self.unit(record.unit) + new)
        return new

    def release(self, session: str, keep: int | None = None) -> tuple[Range, ...]:
        """End the session. What it has not committed becomes free; returns these ranges in the order of the leases.

        With `keep`, the session's first `keep` samples stay leased and may still be committed, until a last call without `keep`.
        """
        record = self._sessions.get(session)
        if record is None:
            return ()
        record.over = True
        kept = _take_first(record, min(record.leased, max(0, (keep or 0) - record.done.samples)))
        freed = tuple(record.ahead)
        for start, end in freed:
            self._free.add(start, end)
        record.ahead, record.leased = deque(kept), sum(end - start for start, end in kept)
        if keep is None:
            del self._sessions[session]
        return freed

    def _session(self, session: str) -> _WorkSession:
        record = self._sessions.get(session)
        if record is None:
            raise LedgerError(f"there is no session {session}")
        return record

    # --- totals -------------------------------------------------------------------------------------------------------

    def unit(self, unit: str) -> UnitWork:
        """What all attempts of the unit have committed."""
        return self._units.get(unit, UnitWork())

    @property
    def tokens(self) -> int:
        """Committed tokens of the whole job, at most MOST_WORK."""
        return min(MOST_WORK, self._total.tokens)

    @property
    def samples(self) -> int:
        """Committed sequence numbers of the whole job, each counted once."""
        return self._committed.count

    @property
    def sampled(self) -> UnitWork:
        """What is committed, in total, of the units that train leased samples."""
        return self._sampled

    @property
    def usual(self) -> Usual:
        """What is usual among the units that have committed `BELIEVED_SAMPLES` or more.

        If most of the units that have done anything feed themselves, there is only each unit's `per_step_of`. The majority is one of units,
        not of tokens, because one unit can make up any number of tokens.
        """
        working = {unit: work for unit, work in self._units.items() if work.samples or work.tokens}
        if 2 * sum(not work.samples for work in working.values()) > len(working):
            return Usual(per_step_of={unit: work.tokens / work.steps for unit, work in working.items() if work.tokens and work.steps})
        believed = [work for work in working.values() if work.samples >= BELIEVED_SAMPLES]
        return Usual(
            lower_median([work.tokens / work.samples for work in believed]),
            lower_median([work.tokens / max(1, work.steps) for work in believed]),
        )

    def committed(self) -> tuple[Range, ...]:
        """All committed numbers, in order."""
        return tuple(self._committed)

    def times_trained(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """Return [start, end) in pieces (start, end, times); times is 1 for committed numbers, else 0. How often a *sample* was trained is
        the sum over the numbers that `sampling.sample_indices` maps to it."""
        pieces = [(a, b, 1) for a, b in self._committed.overlap(start, end)] + [(a, b, 0) for a, b in self._committed.gaps(start, end)]
        return sorted(pieces)

    def summary(self) -> Summary:
        return Summary(
            frontier=self._frontier,
            committed=self._committed.count,
            leased=sum(record.leased for record in self._sessions.values()),
            free=self._free.count,
            tokens=self.tokens,
            units=dict(sorted(self._units.items())),
        )

    # --- storing ------------------------------------------------------------------------------------------------------

    def sessions_to_json(self) -> dict[str, dict[str, Any]]:
        """What each session has committed and leased, for `restore_sessions`."""
        return {
            session: {
                "unit": record.unit,
                "done": [record.done.samples, record.done.tokens, record.done.steps],
                "ahead": [list(x) for x in record.ahead],
                "over": record.over,
            }
            for session, record in self._sessions.items()
        }

    def restore_sessions(self, stored: Mapping[str, Mapping[str, Any]]) -> None:
        """Let the sessions that `sessions_to_json` stored go on, in a restored ledger. Raises LedgerError for malformed or contradictory
        data."""
        try:
            for session, entry in stored.items():
                record = _WorkSession(str(entry["unit"]), UnitWork(*(int(x) for x in entry["done"])), over=bool(entry["over"]))
                for start, end in entry["ahead"]:
                    if self._free.overlap(start, end) != [(start, end)]:
                        raise LedgerError(f"session {session} holds the samples {start} to {end - 1}, which are not free")
                    self._free.remove(start, end)
                    record.ahead.append((int(start), int(end)))
                    record.leased += end - start
                self._sessions[session] = record
        except LedgerError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise LedgerError(f"the ledger's sessions are incomplete or malformed: {type(e).__name__}: {e}") from e

    def to_json(self) -> dict[str, Any]:
        """The ledger for a snapshot. Leased numbers count as free; `sessions_to_json` stores the leases."""
        return {
            "format": FORMAT,
            "frontier": self._frontier,
            "committed": [list(x) for x in self._committed],
            "units": {unit: [work.samples, work.tokens, work.steps] for unit, work in sorted(self._units.items())},
            "nextLease": self._next_lease,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Ledger:
        """Read what `to_json` wrote. Everything that was not committed is free. Raises LedgerError for malformed or contradictory data.

        Tokens and steps above MOST_WORK, which a hostile learner may have claimed before they were stored, are replaced; see `repaired`.
        """
        if stored.get("format") != FORMAT:
            raise LedgerError(f"the ledger has format {stored.get('format')!r}, this program reads {FORMAT}")
        ledger = cls()
        try:
            ledger._frontier = int(stored["frontier"])
            ranges = [(int(start), int(end)) for start, end in stored["committed"]]
            for unit, (samples, tokens, steps) in stored["units"].items():
                ledger._set(unit, UnitWork(int(samples), int(tokens), int(steps)))
            ledger._next_lease = int(stored["nextLease"])
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise LedgerError(f"the ledger is incomplete or malformed: {type(e).__name__}: {e}") from e
        ledger._committed = IntervalSet(ranges)
        if any(not 0 <= start < end <= ledger._frontier for start, end in ranges) or ledger._committed.count != sum(
            b - a for a, b in ranges
        ):
            raise LedgerError(f"the ledger's committed ranges overlap or do not lie in 0..{ledger._frontier}")
        if ledger._committed.count != ledger._total.samples:
            raise LedgerError(f"the ledger has {ledger._committed.count} committed samples, but its units have {ledger._total.samples}")
        for start, end in ledger._committed.gaps(0, ledger._frontier):
            ledger._free.add(start, end)
        ledger._repair()
        return ledger

    def _set(self, unit: str, work: UnitWork) -> None:
        """Replace a unit's work, and update the sums. They are kept because each push asks for them."""
        before = self.unit(unit)
        self._units[unit] = work
        self._total += work - before
        self._sampled += (work if work.samples else UnitWork()) - (before if before.samples else UnitWork())

    def _repair(self) -> None:
        """Replace counts that cannot be true: tokens by the average of the other units' samples, steps by 0."""
        wrong = {unit for unit, work in self._units.items() if work.tokens > MOST_WORK or work.steps > MOST_WORK}
        known = sum((work for unit, work in self._units.items() if work.samples and unit not in wrong), UnitWork())
        repairs: list[str] = []
        for unit in sorted(wrong):
            work = self._units[unit]
            tokens = work.tokens if work.tokens <= MOST_WORK else work.samples * known.tokens // max(1, known.samples)
            self._set(unit, UnitWork(work.samples, tokens, work.steps if work.steps <= MOST_WORK else 0))
            repairs.append(
                f"unit {unit} cannot have trained {plural(work.tokens, 'token')} in {plural(work.steps, 'step')}: its count goes on from "
                f"{plural(tokens, 'token')}"
            )
        self.repaired = tuple(repairs)


def _take_first(held: _WorkSession, samples: int) -> list[Range]:
    """Remove and return the first `samples` leased numbers of a session, which must hold that many."""
    taken: list[Range] = []
    held.leased -= samples
    while samples:
        start, end = held.ahead.popleft()
        cut = min(end, start + samples)
        taken.append((start, cut))
        samples -= cut - start
        if cut < end:
            held.ahead.appendleft((cut, end))
    return taken
