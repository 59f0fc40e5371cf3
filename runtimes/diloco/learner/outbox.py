"""The queue of messages on one stream to the syncer. The training thread adds and never waits; gRPC's sending thread takes.

Four lanes. The next message comes from the first lane that has one:

| lane | messages | order | why |
|---|---|---|---|
| control | Hello, WorkWanted, Evaluation, Taken | as posted | small, and the syncer waits for them: they may go between two chunks |
| alive | Alive | one message, made when it is sent | first after Hello, at once after a change, and after a silence |
| progress | Progress | only the newest | each replaces the one before; it takes turns with the chunks, so that both go on |
| ordered | SEED, PUSH, Bye | as added; pushes between two others: newest first | Bye says that everything before it was sent |

`PushOrder` is the ordered lane. A message that must stay between what was read before it and what was read after it (such as a marker)
belongs there, where no push passes it.

Chunks also wait for the transfer window, because a chunk that has left this queue can be neither dropped nor overtaken.

See docs/decisions/0148-driver-and-threads.md. See docs/decisions/0150-transfers.md.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from diloco.contract import HEARTBEAT
from diloco.learner.push_order import PushOrder, Transfer
from diloco.protocol.chunks import DataChunk, divide, to_wire, with_acknowledged
from diloco.protocol.diloco_pb2 import Alive, Chunk, FromLearner, Progress, Taken
from diloco.protocol.framing import cancellation, is_last
from diloco.protocol.window import HOLD_SECONDS, Receipts, Window


@dataclass(slots=True, eq=False)
class _Messages:
    """Messages that are sent one after the other, such as the chunks of a push."""

    messages: Iterator[FromLearner | DataChunk]
    push: Chunk | None = None
    """The header of a push, which names its exchange. None for anything else."""
    begun: bool = False
    """A message was taken."""
    rest: DataChunk | None = None
    """The part of the last chunk that was not sent yet. None if there is none."""
    ended: Callable[[], None] = lambda: None
    """Called once nothing more will be taken from `messages`."""


class Outbox:
    """The messages for one stream. Pushes are dropped, also in the middle of their transfer, once their exchange is known to be over."""

    def __init__(
        self,
        first: FromLearner,
        overlap_steps: int,
        now: Callable[[], float] = time.monotonic,
        alive: Callable[[], Alive] | None = None,
    ) -> None:
        """
        Args:
            overlap_steps: tau
            now: seconds on a clock that never goes back
            alive: makes the next Alive; called on the sending thread, and must be quick. None: no Alive is sent
        """
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        """For the sending thread. It is woken only if it has something to do, because waking a thread costs as much as a message."""
        self._delivered = threading.Condition(lock)
        """For threads that wait for the end of pushes."""
        self._looks_at = -math.inf
        """When the waiting sending thread looks again by itself. Minus infinity if it does not wait."""
        self._now = now
        self._control: deque[FromLearner] = deque([first])
        self._progress: Progress | None = None
        self._alive = alive
        self._alive_at = now()
        """When Alive is due."""
        self._chunk_is_next = False
        self._order: PushOrder[_Messages] = PushOrder(overlap_steps, now, self._drop)
        self._making_chunk = False
        """The sending thread is inside the iterator of the present transfer."""
        self._last_began: float | None = None
        """If the message that was taken last ends a push, when that push began. Used if the syncer acknowledges nothing."""
        self._arriving: deque[tuple[int, float]] = deque()
        """Pushes that are sent and not acknowledged: (where in the window they end, when they began)."""
        self._syncer_takes_cancelled = False
        self._acknowledges = False
        self._window = Window()
        self._receipts = Receipts()
        self._finishing = False
        self._abandoned = False
        self.failure: Exception | None = None
        """What the coding of a push or seed has raised. It ends the stream."""

    # --- adding -------------------------------------------------------------------------------------------------------

    def post(self, message: FromLearner) -> None:
        """Send `message` once, in order with the other posted messages, before everything else."""
        with self._changed:
            self._control.append(message)
            self._wake()

    def progress(self, progress: Progress) -> None:
        """Send `progress`, unless a later one comes first."""
        with self._changed:
            self._progress = progress
            self._wake()

    def tell_alive(self) -> None:
        """Send an Alive at once, because something has changed."""
        with self._changed:
            self._alive_at = self._now()
            self._wake()

    def seed(self, chunks: Iterator[DataChunk]) -> None:
        """Send `chunks` after everything that is in the ordered lane. The iterator codes them on the sending thread."""
        with self._changed:
            self._order.post(_Messages(chunks))
            self._wake()

    def push(self, header: Chunk, chunks: Iterator[DataChunk], ended: Callable[[], None]) -> None:
        """Send `chunks` before older pushes that wait. They are dropped if the exchange of `header` is over.

        `ended` is called once, when nothing more will be taken from `chunks`: all were sent, or the push was dropped.
        """
        with self._changed:
            self._order.push(header.fragment, header.t, _Messages(chunks, push=header, ended=ended))
            self._wake()

    def finish(self, last: FromLearner | None = None) -> None:
        """End the stream after everything that is queued, with `last` at the end."""
        with self._changed:
            if last is not None:
                self._order.post(_Messages(iter((last,))))
            self._finishing = True
            self._wake()

    def abandon(self) -> None:
        """Send nothing more."""
        with self._changed:
            self._abandoned = True
            self._delivered.notify_all()
            self._order.clear()
            # While the sending thread is inside the iterator it needs the staged values. It then ends the transfer itself.
            if not self._making_chunk:
                self._end_sending()
            self._wake()

    # --- what the syncer says -----------------------------------------------------------------------------------------

    def may_cancel(self) -> None:
        """Note that the syncer understands a cancelled transfer, so that a push whose exchange is over may end unfinished."""
        with self._changed:
            self._syncer_takes_cancelled = True

    def acknowledges(self, *, beside: bool = False) -> None:
        """Note that the syncer acknowledges chunks and understands acknowledgements; with `beside`, also those within other messages."""
        with self._changed:
            self._acknowledges = True
            self._receipts.go_beside = beside
            # Only now: with a syncer that acknowledges nothing, the window would close and never open again.
            self._window.limit()

    def taken(self, acknowledged: Taken) -> None:
        """Note which chunks the syncer has acknowledged. Raises FramingError if they are more than were sent."""
        with self._changed:
            at = self._window.taken(acknowledged, self._now())
            while self._arriving and self._window.has_arrived(self._arriving[0][0]):
                self._order.arrived(self._arriving.popleft()[1], at)
            self._wake()

    def took(self, chunk: DataChunk) -> None:
        """Note that a chunk has come from the syncer."""
        with self._changed:
            self._receipts.take(len(chunk.data), self._now(), more=not is_last(chunk))
            if self._acknowledges and self._receipts.due_at < self._looks_at:
                self._changed.notify()

    def clock(self, t: int) -> None:
        """Note that the syncer has taken outer step `t`: the exchanges up to t - tau - 1 are over."""
        with self._changed:
            self._order.clock(t)
            self._wake()

    def ends_at(self, t: int) -> None:
        """Note that outer step `t` is the job's last one."""
        with self._changed:
            self._order.ends_at(t)

    def merged(self, fragment: int, t: int) -> None:
        """Note that version `t` of the fragment has come: its exchanges up to `t` are over."""
        with self._changed:
            self._order.merged(fragment, t)
            self._wake()

    def all_merged(self) -> None:
        """Note that the job is at its last outer step: no push is needed any more."""
        with self._changed:
            self._order.all_merged()
            self._wake()

    @property
    def pushes(self) -> int:
        """Pushes that wait or are under way. Their staged values are still held."""
        with self._changed:
            return len(self._order.pushes)

    def wait_until_delivered(self, seconds: float) -> bool:
        """Wait at most `seconds` until no push waits or is under way. True if none is, or the stream was abandoned."""
        with self._delivered:
            return self._delivered.wait_for(lambda: self._abandoned or not self._order.pushes, seconds)

    # --- taking -------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[FromLearner | bytes]:
        """Yield the messages for the stream, until its end. Waits for the next one."""
        while True:
            with self._changed:
                self._wait_for_message()
            message = self.take()
            if message is not None:
                yield message
                self.sent()
                continue
            with self._changed:
                if self._is_at_end() and not self._has_message():
                    return

    def _wait_for_message(self) -> None:
        while not (self._has_message() or self._is_at_end()):
            now = self._now()
            self._looks_at = self._due_at(now)
            self._changed.wait(None if self._looks_at == math.inf else self._looks_at - now)
        self._looks_at = -math.inf

    def _wake(self) -> None:
        """Wake the sending thread, if there is something for it."""
        if self._has_message() or self._is_at_end():
            self._changed.notify()

    def sent(self) -> None:
        """Note that the message that `take` returned last has left this process."""
        with self._changed:
            if self._last_began is not None:
                self._order.arrived(self._last_began, self._now())
                self._last_began = None

    def take(self) -> FromLearner | bytes | None:
        """Return the next message, a chunk as its bytes. None if there is none now. For one thread, which calls `sent` after each one.
        Raises what the coding of a chunk raises."""
        while True:
            with self._changed:
                if self._abandoned:
                    return None
                message = self._next_small()
                beside = self._receipts.beside(self._now()) if message is not None else None
                transfer = self._next_transfer() if message is None else None
                self._making_chunk = transfer is not None
                most = self._window.chunk_bytes(self._now())
            if message is not None:
                return with_acknowledged(message, beside)
            if transfer is None:
                return None
            # Outside the lock: the training thread must not wait for the coding of a fragment.
            try:
                part = _next_of(transfer.what, most)
            except Exception as error:
                with self._changed:
                    self.failure = error
                    self._making_chunk = False
                    self._end_sending()
                raise
            with self._changed:
                beside = self._receipts.beside(self._now()) if part is not None else None
            made, data, last = _on_wire(part, beside)
            with self._changed:
                self._making_chunk = False
                end = self._window.sent(data, self._now())
                if last or self._abandoned:
                    self._end_sending()
                    if transfer.what.push is not None and self._acknowledges:
                        self._arriving.append((end, transfer.begun_at))
                    elif transfer.what.push is not None:
                        self._last_began = transfer.begun_at
                if made is not None:
                    transfer.what.begun = True
                    self._chunk_is_next = False
                    return made

    def _next_small(self) -> FromLearner | None:
        """Take a message without payload that is due before the next chunk, or return None."""
        if self._control:
            return self._control.popleft()
        if self._alive is not None and self._alive_is_due():
            self._alive_at = self._now() + HEARTBEAT
            return FromLearner(alive=self._alive())
        if self._acknowledgement_is_due():
            return FromLearner(taken=self._receipts.tell(self._now()))
        # Takes turns with chunks: a program with short steps always has news, and no chunk would ever go out.
        if self._progress is not None and not (self._chunk_is_next and self._may_send()):
            message, self._progress = FromLearner(progress=self._progress), None
            self._alive_at = self._now() + HEARTBEAT  # a step says that the process is alive
            self._chunk_is_next = True
            return message
        # A transfer that has begun must be cancelled by a message: the syncer keeps its chunks until the last one or that message comes.
        if not self._may_end_unfinished() or (sending := self._order.sending) is None:
            return None
        self._end_sending()
        if not sending.what.begun or sending.what.push is None:
            return None
        self._order.gave_up(sending.begun_at)
        return FromLearner(chunk=cancellation(sending.what.push))

    def _next_transfer(self) -> Transfer[_Messages] | None:
        return self._order.begin() if self._may_send() else None

    def _drop(self, messages: _Messages) -> None:
        messages.ended()
        self._delivered.notify_all()

    def _end_sending(self) -> None:
        sending, self._order.sending = self._order.sending, None
        self._delivered.notify_all()
        if sending is not None:
            sending.what.ended()

    def _has_message(self) -> bool:
        """Whether `take` has something to do."""
        if self._abandoned:
            return False
        small = self._control or self._progress is not None or self._acknowledgement_is_due()
        return bool(small or self._alive_is_due() or self._may_end_unfinished() or self._may_send())

    def _alive_is_due(self) -> bool:
        return self._alive is not None and not self._finishing and self._now() >= self._alive_at

    def _acknowledgement_is_due(self) -> bool:
        return self._acknowledges and self._now() >= self._receipts.due_at

    def _due_at(self, now: float) -> float:
        """Return when something will be due without being added. Infinity if nothing will."""
        alive_at = math.inf if self._alive is None or self._finishing else self._alive_at
        if not self._acknowledges:
            return alive_at
        # Chunks come one after the other. The sending thread looks soon by itself, so that `took` need not wake it for the next one.
        soon = now + HOLD_SECONDS if self._receipts.go_beside and now < self._receipts.last_at + HOLD_SECONDS else math.inf
        return min(alive_at, self._receipts.due_at, soon)

    def _may_end_unfinished(self) -> bool:
        """Whether the present transfer is over and can be dropped: the syncer takes a cancellation, or has seen nothing of it."""
        sending = self._order.sending
        return sending is not None and sending.over and (self._syncer_takes_cancelled or not sending.what.begun)

    def _may_send(self) -> bool:
        """Whether there is a chunk to send and the window is open for it."""
        return bool(self._order.sending or self._order.waits) and self._window.is_open(self._now())

    def _is_at_end(self) -> bool:
        """Whether nothing more will be sent."""
        return self._abandoned or (self._finishing and not self._order.sending and not self._order.waits)


def _next_of(messages: _Messages, most: int) -> FromLearner | DataChunk | None:
    """Take the next message, a chunk with at most `most` bytes. None if there are no more."""
    message = messages.rest or next(messages.messages, None)
    if isinstance(message, DataChunk):
        message, messages.rest = divide(message, most)
    return message


def _on_wire(message: FromLearner | DataChunk | None, beside: Taken | None) -> tuple[FromLearner | bytes | None, int, bool]:
    """Return (`message` as it is sent, bytes of a chunk's data, whether its transfer ends with it).

    A chunk is copied here, because the memory that it was cut from may be used again once its transfer has ended.
    """
    if isinstance(message, DataChunk):
        return to_wire(with_acknowledged(message, beside)), len(message.data), is_last(message)
    return None if message is None else with_acknowledged(message, beside), 0, True
