"""The counters that a unit says of a push: tokens are known only when every rank has said how many it trained. Pure.

See docs/decisions/0160-ranks.md.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counted:
    """What all ranks say of the push of a fragment at outer step `t`, once its tokens are known. See Chunk in diloco.proto."""

    fragment: int
    t: int
    steps: int
    tokens: int
    samples_done: int
    tokens_done: int
    steps_done: int


@dataclass(frozen=True, slots=True)
class _Open:
    step: int
    since: int
    began: int
    fragment: int
    t: int
    samples_done: int
    steps_done: int


class Counts:
    """Tokens of all ranks, by local step."""

    def __init__(self, ranks: int, fragments: int) -> None:
        """`ranks`: those that train samples of their own."""
        self._ahead: list[deque[int]] = [deque() for _ in range(ranks)]
        self._adopted = [0] * fragments
        self._began = 0
        self._open: deque[_Open] = deque()
        self._marks: dict[int, int] = {0: 0}
        """Tokens of all ranks up to a local step, for those that a counter may begin at or end with."""
        self.step = 0
        """Local steps that all ranks have counted."""
        self.tokens = 0
        """Of these."""

    def stepped(self, rank: int, tokens: int) -> None:
        """The rank has done its next local step with so many tokens."""
        self._ahead[rank].append(tokens)
        while all(self._ahead):
            self.step += 1
            self.tokens += sum(ahead.popleft() for ahead in self._ahead)
            if self.step - 1 not in self._wanted():
                del self._marks[self.step - 1]
            self._marks[self.step] = self.tokens

    def adopted(self, fragment: int, step: int) -> None:
        """The fragment is adopted after this local step, which nobody has counted yet; or now, before the first."""
        self._adopted[fragment] = step

    def began(self, step: int) -> None:
        """After this local step a generation begins: samples, tokens and steps count anew."""
        self._began = step

    def read(self, fragment: int, t: int, step: int, samples_done: int, steps_done: int) -> None:
        """The fragment is read after this local step."""
        self._open.append(_Open(step, self._adopted[fragment], self._began, fragment, t, samples_done, steps_done))

    def ready(self) -> list[Counted]:
        """The pushes whose tokens are known by now, each given once, in the order of their reads."""
        found: list[Counted] = []
        while self._open and self._open[0].step <= self.step:
            x = self._open.popleft()
            total = self._marks[x.step]
            found.append(
                Counted(
                    x.fragment,
                    x.t,
                    x.step - x.since,
                    total - self._marks[x.since],
                    x.samples_done,
                    total - self._marks[x.began],
                    x.steps_done,
                )
            )
        wanted = self._wanted()
        self._marks = {step: tokens for step, tokens in self._marks.items() if step in wanted or step == self.step}
        return found

    def _wanted(self) -> set[int]:
        return {self._began, *self._adopted, *(at for x in self._open for at in (x.step, x.since, x.began))}
