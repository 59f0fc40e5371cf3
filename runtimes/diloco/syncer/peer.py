"""The streams of the learners as the engine sees them, and the events on them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from diloco.algorithm.events import Close, Offer, Refusal
from diloco.algorithm.shard import Decoded, Update
from diloco.protocol.diloco_pb2 import Bye, Chunk, Evaluation, Hello, Progress
from diloco.protocol.framing import Transfer
from diloco.syncer.outgoing import Outgoing
from diloco.syncer.sessions import UnitSession

QUEUED_MESSAGES = 8
"""Messages of one stream that may wait for the engine. With more, its reader waits, and flow control slows the learner down."""


@dataclass(frozen=True, slots=True)
class Joining:
    """An accepted Hello."""

    session: UnitSession
    hello: Hello
    resumed: bool
    """It goes on with the session that this syncer process knows."""


class Peer:
    """A stream from its opening to its end. Only the engine changes it, except `progress`, which the stream's reader overwrites."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.outgoing = Outgoing()
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


class Peers:
    """The open streams, joined or not."""

    def __init__(self) -> None:
        self._peers: dict[int, Peer] = {}
        self._opened = 0

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._peers.values()))

    def open(self) -> Peer:
        """Register a new stream."""
        self._opened += 1
        peer = self._peers[self._opened] = Peer(self._opened)
        return peer

    def get(self, stream: int) -> Peer | None:
        return self._peers.get(stream)

    def remove(self, peer: Peer) -> None:
        """The stream is over. Idempotent."""
        self._peers.pop(peer.stream, None)

    def joined(self) -> list[tuple[Peer, UnitSession]]:
        """The joined learners, the longest-lived stream first."""
        return [(peer, peer.session) for peer in self._peers.values() if peer.session is not None]

    def joining(self) -> list[tuple[Peer, Joining]]:
        """The learners that will be welcomed once their fences are durable."""
        return [(peer, peer.joining) for peer in self._peers.values() if peer.joining is not None]


@dataclass(frozen=True, slots=True)
class HelloReceived:
    """The first message."""

    peer: Peer
    hello: Hello


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
    """A complete PUSH; its payload stays with the stream's reader, which waits for `admitted`."""

    peer: Peer
    header: Chunk
    admitted: asyncio.Future[Offer | None]
    """None: not to be decoded."""


@dataclass(frozen=True, slots=True)
class PushDecoded:
    """The reader has decoded what was admitted."""

    peer: Peer
    offer: Offer
    decoded: Decoded | Refusal | None
    """None: the reader was stopped."""


@dataclass(frozen=True, slots=True)
class WorkRequested:
    """The learner asks for work, in samples."""

    peer: Peer
    samples: int


@dataclass(frozen=True, slots=True)
class EvaluationReceived:
    """The learner reports the held-out loss of the final parameters."""

    peer: Peer
    evaluation: Evaluation


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


StreamEvent = (
    HelloReceived
    | ProgressReported
    | SeedReceived
    | PushOffered
    | PushDecoded
    | WorkRequested
    | EvaluationReceived
    | ByeReceived
    | StreamLost
    | ProtocolViolation
)
WITHOUT_SLOT = (ProgressReported, PushOffered, PushDecoded, StreamLost)
"""Events of a stream of which few can wait at a time by their nature."""
