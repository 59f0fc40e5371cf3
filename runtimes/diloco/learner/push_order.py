"""What waits on one stream to the syncer, and what goes next. Pure: learner and simulator share it.

Pushes are the only messages that overtake one another. Each belongs to one exchange, and says which, so the syncer needs no order among
them. The newest one has the most time left until its merge. What is posted besides keeps its place: no push passes it.

See docs/decisions/0150-transfers.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from diloco.learner.push_times import PushTimes


@dataclass(slots=True, eq=False)
class Transfer[T]:
    """What waits or is under way."""

    what: T
    fragment: int | None = None
    """None: it is no push."""
    t: int = 0
    """Outer step of the exchange that a push belongs to."""
    begun_at: float = 0.0
    """When it was chosen."""
    over: bool = False
    """Nothing of it is needed any more."""


class PushOrder[T]:
    """Pushes are over once their exchange is known to be, so that a slow link carries what can still be merged."""

    def __init__(self, overlap_steps: int, now: Callable[[], float], dropped: Callable[[T], None]) -> None:
        """Begin with tau: the syncer takes outer step t + tau + 1 once the exchange of step t is over. So many pushes are kept at most
        beside one more. `now`: seconds on a clock that never goes back. `dropped`: told of each that waited and will not be sent."""
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
        """Return whether anything waits."""
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
        """Send the push of an exchange before older ones. It replaces one of the same fragment, and the oldest ones that wait if these
        are too many."""
        # A fragment has one exchange at a time: a pull for a new one says that the one before is over.
        for transfer in self.pushes:
            transfer.over = transfer.over or transfer.fragment == fragment
        self._times.added(t)
        self._waiting.append(Transfer(what, fragment, t))
        # Exchanges of tau + 1 outer steps are open at once. A push under way is one of theirs, or else it will be over soon.
        most = self._overlap_steps + (self.sending is None or not self._overlap_steps)
        waiting = sorted((transfer for transfer in self._waiting if transfer.fragment is not None), key=_outer_step)
        for transfer in waiting[: max(0, len(waiting) - most)]:
            transfer.over = True
        self._drop_what_is_over()

    def begin(self) -> Transfer[T] | None:
        """Return what is under way; if there is nothing, begin what is next. None: nothing waits that is worth the link."""
        while self.sending is None and self._waiting:
            pushes = list(itertools.takewhile(lambda transfer: transfer.fragment is not None, self._waiting))
            chosen = max(pushes, key=_outer_step) if pushes else self._waiting[0]
            if pushes and not self._times.worth_sending(chosen.t):
                for transfer in pushes:  # the others are older
                    transfer.over = True
                self._drop_what_is_over()
                continue
            chosen.begun_at = self._now()
            self._waiting.remove(chosen)
            self.sending = chosen
        return self.sending

    def arrived(self, begun_at: float, at: float) -> None:
        """Note that the push that was begun then has arrived at `at`."""
        self._times.took(at - begun_at)

    def gave_up(self, begun_at: float) -> None:
        """Note that the push that was begun then ends unfinished."""
        self._times.given_up_after(self._now() - begun_at)

    def clear(self) -> None:
        """Drop all that waits."""
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
