"""The part of a unit's stored state that one process writes. It stages its own pieces at its step boundaries, and a thread writes them.

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
    """The parts that all processes of a unit store. Used by the training thread of the unit's first process."""

    def at_boundary(self, step_seconds: float) -> None:
        """Stage what fits into the time that this boundary may take. The state is readable."""
        ...

    def done(self) -> bool:
        """Whether all processes have written everything. Raises StateError if one could not."""
        ...

    def blocks(self) -> Sequence[Block]:
        """Return the blocks, after `done`. Called on a background thread, because many ranks have long lists."""
        ...

    def end(self) -> None:
        """Write nothing more."""
        ...


class PartsOfProcess:
    """The `StoredParts` of one process."""

    def __init__(
        self,
        state: InnerState,
        parts: Sequence[Sequence[Piece]],
        writer: Callable[[], BlockWriter],
        done: Callable[[Sequence[Block], str], None] = lambda blocks, error: None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin to write these parts of the model.

        Args:
            parts: parts of the model, each of which is read at one boundary
            writer: makes the writer; called on the writing thread
            done: called on the writing thread at the end, with the blocks and "", or with () and what went wrong
            now: seconds, to measure short times with
        """
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
