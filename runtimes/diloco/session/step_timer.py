"""The duration of local steps, and the stretch that makes a simulated node as slow as the hardware that it simulates."""

from __future__ import annotations

import time
from collections.abc import Callable

_SLICE = 0.1
"""Seconds. A stretch sleeps in slices this long, so that SIGTERM does not wait for the end of the stretch."""


class StepTimer:
    """Measures the time between two calls of `lap` without the time spent waiting for work. All times are in seconds."""

    def __init__(
        self, relative_speed: float, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._stretch = 1 / relative_speed - 1
        self._clock = clock
        self._sleep = sleep
        self._began = clock()
        self._idle = 0.0
        self.step_seconds = 0.0
        """Duration of the last step, with its stretch."""

    def lap(self, stop: Callable[[], bool]) -> None:
        """A local step has ended. Stretch its duration d by `d * (1 / speed - 1)`, or until `stop` returns true."""
        computed = max(0.0, self._clock() - self._began - self._idle)
        until = self._clock() + computed * self._stretch
        while self._stretch and not stop() and (left := until - self._clock()) > 0:
            self._sleep(min(left, _SLICE))
        self.step_seconds = computed * (1 + self._stretch)
        self._began = self._clock()
        self._idle = 0.0

    def idle(self, seconds: float) -> None:
        """`seconds` of the step under way were spent waiting, not computing."""
        self._idle += seconds

    def restart(self) -> None:
        """A step begins now; the time since the last lap was no step."""
        self._began = self._clock()
        self._idle = 0.0
