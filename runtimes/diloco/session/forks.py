"""Processes that a training program forks while it is in a job: data loaders, process pools."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType, MethodType


def let_forked_children_end(handler: Callable[[int, FrameType | None], object]) -> None:
    """Let SIGTERM end a process that is forked while `handler`, a bound method, drains this one. Pools end their workers by this signal;
    with the handler they would take it for a drain, which is not theirs, and their parent would wait for them for ever."""
    assert isinstance(handler, MethodType)
    draining = weakref.WeakMethod(handler)
    forking = threading.local()

    def hold() -> None:
        # A pool may end a worker that has only just been forked. Until `reset` that signal would go to the handler, and be lost.
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
