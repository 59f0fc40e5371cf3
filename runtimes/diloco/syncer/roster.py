"""Who may speak for which unit: identity, fencing and sessions as a pure state machine. Time and streams come in as arguments.

Identity is (job uid, unit, attempt). A newer attempt fences the older ones for good. Of one attempt only one process (session) is
taken at a time. A session whose stream breaks keeps its seat, and with it its leases, for the reconnect window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from diloco.protocol.diloco_pb2 import Refused


@dataclass(frozen=True, slots=True)
class Claim:
    """Who a stream's Hello says it is."""

    job_uid: str
    unit: str
    attempt: int
    session: bytes


@dataclass(frozen=True, slots=True)
class Denied:
    """The claim is refused."""

    code: Refused.Code
    message: str


@dataclass(frozen=True, slots=True)
class Seated:
    """The claim holds. The caller ends `displaced`, gives back the work of `released`, and makes a new fence durable."""

    seat: Seat
    known: bool
    """The seat is this session's from before: it may go on where it stopped."""
    displaced: int | None
    """Stream that spoke for the unit until now."""
    released: str | None
    """Holder whose session is over."""
    fenced: bool
    """The attempt is newer than any before."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A unit's place at the table. `holder` names the session for leases: another one for every session that is taken."""

    unit: str
    attempt: int
    session: bytes
    holder: str
    stream: int | None
    """None: the stream broke; the seat is kept until `until`."""
    until: float | None = None


class Roster:
    """All units' seats and fences. `now` is in seconds on one clock that never goes back."""

    def __init__(self, job_uid: str, fences: Mapping[str, int], reconnect_window: float) -> None:
        self._job_uid = job_uid
        self._fences = dict(fences)
        self._window = reconnect_window
        self._seats: dict[str, Seat] = {}
        self._seated = 0

    @property
    def fences(self) -> dict[str, int]:
        """Per unit the newest attempt ever seen."""
        return dict(self._fences)

    def seat(self, unit: str) -> Seat | None:
        return self._seats.get(unit)

    def join(self, claim: Claim, stream: int) -> Seated | Denied:
        """Decide on a Hello that came on `stream`."""
        if denied := self.deny(claim):
            return denied
        fence = self._fences.get(claim.unit, 0)
        before = self._seats.get(claim.unit)
        known = before is not None and before.session == claim.session and before.attempt == claim.attempt
        if known:
            assert before is not None
            holder = before.holder
        else:
            self._seated += 1
            holder = f"{claim.unit}/{claim.attempt}/{self._seated}"
        seat = Seat(claim.unit, claim.attempt, claim.session, holder, stream)
        self._seats[claim.unit] = seat
        self._fences[claim.unit] = claim.attempt
        return Seated(
            seat,
            known,
            displaced=before.stream if before else None,
            released=before.holder if before and not known else None,
            fenced=claim.attempt > fence,
        )

    def break_off(self, unit: str, stream: int, now: float) -> bool:
        """The stream broke without Bye. Whether it spoke for the unit; then the seat is kept for the reconnect window."""
        seat = self._seats.get(unit)
        if seat is None or seat.stream != stream:
            return False
        self._seats[unit] = Seat(seat.unit, seat.attempt, seat.session, seat.holder, None, now + self._window)
        return True

    def renew(self, unit: str) -> tuple[str, Seat] | None:
        """The session starts anew with nothing of what it had: (former holder, the seat with a new one)."""
        seat = self._seats.get(unit)
        if seat is None:
            return None
        self._seated += 1
        self._seats[unit] = Seat(seat.unit, seat.attempt, seat.session, f"{unit}/{seat.attempt}/{self._seated}", seat.stream, seat.until)
        return seat.holder, self._seats[unit]

    def leave(self, unit: str, stream: int) -> str | None:
        """The stream ended for good (Bye, refused). The holder whose session is over; None if the stream did not speak for the unit."""
        seat = self._seats.get(unit)
        if seat is None or seat.stream != stream:
            return None
        del self._seats[unit]
        return seat.holder

    def expire(self, now: float) -> list[Seat]:
        """Give up the seats whose session did not come back in time."""
        over = [seat for seat in self._seats.values() if seat.until is not None and seat.until <= now]
        for seat in over:
            del self._seats[seat.unit]
        return over

    def wake_at(self) -> float | None:
        """When `expire` has something to do next."""
        return min((seat.until for seat in self._seats.values() if seat.until is not None), default=None)

    def deny(self, claim: Claim) -> Denied | None:
        """Why the claim does not hold, if so; nothing changes."""
        if claim.job_uid != self._job_uid:
            return Denied(
                Refused.WRONG_JOB, f"unit {claim.unit} belongs to job uid {claim.job_uid or '(none)'}, this syncer to {self._job_uid}"
            )
        if not claim.unit or claim.attempt < 1 or not claim.session:
            return Denied(Refused.PROTOCOL, "Hello must name unit, attempt (from 1) and session")
        fence = self._fences.get(claim.unit, 0)
        if claim.attempt < fence:
            return Denied(Refused.FENCED, f"attempt {claim.attempt} of unit {claim.unit} is fenced: attempt {fence} has joined since")
        seat = self._seats.get(claim.unit)
        if seat and seat.stream is not None and seat.attempt == claim.attempt and seat.session != claim.session:
            return Denied(
                Refused.DUPLICATE_IDENTITY,
                f"another process is connected as attempt {claim.attempt} of unit {claim.unit}; each process needs an identity of its own",
            )
        return None
