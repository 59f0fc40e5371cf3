"""The API server's clock, as far as its answers tell of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

log = logging.getLogger(__name__)

SLACK = 2.0
"""Seconds by which two clocks may differ and count as equal, so that time does not jump to and fro with every answer."""
_WORTH_TELLING = 10.0


class ServerClock:
    """Seconds since the epoch: this machine's, set right where the server's differ. Replicas on machines whose clocks are apart so agree
    on what time it is.

    An answer's Date was written between the request and the answer, in whole seconds. That bounds how far the clocks are apart, however
    slow the network or this process is.
    """

    def __init__(self, local: Callable[[], float] = time.time) -> None:
        self.local = local
        self._ahead = 0.0
        """Of the server; 0 while that may be true."""

    def now(self) -> float:
        return self.local() + self._ahead

    def note(self, date: str, asked: float) -> None:
        """The Date of an answer that has just come to a request of `asked`, by the local clock. What is no date is ignored: a proxy may
        have written it."""
        try:
            written = parsedate_to_datetime(date).timestamp()
        except ValueError:
            return
        least, most = written - self.local(), written + 1.0 - asked
        if least - SLACK <= self._ahead <= most + SLACK:
            return
        self._ahead = 0.0 if least - SLACK <= 0.0 <= most + SLACK else (least + most) / 2
        if abs(self._ahead) >= _WORTH_TELLING:
            behind = "behind" if self._ahead > 0 else "ahead of"
            log.warning("this machine's clock is %.0f s %s the API server's, which is used; have it synchronized", abs(self._ahead), behind)
