"""Processes that a test or a benchmark starts must not outlive it, however it ends. Linux."""

from __future__ import annotations

import concurrent.futures
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """As `preexec_fn`: the new process gets SIGKILL when the thread that started it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Launcher:
    """Starts processes that get SIGKILL when this process ends, whichever thread asks for them.

    The kernel sends the signal when the thread that forked ends, so one thread forks, and it lives until `close`.
    """

    def __init__(self) -> None:
        self._thread = concurrent.futures.ThreadPoolExecutor(1)

    def start(self, start: Callable[[Callable[[], None]], subprocess.Popen[Any]]) -> subprocess.Popen[Any]:
        """`start` gets the `preexec_fn` that its process needs."""
        return self._thread.submit(start, _dying_with(os.getpid())).result()

    def close(self) -> None:
        self._thread.shutdown()


def _dying_with(parent: int) -> Callable[[], None]:
    def prepare() -> None:
        die_with_parent()
        if os.getppid() != parent:  # the parent ended before the kernel was asked
            os._exit(1)

    return prepare
