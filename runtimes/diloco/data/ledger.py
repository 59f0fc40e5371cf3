"""The ledger of the work: sequence numbers are leased to units, and committed when the syncer accepts a contribution.

Every number below the frontier is in exactly one of three states: committed (trained, in an accepted contribution), leased, or free. When
a unit leaves, its leased and not committed numbers become free and are leased again first. So no number is lost, and none is committed
twice. A number is one sample in one epoch of the data (`sampling`), so each sample is committed at most once per epoch.

See docs/decisions/0003-work-leases-and-ledger.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from diloco.data.intervals import IntervalSet, Range
from diloco.wording import plural

FORMAT: Final = 1
"""Version of `Ledger.to_json`."""


class LedgerError(ValueError):
    """A request that contradicts the ledger. The message says how."""


@dataclass(frozen=True, slots=True)
class WorkLease:
    """Sequence numbers [start, end), to train in this order."""

    id: int
    """Unique in the ledger's life; a lease made after a restore has another than any before it."""
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class UnitWork:
    """What a unit has committed, over all its attempts."""

    samples: int = 0
    tokens: int = 0
    steps: int = 0

    def __add__(self, other: UnitWork) -> UnitWork:
        return UnitWork(self.samples + other.samples, self.tokens + other.tokens, self.steps + other.steps)

    def __sub__(self, other: UnitWork) -> UnitWork:
        return UnitWork(self.samples - other.samples, self.tokens - other.tokens, self.steps - other.steps)


@dataclass(frozen=True, slots=True)
class Summary:
    """The totals of a job. `committed + leased + free == frontier`, all in samples."""

    frontier: int
    """Numbers given out so far."""
    committed: int
    leased: int
    free: int
    tokens: int
    units: Mapping[str, UnitWork]


@dataclass(slots=True)
class _WorkSession:
    """One connection of one process of one attempt. Its counters start at 0."""

    attempt: int
    session: str
    done: UnitWork = field(default_factory=UnitWork)
    ahead: list[Range] = field(default_factory=list)
    """Leased and not committed, in the order of the leases."""

    @property
    def leased(self) -> int:
        return sum(end - start for start, end in self.ahead)


class Ledger:
    """The work of one job. Deterministic. Its size grows with the number of gaps, not with the number of samples."""

    def __init__(self) -> None:
        self._frontier = 0
        self._free = IntervalSet()
        self._committed = IntervalSet()
        self._units: dict[str, UnitWork] = {}
        self._sessions: dict[str, _WorkSession] = {}
        self._next_lease = 1

    # --- leases and commits -------------------------------------------------------------------------------------------

    def begin(self, unit: str, attempt: int, session: str) -> None:
        """A session of the unit begins, with counters from 0; repeating it for the one that goes on changes nothing.

        A newer attempt, or another session of the same one, takes the unit over: what the one before had not committed is free again.
        Raises LedgerError if a newer attempt of the unit has begun and not been released.
        """
        held = self._sessions.get(unit)
        if held is not None:
            if held.attempt > attempt:
                raise LedgerError(f"unit {unit}: attempt {attempt} wants to work, but attempt {held.attempt} is at work")
            if (held.attempt, held.session) == (attempt, session):
                return
            self.release(unit, held.attempt)
        self._sessions[unit] = _WorkSession(attempt, session)

    def lease(self, unit: str, attempt: int, session: str, n: int) -> WorkLease:
        """Lease from 1 to `n` numbers that lie together: those that came back first, then new ones. Begins the session if need be.

        Raises LedgerError as `begin`, and if n < 1.
        """
        if n < 1:
            raise LedgerError(f"unit {unit} asks for {plural(n, 'sample')}")
        self.begin(unit, attempt, session)
        taken = self._free.take(n)
        if taken is None:
            taken = (self._frontier, self._frontier + n)
            self._frontier += n
        self._sessions[unit].ahead.append(taken)
        lease = WorkLease(self._next_lease, *taken)
        self._next_lease += 1
        return lease

    def commit(self, unit: str, attempt: int, samples_done: int, tokens_done: int, steps_done: int = 0) -> UnitWork:
        """A contribution was accepted that holds this session's first `samples_done` samples. All counts are totals since the session
        began, so a repeated or late call changes nothing. Returns what is newly committed.

        A program that feeds itself counts tokens and steps and leaves the samples at 0.
        Raises LedgerError, and commits nothing, for an attempt without a session, for more samples than were leased to it, and for
        more samples with fewer tokens than before.
        """
        held = self._sessions.get(unit)
        if held is None or held.attempt != attempt:
            raise LedgerError(f"unit {unit}: attempt {attempt} has no session")
        before = held.done
        new = UnitWork(samples_done, tokens_done, max(steps_done, before.steps)) - before
        if new.samples < 0 or (new.samples == 0 and new.tokens <= 0 and new.steps <= 0):
            return UnitWork()
        if new.tokens < 0:
            raise LedgerError(
                f"unit {unit}: {plural(samples_done, 'sample')} with {plural(tokens_done, 'token')} after "
                f"{plural(before.samples, 'sample')} with {before.tokens}: totals cannot shrink"
            )
        if new.samples > held.leased:
            raise LedgerError(
                f"unit {unit}: {plural(samples_done, 'sample')} done, but only {before.samples + held.leased} were leased to "
                f"attempt {attempt}"
            )
        left = new.samples
        while left:
            start, end = held.ahead[0]
            done = min(left, end - start)
            self._committed.add(start, start + done)
            held.ahead[:1] = [(start + done, end)] if start + done < end else []
            left -= done
        held.done = before + new
        self._units[unit] = self.unit(unit) + new
        return new

    def release(self, unit: str, attempt: int) -> tuple[Range, ...]:
        """The attempt trains no longer (or is about to take all parameters anew): what it has not committed is free. Returns those
        ranges in the order of the leases; none if the attempt holds nothing. What it does next begins a new session."""
        held = self._sessions.get(unit)
        if held is None or held.attempt != attempt:
            return ()
        del self._sessions[unit]
        for start, end in held.ahead:
            self._free.add(start, end)
        return tuple(held.ahead)

    # --- totals -------------------------------------------------------------------------------------------------------

    def unit(self, unit: str) -> UnitWork:
        """What the unit has committed, all attempts."""
        return self._units.get(unit, UnitWork())

    @property
    def tokens(self) -> int:
        """Committed tokens of the whole job."""
        return sum(work.tokens for work in self._units.values())

    def committed(self) -> tuple[Range, ...]:
        """All committed numbers."""
        return tuple(self._committed)

    def times_trained(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """[start, end) in pieces (start, end, times): 1 where committed, 0 where not. How often a *sample* was trained is the sum over
        its numbers, `sampling.sequence_numbers`."""
        pieces = [(a, b, 1) for a, b in self._committed.overlap(start, end)] + [(a, b, 0) for a, b in self._committed.gaps(start, end)]
        return sorted(pieces)

    def summary(self) -> Summary:
        return Summary(
            frontier=self._frontier,
            committed=self._committed.count,
            leased=sum(held.leased for held in self._sessions.values()),
            free=self._free.count,
            tokens=self.tokens,
            units=dict(sorted(self._units.items())),
        )

    # --- storing ------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """For a snapshot. Leases are not stored: who held them must take the snapshot's parameters, so that work is to be done again."""
        return {
            "format": FORMAT,
            "frontier": self._frontier,
            "committed": [list(x) for x in self._committed],
            "units": {unit: [work.samples, work.tokens, work.steps] for unit, work in sorted(self._units.items())},
            "nextLease": self._next_lease,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Ledger:
        """The inverse of `to_json`; everything that was not committed is free. Raises LedgerError for malformed or contradictory data."""
        if stored.get("format") != FORMAT:
            raise LedgerError(f"the ledger has format {stored.get('format')!r}, this program reads {FORMAT}")
        ledger = cls()
        try:
            ledger._frontier = int(stored["frontier"])
            ranges = [(int(start), int(end)) for start, end in stored["committed"]]
            ledger._units = {unit: UnitWork(int(s), int(t), int(n)) for unit, (s, t, n) in stored["units"].items()}
            ledger._next_lease = int(stored["nextLease"])
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise LedgerError(f"the ledger is incomplete or malformed: {type(e).__name__}: {e}") from e
        ledger._committed = IntervalSet(ranges)
        if any(not 0 <= start < end <= ledger._frontier for start, end in ranges) or ledger._committed.count != sum(
            b - a for a, b in ranges
        ):
            raise LedgerError(f"the ledger's committed ranges overlap or do not lie in 0..{ledger._frontier}")
        if ledger._committed.count != sum(work.samples for work in ledger._units.values()):
            raise LedgerError(
                f"the ledger has {ledger._committed.count} committed samples, but its units have "
                f"{sum(work.samples for work in ledger._units.values())}"
            )
        for start, end in ledger._committed.gaps(0, ledger._frontier):
            ledger._free.add(start, end)
        return ledger
