"""The work of the sessions: what is leased to each, which of it the model holds, and what is sent again after a reconnect.

See docs/decisions/0003-sessions-and-work.md.
See docs/decisions/0153-guards.md.
See docs/decisions/0247-commit-records.md.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from diloco.algorithm.commit import Commit
from diloco.algorithm.events import Offer
from diloco.data.ledger import MOST_WORK, Ledger, LedgerError, UnitWork
from diloco.data.watermark import Watermark
from diloco.protocol.diloco_pb2 import Chunk
from diloco.syncer.streams.sessions import UnitSession
from diloco.wording import one_line, plural

MOST_SAMPLES = 1 << 24
"""Upper bound of the samples that one request for work leases."""
MOST_LEASES = 1 << 16
"""Upper bound of the leases of one session that are not committed: with 8 batches a lease, half a million local steps."""

MOST_TOKENS_RATIO = 1000
"""Tokens per sample of a session, at most, over those of the samples that the job has trained, on average."""
ENOUGH_SAMPLES = 1024
"""Trained samples from which on their average counts as known."""

COUNTED_MORE = 6.0
"""In a weight, S samples count for at most the tokens of S + 6 sqrt(S) usual ones: three standard deviations of the sum of S samples, if
the standard deviation of one is twice the mean. Samples as uneven as a lognormal of sigma 1.2 have 1.8."""

FED_MORE = 2.0
"""In a weight, if most units feed themselves, a unit's step counts for at most this many times the tokens of a step of the other units."""

_MOST_DATA = 100
"""Characters that are kept of `data`, with which a unit says what its sequence numbers stand for."""

type Lease = tuple[int, int, int]
"""(lease id, start, end) of the sequence numbers [start, end)."""


@dataclass(slots=True)
class UncommittedLeases:
    """Leases of one session that are not committed. After a reconnect the syncer sends again what the learner did not receive."""

    leases: deque[tuple[int, int, int, int]] = field(default_factory=deque)
    """(samples leased up to the end of this lease, lease id, start, end)"""
    samples: int = 0
    """Samples of all leases of the session."""

    def add(self, lease: int, start: int, end: int) -> None:
        self.samples += end - start
        self.leases.append((self.samples, lease, start, end))

    def committed(self, samples: int) -> None:
        """Forget the leases that end within the session's first `samples` samples, which are committed."""
        while self.leases and self.leases[0][0] <= samples:
            self.leases.popleft()

    def after(self, samples: int) -> list[Lease]:
        """Return the leases that end beyond the session's first `samples` samples."""
        return [(lease, start, end) for upto, lease, start, end in self.leases if upto > samples]


@dataclass(slots=True)
class _SessionWork:
    watermark: Watermark
    leases: UncommittedLeases = field(default_factory=UncommittedLeases)
    over: bool = False
    """The session has ended, and one of its contributions waits for its merge."""
    unit: str = ""
    data: str = ""
    """What the unit's sequence numbers stand for. Empty if the unit has not told this process."""


class Notes(Protocol):
    """Writes down what happens, see `TapeWriter.note`."""

    def __call__(self, kind: str, **what: Any) -> None: ...


def unnoted(kind: str, **what: Any) -> None:
    """A `Notes` for work that is not written down."""


class JobWork:
    """The ledger, and what each session has leased and contributed. Sessions are named by their holder.

    Each change of leases is noted, so that the changes after a snapshot can be made again (`redo`).
    """

    def __init__(self, ledger: Ledger, fragments: int, stored: Mapping[str, Any] | None = None) -> None:
        """`stored`: sessions that go on, a result of `to_json` from the same moment as the ledger. Raises LedgerError for anything else."""
        self.ledger = ledger
        self.note: Notes = unnoted
        self._fragments = fragments
        self._sessions: dict[str, _SessionWork] = {}
        self._usual = ledger.usual
        if stored is not None:
            self._restore(stored)

    # --- leases -------------------------------------------------------------------------------------------------------

    def begin(self, session: UnitSession) -> None:
        """Begin the session's work. A second call changes nothing."""
        if session.holder not in self._sessions:
            self.note("join", unit=session.unit, attempt=session.attempt, session=session.session_id.hex(), holder=session.holder)
        self._begin(session.holder, session.unit)

    def _begin(self, holder: str, unit: str) -> None:
        self.ledger.begin(holder, unit)
        self._sessions.setdefault(holder, _SessionWork(Watermark(self._fragments)))

    def lease(self, session: UnitSession, samples: int) -> Iterator[Lease]:
        """Yield leases of `samples` samples, at most MOST_SAMPLES."""
        left = min(samples, MOST_SAMPLES)
        leases = self._sessions[session.holder].leases
        while left > 0:
            lease = self.ledger.lease(session.holder, left)
            leases.add(lease.id, lease.start, lease.end)
            self.note("lease", holder=session.holder, lease=lease.id, start=lease.start, end=lease.end)
            yield lease.id, lease.start, lease.end
            left -= lease.end - lease.start

    def leased_to(self, session: UnitSession) -> int:
        """Return the samples of all leases of the session. 0 if it is over, or has not begun."""
        held = self._sessions.get(session.holder)
        return held.leases.samples if held is not None else 0

    def too_many(self, session: UnitSession) -> str:
        """Return why the session may lease no more, or ""."""
        held = len(self._sessions[session.holder].leases.leases)
        return f"unit {session.unit} asks for more work and holds {held} leases that are not committed" if held >= MOST_LEASES else ""

    def other_data(self, session: UnitSession, data: str) -> str:
        """Return why the unit's samples are not those of the other units, or "". `data` says what its sequence numbers stand for, or ""."""
        data = one_line(data, _MOST_DATA)
        own = self._sessions[session.holder]
        for other in self._sessions.values():
            if data and other.data not in ("", data) and other.unit != session.unit and not other.over:
                return (
                    f"unit {session.unit} takes sequence numbers for {data}, and unit {other.unit} for {other.data}: samples would be "
                    "trained twice or never. Give every unit the same samples, seed and number of shards"
                )
        own.unit, own.data = session.unit, data or own.data
        return ""

    def unreceived(self, session: UnitSession, samples_leased: int) -> list[Lease]:
        """Return the leases that a learner lacks that has received leases of `samples_leased` samples."""
        return self._sessions[session.holder].leases.after(samples_leased)

    # --- contributions ------------------------------------------------------------------------------------------------

    def contradiction(self, session: UnitSession, header: Chunk) -> str:
        """Return why the counters of a push cannot be true, or "". Must be asked before the push is used for anything."""
        done = UnitWork(header.samples_done, header.tokens_done, header.steps_done)
        leased = self.ledger.leased_to(session.holder)
        why = ""
        if done.samples > leased:
            why = f"{plural(done.samples, 'sample')} done, but only {leased} were leased to it"
        elif header.tokens > done.tokens or header.steps > done.steps:
            why = (
                f"{plural(header.tokens, 'token')} in {plural(header.steps, 'step')} since it adopted the fragment, but only {done.tokens} "
                f"in {done.steps} since it joined"
            )
        else:
            why = self._sessions[session.holder].watermark.contradiction(done) or self._beyond(session, done)
        return f"fragment {header.fragment} of outer step {header.t} from unit {session.unit} cannot be true: {why}" if why else ""

    def _beyond(self, session: UnitSession, done: UnitWork) -> str:
        """Return why the totals are more than any program could reach, or ""."""
        before = self.ledger.unit(session.unit)
        if self.ledger.tokens + done.tokens > MOST_WORK or before.steps + done.steps > MOST_WORK:
            return f"{plural(done.tokens, 'token')} in {plural(done.steps, 'step')} with what was done before are more than {MOST_WORK}"
        sampled = self.ledger.sampled
        if not done.samples or sampled.samples < ENOUGH_SAMPLES:
            return ""
        most = MOST_TOKENS_RATIO * done.samples * sampled.tokens // sampled.samples
        if 0 < most < done.tokens:
            return (
                f"{plural(done.tokens, 'token')} in {plural(done.samples, 'sample')}, of which the job has trained {sampled.samples} with "
                f"{plural(sampled.tokens, 'token')}"
            )
        return ""

    def contradiction_of(self, offer: Offer) -> str:
        """Return why an admitted answer's totals cannot be true, given what its session had accepted since. "" if they can, or the session
        is over."""
        marks = offer.marks
        work = self._sessions.get(marks.session)
        why = work.watermark.contradiction(UnitWork(marks.samples, marks.tokens, marks.steps)) if work is not None else ""
        return f"fragment {offer.fragment} of outer step {offer.t} cannot be true: {why}" if why else ""

    def countable_tokens(self, unit: str, offer: Offer) -> float:
        """Return how many tokens of an answer may count in its weight, a positive number.

        - For a session with samples: what its samples since its last contribution to the fragment can hold.
        - For a session without samples: what its steps hold at the usual tokens per step of the units that have some.
        - If most units feed themselves: `FED_MORE` times what its steps hold at the other units' tokens per step.
        - If that is not known, because the job has only begun or the unit is alone: infinity.
        """
        marks, usual = offer.marks, self._usual
        work = self._sessions.get(marks.session)
        if work is None or not usual.tokens_per_sample:
            return FED_MORE * usual.per_step_of_others(unit) * offer.steps or math.inf
        if not marks.samples:
            return usual.tokens_per_step * offer.steps
        # A program that sometimes feeds itself has steps without new samples. It gets one sample then, which is next to nothing.
        samples = max(1, marks.samples - work.watermark.merged(offer.fragment).samples)
        return usual.tokens_per_sample * (samples + COUNTED_MORE * math.sqrt(samples))

    def offered(self, offer: Offer) -> None:
        """Note that the push was accepted and will be in the merge of its exchange."""
        marks = offer.marks
        done = UnitWork(marks.samples, marks.tokens, marks.steps)
        self._sessions[marks.session].watermark.offered(offer.fragment, offer.t, done)

    def merged_at(self, session: UnitSession, p: int) -> int:
        """Return the outer step of the last merge of fragment `p` that contains a contribution of the session. 0 if there is none, or the
        session is over."""
        work = self._sessions.get(session.holder)
        return work.watermark.merged_at(p) if work is not None else 0

    def closed(self, p: int, t: int, sessions: Collection[str]) -> None:
        """Note that the exchange of fragment `p` at outer step `t` is over, and commit the work that all fragments have merged by now.

        `sessions` are those whose contributions were merged. None: the exchange was skipped, and the fragment is as it was.
        """
        for holder, work in list(self._sessions.items()):
            if not work.watermark.closed(p, t, merged=holder in sessions):
                continue
            self._commit(holder, work)
            if work.over:
                self.end(holder)
        self._usual = self.ledger.usual

    def _commit(self, holder: str, work: _SessionWork) -> None:
        committed = work.watermark.committed
        self.ledger.commit(holder, committed)
        work.leases.committed(committed.samples)

    # --- the end ------------------------------------------------------------------------------------------------------

    def end(self, holder: str) -> int:
        """End the session. The part of its work that the model can no longer hold is free again; returns how many samples that is.

        An accepted contribution stands, and the samples that it may still commit stay leased until its exchange is over.
        """
        work = self._sessions.get(holder)
        if work is None:
            return 0
        work.over = True
        keep = work.watermark.reachable.samples if work.watermark.waits else None
        self.note("leave", holder=holder, keep=keep)
        return self._release(holder, keep)

    def _release(self, holder: str, keep: int | None) -> int:
        """Free what is beyond the session's first `keep` samples. None frees everything and forgets the session."""
        freed = self.ledger.release(holder, keep=keep)
        if keep is None:
            del self._sessions[holder]
        return sum(end - start for start, end in freed)

    # --- storing ------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return the sessions, which the ledger's own JSON lacks. Contributions that wait for their merge are lost with the process."""
        of_ledger = self.ledger.sessions_to_json()
        return {
            holder: {
                **of_ledger[holder],
                "watermark": work.watermark.to_json(),
                "leases": [list(lease) for lease in work.leases.leases],
                "samples": work.leases.samples,
            }
            for holder, work in self._sessions.items()
        }

    def _restore(self, stored: Mapping[str, Any]) -> None:
        self.ledger.restore_sessions(stored)
        try:
            for holder, session in stored.items():
                leases = UncommittedLeases(samples=int(session["samples"]))
                for upto, lease, start, end in session["leases"]:
                    leases.leases.append((int(upto), int(lease), int(start), int(end)))
                self._sessions[holder] = _SessionWork(Watermark(self._fragments, session["watermark"]), leases, bool(session["over"]))
        except (KeyError, TypeError, ValueError) as e:
            raise LedgerError(f"the work of the sessions is incomplete or malformed: {type(e).__name__}: {e}") from e

    def redo(self, kind: str, what: Mapping[str, Any]) -> None:
        """Make a noted change of leases again, and ignore notes of other kinds. Raises LedgerError for a change that does not follow."""
        try:
            match kind:
                case "join":
                    self._begin(what["holder"], what["unit"])
                case "lease":
                    lease = self.ledger.lease(what["holder"], what["end"] - what["start"])
                    if (lease.id, lease.start, lease.end) != (what["lease"], what["start"], what["end"]):
                        raise LedgerError(
                            f"lease {what['lease']} of session {what['holder']} is another one when it is made again: {lease}"
                        )
                    self._sessions[what["holder"]].leases.add(lease.id, lease.start, lease.end)
                case "leave":
                    self._sessions[what["holder"]].over = True
                    self._release(what["holder"], what["keep"])
        except KeyError as e:
            raise LedgerError(f"what was noted of the work ({kind}) does not follow on the state: {e} is missing") from e

    def redo_merge(self, commit: Commit) -> None:
        """Commit again what a merge has committed. Raises LedgerError if the sessions do not hold it."""
        for unit, contribution in commit.given.items():
            marks = contribution.marks
            work = self._sessions.get(marks.session)
            if work is None:
                raise LedgerError(
                    f"the merge of outer step {commit.t} holds work of session {marks.session} of unit {unit}, which is not there"
                )
            work.watermark.offered(commit.fragment, commit.t, UnitWork(marks.samples, marks.tokens, marks.steps))
            work.watermark.closed(commit.fragment, commit.t, merged=True)
            self._commit(marks.session, work)
        self._usual = self.ledger.usual

    def settle(self, *, all_sessions: bool) -> None:
        """Release the sessions that a process before has left behind, and note it: without that, the next process could not make the leases
        again that come after.

        What waited for a merge will not come, so sessions that are over are released. With `all_sessions` the open ones are, too, because
        their learners hold something else than this state.
        """
        for holder, work in list(self._sessions.items()):
            if work.over or all_sessions:
                self.note("leave", holder=holder, keep=None)
                self._release(holder, None)
