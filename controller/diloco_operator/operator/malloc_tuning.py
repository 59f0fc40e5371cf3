"""Memory that a pass over a big job used goes back to the system, where the C library lets one ask for that (glibc), and the search for
reference cycles stops everything less often."""

from __future__ import annotations

import ctypes
import gc

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGE = 128 * 1024
"""Bytes. glibc's own first values; setting them keeps it from raising them, up to 32 MiB, as soon as one large block was freed."""
_MIDDLE_SEARCHES = 50
"""Searches for cycles among the younger objects for one among all, Python's own figure being 10. One among all takes 60 to 130 ms with
4,000 pods, and finds hardly anything; those among the young stay as they are, for what a list leaves behind in cycles is large."""


def collect_oldest_seldom() -> None:
    """For the whole process."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _MIDDLE_SEARCHES)


def return_freed_memory() -> bool:
    """For the whole process. Whether the C library knows of it; elsewhere nothing changes."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    # One heap for all threads: what a decision that was taken aside has freed is of use to everybody. The interpreter's lock keeps them
    # from asking for memory at one time anyway.
    settings = ((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, _LARGE), (_M_TRIM_THRESHOLD, _LARGE))
    return all(bool(mallopt(name, value)) for name, value in settings)
