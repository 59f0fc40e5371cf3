"""Processes that a benchmark starts must not outlive it, however it ends."""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def die_with_parent() -> None:
    """A `preexec_fn`: the new process gets SIGKILL when the thread that started it ends. Linux only."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
