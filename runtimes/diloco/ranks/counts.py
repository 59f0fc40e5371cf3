"""The counters that a unit says of its work: they are known only when every rank has said how many tokens it trained. Pure.

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
    step: int
    since: int
    began: int
    fragment: int
    t: int


@dataclass(frozen=True, slots=True)
class _Mark:
    tokens: int = 0
    """The tokens of all ranks up to a local step."""
    samples: int = 0
    """The samples of the unit, those dealt in the newest generation."""


class Counts:
    """Tokens of all ranks and samples of the unit, by local step."""

    def __init__(self, ranks: int, fragments: int) -> None:
        """Begin with `ranks`: those that train samples of their own."""
        self._ahead: list[deque[tuple[int, float]]] = [deque() for _ in range(ranks)]
        self._trained: deque[int] = deque()
        self._adopted = [0] * fragments
        self._began = 0
        self._open: deque[_Open] = deque()
        self._marks: dict[int, _Mark] = {0: _Mark()}
        """For the local steps that a counter may begin at or end with."""
        self.loss = math.nan
        """The loss of the last counted step, the mean over the tokens of the ranks that said one; NaN: none did."""
        self.step = 0
        """Local steps that all ranks have counted."""

    def stepped(self, rank: int, tokens: int, loss: float = math.nan) -> None:
        """Count the rank's next local step, with so many tokens. `loss`: the mean over them, NaN if it is not known."""
        self._ahead[rank].append((tokens, loss))
        self._count()

    def trained(self, samples: int) -> None:
        """Count so many samples that the unit trains in its next local step."""
        self._trained.append(samples)
        self._count()

    def adopted(self, fragment: int, step: int) -> None:
        """Note that the fragment is adopted after this local step, which not all have counted yet; or now, before the first."""
        self._adopted[fragment] = step

    def began(self, step: int) -> None:
        """Note that a generation begins: samples count anew from now on, tokens and steps after this local step."""
        self._began = step
        self._trained = deque(0 for _ in self._trained)
        self._marks[self.step] = _Mark(self._marks[self.step].tokens)

    def read(self, fragment: int, t: int, step: int) -> None:
        """Note that the fragment is read after this local step."""
        self._open.append(_Open(step, self._adopted[fragment], self._began, fragment, t))

    def ready(self) -> list[PushCounts]:
        """Return the pushes whose tokens are known by now, each given once, in the order of their reads. Those of an older generation are
        left out: the syncer does not wait for them."""
        found: list[PushCounts] = []
        while self._open and self._open[0].step <= self.step:
            x = self._open.popleft()
            if x.began != self._began:
                continue
            total = self._marks[x.step]
            found.append(
                PushCounts(
                    x.fragment,
                    x.t,
                    x.step - x.since,
                    total.tokens - self._marks[x.since].tokens,
                    total.samples,
                    total.tokens - self._marks[x.began].tokens,
                    x.step - x.began,
                )
            )
        wanted = self._wanted()
        self._marks = {step: mark for step, mark in self._marks.items() if step in wanted or step == self.step}
        return found

    def reached(self, state: UnitState) -> UnitState:
        """Return the unit's counters after the last local step that all ranks have counted. `state` has the rest. A fragment that is
        adopted after a later step has been trained for none."""
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
            self.loss = _mean([one for one in ranks if not math.isnan(one[1])])
            if self.step not in self._wanted():
                del self._marks[self.step]
            self.step += 1
            self._marks[self.step] = _Mark(before.tokens + tokens, before.samples + self._trained.popleft())

    def _wanted(self) -> set[int]:
        return {self._began, *self._adopted, *(at for x in self._open for at in (x.step, x.since, x.began))}


def _mean(losses: list[tuple[int, float]]) -> float:
    total = sum(tokens for tokens, _ in losses)
    return sum(tokens * loss for tokens, loss in losses) / total if total else math.nan
