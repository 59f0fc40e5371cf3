"""One uplink and the choice of what goes over it, on virtual time: no core, no messages, so that noise can be tried by the thousand steps.

An outer step takes a second, and there is a pull at each. The learner has its answer ready `phase` later, at the end of its own step. The
exchange is over tau + 1 outer steps after the pull. A push takes `push_seconds` on the link, and the next one is chosen while the link
still has `QUEUE_SECONDS` to carry, as the window of chunks makes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from diloco.learner.push_times import PushTimes
from diloco.protocol.window import QUEUE_SECONDS


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise of a busy machine. All are means of exponential distributions."""

    stall_seconds: float = 0.0
    """How long everything stands still at a time: steps, and the link."""
    stall_every: float = 3.0
    """Seconds between two stalls."""
    steps: float = 0.0
    """What an outer step takes longer, seconds."""
    transfers: float = 0.0
    """What a transfer takes longer, in its own length."""


class NarrowUplink:
    """A run of `steps` outer steps."""

    def __init__(self, push_seconds: float, phase: float, noise: Noise = Noise(), *, steps: int = 400, overlap_steps: int = 2) -> None:
        self._random = Random(1)
        self._push_seconds, self._noise, self._overlap = push_seconds, noise, overlap_steps
        self._stalls = self._make_stalls(2.0 * steps)
        self._steps = steps
        self._pulls = [0.0]
        for _ in range(steps + overlap_steps + 1):
            self._pulls.append(self._after(self._pulls[-1], 1.0 + self._more(noise.steps)))
        self._answers = [self._after(pull, phase) for pull in self._pulls]
        self._now = 0.0
        self._times = PushTimes(overlap_steps, lambda: self._now)
        self._heard = self._answered = 0
        self._waiting: list[int] = []

    def share(self) -> float:
        """Return the share of the exchanges for which the push arrived in time."""
        arrived, link_free_at = 0, 0.0
        while (t := self._choose()) is not None:
            over_at = self._pulls[t + self._overlap + 1]
            begun = max(self._now, link_free_at)
            there = self._after(begun, self._push_seconds * (1 + self._more(self._noise.transfers)))
            chosen = self._now
            link_free_at = min(there, over_at + QUEUE_SECONDS)
            self._hear(max(self._now, link_free_at - QUEUE_SECONDS))
            arrived += there <= over_at
            if there <= link_free_at:
                self._times.took(there - chosen)
            else:
                self._times.given_up_after(over_at - chosen)
        return arrived / self._steps

    def _choose(self) -> int | None:
        """The exchange of the next push, now or as soon as there is one; None: the run is over."""
        while True:
            if self._waiting:
                t = self._waiting[-1]
                if self._times.worth_sending(t):
                    self._waiting.remove(t)
                    return t
                self._waiting.clear()
            elif self._answered == self._steps:
                return None
            else:
                self._hear(self._answers[self._answered])

    def _hear(self, until: float) -> None:
        """What comes up to then, in order."""
        while True:
            pull, answer = self._pulls[self._heard], self._answers[self._answered]
            if min(pull, answer) > until or self._answered == self._steps:
                break
            self._now = max(self._now, min(pull, answer))
            if pull <= answer:
                self._times.clock(self._heard)
                self._heard += 1
            else:
                self._times.added(self._answered)
                self._waiting.append(self._answered)
                self._answered += 1
        self._now = until
        self._waiting = [t for t in self._waiting if t + self._overlap + 1 >= self._heard][-self._overlap :]

    def _more(self, mean: float) -> float:
        return self._random.expovariate(1 / mean) if mean else 0.0

    def _make_stalls(self, until: float) -> list[tuple[float, float]]:
        stalls: list[tuple[float, float]] = []
        end = 0.0
        while self._noise.stall_seconds and end < until:
            begin = end + self._more(self._noise.stall_every)
            end = begin + self._more(self._noise.stall_seconds)
            stalls.append((begin, end))
        return stalls

    def _after(self, begin: float, seconds: float) -> float:
        """When is done what takes so long and begins then."""
        end = begin + seconds
        for stalled, going_on in self._stalls:
            if stalled >= end:
                break
            end += max(0.0, going_on - max(begin, stalled))
        return end
