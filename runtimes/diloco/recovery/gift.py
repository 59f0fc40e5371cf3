"""A state on its way to a peer: what the training thread stages, as messages.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from diloco.algorithm.layout import Layout
from diloco.learner.inner_state import InnerState
from diloco.learner.staged_parts import NothingComes, StagedPart, StagedParts
from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import StateEnd, StateMessage
from diloco.protocol.outgoing_state import part_messages
from diloco.protocol.state_parts import StateError, cut
from diloco.protocol.state_values import encode

BOUNDARY_SECONDS = 120.0
"""How long the next part may take: the program may evaluate, or wait for what the peer holds already."""


class Refused(Exception):
    """The state is not given. `code` and the message are for the peer."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Gift(StagedParts):
    """What one receiver gets."""

    def __init__(self, layout: Layout, state: InnerState, receiver: str) -> None:
        """Begin with `receiver`, for people."""
        super().__init__(state, cut(layout.tensors), receiver)
        self._layout = layout

    def messages(self) -> Iterator[StateMessage | DataChunk]:
        """Yield what the receiver gets. Raises Refused."""
        index = total = 0
        while (part := self._next()) is not None:
            try:
                values = part.staged.wait()
                payload = memoryview(values).cast("B") if part.arrays else memoryview(encode(values))
            except StateError as error:
                raise Refused(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from error
            yield from part_messages(index, part.arrays, payload, part.versions, self._layout)
            index, total = index + 1, total + len(payload)
            self.taken(part)
        yield StateMessage(end=StateEnd(parts=index, bytes=total))

    def _next(self) -> StagedPart | None:
        try:
            return self.take(BOUNDARY_SECONDS)
        except NothingComes as error:
            raise Refused(grpc.StatusCode.UNAVAILABLE, str(error)) from error
