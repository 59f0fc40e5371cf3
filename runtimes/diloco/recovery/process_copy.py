"""One process's part of a copy: at each boundary the training thread puts what came in its place.

Meanwhile the process adopts broadcasts. A parameter that comes in an older version than the process has adopted by then is left out, so no
fragment is ever older than in a unit that trains, however long the copy takes.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from diloco.learner.store import Float32Array
from diloco.protocol.incoming_state import ArraysReceived
from diloco.protocol.state_parts import PieceArray
from diloco.recovery.adopted_versions import AdoptedVersions
from diloco.recovery.copying import Copy, CopyDone, CopyFailed

SILENCE_SECONDS = 30.0
"""How long nothing may come before the copy fails. A donor that waits for its step boundary says so, see `state_transfer.ALIVE_SECONDS`."""

type End = CopyDone | CopyFailed


class ProcessCopy:
    """Used by the training thread."""

    def __init__(
        self,
        copy: Copy,
        put: Callable[[PieceArray, Float32Array], None],
        fragment_of: Mapping[str, int],
        has_room: Callable[[], bool] = lambda: True,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            put: puts values, float32 [elements], in their place. Raises StateError for an array that has no place in this process
            fragment_of: the index of each tensor's fragment, by the tensor's name
            has_room: returns whether more may be put now
        """
        self._copy = copy
        self._put = put
        self._fragment_of = fragment_of
        self._has_room = has_room
        self._now = now
        self.changed_parameters = False
        """Parameters of the copy were put."""

    @property
    def bytes(self) -> int:
        """How much has come."""
        return self._copy.bytes

    @property
    def begun_at(self) -> float | None:
        """When the first part began, on `time.monotonic`. None if nothing has come."""
        return self._copy.begun_at

    def go_on(self, adopted: AdoptedVersions) -> End | None:
        """Put what came. Return the end of the copy, or None if more is to come. Raises StateError."""
        while self._has_room():
            if (event := self._copy.take()) is None:
                break
            if not isinstance(event, ArraysReceived):
                return event
            start = 0
            for array in event.arrays:
                values: Float32Array = event.values[start : start + array.piece.elements]
                start += array.piece.elements
                if array.name or self._is_new(array, event, adopted):
                    self.changed_parameters = self.changed_parameters or not array.name
                    self._put(array, values)
        else:
            # No room: parts wait here, so the donor's silence cannot be judged.
            return None
        if self._now() - self._copy.heard_at > SILENCE_SECONDS:
            return CopyFailed(f"it sent nothing for {SILENCE_SECONDS:.0f} s")
        return None

    def cancel(self) -> None:
        self._copy.cancel()

    def _is_new(self, array: PieceArray, received: ArraysReceived, adopted: AdoptedVersions) -> bool:
        """Whether the donor's version of this parameter is at least as new as what this process has adopted."""
        fragment = self._fragment_of[array.piece.tensor]
        return received.versions[fragment] >= adopted.versions[fragment]
