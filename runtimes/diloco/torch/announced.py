"""Calls of a framework that keep a program from its next step for long, announced as pauses.

See docs/decisions/0166-progress-pauses-and-ends.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

from diloco.learner.heartbeat_state import check_pause
from diloco.session.session import Session

LONGEST_PAUSE: Final = 3600.0
"""Seconds. What a framework does between two steps may take so long, unless its program says another time."""


def announced[**P, R](call: Callable[P, R], session: Session, reason: str, at_most: float) -> Callable[P, R]:
    """Return `call` inside of `session.paused(reason, at_most)`. Raises ValueError for a time that cannot be."""
    check_pause(reason, at_most)

    @functools.wraps(call)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with session.paused(reason, at_most):
            return call(*args, **kwargs)

    return run
