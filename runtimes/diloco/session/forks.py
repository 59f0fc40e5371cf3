"""Processes that a training program forks while it is in a job: data loaders, process pools."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType, MethodType


def let_forked_children_end(handler: Callable[[int, FrameType | None], object]) -> None:
    """SIGTERM ends forked children as usual, while in this process `handler`, a bound method, takes it as a drain.

    Pools end their workers by SIGTERM. A worker that inherited the handler would drain instead of ending, and the pool would wait for it
    for ever.
    """
    assert isinstance(handler, MethodType)
    draining = weakref.WeakMethod(handler)
    forking = threading.local()

    def hold() -> None:
        # A pool may end a worker that has just been forked. Before `reset` runs, that signal would go to the handler and be lost.
        forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, forking.mask)

    def reset() -> None:
        try:
            drain = draining()
            if drain is not None and signal.getsignal(signal.SIGTERM) == drain:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
        finally:
            release()

    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=reset)
