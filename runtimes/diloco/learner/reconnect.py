"""How a learner that has lost its syncer reconnects: how long it waits between attempts, what it logs, and when it gives up. Pure."""

from __future__ import annotations

from typing import Final

from diloco.protocol.backoff import ExponentialBackoff
from diloco.protocol.tls import TlsError

RECONNECT: Final = ExponentialBackoff(initial=0.05, ceiling=2.0)
"""Seconds between two attempts to connect."""
MOST_EXCEPTIONS = 10
"""Streams in a row that an exception of this process may end, such as one for want of memory. Then the process gives up: without the
exchange its unit would train on alone."""
TLS_FAILURE_TIMEOUT = 300.0
"""How long TLS may fail before a process gives up, seconds. A kubelet needs about two minutes to bring renewed files."""


class Attempts:
    """Counts the attempts to reach the syncer that failed in a row."""

    def __init__(self, first_logged: int) -> None:
        """`first_logged`: which failure in a row is logged first, from 1."""
        self.failures = 0
        self._exceptions = 0
        self._first_logged = first_logged
        self._refused_since: float | None = None
        self._logged = ""

    def failed(self, now: float, *, welcomed: bool, refusal: str) -> bool:
        """Note that a stream has ended, and return whether to log it. Raises TlsError once TLS has failed for TLS_FAILURE_TIMEOUT.

        Args:
            welcomed: the syncer had accepted the stream
            refusal: why TLS failed, or ""
        """
        self.failures = 1 if welcomed else self.failures + 1
        self._exceptions = 0 if welcomed else self._exceptions
        if not refusal:
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = now
        elif now - self._refused_since > TLS_FAILURE_TIMEOUT:
            raise TlsError(f"{refusal} ({TLS_FAILURE_TIMEOUT:.0f} s long)")
        if self.failures in (self._first_logged, 10) or self.failures % 100 == 0 or refusal != self._logged:
            self._logged = refusal
            return True
        return False

    def raised(self) -> bool:
        """Note that an exception of this process has ended a stream. Return whether to give up."""
        # As if it had not been welcomed, so that the delay grows: the next stream may bring the same again.
        self.failures += 1
        self._exceptions += 1
        self._refused_since = None
        return self._exceptions == MOST_EXCEPTIONS
