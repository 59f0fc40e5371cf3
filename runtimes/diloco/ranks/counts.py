"""The counters of a unit's work. They are known only when every rank has said how many tokens it trained. Pure.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace

from diloco.learner.push_header import PushCounts
from diloco.learner.unit_plan import UnitState


@dataclass(frozen=True, slots=True)
class _Open:
    """A read whose counters are not known yet."""

    step: int
    """The local step after which the fragment is read."""
    since: int
    """The local step after which it was adopted last."""
    began: int
    """The local step after which the generation began."""
    fragment: int
    t: int


@dataclass(frozen=True, slots=True)
class _Mark:
    """Totals up to a local step."""

    tokens: int = 0
    """The tokens of all ranks."""
    samples: int = 0
    """The unit's samples that were dealt in the newest generation."""


class Counts:
    """Tokens of all ranks and samples of the unit, by local step."""

    def __init__(self, ranks: int, fragments: int) -> None:
        """`ranks`: how many ranks train samples of their own."""
        self._ahead: list[deque[tuple[int, float]]] = [deque() for _ in range(ranks)]
        """For each rank (tokens, loss) of the steps that not all ranks have counted."""
        self._trained: deque[int] = deque()
        """The unit's samples in each of these steps."""
        self._adopted = [0] * fragments
        self._began = 0
        self._open: deque[_Open] = deque()
        self._marks: dict[int, _Mark] = {0: _Mark()}
        """By local step, for all steps at which a counter may begin or end."""
        self.loss = math.nan
        """The loss of the last counted step, the mean over the tokens of the ranks that gave one. NaN if none did."""
        self.step = 0
        """Local steps that all ranks have counted."""

    def stepped(self, rank: int, tokens: int, loss: float = math.nan) -> None:
        """Count the rank's next local step. `loss` is the mean over its tokens, or NaN if unknown."""
        self._ahead[rank].append((tokens, loss))
        self._count()

    def trained(self, samples: int) -> None:
        """Count the samples that the unit trains in its next local step."""
        self._trained.append(samples)
        self._count()

    def adopted(self, fragment: int, step: int) -> None:
        """Note that the fragment is adopted after this local step, which some ranks may not have counted yet."""
        self._adopted[fragment] = step

    def began(self, step: int) -> None:
        """Note that a generation begins. Samples count anew from now on, tokens and steps after this local step."""
        self._began = step
        self._trained = deque(0 for _ in self._trained)
        self._marks[self.step] = _Mark(self._marks[self.step].tokens)

    def read(self, fragment: int, t: int, step: int) -> None:
        """Note that the fragment is read after this local step."""
        self._open.append(_Open(step, self._adopted[fragment], self._began, fragment, t))

    def ready(self) -> list[PushCounts]:
        """Return the pushes whose counters are known by now, each given once, in the order of their reads.

        Pushes of an older generation are left out, because the syncer does not wait for them.
        """
        ready: list[PushCounts] = []
        while self._open and self._open[0].step <= self.step:
            read = self._open.popleft()
            if read.began != self._began:
                continue
            total = self._marks[read.step]
            ready.append(
                PushCounts(
                    read.fragment,
                    read.t,
                    read.step - read.since,
                    total.tokens - self._marks[read.since].tokens,
                    total.samples,
                    total.tokens - self._marks[read.began].tokens,
                    read.step - read.began,
                )
            )
        wanted = self._wanted()
        self._marks = {step: mark for step, mark in self._marks.items() if step in wanted or step == self.step}
        return ready

    def reached(self, state: UnitState) -> UnitState:
        """Return the unit's counters after the last local step that all ranks have counted. `state` has the other fields.

        A fragment that is adopted after a later step counts as trained for 0 steps.
        """
        now = self._marks[self.step]
        since = [min(step, self.step) for step in self._adopted]
        return replace(
            state,
            step=self.step,
            fragment_steps=tuple(self.step - step for step in since),
            fragment_tokens=tuple(now.tokens - self._marks[step].tokens for step in since),
            samples_done=now.samples,
            tokens_done=now.tokens - self._marks[min(self._began, self.step)].tokens,
        )

    def _count(self) -> None:
        while self._trained and all(self._ahead):
            before = self._marks[self.step]
            ranks = [ahead.popleft() for ahead in self._ahead]
            tokens = sum(of_rank for of_rank, _ in ranks)
            self.loss = _mean([counted for counted in ranks if not math.isnan(counted[1])])
            if self.step not in self._wanted():
                del self._marks[self.step]
            self.step += 1
            self._marks[self.step] = _Mark(before.tokens + tokens, before.samples + self._trained.popleft())

    def _wanted(self) -> set[int]:
        return {self._began, *self._adopted, *(at for read in self._open for at in (read.step, read.since, read.began))}


def _mean(losses: list[tuple[int, float]]) -> float:
    total = sum(tokens for tokens, _ in losses)
    return sum(tokens * loss for tokens, loss in losses) / total if total else math.nan
