"""What waits on one stream to the syncer, and what goes next. Pure: learner and simulator share it.

Only pushes overtake one another. Each names its exchange, so the syncer needs no order among them. The newest goes first: it has the most
time left until its merge. Other messages keep their place: no push passes them.

See docs/decisions/0150-transfers.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from diloco.learner.push_times import PushTimes


@dataclass(slots=True, eq=False)
class Transfer[T]:
    """A push, or another message, that waits or is under way."""

    what: T
    fragment: int | None = None
    """None if it is no push."""
    t: int = 0
    """Outer step of a push's exchange."""
    begun_at: float = 0.0
    """When its sending began."""
    over: bool = False
    """It is not needed any more."""


class PushOrder[T]:
    """A push is dropped once its exchange is known to be over, so that a slow link carries only what can still be merged."""

    def __init__(self, overlap_steps: int, now: Callable[[], float], dropped: Callable[[T], None]) -> None:
        """
        Args:
            overlap_steps: tau. The syncer takes outer step t + tau + 1 once the exchange of step t is over
            now: seconds on a clock that never goes back
            dropped: called for each push that waited and will not be sent
        """
        self.sending: Transfer[T] | None = None
        self._overlap_steps = overlap_steps
        self._now = now
        self._dropped = dropped
        self._waiting: list[Transfer[T]] = []
        self._clock = 0
        self._merged: dict[int, int] = {}
        self._all_over = False
        self._times = PushTimes(overlap_steps, now)

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    @property
    def pushes(self) -> list[Transfer[T]]:
        """Pushes that wait or are under way."""
        everything = [self.sending, *self._waiting] if self.sending else self._waiting
        return [transfer for transfer in everything if transfer.fragment is not None]

    def post(self, what: T) -> None:
        """Send `what` after everything that was added before."""
        self._waiting.append(Transfer(what))

    def push(self, fragment: int, t: int, what: T) -> None:
        """Send a push before older ones. It replaces a push of the same fragment, and if too many wait, the oldest ones are dropped."""
        # A fragment has one exchange at a time, so the pull for a new one shows that the one before is over.
        for transfer in self.pushes:
            transfer.over = transfer.over or transfer.fragment == fragment
        self._times.added(t)
        self._waiting.append(Transfer(what, fragment, t))
        # At most tau + 1 exchanges are open at once, and a push under way belongs to one of them. With tau = 0 it may belong to the one
        # before, which will soon be known to be over; so it does not count.
        most = self._overlap_steps + (self.sending is None or not self._overlap_steps)
        waiting = sorted((transfer for transfer in self._waiting if transfer.fragment is not None), key=_outer_step)
        for transfer in waiting[: max(0, len(waiting) - most)]:
            transfer.over = True
        self._drop_what_is_over()

    def begin(self) -> Transfer[T] | None:
        """Return the transfer under way, or begin the next one. None if nothing waits that is worth sending."""
        while self.sending is None and self._waiting:
            # Pushes before the first other message: they must not pass it.
            pushes = list(itertools.takewhile(lambda transfer: transfer.fragment is not None, self._waiting))
            chosen = max(pushes, key=_outer_step) if pushes else self._waiting[0]
            if pushes and not self._times.worth_sending(chosen.t):
                for transfer in pushes:  # the newest one is not worth it, so the older ones are not either
                    transfer.over = True
                self._drop_what_is_over()
                continue
            chosen.begun_at = self._now()
            self._waiting.remove(chosen)
            self.sending = chosen
        return self.sending

    def arrived(self, begun_at: float, at: float) -> None:
        """Note that the push that began at `begun_at` has arrived at `at`."""
        self._times.took(at - begun_at)

    def gave_up(self, begun_at: float) -> None:
        """Note that the push that began at `begun_at` ends unfinished."""
        self._times.given_up_after(self._now() - begun_at)

    def clear(self) -> None:
        """Drop everything that waits."""
        for transfer in self._waiting:
            self._dropped(transfer.what)
        self._waiting.clear()

    # --- what the syncer says -----------------------------------------------------------------------------------------

    def clock(self, t: int) -> None:
        """Note that the syncer has taken outer step `t`: the exchanges up to t - tau - 1 are over."""
        self._clock = max(self._clock, t)
        self._times.clock(t)
        self._drop_what_is_over()

    def ends_at(self, t: int) -> None:
        """Note that outer step `t` is the job's last one."""
        self._times.ends_at(t)

    def merged(self, fragment: int, t: int) -> None:
        """Note that version `t` of the fragment has come: its exchanges up to `t` are over."""
        self._merged[fragment] = t
        self._clock = max(self._clock, t)
        self._drop_what_is_over()

    def all_merged(self) -> None:
        """Note that the job is at its last outer step: no push is needed any more."""
        self._all_over = True
        self._drop_what_is_over()

    def _drop_what_is_over(self) -> None:
        for push in self.pushes:
            push.over = push.over or self._is_over(push)
        over = [transfer for transfer in self._waiting if transfer.over]
        self._waiting = [transfer for transfer in self._waiting if not transfer.over]
        for transfer in over:
            self._dropped(transfer.what)

    def _is_over(self, push: Transfer[T]) -> bool:
        merged = -1 if push.fragment is None else self._merged.get(push.fragment, -1)
        return self._all_over or push.t <= merged or push.t + self._overlap_steps < self._clock


def _outer_step[T](transfer: Transfer[T]) -> int:
    return transfer.t
