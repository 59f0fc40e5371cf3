"""What a process tells the syncer in heartbeats, whether it takes steps or not.

See docs/decisions/0166-progress-pauses-and-ends.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from diloco.contract import MOST_PAUSE
from diloco.protocol.diloco_pb2 import Alive, Recovery

MOST_REASON = 200
"""Characters that a program's reason may have."""


def check_reason(of: str, reason: str, example: str) -> None:
    """Raise ValueError for a reason that says nothing to people, or too much."""
    if not reason.strip() or len(reason) > MOST_REASON or not reason.isprintable():
        raise ValueError(f"{of} needs a reason of 1 to {MOST_REASON} printable characters, such as {example!r}, not {reason!r}")


def check_pause(reason: str, at_most: float) -> None:
    """Raise ValueError for a pause that cannot be reported."""
    check_reason("a pause", reason, "evaluation")
    if not 0 < at_most <= MOST_PAUSE:
        raise ValueError(f"at_most must be a number of seconds above 0 and at most {MOST_PAUSE:.0f}, a day, not {at_most}")


class HeartbeatState:
    """Written by the training thread and read by the sending thread: each value is replaced as a whole. Each new stream sends all again."""

    def __init__(
        self,
        tell: Callable[[], None] = lambda: None,
        recovery: Callable[[], Recovery | None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            tell: sends `message` at once; called when something in it has changed
            recovery: returns how far the process is with taking its state
            now: seconds on a clock that never goes back
        """
        self.tell = tell
        self._recovery = recovery
        self._now = now
        self._local_step = 0
        self._pause = ("", 0.0)
        """(reason, until when). The reason is empty if the program does not pause."""
        self._finish = ""
        self._holds_parameters = False

    def stepped(self, local_step: int) -> None:
        self._local_step = local_step

    def paused(self, reason: str, at_most: float) -> None:
        """Note that the program takes no steps for at most `at_most` seconds. If `reason` is empty, the pause is over."""
        self._pause = (reason, self._now() + at_most)
        self.tell()

    def holds_parameters(self) -> None:
        """Note that the model holds the job's parameters: the first step comes next."""
        self._holds_parameters = True
        self.tell()

    def finish(self, reason: str) -> None:
        self._finish = reason
        self.tell()

    def message(self) -> Alive:
        """Return the present state. A pause that has lasted too long is not over: its `pause_left` is 0."""
        reason, until = self._pause
        left = max(0.0, until - self._now()) if reason else 0.0
        return Alive(
            local_step=self._local_step,
            pause=reason,
            pause_left=left,
            finish=self._finish,
            holds_parameters=self._holds_parameters,
            recovery=self._recovery(),
        )
