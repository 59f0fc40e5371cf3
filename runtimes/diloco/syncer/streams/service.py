"""The gRPC service: streams to and from the job, and which certificate may call which method.

See docs/decisions/0148-driver-and-threads.md.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Protocol

import grpc
import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.layout import LayoutError
from diloco.algorithm.pieces import PieceError
from diloco.contract import learner_identity, operator_identity, part_with_identity
from diloco.protocol.chunks import DataChunk, acknowledged_in
from diloco.protocol.diloco_pb2 import Chunk, Entry, FromLearner, Hello, PartState, Report, Told, WatchRequest
from diloco.protocol.framing import Assembler, FramingError, Transfer
from diloco.protocol.piece_maps import Owned, read_owned
from diloco.protocol.rpc import ExchangeContext, TellContext, WatchContext
from diloco.protocol.tls import peer_identity
from diloco.syncer.streams.changes import Changes
from diloco.syncer.streams.learner_stream import (
    WITHOUT_SLOT,
    AliveReceived,
    ByeReceived,
    CongestedError,
    EvaluationReceived,
    HelloReceived,
    LearnerStream,
    ProgressReported,
    ProtocolViolation,
    SeedReceived,
    StreamEvent,
    StreamLost,
    WorkRequested,
)

_log = logging.getLogger(__name__)

SHORTEST_INTERVAL = 0.1
DEFAULT_INTERVAL = 1.0
"""Seconds between two reports: the shortest interval that a watcher may ask for, and the usual one."""
MOST_PART_STATE = 8192
"""Bytes of what the operator of a part may say at once."""


class Job(Protocol):
    """What the streams need from their job."""

    def connect(self) -> LearnerStream:
        """Register a new stream."""
        ...

    def submit(self, event: StreamEvent) -> None:
        """Queue an event."""
        ...

    def expected_bytes(self, stream: LearnerStream, chunk: Chunk) -> int:
        """Return the size of the payload that a joined learner's chunk begins.

        Raises FramingError for a chunk that this learner may not send, CongestedError if the stream shall end and may be opened again.
        """
        ...

    def memory(self, size: int) -> NDArray[np.uint8]:
        """Return a buffer of `size` bytes for a payload whose first chunk `expected_bytes` has admitted."""
        ...

    async def push(self, stream: LearnerStream, transfer: Transfer) -> None:
        """Take a complete PUSH. The stream's reader waits for it."""
        ...

    def received(self, stream: LearnerStream, message: FromLearner | DataChunk) -> None:
        """Note for reports what a joined learner has sent just now."""
        ...

    def sent(self, stream: LearnerStream, chunk: DataChunk) -> None:
        """Note for reports what a learner was sent."""
        ...

    def acknowledged(self, stream: LearnerStream, count: int) -> None:
        """Note that so many bytes of chunks have arrived at a learner."""
        ...

    def report(self) -> Report:
        """Return the present state of the job."""
        ...

    def told(self, part: str, state: PartState) -> None:
        """Take what the operator of a part says about it."""
        ...

    def entries(self, after: int) -> tuple[list[Entry], bool]:
        """Return the entries after number `after`, as many as one report takes, and whether there are more."""
        ...


class Service:
    """Implements the proto's `Syncer`. TLS accepts certificates of the job's authorities only; this class checks what each may do."""

    def __init__(self, job: Job, job_uid: str, changes: Changes, hello_timeout: float) -> None:
        """`hello_timeout`: how long a stream may take for its first message, seconds."""
        self._hello_timeout = hello_timeout
        self._job = job
        self._job_uid = job_uid
        self._changes = changes
        self._turns = SendTurns()

    async def Exchange(self, requests: AsyncIterator[FromLearner | DataChunk], context: ExchangeContext) -> None:  # noqa: N802 - the name on the wire
        """Serve one learner's stream until its end."""
        shown = peer_identity(context.auth_context())
        stream = self._job.connect()
        reader = asyncio.create_task(self._read(requests, stream, shown), name=f"read-{stream.number}")
        why = "the stream was cut"
        try:
            async for message in stream.outgoing.messages():
                await context.write(message)
                if isinstance(message, DataChunk):  # the stream makes and writes its next message only in its next turn
                    self._job.sent(stream, message)
                    await self._turns.next()
            why = "the stream has ended"
            if stream.aborted is not None:
                await context.abort(*stream.aborted)
        finally:
            reader.cancel()
            self._job.submit(StreamLost(stream, why))

    async def Watch(self, request: WatchRequest, context: WatchContext) -> None:  # noqa: N802 - the name on the wire
        """Report at once, at every change and after every interval, until the watcher leaves or the job is complete."""
        shown = peer_identity(context.auth_context())
        if shown != operator_identity(self._job_uid) and not part_with_identity(self._job_uid, shown):
            _log.warning("%s may not watch this job", shown or "a certificate without identity")
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED, f"only operators may watch, not {shown or 'a certificate without identity'}"
            )
        interval = max(SHORTEST_INTERVAL, request.interval_seconds or DEFAULT_INTERVAL)
        last = 0
        while True:
            # Read before the report is made: a change between the two causes another report.
            mark = self._changes.mark
            report = self._job.report()
            more = False
            if request.entries:
                entries, more = self._job.entries(last)
                report.entries.extend(entries)
                last = entries[-1].number if entries else last
            await context.write(report)
            # Looked at before `done`: the watcher leaves after `done`, and would lose the last entries.
            if more:
                continue
            if report.done:
                return
            await self._changes.wait(mark, interval)

    async def Tell(self, request: PartState, context: TellContext) -> Told:  # noqa: N802 - the name on the wire
        """Keep what the operator of a part says. It waits for the next report: else a part could have the syncer report all the time."""
        shown = peer_identity(context.auth_context())
        part = part_with_identity(self._job_uid, shown)
        if not part:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"only parts may tell, not {shown or 'a certificate without identity'}")
        if request.ByteSize() > MOST_PART_STATE:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{request.ByteSize()} bytes are more than {MOST_PART_STATE}")
        self._job.told(part, request)
        return Told()

    async def _read(self, requests: AsyncIterator[FromLearner | DataChunk], stream: LearnerStream, shown: str) -> None:
        assembler = stream.assembler = Assembler(functools.partial(self._job.expected_bytes, stream), self._job.memory)
        greeted = False
        limit = asyncio.get_running_loop().call_later(self._hello_timeout, self._end_silent, stream)
        try:
            async for message in requests:
                if not greeted:
                    limit.cancel()
                    if isinstance(message, DataChunk) or not message.HasField("hello"):
                        raise FramingError("the first message must be Hello")
                    hello = message.hello
                    # The certificate must confirm the Hello, or a learner could speak for any other unit.
                    if shown != (claimed := learner_identity(hello.job_uid, hello.unit, hello.attempt)):
                        why = f"Hello says {claimed}, the certificate belongs to {shown or 'no identity'}"
                        _log.warning("refused: %s", why)
                        stream.abort(grpc.StatusCode.UNAUTHENTICATED, why)
                        return
                    greeted = True
                    if hello.acknowledges:
                        stream.outgoing.acknowledges(beside=hello.acknowledges_beside)
                    await self._submit(stream, HelloReceived(stream, hello, await _owned(hello)))
                    # Nothing is read before the decision, because events of a stream without a session are dropped.
                    await stream.join_decided.wait()
                    if stream.session is None:
                        return
                    continue
                self._job.received(stream, message)
                if (taken := acknowledged_in(message)) is not None:
                    self._job.acknowledged(stream, stream.outgoing.taken(taken))
                event = _event(stream, message, assembler)
                if isinstance(event, Transfer):
                    await self._job.push(stream, event)
                elif event is not None:
                    await self._submit(stream, event)
        except FramingError as error:
            await self._submit(stream, ProtocolViolation(stream, f"rank {stream.rank}: {error}" if stream.rank else str(error)))
            return
        except CongestedError as error:
            stream.retry(str(error))
            return
        except (grpc.aio.UsageError, grpc.aio.AbortError):
            return  # the call has ended meanwhile, or the syncer ends it
        except Exception as error:  # noqa: BLE001 - such as one that cannot be parsed; it is logged
            _log.exception("stream %d: a message could not be read", stream.number)
            await self._submit(stream, ProtocolViolation(stream, f"a message could not be read: {type(error).__name__}: {error}"))
            return
        finally:
            limit.cancel()
        self._job.submit(StreamLost(stream, "the learner has ended its stream"))

    def _end_silent(self, stream: LearnerStream) -> None:
        """End a stream that has sent no Hello in time. Its learner shall try again, because its link may have been slow."""
        stream.retry(f"no Hello has come within {self._hello_timeout:.0f} s")

    async def _submit(self, stream: LearnerStream, event: StreamEvent) -> None:
        """Queue an event once this stream has a free slot."""
        if not isinstance(event, WITHOUT_SLOT):
            await stream.slots.acquire()
        self._job.submit(event)


async def _owned(hello: Hello) -> Owned | PieceError | LayoutError:
    """Read what each rank of a leader's unit owns. A thread calls `read_owned`, which may take long; its error is returned."""
    try:
        if hello.rank or not (hello.ranks or hello.owned):
            return ()
        return await asyncio.to_thread(read_owned, hello)
    except (PieceError, LayoutError) as error:
        return error


def _event(stream: LearnerStream, message: FromLearner | DataChunk, assembler: Assembler) -> StreamEvent | Transfer | None:
    """Return the event of a message after Hello, or a complete PUSH. None if it is neither. Raises FramingError."""
    if isinstance(message, DataChunk):
        stream.outgoing.took(message)
        transfer = assembler.add(message)
        return SeedReceived(stream, transfer) if transfer is not None and transfer.header.kind == Chunk.SEED else transfer
    match message.WhichOneof("message"):
        case "progress":
            # Only the newest report counts, and one event stands for all that wait. Reports take no slot, so they would fill the queue.
            waiting, stream.progress = stream.progress is not None, message.progress
            return None if waiting else ProgressReported(stream)
        case "work_wanted":
            return WorkRequested(stream, message.work_wanted.samples, message.work_wanted.data)
        case "evaluation":
            return EvaluationReceived(stream, message.evaluation)
        case "alive":
            return AliveReceived(stream, message.alive)
        case "bye":
            return ByeReceived(stream, message.bye)
        case "hello":
            raise FramingError("Hello came twice on one stream")
        case _:
            return None


# ----------------------------------------------------------------------------------------------------------------------
# Large messages take turns on the event loop, so that everything else runs between two of them, however many learners receive a model.
# Handing one chunk to gRPC takes the event loop about a millisecond. Without turns, 64 streams that may all write would hold up leases,
# pulls and reports for 64 milliseconds.
class SendTurns:
    """Lets one waiting task go on in each pass of the event loop, first come, first served."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = False

    async def next(self) -> None:
        """Wait for a turn. It ends by itself with the next pass of the event loop."""
        loop = asyncio.get_running_loop()
        if self._taken:
            turn = loop.create_future()
            self._waiting.append(turn)
            await turn
            return
        self._taken = True
        loop.call_soon(self._pass_on, loop)

    def _pass_on(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # its task may be cancelled meanwhile
                turn.set_result(None)
                loop.call_soon(self._pass_on, loop)
                return
        self._taken = False
