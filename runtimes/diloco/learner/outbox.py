"""The queue of messages on one stream to the syncer. The training thread adds and never waits; gRPC's sending thread takes.

See docs/decisions/0072-threads-and-event-loops.md.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from diloco.protocol.diloco_pb2 import FromLearner, Progress


class Outbox:
    """An iterator of messages for one stream. Control messages come first. Then the newest progress and one chunk of the transfer in
    progress take turns: metadata waits for one chunk at most, and a learner whose steps are shorter than the sending of one message
    still answers."""

    def __init__(self, first: FromLearner) -> None:
        self._changed = threading.Condition()
        self._control: deque[FromLearner] = deque([first])
        self._progress: Progress | None = None
        self._transfers: deque[Iterator[FromLearner]] = deque()
        self._finishing = False
        self._abandoned = False

    def post(self, message: FromLearner) -> None:
        """Send `message` once, in order with the other posted messages."""
        with self._changed:
            self._control.append(message)
            self._changed.notify()

    def progress(self, progress: Progress) -> None:
        """Send `progress`, unless a later one comes first."""
        with self._changed:
            self._progress = progress
            self._changed.notify()

    def transfer(self, chunks: Iterator[FromLearner]) -> None:
        """Send `chunks` in order. The iterator does its work, the coding, on the sending thread."""
        with self._changed:
            self._transfers.append(chunks)
            self._changed.notify()

    def finish(self, last: FromLearner | None = None) -> None:
        """End the stream after everything that is queued, and `last`."""
        with self._changed:
            if last is not None:
                self._transfers.append(iter((last,)))
            self._finishing = True
            self._changed.notify()

    def abandon(self) -> None:
        """The stream is over: send nothing any more."""
        with self._changed:
            self._abandoned = True
            self._changed.notify()

    def __iter__(self) -> Iterator[FromLearner]:
        chunk_is_next = False
        while True:
            with self._changed:
                self._changed.wait_for(self._ready)
                if self._abandoned:
                    return
                if self._control:
                    message: FromLearner | None = self._control.popleft()
                elif self._progress is not None and not (chunk_is_next and self._transfers):
                    message, self._progress = FromLearner(progress=self._progress), None
                    chunk_is_next = True
                elif self._transfers:
                    message = None
                else:
                    return
            if message is not None:
                yield message
                continue
            # Outside the lock: the training thread must not wait for the coding of a fragment.
            chunk_is_next = False
            chunk = next(self._transfers[0], None)
            if chunk is None:
                with self._changed:
                    self._transfers.popleft()
            else:
                yield chunk

    def _ready(self) -> bool:
        return bool(self._abandoned or self._control or self._progress is not None or self._transfers or self._finishing)
