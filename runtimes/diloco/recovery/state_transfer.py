"""What one process of a taker gets from this process: the parts that the training thread stages, as messages.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import grpc

from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import Piece
from diloco.learner.inner_state import InnerState, StagedRest
from diloco.learner.staged_parts import NothingComes, StagedPart, StagedParts
from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import StateEnd, StateMessage
from diloco.protocol.outgoing_state import part_messages
from diloco.protocol.state_parts import StateError, cut
from diloco.protocol.state_values import encode

BOUNDARY_SECONDS = 120.0
"""How long the next part may take. The program may evaluate, or may not have adopted yet what the peer holds."""
ALIVE_SECONDS = 10.0
"""How often the donor says meanwhile that it is still there: a third of `process_copy.SILENCE_SECONDS`."""


class Refused(Exception):
    """This process does not give its state. `code` and the message are for the peer."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class StateTransfer(StagedParts):
    """Some pieces of this process's state, for one process of a taker."""

    def __init__(
        self,
        layout: Layout,
        state: InnerState,
        pieces: Sequence[Piece],
        receiver: str,
        stage_rest: Callable[[], StagedRest] | None = None,
        *,
        hears_waiting: bool = True,
    ) -> None:
        """The arguments are those of `StagedParts`, and `hears_waiting` of `StateWanted`."""
        super().__init__(state, cut(pieces), receiver, stage_rest)
        self._layout = layout
        self._elements = sum(piece.elements for piece in pieces)
        self._hears_waiting = hears_waiting

    def messages(self) -> Iterator[StateMessage | DataChunk]:
        """Yield what the receiver gets. Raises Refused."""
        index = total = 0
        while True:
            yield from self._until_the_next()
            if (part := self._next()) is None:
                break
            try:
                values = part.staged.wait()
                payload = memoryview(values).cast("B") if part.arrays else memoryview(encode(values))
            except StateError as error:
                raise Refused(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from error
            yield from part_messages(index, part.arrays, payload, part.versions, self._layout)
            index, total = index + 1, total + len(payload)
            self.taken(part)
        yield StateMessage(end=StateEnd(parts=index, bytes=total, elements=self._elements))

    def _until_the_next(self) -> Iterator[StateMessage]:
        """Yield an empty message every ALIVE_SECONDS until there is a part, for BOUNDARY_SECONDS at most. None for a receiver that does not
        know them."""
        if not self._hears_waiting:
            return
        for _ in range(int(BOUNDARY_SECONDS // ALIVE_SECONDS)):
            if self.wait(ALIVE_SECONDS):
                return
            yield StateMessage()

    def _next(self) -> StagedPart | None:
        try:
            return self.take(0.0, waited=BOUNDARY_SECONDS) if self._hears_waiting else self.take(BOUNDARY_SECONDS)
        except NothingComes as error:
            raise Refused(grpc.StatusCode.UNAVAILABLE, str(error)) from error
