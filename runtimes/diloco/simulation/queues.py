"""What waits for a link, and what goes next: to a unit as in `syncer.streams.outgoing`, from it as in `learner.outbox`.

See docs/decisions/0209-simulator.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from diloco.learner.push_times import PushTimes


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a fragment that waits."""

    fragment: int
    bits: float
    delta: bool
    """Against the one before; else its whole value."""
    arrived: Callable[[], None]
    begun: Callable[[], None] = lambda: None
    """To be called when its turn comes."""
    joins: bool = False
    """The unit waits for it, to join."""

    def newer(self, arrived: Callable[[], None]) -> Version:
        """Return the same with a newer value, of which is said as well that it has arrived."""
        before = self.arrived

        def both() -> None:
            arrived()
            before()

        return replace(self, arrived=both)


class Broadcasts:
    """What one unit is to be sent. Deltas of a fragment wait up to the size of its whole value, which then takes their place."""

    def __init__(self, delta: float, whole: float) -> None:
        """Begin with the bits of a delta and of a whole value."""
        self._delta = delta
        self._whole = whole
        self._waiting: dict[int, list[Version]] = {}
        """By fragment, in the order in which fragments began to wait."""
        self._favour = 0.0
        """Bits that fragments one delta behind had more than the others, while both waited."""
        self._pulls: dict[int, tuple[int, Callable[[], None]]] = {}
        """By fragment, outer step of the pull that waits for it."""
        self.under_way: int | None = None
        """The fragment that is being sent."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def waits(self, fragment: int) -> bool:
        """Return whether a version of the fragment waits or is under way."""
        return fragment == self.under_way or fragment in self._waiting

    def add(self, fragment: int, t: int, arrived: Callable[[], None]) -> None:
        """Add a new version. A pull that waits for the fragment is dropped: its exchange is over."""
        if fragment in self._pulls and self._pulls[fragment][0] <= t:
            del self._pulls[fragment]
        waiting = self._waiting.setdefault(fragment, [])
        if all(version.delta for version in waiting) and (len(waiting) + 1) * self._delta <= self._whole:
            waiting.append(Version(fragment, self._delta, True, arrived))
        else:
            first = waiting[0] if waiting and waiting[0].joins else None
            waiting[:] = [Version(fragment, self._whole, False, arrived) if first is None else first.newer(arrived)]

    def add_whole(self, fragment: int, begun: Callable[[], None], arrived: Callable[[], None]) -> None:
        """Add the whole value for a unit that joins; `begun`: when the newest one is on its way."""
        self._waiting[fragment] = [Version(fragment, self._whole, False, arrived, begun, joins=True)]

    def hold(self, fragment: int, t: int, overlap_steps: int, heard: Callable[[], None]) -> None:
        """Let a pull of the fragment wait until the unit has been sent its newest version. Those that are over are dropped."""
        self._pulls = {p: pull for p, pull in self._pulls.items() if pull[0] >= t - overlap_steps}
        self._pulls[fragment] = (t, heard)

    def released(self, fragment: int) -> Callable[[], None] | None:
        """Return the pull that has waited for the fragment, if nothing of that waits any more."""
        return None if self.waits(fragment) or fragment not in self._pulls else self._pulls.pop(fragment)[1]

    def choose(self) -> Version:
        """Return the next one. While fragments that are one delta behind and others wait, each kind gets half of the bits."""
        current = [p for p, waiting in self._waiting.items() if len(waiting) == 1 and waiting[0].delta]
        behind = [p for p, waiting in self._waiting.items() if len(waiting) > 1 or not waiting[0].delta]
        cheap = bool(current) and not (behind and self._favour > 0)
        fragment = current[0] if cheap else behind[0]
        chosen = self._waiting[fragment].pop(0)
        if not self._waiting[fragment]:
            del self._waiting[fragment]
        self._favour = self._favour + (chosen.bits if cheap else -chosen.bits) if current and behind else 0.0
        self.under_way = fragment
        return chosen


@dataclass(slots=True)
class Answer:
    """An answer that waits or is under way."""

    t: int
    fragment: int
    arrived: Callable[[], None]
    begun_at: float = 0.0


class Answers:
    """What one unit is to send. The newest goes first; what is over is dropped, and no answer begins that is better left."""

    def __init__(self, overlap_steps: int, now: Callable[[], float]) -> None:
        """Begin with tau, and a clock in seconds."""
        self._overlap_steps = overlap_steps
        self._now = now
        self._times = PushTimes(overlap_steps, now)
        self._waiting: list[Answer] = []
        self.under_way: Answer | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, answer: Answer) -> None:
        """Add an answer. The oldest are dropped if too many wait."""
        self._times.added(answer.t)
        self._waiting.append(answer)
        most = self._overlap_steps + (self.under_way is None or not self._overlap_steps)
        del self._waiting[: max(0, len(self._waiting) - most)]

    def choose(self) -> Answer | None:
        """Return what goes next; None: it is better to wait for the next answer."""
        if not self._waiting:
            return None
        chosen = self._waiting[-1]
        if not self._times.worth_sending(chosen.t):
            self._waiting.clear()  # the others are older
            return None
        self._waiting.pop()
        chosen.begun_at = self._now()
        self.under_way = chosen
        return chosen

    def took(self, answer: Answer) -> None:
        """Note that the unit knows that this one has arrived."""
        self._times.took(self._now() - answer.begun_at)

    def at_step(self, t: int) -> bool:
        """Drop what is over at outer step t, of which the unit has heard. True: what is under way is over, too."""
        self._times.clock(t)
        return self._drop(lambda answer: answer.t + self._overlap_steps < t)

    def merged(self, fragment: int, t: int) -> bool:
        """Drop what is over once version t of the fragment has come. True: what is under way is over, too."""
        return self._drop(lambda answer: answer.t + self._overlap_steps < t or (answer.fragment == fragment and answer.t <= t))

    def _drop(self, is_over: Callable[[Answer], bool]) -> bool:
        self._waiting = [answer for answer in self._waiting if not is_over(answer)]
        if self.under_way is None or not is_over(self.under_way):
            return False
        self._times.given_up_after(self._now() - self.under_way.begun_at)
        self.under_way = None
        return True
