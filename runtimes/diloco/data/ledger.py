"""The ledger of the work: sequence numbers are leased to sessions of units, and committed when the model holds them (`watermark`).

Every number below the frontier is in exactly one of three states: committed, leased, or free. When a session ends, its leased and not
committed numbers become free and are leased again first. So no number is lost, and none is committed twice. A number is one sample in one
epoch of the data (`sampling`), so each sample is committed at most once per epoch.

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
"""From so many committed samples on, what a unit says of their tokens is believed."""
MOST_WORK: Final = 1 << 53
"""Upper bound of the tokens of a job, and of the tokens or steps of one unit: no job comes near it, and the wire carries sums of such."""


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
    """An amount of work: of a unit over all its attempts, or of one session since it began."""

    samples: int = 0
    tokens: int = 0
    steps: int = 0

    def __add__(self, other: UnitWork) -> UnitWork:
        return UnitWork(self.samples + other.samples, self.tokens + other.tokens, self.steps + other.steps)

    def __sub__(self, other: UnitWork) -> UnitWork:
        return UnitWork(self.samples - other.samples, self.tokens - other.tokens, self.steps - other.steps)


@dataclass(frozen=True)
class Usual:
    """What the lower medians of the units say. One unit that claims too much does not change it, unless it is alone."""

    tokens_per_sample: float = 0.0
    """Tokens of a sample of the units that train leased ones; 0: not known."""
    tokens_per_step: float = 0.0
    """Tokens of a step of the same units; 0: not known."""
    per_step_of: Mapping[str, float] = field(default_factory=dict)
    """By unit, tokens of a step, in a job most of whose units feed themselves."""

    def per_step_of_others(self, unit: str) -> float:
        """Return the lower median of `per_step_of` without this unit; 0: not known."""
        own = self.per_step_of.get(unit)
        return (self._others.median(own) or 0.0) if own is not None else lower_median(list(self.per_step_of.values()))

    @cached_property
    def _others(self) -> Others:
        return Others(list(self.per_step_of.values()))


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

    unit: str
    done: UnitWork = field(default_factory=UnitWork)
    ahead: deque[Range] = field(default_factory=deque)
    """Leased and not committed, in the order of the leases."""
    leased: int = 0
    """Samples in `ahead`."""
    over: bool = False
    """It leases no more; what it still holds may be committed."""


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
        """Those that have trained leased samples."""
        self._sessions: dict[str, _WorkSession] = {}
        self._next_lease = 1
        self.repaired: tuple[str, ...] = ()
        """What in a restored ledger was stored and could not be true, for people."""

    # --- leases and commits -------------------------------------------------------------------------------------------

    def begin(self, session: str, unit: str) -> None:
        """Begin a session of the unit, with counters from 0. Repeating it changes nothing."""
        self._sessions.setdefault(session, _WorkSession(unit))

    def lease(self, session: str, n: int) -> WorkLease:
        """Lease from 1 to `n` numbers that lie together: those that came back first, then new ones.

        Raises LedgerError for a session that has not begun or is over, and if n < 1.
        """
        held = self._session(session)
        if n < 1 or held.over:
            raise LedgerError(f"session {session} asks for {plural(n, 'sample')}" + (" after its end" if held.over else ""))
        taken = self._free.take(n)
        if taken is None:
            taken = (self._frontier, self._frontier + n)
            self._frontier += n
        held.ahead.append(taken)
        held.leased += taken[1] - taken[0]
        lease = WorkLease(self._next_lease, *taken)
        self._next_lease += 1
        return lease

    def leased_to(self, session: str) -> int:
        """Return samples of all leases of the session since it began. Raises LedgerError for a session that has not begun or is over."""
        held = self._session(session)
        return held.done.samples + held.leased

    def commit(self, session: str, done: UnitWork) -> UnitWork:
        """Note that the model holds this session's first `done.samples` samples. The counts are totals since the session began, so a
        repeated or late call changes nothing. Returns what is newly committed.

        A program that feeds itself counts tokens and steps and leaves the samples at 0.
        Raises LedgerError, and commits nothing, for a session that has not begun or is over, for more samples than were leased to it, and
        for more samples with fewer tokens than before.
        """
        held = self._session(session)
        before = held.done
        new = UnitWork(done.samples, done.tokens, max(done.steps, before.steps)) - before
        if new.samples < 0 or (new.samples == 0 and new.tokens <= 0 and new.steps <= 0):
            return UnitWork()
        if new.tokens < 0:
            raise LedgerError(
                f"session {session}: {plural(done.samples, 'sample')} with {plural(done.tokens, 'token')} after "
                f"{plural(before.samples, 'sample')} with {before.tokens}: totals cannot shrink"
            )
        if new.samples > held.leased:
            raise LedgerError(
                f"session {session}: {plural(done.samples, 'sample')} done, but only {before.samples + held.leased} were leased to it"
            )
        for start, end in _take_first(held, new.samples):
            self._committed.add(start, end)
        held.done = before + new
        self._set(held.unit, self.unit(held.unit) + new)
        return new

    def release(self, session: str, keep: int | None = None) -> tuple[Range, ...]:
        """End the session: what it has not committed is free. Returns those ranges in the order of the leases.

        With `keep`, the session's first `keep` samples stay leased and may still be committed. The last call is without.
        """
        held = self._sessions.get(session)
        if held is None:
            return ()
        held.over = True
        kept = _take_first(held, min(held.leased, max(0, (keep or 0) - held.done.samples)))
        freed = tuple(held.ahead)
        for start, end in freed:
            self._free.add(start, end)
        held.ahead, held.leased = deque(kept), sum(end - start for start, end in kept)
        if keep is None:
            del self._sessions[session]
        return freed

    def _session(self, session: str) -> _WorkSession:
        held = self._sessions.get(session)
        if held is None:
            raise LedgerError(f"there is no session {session}")
        return held

    # --- totals -------------------------------------------------------------------------------------------------------

    def unit(self, unit: str) -> UnitWork:
        """Return what is committed of the unit, all attempts."""
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
        """What is committed of the units that train leased samples, over all of them."""
        return self._sampled

    @property
    def usual(self) -> Usual:
        """Return what is usual among the units that have trained enough samples. Where most units that have done anything feed themselves,
        only each one's steps tell: whether a job works with samples is counted in units, since a count of tokens is what one unit can make
        up."""
        working = {unit: work for unit, work in self._units.items() if work.samples or work.tokens}
        if 2 * sum(not work.samples for work in working.values()) > len(working):
            return Usual(per_step_of={unit: work.tokens / work.steps for unit, work in working.items() if work.tokens and work.steps})
        believed = [work for work in working.values() if work.samples >= BELIEVED_SAMPLES]
        return Usual(
            lower_median([work.tokens / work.samples for work in believed]),
            lower_median([work.tokens / max(1, work.steps) for work in believed]),
        )

    def committed(self) -> tuple[Range, ...]:
        """Return all committed numbers."""
        return tuple(self._committed)

    def times_trained(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """Return [start, end) in pieces (start, end, times): 1 where committed, 0 where not. How often a *sample* was trained is the sum
        over the numbers for which `sampling.sample_indices` gives it."""
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

    def sessions_to_json(self) -> dict[str, dict[str, Any]]:
        """Return for each session what it has committed and what is leased to it, for `restore_sessions`."""
        return {
            session: {
                "unit": held.unit,
                "done": [held.done.samples, held.done.tokens, held.done.steps],
                "ahead": [list(x) for x in held.ahead],
                "over": held.over,
            }
            for session, held in self._sessions.items()
        }

    def restore_sessions(self, stored: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore what `sessions_to_json` gave, on a restored ledger: the sessions go on. Raises LedgerError for malformed or contradictory
        data."""
        try:
            for session, one in stored.items():
                held = _WorkSession(str(one["unit"]), UnitWork(*(int(x) for x in one["done"])), over=bool(one["over"]))
                for start, end in one["ahead"]:
                    if self._free.overlap(start, end) != [(start, end)]:
                        raise LedgerError(f"session {session} holds the samples {start} to {end - 1}, which are not free")
                    self._free.remove(start, end)
                    held.ahead.append((int(start), int(end)))
                    held.leased += end - start
                self._sessions[session] = held
        except LedgerError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise LedgerError(f"the ledger's sessions are incomplete or malformed: {type(e).__name__}: {e}") from e

    def to_json(self) -> dict[str, Any]:
        """Write the ledger for a snapshot. What is leased counts as free; see `sessions_to_json`."""
        return {
            "format": FORMAT,
            "frontier": self._frontier,
            "committed": [list(x) for x in self._committed],
            "units": {unit: [work.samples, work.tokens, work.steps] for unit, work in sorted(self._units.items())},
            "nextLease": self._next_lease,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Ledger:
        """Return the inverse of `to_json`; everything that was not committed is free. Raises LedgerError for malformed or contradictory
        data.

        Tokens and steps beyond MOST_WORK, which a hostile learner may have had stored, are replaced, see `repaired`.
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
        """Replace what a unit has done, and keep the sums: each push asks for them."""
        before = self.unit(unit)
        self._units[unit] = work
        self._total += work - before
        self._sampled += (work if work.samples else UnitWork()) - (before if before.samples else UnitWork())

    def _repair(self) -> None:
        """Replace the counts of units that cannot be true: tokens by what the samples of the others hold on average, steps by 0."""
        wrong = {unit for unit, work in self._units.items() if work.tokens > MOST_WORK or work.steps > MOST_WORK}
        known = sum((work for unit, work in self._units.items() if work.samples and unit not in wrong), UnitWork())
        said: list[str] = []
        for unit in sorted(wrong):
            work = self._units[unit]
            tokens = work.tokens if work.tokens <= MOST_WORK else work.samples * known.tokens // max(1, known.samples)
            self._set(unit, UnitWork(work.samples, tokens, work.steps if work.steps <= MOST_WORK else 0))
            said.append(
                f"unit {unit} cannot have trained {plural(work.tokens, 'token')} in {plural(work.steps, 'step')}: its count goes on from "
                f"{plural(tokens, 'token')}"
            )
        self.repaired = tuple(said)


def _take_first(held: _WorkSession, samples: int) -> list[Range]:
    """Remove the first `samples` leased numbers of a session that holds as many."""
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
