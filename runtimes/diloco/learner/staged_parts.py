"""A state on its way out of a process that trains on: from the training thread, which stages it part by part, to the thread that sends or
stores it.

At each step boundary the training thread stages a few parts, for no longer than a small share of a step. Different parts may be read at
different boundaries, as fragments of a model are of different versions anyway. The queue holds about as much as the link carries between
two boundaries: each time that it was full and then runs empty before the next boundary, its bound doubles.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diloco.algorithm.pieces import Piece
from diloco.learner.inner_state import LONG_SECONDS, InnerState, StagedRest, staging_seconds
from diloco.learner.store import Staged
from diloco.protocol.state_parts import PieceArray, StateError, elements

_log = logging.getLogger(__name__)

QUEUE_BYTES = 64 << 20
"""Bytes that may wait at first, and for a small model always."""
QUEUE_SHARE = 0.5
"""Share of the parameters' bytes that may wait at most, if that is more than QUEUE_BYTES."""


class NothingComes(Exception):
    """No further part comes. The message says why."""


@dataclass(frozen=True, slots=True)
class StagedPart:
    """One part as it was at a step boundary."""

    arrays: Sequence[PieceArray]
    """Empty for the small rest."""
    staged: Staged | StagedRest
    versions: Sequence[int]
    """For each fragment the version that the process had adopted."""
    bytes: int


class StagedParts:
    """A queue from the training thread, which calls `stage`, to another one, which calls `take` and `taken`."""

    def __init__(
        self,
        state: InnerState,
        parts: Sequence[Sequence[Piece]],
        receiver: str,
        stage_rest: Callable[[], StagedRest] | None = None,
        *,
        optimizer_only: bool = False,
    ) -> None:
        """
        Args:
            parts: parts of the model, each of which is read at one boundary
            receiver: named in messages
            stage_rest: reads the small rest, which comes last. None if it is not wanted
            optimizer_only: the parameters are not wanted
        """
        self.receiver = receiver
        self._state = state
        self._parts = parts
        self._stage_rest = stage_rest
        self._optimizer_only = optimizer_only
        self.next = 0
        """How many parts are staged."""
        self._changed = threading.Condition()
        self._most = QUEUE_BYTES
        """Bytes that may wait."""
        self._bound = max(QUEUE_BYTES, int(QUEUE_SHARE * 4 * sum(piece.elements for part in parts for piece in part)))
        self._was_full = False
        """The queue was full after the last boundary."""
        self._begun: float | None = None
        """When the first part was staged."""
        self._is_long = False
        """All parts would take longer than LONG_SECONDS."""
        self._queue: deque[StagedPart | None] = deque()
        self._waiting = 0
        self._over = False
        self._why = ""

    @property
    def over(self) -> bool:
        """Nothing more is wanted."""
        return self._over

    def stage(self, versions: Sequence[int], step_seconds: float, now: Callable[[], float]) -> bool:
        """Stage what there is room for, in the time that a boundary may take after a step of `step_seconds`, and at least one part. Returns
        whether that time is over. `versions` has for each fragment the version that this process has adopted. An error ends the transfer,
        and this process trains on."""
        begin = now()
        self._begun = begin if self._begun is None else self._begun
        # If all parts go on as those until now. Once decided it stays: with twice the share a state may seem short again.
        self._is_long = self._is_long or (begin - self._begun) * len(self._parts) > LONG_SECONDS * max(1, self.next)
        until = begin + staging_seconds(step_seconds, is_long=self._is_long)
        try:
            self._stage(versions, until, now)
        except StateError as error:
            self.end(str(error))
        except Exception as error:  # noqa: BLE001 - of a framework: the receiver does without
            _log.exception("the state could not be given to %s", self.receiver)
            self.end(f"this process could not read its state: {type(error).__name__}: {error}")
        return now() >= until

    def _stage(self, versions: Sequence[int], until: float, now: Callable[[], float]) -> None:
        if self._was_full and not self._waiting:
            self._most = min(2 * self._most, self._bound)
        self._was_full = False
        while self.next <= len(self._parts):
            if self._waiting >= self._most:
                self._was_full = True
                return
            if self.next == len(self._parts):
                if self._stage_rest is not None:
                    self._put(StagedPart((), self._stage_rest(), list(versions), 0))
                self._put(None)
            elif arrays := self._arrays():
                self._put(StagedPart(arrays, self._state.stage(arrays), list(versions), 4 * elements(arrays)))
            self.next += 1
            if now() >= until:
                return

    def _arrays(self) -> list[PieceArray]:
        return [array for array in self._state.arrays(self._parts[self.next]) if array.name or not self._optimizer_only]

    def _put(self, part: StagedPart | None) -> None:
        """Add a part, or None after the last one. Never waits."""
        with self._changed:
            if self._over:  # it ended while this part was staged
                if part is not None:
                    _release(part)
                return
            if part is not None:
                self._waiting += part.bytes
            self._queue.append(part)
            self._changed.notify()

    def end(self, why: str = "") -> None:
        """End the transfer: nothing more comes. `why` says what went wrong, or is empty."""
        with self._changed:
            self._over = True
            self._why = self._why or why
            for part in self._queue:
                _release(part)
            self._queue.clear()
            self._changed.notify()

    def wait(self, seconds: float) -> bool:
        """Wait for the next part or the end, at most `seconds`. True if `take` will not wait."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._queue) or self._over, seconds)

    def take(self, seconds: float | None = None, *, waited: float = 0.0) -> StagedPart | None:
        """Return the next part. None after the last one.

        Raises NothingComes if the transfer has ended, or no part comes within `seconds` (None: wait for ever). The message of the latter
        adds `waited`, the seconds that the caller has waited before.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._queue) or self._over, seconds):
                self._over = True
                self._why = f"the donor has reached no step boundary with news for {waited + (seconds or 0.0):.0f} s"
            if self._over:
                raise NothingComes(self._why or "the taker is gone")
            return self._queue.popleft()

    def taken(self, part: StagedPart) -> None:
        """Note that the part's values are not needed any more."""
        _release(part)
        with self._changed:
            self._waiting -= part.bytes


def _release(part: StagedPart | None) -> None:
    if part is not None and part.arrays:
        part.staged.release()  # type: ignore[union-attr]  # what has arrays is `Staged`
