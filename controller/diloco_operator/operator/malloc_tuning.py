"""Process-wide settings of malloc and of the garbage collector. Memory that a decision for a big job used goes back to the system, where
glibc allows it, and full garbage collections, which stop everything, happen less often.

See docs/decisions/0091-fairness-between-jobs.md. See docs/decisions/0207-one-allotment-for-many-jobs.md.
"""

from __future__ import annotations

import ctypes
import gc

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGE = 128 * 1024
"""Bytes. glibc's own initial values. Once set, glibc no longer raises them, up to 32 MiB, after one large block was freed."""
_YOUNG_COLLECTIONS = 50
"""Collections of the middle generation for one full collection; Python's default is 10. A full one takes 60 to 130 ms with 4,000 pods and
frees hardly anything. The younger generations keep their thresholds, because a list leaves large cycles behind."""


def collect_oldest_seldom() -> None:
    """For the whole process."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _YOUNG_COLLECTIONS)


def leave_out_of_collections() -> None:
    """For the whole process: no later full collection looks at what is there now. For the caches of 1,000 jobs it would take 0.1 s, and
    find nothing. Their memory is freed as ever when the last reference goes. A cycle among them would stay, so the younger generations,
    where what a list leaves behind is, are collected first."""
    gc.collect(1)
    gc.freeze()


def return_freed_memory() -> bool:
    """For the whole process. Whether the C library supports it; elsewhere nothing changes."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    # One heap for all threads, so that memory freed by an offloaded decision serves all of them. The interpreter's lock prevents most
    # simultaneous allocations anyway.
    settings = ((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, _LARGE), (_M_TRIM_THRESHOLD, _LARGE))
    return all(bool(mallopt(name, value)) for name, value in settings)
