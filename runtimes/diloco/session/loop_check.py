"""Whether the calls of a training loop fit together: batches, steps, tokens and the optimizer's updates. Pure.

What is wrong here would train well and count wrongly, so it ends the program instead.

See docs/decisions/0167-batches.md.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from diloco.learner.leave import LoopError
from diloco.wording import plural

MOST_AHEAD = 64
"""Batches that a program may hold unsettled by default. Eight workers of a torch DataLoader fetch 16 ahead; an update of 32 micro-batches
holds 32."""
EMPTY_STEPS = 16
"""This many steps in a row without a token are an error. One batch of nothing but padding is rare; 16 of them are a mistake."""
UPDATES_WINDOW = 64
"""Steps between two comparisons of steps with updates of the optimizer."""
_LONGEST_GAP = 16
"""After a longer row of steps without an update the comparison says nothing: a captured graph makes the updates then, unseen by hooks."""
_FEWEST = 48
"""The fewest updates that are right in a window of 64 steps. A GradScaler that begins at 2^16 skips at most 16 updates."""
_MOST = 96
"""The most updates that are right in a window of 64 steps."""


class LoopCheck:
    """What the training loop of one process has done so far."""

    def __init__(self) -> None:
        self.unsettled: deque[NDArray[np.int64]] = deque()
        """Sequence numbers of the batches that the program has taken and no step has settled, the oldest first."""
        self.feeds_itself: bool | None = None
        """The program takes no batches from the session. None before its first batch or step, when that is not known."""
        self._shards = False
        """The program takes shards, not batches."""
        self._read = 0
        """Shards that the program has read since its last step."""
        self._loops = 0
        self._thread: str | None = None
        self._empty = 0
        self._steps = 0
        """Steps in the present window."""
        self._updates: tuple[int, ...] = ()
        """Updates of each optimizer at the beginning of the present window."""
        self._last: tuple[int, ...] = ()
        """Updates of each optimizer at the last step."""
        self._gap = self._longest_gap = 0
        """Latest steps in a row without an update, and the longest such row in the present window."""

    def called(self, thread: str) -> None:
        """Raise LoopError if the program has called from another thread before."""
        if self._thread is None:
            self._thread = thread
        if self._thread != thread:
            raise LoopError(
                f"the session is used in the thread {thread}, and was used in {self._thread} before: take batches and call step() in one "
                "thread. A thread that loads ahead gets its sequence numbers from a queue, which the training thread fills"
            )

    def begin(self) -> tuple[int, list[NDArray[np.int64]]]:
        """Begin a loop over batches, and leave the one before. Returns the loop's number, and the unsettled batches that it gets again."""
        self._loops += 1
        return self._loops, list(self.unsettled)[self._read :]

    def again(self, loop: int) -> None:
        """Raise LoopError if another loop has begun after this one."""
        if loop != self._loops:
            raise LoopError("two loops take batches of this session in turn: batches of one would count for the other. Use one at a time")

    def fetch(self, ahead: int, *, shards: bool = False, who: str = "the program") -> None:
        """Check that the program may take one more batch, or shard. Raises LoopError.

        `ahead`: how many the program may hold unsettled. `who`: what the error calls the program.
        """
        if self.feeds_itself:
            raise LoopError(
                "this program takes a batch from the session after steps with data of its own: the ledger cannot count both. Take every "
                "batch from the session, or none"
            )
        if self.feeds_itself is False and shards is not self._shards:
            raise LoopError("this program takes both batches and shards from the session, and step() settles one kind only. Take one kind")
        if shards and len(self.unsettled) >= ahead:
            raise LoopError(
                f"{who} holds {plural(len(self.unsettled), 'shard')} that no step() has settled. Call session.step(tokens=…) after "
                "every update of the optimizer, and read each shard before you take the next one"
            )
        if len(self.unsettled) >= ahead:
            raise LoopError(
                f"{who} holds {plural(len(self.unsettled), 'batch', 'batches')} that no step() has settled. Call "
                "session.step(tokens=…) once after every update of the optimizer, and with N batches in one update "
                "session.step(tokens=…, batches=N). A loader that fetches further ahead (workers x prefetch factor, and the batches of an "
                f"update) needs ahead=… above {ahead}. A batch that the program skips (a loss of NaN, no memory) is settled by "
                "session.step(tokens=0) in the place of its step"
            )
        self.feeds_itself = False
        self._shards = shards

    def shard_read(self) -> None:
        """Note that the program has read a shard and wants the next one: the next step settles it."""
        self._read += 1

    def step(
        self, tokens: SupportsIndex | float, batches: SupportsIndex | float, updates: Sequence[int] | None = None
    ) -> tuple[int, int | None]:
        """Check a step that the program says it has done. Returns (tokens, number of batches that the step settles); the latter is None if
        the program feeds itself.

        `updates`: updates of each optimizer so far; None if that is not known. Raises LoopError, and ValueError or TypeError for values
        that are no counts. Nothing is settled then.
        """
        count, settled = _whole("tokens", tokens), _whole("batches", batches)
        if self.feeds_itself is None:
            self.feeds_itself = True
        if self.feeds_itself or self._shards:
            # `batches` means nothing here: a step settles all shards that were read, and without batches of the session nothing.
            settled = self._read
        if settled > len(self.unsettled):
            raise LoopError(
                f"step(batches={settled}) settles {plural(settled, 'batch', 'batches')}, but the program holds "
                f"{len(self.unsettled) or 'none'} that no step has settled: a batch would count twice. Call step() once after every update "
                "of the optimizer, and where an update has several batches step(tokens=<of all of them>, batches=N)"
            )
        self._empty = 0 if count else self._empty + 1
        if self._empty >= EMPTY_STEPS:
            raise LoopError(
                f"the last {EMPTY_STEPS} steps had tokens=0: this unit's work would have no weight, and the job could end without a token. "
                "Pass the number of real tokens (or samples) that the update was made from. If the program has skipped these batches, see "
                "why it can train none of them"
            )
        if updates is not None and (count or self.in_step(updates)):  # a batch that was skipped needs no update
            self._compare(tuple(updates))
        self._read = 0
        for _ in range(settled):
            self.unsettled.popleft()
        return count, None if self.feeds_itself else settled

    def in_step(self, updates: Sequence[int] | None) -> bool:
        """Whether the program has updated its parameters and has not called `step` since. `updates`: as in `step`."""
        return updates is not None and tuple(updates) != (self._last or (0,) * len(updates))

    def _compare(self, updates: tuple[int, ...]) -> None:
        """Raise LoopError if steps and updates differ too much. The weight of a contribution is tokens * tokens / steps: with four steps
        for each update it would be a quarter of what it should be."""
        self._updates = self._updates or (0,) * len(updates)
        self._gap = self._gap + 1 if updates == (self._last or self._updates) else 0
        self._longest_gap = max(self._longest_gap, self._gap)
        self._last = updates
        self._steps += 1
        if self._steps < UPDATES_WINDOW:
            return
        done = [after - before for before, after in zip(self._updates, updates, strict=True)]
        if sum(done) < _FEWEST and self._longest_gap <= _LONGEST_GAP:
            raise LoopError(
                f"step() was called {self._steps} times for {plural(sum(done), 'update')} of the optimizer: a unit that counts each "
                "micro-batch as a step gets too small a weight in the merge. Call step() once after every update, with all its batches: "
                "step(tokens=<of all of them>, batches=N)"
            )
        if min(done) > _MOST:
            raise LoopError(
                f"step() was called {self._steps} times for {plural(min(done), 'update')} of the optimizer: a unit that counts several "
                "updates as one step gets too large a weight in the merge. Call step() after every update"
            )
        self._steps, self._updates, self._longest_gap = 0, updates, 0


def _whole(name: str, value: SupportsIndex | float) -> int:
    try:
        number = int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from None
    if number < 0:
        raise ValueError(f"{name} must not be negative, not {number}")
    return number
