"""The streams of the learners as the engine sees them, and the events on them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

from diloco.algorithm.effects import Close, Refusal
from diloco.algorithm.events import Offer
from diloco.algorithm.layout import LayoutError
from diloco.algorithm.pieces import PieceError, Portion
from diloco.algorithm.shard import CheckedPush, Update
from diloco.protocol.diloco_pb2 import Alive, Bye, Chunk, Evaluation, Hello, Progress
from diloco.protocol.framing import Assembler, Transfer
from diloco.protocol.piece_maps import Owned
from diloco.syncer.streams.gathering import Gathering
from diloco.syncer.streams.outgoing import Outgoing
from diloco.syncer.streams.sessions import UnitSession

QUEUED_MESSAGES = 8
"""Messages of one stream that may wait for the engine. With more, its reader waits, and flow control slows the learner down."""


class CongestedError(Exception):
    """A unit's ranks have more under way than one process could. The stream ends, and may be opened again."""


@dataclass(frozen=True, slots=True)
class Joining:
    """An accepted Hello."""

    session: UnitSession
    hello: Hello
    resumed: bool
    """It goes on with the session that this syncer process knows."""


class Peer:
    """A stream from its opening to its end. Only the engine changes it, except `progress`, which the stream's reader overwrites.

    A unit of several ranks has one for each. That of rank 0, the leader, is the unit's: a unit of one process has no other.
    """

    def __init__(self, stream: int, cutting: Executor | None = None) -> None:
        self.stream = stream
        self.outgoing = Outgoing(cutting)
        self.session: UnitSession | None = None
        """None: not joined yet, refused, displaced, or left."""
        self.joining: Joining | None = None
        """The learner is accepted and will be welcomed once its fence is durable."""
        self.join_decided = asyncio.Event()
        self.slots = asyncio.Semaphore(QUEUED_MESSAGES)
        self.progress: Progress | None = None
        self.identity_mismatch = ""
        """Why the stream ends without an answer to its Hello: the certificate has another identity. Empty: it has the same."""
        self.retry_reason = ""
        """Why the stream ends although the learner did nothing wrong: it shall reconnect. Empty: no such reason."""
        self.assembler: Assembler | None = None
        """Assembler of the stream's reader."""
        self.addresses: tuple[str, ...] = ()
        """Where each process of the unit gives what it owns of the state, rank 0 first. Empty if it gives nothing."""
        self.inner_state = ""
        """Kind of its state beside the parameters."""
        self.locality = ""
        """Where it runs."""
        self.rank = 0
        self.process = b""
        """Process of a follower, see `Hello.process`."""
        self.leader = self
        """The unit's stream."""
        self.seed_asked = False
        """Whether it ever was asked for the seed."""
        self.owned: Owned = ()
        """For a leader, per rank, what it owns; nothing in a unit of one process."""
        self.ranks: dict[int, Peer] = {}
        """For a leader, the streams of the followers that have joined."""
        self.gathering = Gathering()
        """For a leader, answers that are not whole yet."""

    @property
    def portions(self) -> Sequence[Portion] | None:
        """Per fragment, what this stream sends and receives of it; None: all."""
        return self.outgoing.portions

    @property
    def unit_streams(self) -> list[Peer]:
        """The streams of the unit."""
        return [self.leader, *self.leader.ranks.values()]

    @property
    def complete(self) -> bool:
        """Whether all ranks of the unit have joined. Without, it is not waited for."""
        return len(self.leader.ranks) + 1 >= len(self.leader.owned)


class Peers:
    """The open streams, joined or not."""

    def __init__(self) -> None:
        self._peers: dict[int, Peer] = {}
        self._opened = 0
        # Apart from the threads that write files: records, fences and snapshots do not wait until hundreds of portions are cut.
        self._cutting = ThreadPoolExecutor(os.cpu_count(), "cut")

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._peers.values()))

    def open(self) -> Peer:
        """Register a new stream."""
        self._opened += 1
        peer = self._peers[self._opened] = Peer(self._opened, self._cutting)
        return peer

    def close(self) -> None:
        """Let go of the threads, once all streams have ended."""
        self._cutting.shutdown(wait=False, cancel_futures=True)

    def get(self, stream: int) -> Peer | None:
        return self._peers.get(stream)

    def remove(self, peer: Peer) -> None:
        """Remove a stream that is over. Idempotent."""
        self._peers.pop(peer.stream, None)

    def joined(self) -> list[tuple[Peer, UnitSession]]:
        """Return the joined learners, the longest-lived stream first; of a unit of several ranks the leader."""
        return [(peer, session) for peer, session in self.streams() if peer.leader is peer]

    def streams(self) -> list[tuple[Peer, UnitSession]]:
        """Return the streams of the joined learners, those of followers included."""
        return [(peer, peer.session) for peer in self._peers.values() if peer.session is not None]

    def joining(self) -> list[tuple[Peer, Joining]]:
        """Return the learners that will be welcomed once their fences are durable."""
        return [(peer, peer.joining) for peer in self._peers.values() if peer.joining is not None]


@dataclass(frozen=True, slots=True)
class HelloReceived:
    """The first message."""

    peer: Peer
    hello: Hello
    owned: Owned | PieceError | LayoutError = ()
    """What `read_owned` says of it."""


@dataclass(frozen=True, slots=True)
class ProgressReported:
    """The peer's `progress` is new."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class SeedReceived:
    """A complete SEED of one fragment."""

    peer: Peer
    transfer: Transfer


@dataclass(frozen=True, slots=True)
class PushOffered:
    """A complete PUSH. The stream's reader waits for `admitted`."""

    peer: Peer
    header: Chunk
    admitted: asyncio.Future[Offer | None]
    """None: there is nothing for the reader to decode."""
    payload: memoryview | None = None
    """That of a small fragment; None: it stays with the reader, which decodes it beside the event loop."""


@dataclass(frozen=True, slots=True)
class PortionReceived:
    """A complete PUSH of one rank's portion. The stream's reader waits for `taken`: until the portion is put aside, or, if it was the last
    one, until the answer is in the merge."""

    peer: Peer
    transfer: Transfer
    taken: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class PushDecoded:
    """The reader has decoded what was admitted."""

    peer: Peer
    offer: Offer
    decoded: CheckedPush | Refusal | None
    """None: the reader was stopped."""


@dataclass(frozen=True, slots=True)
class WorkRequested:
    """The learner asks for work, in samples."""

    peer: Peer
    samples: int
    data: str = ""
    """As in WorkWanted."""


@dataclass(frozen=True, slots=True)
class EvaluationReceived:
    """The learner reports the held-out loss of the final parameters."""

    peer: Peer
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class AliveReceived:
    """The learner says how things are, although no step does."""

    peer: Peer
    alive: Alive


@dataclass(frozen=True, slots=True)
class ByeReceived:
    """The learner leaves."""

    peer: Peer
    bye: Bye


@dataclass(frozen=True, slots=True)
class StreamLost:
    """The stream is over."""

    peer: Peer
    why: str


@dataclass(frozen=True, slots=True)
class ProtocolViolation:
    """The learner broke the protocol."""

    peer: Peer
    why: str


@dataclass(frozen=True, slots=True)
class FencesWritten:
    """The fences are durable, or could not be written."""


@dataclass(frozen=True, slots=True)
class MergeComputed:
    """A thread has computed what a close order asks for."""

    close: Close
    computed: asyncio.Task[Update | None]


@dataclass(frozen=True, slots=True)
class MergeDurable:
    """A merge is committed, or the tape is lost: it takes its place."""

    close: Close
    update: Update


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
"""Events of a stream of which few can wait at a time by their nature."""
