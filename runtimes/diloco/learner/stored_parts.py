"""What one process stores of its unit's state: its own pieces, which it stages at its step boundaries and writes on a thread of its own.

See docs/decisions/0266-stored-states.md.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from diloco.algorithm.pieces import Piece
from diloco.learner.inner_state import InnerState
from diloco.learner.staged_parts import NothingComes, StagedParts
from diloco.object_stores import words
from diloco.protocol.state_parts import StateError
from diloco.snapshots.stored_state import Block, BlockWriter

_log = logging.getLogger(__name__)


class StoredParts(Protocol):
    """The parts of a state that is stored, of all processes of the unit. Used by the training thread of the first one."""

    def at_boundary(self, step_seconds: float) -> None:
        """Stage what fits into the time that this boundary may take. The state is readable."""
        ...

    def done(self) -> bool:
        """Return whether all is written, of all processes. Raises StateError if one could not write."""
        ...

    def blocks(self) -> Sequence[Block]:
        """Return what is written, once it is done. Belongs on a background thread: many ranks have long lists."""
        ...

    def end(self) -> None:
        """Write nothing more."""
        ...


class PartsOfProcess:
    """A `StoredParts` of one process. It is over when `done` was called."""

    def __init__(
        self,
        state: InnerState,
        parts: Sequence[Sequence[Piece]],
        writer: Callable[[], BlockWriter],
        done: Callable[[Sequence[Block], str], None] = lambda blocks, error: None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin to write these parts of the model. `writer` is called on the thread, as is `done`: with what was written, or with what went
        wrong. `now`: seconds, to measure short times with."""
        self._staged = StagedParts(state, parts, "what it stores", optimizer_only=True)
        self._writer = writer
        self._done = done
        self._now = now
        self._blocks: Sequence[Block] | None = None
        self._error = ""
        threading.Thread(target=self._write, name="diloco-store", daemon=True).start()

    def at_boundary(self, step_seconds: float) -> None:
        if not self._staged.over:
            self._staged.stage((), step_seconds, self._now)

    def done(self) -> bool:
        if self._error:
            raise StateError(self._error)
        return self._blocks is not None

    def blocks(self) -> Sequence[Block]:
        assert self._blocks is not None
        return self._blocks

    def end(self) -> None:
        self._staged.end("the unit leaves")

    def _write(self) -> None:
        blocks: Sequence[Block] = ()
        error = ""
        try:
            writer = self._writer()
            while (part := self._staged.take()) is not None:
                try:
                    writer.add(part.arrays, part.staged.wait())
                finally:
                    self._staged.taken(part)
            self._blocks = blocks = writer.finish()
        except (NothingComes, StateError) as why:
            error = str(why)
        except Exception as why:  # noqa: BLE001 - drivers raise classes of their own, and frameworks too: this unit trains on
            _log.warning("the state could not be written", exc_info=True)
            error = words(why) or type(why).__name__
        self._error = error
        self._staged.end(error)
        self._done(blocks, error)
