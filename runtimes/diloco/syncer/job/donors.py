"""Which unit gives its state to which. Pure: time comes in as an argument.

A donor gives to one taker at a time, and a unit that has taken may give, so the donors double with each round. The nearest free donor is
named; of equally near ones, the one that has given least. A donor has at least half as many steps behind its state as any other one, and no
fewer than the taker has stored itself.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from diloco.wording import one_line, plural

SETTLE, AFTER_RESTART = 2.0, 10.0
"""Seconds after a syncer's restart. Before the first no donor is named, because units are still saying who gives to whom. Before the second
no taker is told that there is no donor, because donors are still coming back."""

_MOST_SHOWN = 300
"""Characters of a kind of state that other units are told."""


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
    """Where it runs, from far to near, with "/" between the parts. Empty if unknown."""
    steps: int = 0
    """Local steps behind its state, as far as they are known."""
    cluster: str = ""
    """The cluster in which it runs. Empty if it is the syncer's."""


@dataclass(frozen=True, slots=True)
class Taking:
    """A unit that wants the state of another one."""

    unit: str
    session: str
    """The holder of its session, which names the process."""
    kind: str
    locality: str
    round: int
    """Number of this request within the process. Each gets one answer."""
    failed: frozenset[str]
    """Units that could not give it their state."""
    steps: int = 0
    """Local steps behind the state that it has stored itself. 0 if it has stored none."""
    why: str = ""
    """Why the last donor failed, such as an 8-bit optimizer whose state cannot be handed over. Empty if none was asked."""
    cluster: str = ""
    """As in `Candidate`."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one round of a taker. Without a donor, `why` says why there is none."""

    round: int
    donor: Candidate | None
    grant: bytes = field(default=b"", repr=False)
    why: str = ""


class Donors:
    """The donors of one job and one process of the syncer."""

    def __init__(self, sync_interval: int, grant: Callable[[], bytes], restored_at: float | None) -> None:
        """
        Args:
            sync_interval: H
            grant: draws random bytes
            restored_at: when this process took the job over from an earlier one. None if the job is new
        """
        self._interval = sync_interval
        self._grant = grant
        self._from = self._until = 0.0
        """When the first donor may be named, and until when units that trained before this process began may come back."""
        if restored_at is not None:
            self._from, self._until = restored_at + SETTLE, restored_at + AFTER_RESTART
        self._waiting: dict[str, Taking] = {}
        """By unit, in the order in which they asked."""
        self._given: dict[str, tuple[Taking, Answer]] = {}
        """The last answer to each taker, by its unit."""
        self._times: dict[str, int] = {}

    def asks(self, taking: Taking) -> Answer | None:
        """Note that a unit wants a donor. Returns the answer that it has had for this round, or None: then `name` will give one."""
        last = self._given.get(taking.unit)
        if last is not None and (last[0].session, last[0].round) == (taking.session, taking.round):
            return last[1]
        self._given.pop(taking.unit, None)
        before = self._waiting.get(taking.unit)
        if before is None or (before.session, before.round) != (taking.session, taking.round):
            self._waiting[taking.unit] = taking
        return None

    def copies(self, taking: Taking, donor: Candidate) -> None:
        """Note that a unit says that it copies a donor's state. A restarted syncer learns of the grant in this way."""
        if taking.unit not in self._given:
            self._waiting.pop(taking.unit, None)
            self._given[taking.unit] = taking, Answer(taking.round, donor)

    def ends(self, unit: str) -> None:
        """Forget a unit that wants no donor any more: it has what it will get, or its session is over."""
        self._waiting.pop(unit, None)
        self._given.pop(unit, None)

    def times(self, unit: str) -> int:
        """How often the unit was named as a donor."""
        return self._times.get(unit, 0)

    def grants_of(self, unit: str) -> list[tuple[Taking, Answer]]:
        """The takers that the unit gives to now. Its process must be told them again on a new stream."""
        return [(taking, answer) for taking, answer in self._given.values() if answer.donor is not None and answer.donor.unit == unit]

    def name(
        self, candidates: Sequence[Candidate], others: Sequence[str], t: int, now: float, *, awaited: bool = True
    ) -> list[tuple[Taking, Answer]]:
        """Answer the waiting units that can be answered now.

        Args:
            candidates: joined units that contribute
            others: kinds of state of all joined units, for the reason
            t: outer steps taken
            awaited: units that trained before this process began may come back
        """
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
        """A unit waits for a donor."""
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
            candidate
            for candidate in candidates
            if candidate.kind == taking.kind
            and candidate.cluster == taking.cluster
            and candidate.addresses
            and candidate.unit not in takes
            and candidate.unit not in taking.failed
            and candidate.unit != taking.unit
        ]
        most = max((candidate.steps for candidate in able), default=0)
        # A unit that has just begun with an empty optimizer has a state, too. To take that would throw away the steps behind better ones.
        good_enough = [candidate for candidate in able if candidate.steps >= max(taking.steps, most // 2)]
        if free := [candidate for candidate in good_enough if candidate.unit not in busy]:
            nearest = min(
                free, key=lambda candidate: (-_common(candidate.locality, taking.locality), self.times(candidate.unit), candidate.unit)
            )
            return Answer(taking.round, nearest, self._grant())
        if good_enough or (awaited and now < self._until):
            return None
        if able:
            why = (
                f"the units that train have a state with {plural(most, 'local step')} behind it at most, and this unit has stored one "
                f"with {taking.steps}"
            )
            return Answer(taking.round, None, why=why)
        if taking.failed:
            reason = f"; {taking.why}" if taking.why else ""
            asked = ", ".join(sorted(taking.failed))
            return Answer(taking.round, None, why=f"of the units that train, none is left to ask after {asked}{reason}")
        kinds = sorted({_shown(kind) for kind in others if kind and kind != taking.kind})
        other_kinds = f"; others have the state of {'; '.join(kinds)}" if kinds else ""
        where = "of its cluster" if any(candidate.cluster != taking.cluster for candidate in candidates) else "that trains"
        return Answer(taking.round, None, why=f"no unit {where} has the state of {_shown(taking.kind)}{other_kinds}")


def _shown(kind: str) -> str:
    return one_line(kind, _MOST_SHOWN)


def _common(one: str, other: str) -> int:
    """How many parts from the left two localities share."""
    if not one or not other:
        return 0
    common = 0
    for part, other_part in zip(one.split("/"), other.split("/"), strict=False):
        if part != other_part:
            break
        common += 1
    return common
