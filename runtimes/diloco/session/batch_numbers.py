"""Which samples a program trains: the sequence numbers of its batches. More are requested before the program needs them.

See docs/decisions/0167-batches.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from diloco.learner.member import Member
from diloco.session.loop_check import MOST_AHEAD, LoopCheck


class BatchNumbers:
    """The batches of one process. Only the training thread calls its methods."""

    def __init__(
        self, member: Member, check: LoopCheck, *, begins: Callable[[], None], wait_until: Callable[[Callable[[], bool]], None]
    ) -> None:
        """`begins` is called when the program begins a loop. `wait_until` passes step boundaries until its argument returns true."""
        self._member = member
        self._check = check
        self._begins = begins
        self._wait_until = wait_until
        self._batch_size = 0
        self._batches_held: int | None = None
        """Batches to hold leases for, beyond those that the program has. None: enough for some time of training."""
        self._ahead = MOST_AHEAD
        """Batches that the program may hold unsettled."""

    def loop(self, batch_size: int, ahead: int, data: str = "", *, shards: bool = False) -> Iterator[NDArray[np.int64]]:
        """Yield the sequence numbers of one batch after the other, int64 [batch_size], first those of batches that no step has settled.

        `data` says what the numbers stand for, such as the number of samples and the seed, and must be the same in every unit; "" if that
        is not known. Ends when there is no next step. Raises LoopError.
        """
        for name, value in (("batch_size", batch_size), ("ahead", ahead)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        loop, left = self._check.begin()
        self._batch_size = batch_size
        self._batches_held = 1 if shards else None
        self._ahead = ahead
        self._member.reads(data)
        self._begins()
        while not self._over:
            self._check.called(threading.current_thread().name)
            self._check.again(loop)
            if left:
                yield left.pop(0)
                continue
            self._check.fetch(ahead, shards=shards, who=self._member.who)
            if (numbers := self._next(batch_size)) is None:
                return
            self._check.unsettled.append(numbers)
            # Ask before the program trains on this batch: the answer comes meanwhile, and the next batch need not wait for the syncer.
            self.ask_for_more()
            yield numbers

    def ask_for_more(self) -> None:
        """Ask for samples if there are too few for the next steps. A program that feeds itself needs none."""
        if self._batch_size and not self._member.done:
            self._member.ask_for_work(self._batch_size, self._batches_held, self._ahead)

    @property
    def _over(self) -> bool:
        return self._member.done or self._member.draining

    def _next(self, count: int) -> NDArray[np.int64] | None:
        """Return the sequence numbers of the next batch, int64 [count]; None if there is no next step."""
        batches: list[NDArray[np.int64]] = []

        def come() -> bool:
            if self._over:
                return True
            if (numbers := self._member.take(count)) is None:
                # Ask again at each boundary: while there was no stream nothing was sent, and a restarted syncer may have lost the leases.
                self.ask_for_more()
                return False
            batches.append(numbers)
            return True

        self._wait_until(come)
        return batches[0] if batches else None
