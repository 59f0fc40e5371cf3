"""Slow calls of a framework between two steps, announced to the session as pauses.

See docs/decisions/0166-progress-pauses-and-ends.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

from diloco.learner.heartbeat_state import check_pause
from diloco.session.session import Session

LONGEST_PAUSE: Final = 3600.0
"""Seconds that a framework's call between two steps may take, unless the program says otherwise."""


def announced[**P, R](call: Callable[P, R], session: Session, reason: str, at_most: float) -> Callable[P, R]:
    """Wrap `call` in `session.paused(reason, at_most)`. Raises ValueError if reason or time are not allowed."""
    check_pause(reason, at_most)

    @functools.wraps(call)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with session.paused(reason, at_most):
            return call(*args, **kwargs)

    return run
