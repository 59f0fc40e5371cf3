"""Times by the clocks of others, bounded to what can be true. Pure."""

from __future__ import annotations

CLOCK_TOLERANCE = 1.0
"""How far a time may be ahead of the operator's clock, in seconds: other clocks differ, and times are rounded to milliseconds."""


def between(earliest: float, moment: float | None, latest: float, now: float) -> float:
    """Bound a moment by another clock to `earliest` … `latest`. Return `earliest` if the moment is missing or in the future."""
    if moment is None or moment > now + CLOCK_TOLERANCE:
        return earliest
    return max(earliest, min(moment, latest))
