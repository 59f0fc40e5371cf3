"""How long a learner that lost its syncer waits before it tries again. Pure."""

from __future__ import annotations

from diloco.protocol.backoff import exponential

FIRST_DELAY = 0.05
LONGEST_DELAY = 2.0
"""Delay between two attempts to connect, seconds: doubles from the first to the longest, each with jitter."""


def reconnect_delay(failures: int, jitter: float) -> float:
    """Return seconds to wait after `failures` (at least 1) attempts in a row: `min(longest, first * 2^(failures - 1)) * (0.5 + jitter /
    2)`.

    `jitter` in [0, 1) spreads units that lost the same syncer.
    """
    return exponential(FIRST_DELAY, LONGEST_DELAY, failures) * (0.5 + jitter / 2)
