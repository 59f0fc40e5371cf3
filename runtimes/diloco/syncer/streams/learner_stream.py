"""The streams of the learners as the engine sees them, and the events on them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

import grpc

from diloco.algorithm.effects import Close, Refusal
from diloco.algorithm.events import Offer
from diloco.algorithm.layout import LayoutError
from diloco.algorithm.pieces import PieceError, Portion
from diloco.algorithm.shard import CheckedPush, Update
from diloco.protocol.diloco_pb2 import Alive, Bye, Chunk, Evaluation, Hello, Progress, Refused, ToLearner
from diloco.protocol.framing import Assembler, Transfer
from diloco.protocol.piece_maps import Owned
from diloco.syncer.streams.gathering import Gathering
from diloco.syncer.streams.outgoing import Outgoing
from diloco.syncer.streams.sessions import Rejected, UnitSession

QUEUED_MESSAGES = 8
"""Messages of one stream that may wait for the engine. Beyond that its reader waits, and flow control slows the learner down."""


class CongestedError(Exception):
    """A unit's ranks have more data under way than one process could. The stream ends, and may be opened again."""


@dataclass(frozen=True, slots=True)
class Joining:
    """An accepted Hello."""

    session: UnitSession
    hello: Hello
    resumed: bool
    """It goes on with the session that this syncer process knows."""


class LearnerStream:
    """A stream from its opening to its end. Only the engine changes it, except `progress`, which the stream's reader overwrites.

    Each rank of a unit has one. The stream of rank 0, the leader, stands for the unit; a unit of one process has no other.
    """

    def __init__(self, number: int, cutting: Executor | None = None) -> None:
        self.number = number
        self.outgoing = Outgoing(cutting)
        self.session: UnitSession | None = None
        """None if the learner has not joined yet, or was refused or displaced, or has left."""
        self.joining: Joining | None = None
        """An accepted Hello whose learner will be welcomed once its fence is durable. None if there is none."""
        self.join_decided = asyncio.Event()
        self.slots = asyncio.Semaphore(QUEUED_MESSAGES)
        self.progress: Progress | None = None
        self.aborted: tuple[grpc.StatusCode, str] | None = None
        """Status and message of the stream's end. None for OK."""
        self.assembler: Assembler | None = None
        self.acknowledged_at: float | None = None
        """When the learner last acknowledged chunks, on the engine's clock. None if it has not."""
        self.addresses: tuple[str, ...] = ()
        """Where each process of the unit gives its part of the state, rank 0 first. Empty if the unit gives nothing."""
        self.inner_state = ""
        """Kind of the unit's inner state."""
        self.locality = ""
        """Where the unit runs."""
        self.cluster = ""
        """The cluster in which the unit runs. Empty if it is the syncer's."""
        self.rank = 0
        self.process = b""
        """A follower's `Hello.process`."""
        self.leader = self
        """The stream of rank 0."""
        self.seed_asked = False
        """This stream was asked for the seed at some time."""
        self.owned: Owned = ()
        """Set for a leader: what each rank owns. Empty in a unit of one process."""
        self.ranks: dict[int, LearnerStream] = {}
        """Set for a leader: the streams of the followers that have joined."""
        self.gathering = Gathering()
        """Used for a leader: answers that are not whole yet."""

    def refuse(self, rejected: Rejected) -> None:
        """End the stream at once: its learner is refused for good."""
        self.outgoing.close(ToLearner(refused=Refused(code=rejected.code, message=rejected.message)), at_once=True)

    def retry(self, why: str) -> None:
        """End the stream at once. Its learner did nothing wrong, and shall open another one."""
        self.abort(grpc.StatusCode.UNAVAILABLE, why)

    def abort(self, code: grpc.StatusCode, why: str) -> None:
        """End the stream at once with this status."""
        self.aborted = code, why
        self.outgoing.close(at_once=True)

    @property
    def portions(self) -> Sequence[Portion] | None:
        """What this stream sends and receives of each fragment. None: all."""
        return self.outgoing.portions

    @property
    def unit_streams(self) -> list[LearnerStream]:
        """The joined streams of the unit, the leader's first."""
        return [self.leader, *self.leader.ranks.values()]

    @property
    def complete(self) -> bool:
        """All ranks of the unit have joined. Until then the unit is not waited for."""
        return len(self.leader.ranks) + 1 >= len(self.leader.owned)


class LearnerStreams:
    """The open streams, joined or not."""

    def __init__(self) -> None:
        self._streams: dict[int, LearnerStream] = {}
        self._opened = 0
        # Threads of its own, so that records, fences and snapshots do not wait until hundreds of portions are cut.
        self._cutting = ThreadPoolExecutor(os.cpu_count(), "cut")

    def __iter__(self) -> Iterator[LearnerStream]:
        return iter(list(self._streams.values()))

    def open(self) -> LearnerStream:
        self._opened += 1
        stream = self._streams[self._opened] = LearnerStream(self._opened, self._cutting)
        return stream

    def close(self) -> None:
        """End the threads. Called once all streams have ended."""
        self._cutting.shutdown(wait=False, cancel_futures=True)

    def get(self, number: int) -> LearnerStream | None:
        return self._streams.get(number)

    def remove(self, stream: LearnerStream) -> None:
        """Remove a stream that is over. Idempotent."""
        self._streams.pop(stream.number, None)

    def joined(self) -> list[tuple[LearnerStream, UnitSession]]:
        """Return the joined learners, the longest-lived stream first. For a unit of several ranks it is the leader."""
        return [(stream, session) for stream, session in self.joined_ranks() if stream.leader is stream]

    def of_session(self, session: UnitSession) -> LearnerStream | None:
        """Return the stream of the session's learner, its leader's in a unit of several ranks. None if it is not joined."""
        for stream, joined in self.joined():
            if joined.holder == session.holder:
                return stream
        return None

    def joined_ranks(self) -> list[tuple[LearnerStream, UnitSession]]:
        """Return all streams of the joined learners, with those of followers."""
        return [(stream, stream.session) for stream in self._streams.values() if stream.session is not None]

    def joining(self) -> list[tuple[LearnerStream, Joining]]:
        """Return the learners that will be welcomed once their fences are durable."""
        return [(stream, stream.joining) for stream in self._streams.values() if stream.joining is not None]


@dataclass(frozen=True, slots=True)
class HelloReceived:
    """The first message of a stream."""

    stream: LearnerStream
    hello: Hello
    owned: Owned | PieceError | LayoutError = ()
    """What `read_owned` has returned or raised for it."""


@dataclass(frozen=True, slots=True)
class ProgressReported:
    """The stream has a new `progress`."""

    stream: LearnerStream


@dataclass(frozen=True, slots=True)
class SeedReceived:
    """A complete SEED of one fragment."""

    stream: LearnerStream
    transfer: Transfer


@dataclass(frozen=True, slots=True)
class PushOffered:
    """A complete PUSH. The stream's reader waits for `admitted`."""

    stream: LearnerStream
    header: Chunk
    admitted: asyncio.Future[Offer | None]
    """Its result is what the reader must decode, or None if there is nothing to decode."""
    payload: memoryview | None = None
    """The payload of a small fragment. None for a large one: the reader keeps it, and decodes it in a thread."""


@dataclass(frozen=True, slots=True)
class PortionReceived:
    """A complete PUSH of one rank's portion. The stream's reader waits for `taken`: until the portion is put aside, or after the last
    portion until the answer is in the merge."""

    stream: LearnerStream
    transfer: Transfer
    taken: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class PushDecoded:
    """The reader has decoded an admitted push."""

    stream: LearnerStream
    offer: Offer
    decoded: CheckedPush | Refusal | None
    """None if the reader was stopped."""


@dataclass(frozen=True, slots=True)
class WorkRequested:
    """The learner asks for work, in samples."""

    stream: LearnerStream
    samples: int
    data: str = ""
    """As in WorkWanted."""


@dataclass(frozen=True, slots=True)
class EvaluationReceived:
    """The learner reports the held-out loss of the final parameters."""

    stream: LearnerStream
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class AliveReceived:
    """The learner has sent a heartbeat, which does not depend on its steps."""

    stream: LearnerStream
    alive: Alive


@dataclass(frozen=True, slots=True)
class ByeReceived:
    """The learner leaves."""

    stream: LearnerStream
    bye: Bye


@dataclass(frozen=True, slots=True)
class StreamLost:
    """The stream has ended."""

    stream: LearnerStream
    why: str


@dataclass(frozen=True, slots=True)
class ProtocolViolation:
    """The learner has broken the protocol."""

    stream: LearnerStream
    why: str


@dataclass(frozen=True, slots=True)
class FencesWritten:
    """The fences are durable, or could not be written."""


@dataclass(frozen=True, slots=True)
class MergeComputed:
    """A thread has computed the merge of a close order."""

    close: Close
    computed: asyncio.Task[Update | None]


@dataclass(frozen=True, slots=True)
class MergeDurable:
    """A merge is committed, or the tape is lost. Either way it takes its place now."""

    close: Close
    update: Update
    checksum: int
    """CRC-32 of the update's value, which with the outer step names the version: a syncer whose volume was restored from a backup takes
    outer steps again, which give other values. 0 if the tape is lost, which computes it."""


@dataclass(frozen=True, slots=True)
class AnswerDecoded:
    """A task has decoded a whole answer of a unit of several ranks."""

    session: UnitSession
    offer: Offer
    decoded: asyncio.Task[CheckedPush | Refusal]
    taken: asyncio.Future[None]


StreamEvent = (
    HelloReceived
    | ProgressReported
    | SeedReceived
    | PushOffered
    | PortionReceived
    | PushDecoded
    | WorkRequested
    | EvaluationReceived
    | AliveReceived
    | ByeReceived
    | StreamLost
    | ProtocolViolation
)
WITHOUT_SLOT = (ProgressReported, PushOffered, PortionReceived, PushDecoded, StreamLost)
"""Events that need no slot, because a stream can have only a few of them waiting anyway."""
_MESSAGE_NAMES: Mapping[type[StreamEvent], str] = {
    HelloReceived: "Hello",
    ProgressReported: "Progress",
    SeedReceived: "Seed",
    PortionReceived: "Portion",
    WorkRequested: "Work",
    EvaluationReceived: "Evaluation",
    AliveReceived: "Alive",
    ByeReceived: "Bye",
}


def message_name(event: StreamEvent) -> str:
    """Name, for people, the message that an event brings, or the event itself if it brings none of these."""
    return _MESSAGE_NAMES.get(type(event), type(event).__name__)
