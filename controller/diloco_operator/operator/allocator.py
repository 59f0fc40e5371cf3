"""Memory that a pass over a big job used goes back to the system, where the C library lets one ask for that (glibc), and the search for
reference cycles stops everything less often."""

from __future__ import annotations

import ctypes
import gc

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGE = 128 * 1024
"""Bytes. glibc's own first values; setting them keeps it from raising them, up to 32 MiB, as soon as one large block was freed."""
_YOUNG_OBJECTS = 50_000
"""New objects after which cycles are looked for among them, some 5 ms; Python's own figure is 2,000."""
_YOUNG_SEARCHES = 20
_MIDDLE_SEARCHES = 20
"""Searches among the younger objects for one among the older. One among all takes 100 ms with 4,000 pods, and finds hardly anything: what
a pass makes has no cycles and goes by itself."""


def look_for_cycles_seldom() -> None:
    """For the whole process."""
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_SEARCHES, _MIDDLE_SEARCHES)


def give_back_freed_memory() -> bool:
    """For the whole process. Whether the C library knows of it; elsewhere nothing changes."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE)) and bool(mallopt(_M_TRIM_THRESHOLD, _LARGE))
