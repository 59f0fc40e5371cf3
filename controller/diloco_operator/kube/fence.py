"""Keeps a replica that lost the lease from writing, however late it learns of the loss.

`Fence` knows until when writing is allowed, on a clock that goes on while the process is stopped. Each write runs inside `Fence.write`
(`RestClient.connect` takes it as a hook): it is checked before it begins, and cancelled if it still runs when the time is up.

Two cases remain. A write that was sent in time may reach the API server late: it has the difference between lease duration and renew
deadline (see kube.lease) to arrive. And the process may be stopped in the millisecond between the check and the kernel: only a condition
that the API server checks could close that gap.

See docs/decisions/0090-lease-and-clocks.md.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from diloco_operator.kube.client import Unavailable


def boot_clock() -> float:
    """Return seconds of a clock that never goes back, and that goes on while the process or the whole machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class NotLeading(Unavailable):
    """This replica does not lead, so the write was not sent. Or the lease ended during the write, and its effect is unknown."""


class Fence:
    """Says until when this replica may write. Shut until `open_until` is called. Lives in one event loop."""

    def __init__(self, clock: Callable[[], float] = boot_clock) -> None:
        self._clock = clock
        self._until = -math.inf
        self._shut = False
        self._under_way: set[asyncio.Timeout] = set()

    def open_until(self, until: float) -> None:
        """Allow writing until `until` on the fence's clock. This holds for running writes too. A fence that was shut stays shut."""
        if not self._shut:
            self._until = until
            self._reschedule()

    def shut(self) -> None:
        """Refuse writes from now on, for good; running ones are cancelled."""
        self._shut = True
        self._until = -math.inf
        self._reschedule()

    def check(self) -> None:
        """Raise `NotLeading` if no write may be sent now."""
        if self._clock() >= self._until:
            raise NotLeading(503, "NotLeading", "this replica does not hold the leader's lease (any more), so it writes nothing")

    @asynccontextmanager
    async def write(self) -> AsyncIterator[None]:
        """Hold the fence around one write. Raises `NotLeading` if it may not begin, or if it still runs when the time is up."""
        self.check()
        try:
            async with asyncio.timeout_at(self._deadline()) as timeout:
                self._under_way.add(timeout)
                try:
                    yield
                finally:
                    self._under_way.discard(timeout)
        except TimeoutError as error:
            if not timeout.expired():
                raise  # an inner time-out
            raise NotLeading(503, "NotLeading", "the leader's lease ended during the write; the effect of the write is unknown") from error

    def _deadline(self) -> float:
        """Return the deadline on the event loop's clock."""
        left = self._until - self._clock()
        return asyncio.get_running_loop().time() + max(0.0, left)

    def _reschedule(self) -> None:
        """Move the end of the writes under way to the new deadline."""
        for timeout in self._under_way:
            if not timeout.expired():  # an expired one is being cancelled already
                timeout.reschedule(self._deadline())
