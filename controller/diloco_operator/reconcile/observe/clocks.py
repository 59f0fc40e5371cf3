"""Times by the clocks of others, as far as they can be true. Pure."""

from __future__ import annotations

CLOCK_TOLERANCE = 1.0
"""Seconds by which a time may be ahead of us: times are written in milliseconds, and by other clocks too."""


def between(earliest: float, moment: float | None, latest: float, now: float) -> float:
    """Bound a moment by another clock to what can be true; `earliest` for one that is missing or in the future."""
    if moment is None or moment > now + CLOCK_TOLERANCE:
        return earliest
    return max(earliest, min(moment, latest))
