"""The API server's clock, estimated from the Date of its answers.

See docs/decisions/0090-lease-and-clocks.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

log = logging.getLogger(__name__)

SLACK = 2.0
"""Seconds. Clocks that differ by less count as equal, so that time does not jump back and forth with every answer."""
_LOGGED_DIFFERENCE = 10.0
"""Seconds."""


class ServerClock:
    """Seconds since the epoch: this machine's clock, corrected if the server's differs. So replicas agree on the time although the clocks
    of their machines differ. Threads may share one: each answer bounds the difference by itself.

    An answer's Date was written between the request and the answer, in whole seconds. That bounds the difference of the clocks, however
    slow the network or this process is.
    """

    def __init__(self, local: Callable[[], float] = time.time) -> None:
        self.local = local
        self._ahead = 0.0
        """How far the server's clock is ahead, in seconds; 0 as long as the answers allow it."""

    def now(self) -> float:
        return self.local() + self._ahead

    def note(self, date: str, asked: float) -> None:
        """Note an answer that has just arrived with this Date, to a request sent at `asked` on the local clock. A proxy may have written
        the header, so anything that is no date is ignored."""
        try:
            written = parsedate_to_datetime(date).timestamp()
        except ValueError:
            return
        least, most = written - self.local(), written + 1.0 - asked
        if least - SLACK <= self._ahead <= most + SLACK:
            return
        self._ahead = 0.0 if least - SLACK <= 0.0 <= most + SLACK else (least + most) / 2
        if abs(self._ahead) >= _LOGGED_DIFFERENCE:
            behind = "behind" if self._ahead > 0 else "ahead of"
            log.warning("this machine's clock is %.0f s %s the API server's, which is used; synchronize it", abs(self._ahead), behind)
