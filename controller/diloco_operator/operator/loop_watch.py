"""Watches the event loop: how long each of its turns lasts.

An event loop waits in its selector and then runs everything that is due: that is one turn. While a turn lasts, all else stands still. The
selector measures it exactly, with two readings of a clock for each turn, and costs nothing while the loop waits.

See docs/decisions/0091-fairness-on-one-loop.md.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable


def watched_loop(on_turn: Callable[[float], None]) -> asyncio.AbstractEventLoop:
    """Return an event loop that calls `on_turn(seconds)` at the end of each turn, in the loop's thread. `on_turn` must not raise."""
    return asyncio.SelectorEventLoop(_WatchedSelector(on_turn))


class _WatchedSelector(selectors.DefaultSelector):
    """Measures from the end of one wait to the beginning of the next."""

    def __init__(self, on_turn: Callable[[float], None]) -> None:
        super().__init__()
        self._on_turn = on_turn
        self._began: float | None = None
        """When the turn began. None if the loop has not waited yet."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._began is not None:
            self._on_turn(time.monotonic() - self._began)
        try:
            return super().select(timeout)
        finally:
            self._began = time.monotonic()
