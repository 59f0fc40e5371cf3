"""Process-wide settings of malloc: memory that a decision for a big job used goes back to the system, where glibc allows it.

See docs/decisions/0091-fairness-on-one-loop.md.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGE = 128 * 1024
"""Bytes: glibc's own initial value of both thresholds. By itself glibc raises them, to 32 MiB at most, whenever a large block is freed; it
stops once they are set."""


def return_freed_memory() -> bool:
    """Freed memory of this process goes back to the system from now on. False where the C library cannot do this."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    # One heap for all threads, so that memory freed by an offloaded decision serves all of them. The interpreter's lock prevents most
    # simultaneous allocations anyway.
    settings = ((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, _LARGE), (_M_TRIM_THRESHOLD, _LARGE))
    return all(bool(mallopt(name, value)) for name, value in settings)
