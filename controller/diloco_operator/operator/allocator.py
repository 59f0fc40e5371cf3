"""Memory that a pass over a big job used goes back to the system, where the C library lets one ask for that (glibc)."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGE = 128 * 1024
"""Bytes. glibc's own first values; setting them keeps it from raising them, up to 32 MiB, as soon as one large block was freed."""


def give_back_freed_memory() -> bool:
    """For the whole process. Whether the C library knows of it; elsewhere nothing changes."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE)) and bool(mallopt(_M_TRIM_THRESHOLD, _LARGE))
