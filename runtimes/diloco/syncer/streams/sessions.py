"""Which process may act for which unit: identity, fencing and sessions as a pure state machine. Time and streams come in as arguments.

A learner identifies itself by (job uid, unit, attempt). A newer attempt fences the older ones permanently. Only one process of an attempt
may be connected at a time. A session whose stream breaks stays open, with its leases, for the reconnect window.

See docs/decisions/0003-sessions-and-work.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from diloco.protocol.diloco_pb2 import Refused


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """The identity in a stream's Hello."""

    job_uid: str
    unit: str
    attempt: int
    session_id: bytes
    """Random per process (`Hello.session`)."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The process may not join. `code` and `message` go to it as `Refused`."""

    code: Refused.Code
    message: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """The process may join. The caller closes `displaced`, releases the work of `released`, and makes a new fence durable."""

    session: UnitSession
    known: bool
    """The session was open before, and may resume where it stopped."""
    displaced: int | None
    """Number of the stream that acted for the unit until now. None if there was none."""
    released: str | None
    """The holder whose session is over. None if no session has ended."""
    fenced: bool
    """The attempt is newer than all before it."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """An attempt of a unit that may not join any more."""

    attempt: int
    message: str


@dataclass(frozen=True, slots=True)
class UnitSession:
    """The session of one process that acts for a unit."""

    unit: str
    attempt: int
    session_id: bytes
    holder: str
    """Names the session in the ledger: `<unit>/<attempt>/<number>`, unique in the life of the registry."""
    stream: int | None
    """Number of the stream. None if the stream broke. Then the session stays open until `until`."""
    until: float | None = None
    ranks: dict[int, bytes] = field(default_factory=dict, compare=False)
    """The process of each follower that has joined in this session (`Hello.process`)."""


@dataclass(frozen=True, slots=True)
class StoredSessions:
    """The open sessions, apart from their streams."""

    opened: int = 0
    """How many sessions were opened so far. The number is part of a holder's name."""
    sessions: Mapping[str, UnitSession] = field(default_factory=dict)
    """By unit."""

    def to_json(self) -> dict[str, Any]:
        sessions = {unit: [session.attempt, session.session_id.hex(), session.holder] for unit, session in self.sessions.items()}
        return {"opened": self.opened, "sessions": sessions}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> StoredSessions:
        """Read the result of `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
        sessions = {
            str(unit): UnitSession(str(unit), int(attempt), bytes.fromhex(session), str(holder), None)
            for unit, (attempt, session, holder) in stored["sessions"].items()
        }
        return cls(int(stored["opened"]), sessions)

    def redo(self, kind: str, what: Mapping[str, Any]) -> StoredSessions:
        """Return the sessions after a noted change, made again. Raises KeyError, TypeError or ValueError for a malformed note."""
        sessions = dict(self.sessions)
        if kind == "join":
            unit, holder = what["unit"], what["holder"]
            sessions[unit] = UnitSession(unit, int(what["attempt"]), bytes.fromhex(what["session"]), holder, None)
            return StoredSessions(max(self.opened, int(holder.rpartition("/")[2])), sessions)
        if kind == "leave":
            sessions = {unit: session for unit, session in sessions.items() if session.holder != what["holder"]}
        return StoredSessions(self.opened, sessions)


class SessionRegistry:
    """The open sessions and the fences of all units. `now` is in seconds on one clock that never goes back."""

    def __init__(
        self,
        job_uid: str,
        fences: Mapping[str, int],
        reconnect_window: float,
        stored: StoredSessions = StoredSessions(),
        now: float = 0.0,
    ) -> None:
        """
        Args:
            fences: the newest known attempt of each unit
            reconnect_window: how long a session without a stream stays open, seconds
            stored: sessions of the process before this one. Their streams count as broken at `now`
            now: the present time
        """
        self._job_uid = job_uid
        self._fences = dict(fences)
        self._window = reconnect_window
        self._quarantined: dict[str, Quarantined] = {}
        self._sessions: dict[str, UnitSession] = {}
        self._away: dict[str, float] = {}
        """When each session without a stream ends, in this order: all stay open equally long, and the clock never goes back."""
        self._expected: dict[str, float] = {}
        """Units without a session that were told to join again, and until when they are expected."""
        self._opened = stored.opened
        for unit, session in stored.sessions.items():
            self._sessions[unit] = replace(session, stream=None, until=now + reconnect_window)
            self._away[unit] = now + reconnect_window

    @property
    def stored(self) -> StoredSessions:
        """The sessions as a snapshot holds them."""
        return StoredSessions(self._opened, dict(self._sessions))

    @property
    def fences(self) -> dict[str, int]:
        """The newest attempt of each unit that was ever seen."""
        return dict(self._fences)

    def session(self, unit: str) -> UnitSession | None:
        return self._sessions.get(unit)

    def of_stream(self, stream: int) -> UnitSession | None:
        """Return the open session of the stream, or None."""
        return next((session for session in self._sessions.values() if session.stream == stream), None)

    def join(self, request: JoinRequest, stream: int) -> Accepted | Rejected:
        """Decide on a Hello that came on `stream`, and open or resume the session if it is accepted."""
        if rejected := self.reject(request):
            return rejected
        fence = self._fences.get(request.unit, 0)
        before = self._sessions.get(request.unit)
        known = before is not None and before.session_id == request.session_id and before.attempt == request.attempt
        if known:
            assert before is not None
            holder = before.holder
        else:
            holder = self._new_holder(request.unit, request.attempt)
        ranks = before.ranks if before and known else {}
        session = UnitSession(request.unit, request.attempt, request.session_id, holder, stream, ranks=ranks)
        self._sessions[request.unit] = session
        self._away.pop(request.unit, None)
        self._expected.pop(request.unit, None)
        self._fences[request.unit] = request.attempt
        return Accepted(
            session,
            known,
            displaced=before.stream if before else None,
            released=before.holder if before and not known else None,
            fenced=request.attempt > fence,
        )

    def of_rank(self, request: JoinRequest) -> UnitSession | Rejected | None:
        """Return the session that a follower's Hello belongs to. None if its leader has not joined yet."""
        if rejected := self.reject(request):
            return rejected
        session = self._sessions.get(request.unit)
        if session is None or session.stream is None or (session.attempt, session.session_id) != (request.attempt, request.session_id):
            return None
        return session

    def stream_lost(self, unit: str, stream: int, now: float) -> bool:
        """Note that the stream broke without Bye. The session stays open for the reconnect window. False if the unit had another stream."""
        session = self._sessions.get(unit)
        if session is None or session.stream != stream:
            return False
        self._sessions[unit] = replace(session, stream=None, until=now + self._window)
        self._away[unit] = now + self._window
        return True

    def restart(self, unit: str) -> tuple[str, UnitSession] | None:
        """Let the session begin anew, without its leases. Returns (former holder, the session with a new holder). None if there is none."""
        session = self._sessions.get(unit)
        if session is None:
            return None
        self._sessions[unit] = replace(session, holder=self._new_holder(unit, session.attempt), ranks={})
        return session.holder, self._sessions[unit]

    def leave(self, unit: str, stream: int) -> str | None:
        """End the session of a stream that has ended for good (Bye, refused). Returns its holder. None if the unit had another stream."""
        session = self._sessions.get(unit)
        if session is None or session.stream != stream:
            return None
        del self._sessions[unit]
        return session.holder

    def end(self, unit: str) -> UnitSession | None:
        """End the unit's session, with or without a stream. Its process begins anew when it joins next. None if there is no session."""
        self._away.pop(unit, None)
        return self._sessions.pop(unit, None)

    def expect(self, unit: str, now: float) -> None:
        """Note that the unit, which has no session now, was told to join again."""
        self._expected[unit] = now + self._window

    def quarantine(self, unit: str, attempt: int, message: str) -> None:
        """Keep this attempt of the unit, and older ones, from joining again, as long as this process lives."""
        self._quarantined[unit] = Quarantined(attempt, message)

    def expire(self, now: float) -> list[UnitSession]:
        """Close the sessions whose reconnect window is over, and return them."""
        self._expected = {unit: until for unit, until in self._expected.items() if until > now}
        over: list[UnitSession] = []
        while self._away:
            unit, until = next(iter(self._away.items()))
            if until > now:
                break
            del self._away[unit]
            over.append(self._sessions.pop(unit))
        return over

    @property
    def any_on_its_way(self) -> bool:
        """Some unit may come back any moment: its stream has just broken, or it was told to join again."""
        return bool(self._away or self._expected)

    def wake_at(self) -> float | None:
        """Return when `expire` has something to do next. None if no session is without a stream."""
        return next(iter(self._away.values()), None)

    def reject(self, request: JoinRequest) -> Rejected | None:
        """Return why the process may not join. None if it may."""
        unit, attempt = request.unit, request.attempt
        if request.job_uid != self._job_uid:
            return Rejected(
                Refused.WRONG_JOB, f"unit {unit} belongs to job uid {request.job_uid or '(none)'}, this syncer to {self._job_uid}"
            )
        if not unit or attempt < 1 or not request.session_id:
            return Rejected(Refused.PROTOCOL, "Hello must name unit, attempt (from 1) and session")
        fence = self._fences.get(unit, 0)
        if attempt < fence:
            return Rejected(Refused.FENCED, f"attempt {attempt} of unit {unit} is fenced: attempt {fence} has joined since")
        quarantined = self._quarantined.get(unit)
        if quarantined is not None and attempt <= quarantined.attempt:
            return Rejected(Refused.QUARANTINED, quarantined.message)
        session = self._sessions.get(unit)
        if session and session.stream is not None and session.attempt == attempt and session.session_id != request.session_id:
            return Rejected(
                Refused.DUPLICATE_IDENTITY,
                f"another process is connected as attempt {attempt} of unit {unit}; each process needs an identity of its own",
            )
        return None

    def _new_holder(self, unit: str, attempt: int) -> str:
        self._opened += 1
        return f"{unit}/{attempt}/{self._opened}"
