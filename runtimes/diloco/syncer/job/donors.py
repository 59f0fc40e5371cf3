"""Which unit gives its state to which. Pure: time comes in as an argument.

A donor gives to one taker at a time, and who has taken may give: of many takers half are served in each round. Of the free donors the
nearest one is named, and of those the one that has given least. A donor has at least half as many steps behind its state as any other one,
and no fewer than what the taker has stored itself.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from diloco.wording import plural

SETTLE, AFTER_RESTART = 2.0, 10.0
"""After a syncer's start, seconds: before the first no donor is named, as units say only now who gives to whom; before the second it is not
said that there is none, as donors come back."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A unit that could give its state."""

    unit: str
    attempt: int
    addresses: tuple[str, ...]
    """Where its processes serve, rank 0 first."""
    kind: str
    """Kind of its state."""
    locality: str = ""
    """From far to near, parts divided by "/"."""
    steps: int = 0
    """Local steps behind its state, as far as they are known."""


@dataclass(frozen=True, slots=True)
class Taking:
    """A unit that wants the state of another one."""

    unit: str
    session: str
    """Names the process in its session."""
    kind: str
    locality: str
    round: int
    """Number within this process; a donor is named once for each."""
    failed: frozenset[str]
    """Units that could not give it theirs."""
    steps: int = 0
    """Local steps behind what it has stored itself; 0: nothing."""
    why: str = ""
    """Why the last of them could not, such as an optimizer in 8 bits whose state cannot be handed over; "": none was asked."""


@dataclass(frozen=True, slots=True)
class Answer:
    """To one round of a taker. Without a donor `why` says why there is none."""

    round: int
    donor: Candidate | None
    grant: bytes = field(default=b"", repr=False)
    why: str = ""


class Donors:
    """The donors of one job and one process of the syncer."""

    def __init__(self, sync_interval: int, grant: Callable[[], bytes], restored_at: float | None) -> None:
        """Begin with `sync_interval`: H. `grant` draws random bytes. `restored_at`: when this process went on with a job; None: it began
        one."""
        self._interval = sync_interval
        self._grant = grant
        self._from, self._until = (0.0, 0.0) if restored_at is None else (restored_at + SETTLE, restored_at + AFTER_RESTART)
        self._waiting: dict[str, Taking] = {}
        """By unit, in the order in which they asked."""
        self._given: dict[str, tuple[Taking, Answer]] = {}
        """By taker what it was answered last."""
        self._times: dict[str, int] = {}

    def asks(self, taking: Taking) -> Answer | None:
        """Note that a unit wants a donor. Returns the answer that it has had already for this round, or None: one comes with `name`."""
        said = self._given.get(taking.unit)
        if said is not None and (said[0].session, said[0].round) == (taking.session, taking.round):
            return said[1]
        self._given.pop(taking.unit, None)
        before = self._waiting.get(taking.unit)
        if before is None or (before.session, before.round) != (taking.session, taking.round):
            self._waiting[taking.unit] = taking
        return None

    def copies(self, taking: Taking, donor: Candidate) -> None:
        """Note that a unit says that it copies a donor's state: a syncer that has started meanwhile does not know it."""
        if taking.unit not in self._given:
            self._waiting.pop(taking.unit, None)
            self._given[taking.unit] = taking, Answer(taking.round, donor)

    def ends(self, unit: str) -> None:
        """Forget the unit, which wants no donor any more: it has what it will get, or its session is over."""
        self._waiting.pop(unit, None)
        self._given.pop(unit, None)

    def times(self, unit: str) -> int:
        """How often the unit was named as a donor."""
        return self._times.get(unit, 0)

    def grants_of(self, unit: str) -> list[tuple[Taking, Answer]]:
        """To whom the unit gives now: what a process of it must be told again on a new stream."""
        return [(taking, answer) for taking, answer in self._given.values() if answer.donor is not None and answer.donor.unit == unit]

    def name(
        self, candidates: Sequence[Candidate], others: Sequence[str], t: int, now: float, *, awaited: bool = True
    ) -> list[tuple[Taking, Answer]]:
        """Answer those who wait and can be answered. `candidates`: joined units that contribute. `others`: kinds of state of all joined
        units, for the reason. `t`: outer steps taken. `awaited`: units may come back that trained before this process began."""
        answered = []
        for taking in list(self._waiting.values()):
            if (answer := self._answer(taking, candidates, others, t, now, awaited=awaited)) is not None:
                del self._waiting[taking.unit]
                self._given[taking.unit] = taking, answer
                answered.append((taking, answer))
                if answer.donor is not None:
                    self._times[answer.donor.unit] = self.times(answer.donor.unit) + 1
        return answered

    @property
    def waiting(self) -> bool:
        """Whether `name` has something to do."""
        return bool(self._waiting)

    def _answer(
        self, taking: Taking, candidates: Sequence[Candidate], others: Sequence[str], t: int, now: float, *, awaited: bool
    ) -> Answer | None:
        if now < self._from:
            return None
        if t <= self._interval:
            return Answer(
                taking.round, None, why=f"the job is at outer step {t}: no unit has trained for a whole interval of {self._interval}"
            )
        busy = {answer.donor.unit for _, answer in self._given.values() if answer.donor is not None}
        takes = self._waiting.keys() | self._given.keys()
        able = [
            one
            for one in candidates
            if one.kind == taking.kind
            and one.addresses
            and one.unit not in takes
            and one.unit not in taking.failed
            and one.unit != taking.unit
        ]
        most = max((one.steps for one in able), default=0)
        # A unit that has just begun empty has a state, too: to take it would throw away what others, or this unit, have behind theirs.
        worth = [one for one in able if one.steps >= max(taking.steps, most // 2)]
        if free := [one for one in worth if one.unit not in busy]:
            nearest = min(free, key=lambda one: (-_common(one.locality, taking.locality), self.times(one.unit), one.unit))
            return Answer(taking.round, nearest, self._grant())
        if worth or (awaited and now < self._until):
            return None
        if able:
            why = (
                f"the units that train have a state with {plural(most, 'local step')} behind it at most, and this unit has stored one with"
            )
            return Answer(taking.round, None, why=f"{why} {taking.steps}")
        if taking.failed:
            reason = f"; {taking.why}" if taking.why else ""
            asked = ", ".join(sorted(taking.failed))
            return Answer(taking.round, None, why=f"of the units that train, none is left to ask after {asked}{reason}")
        kinds = sorted({kind for kind in others if kind and kind != taking.kind})
        differs = f"; others have the state of {'; '.join(kinds)}" if kinds else ""
        return Answer(taking.round, None, why=f"no unit that trains has the state of {taking.kind}{differs}")


def _common(one: str, other: str) -> int:
    """How many parts from the left two localities share."""
    parts = list(zip(one.split("/"), other.split("/"), strict=False)) if one and other else []
    return next((index for index, (a, b) in enumerate(parts) if a != b), len(parts))
