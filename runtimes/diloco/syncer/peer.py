"""One stream of a learner as the engine sees it, and the events on it."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from diloco.protocol.diloco_pb2 import Bye, Evaluation, Hello, Progress
from diloco.protocol.framing import Transfer
from diloco.syncer.outgoing import Outgoing
from diloco.syncer.sessions import UnitSession

QUEUED_MESSAGES = 8
"""Messages of one stream that may wait for the engine. With more, its reader waits, and flow control slows the learner down."""


class Peer:
    """A stream from its opening to its end. Only the engine changes it, except `progress`, which the stream's reader overwrites."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.outgoing = Outgoing()
        self.session: UnitSession | None = None
        """None: not joined yet, refused, displaced, or left."""
        self.join_decided = asyncio.Event()
        self.slots = asyncio.Semaphore(QUEUED_MESSAGES)
        self.progress: Progress | None = None
        self.seed: dict[int, memoryview] = {}
        self.identity_mismatch = ""
        """Why the stream ends without an answer to its Hello: the certificate has another identity. Empty: it has the same."""
        self.retry_reason = ""
        """Why the stream ends although the learner did nothing wrong: it shall reconnect. Empty: no such reason."""


@dataclass(slots=True)
class UncommittedLeases:
    """Leases of one session that are not committed. After a reconnect the syncer sends those again that the learner did not receive."""

    leases: deque[tuple[int, int, int, int]] = field(default_factory=deque)
    """(samples leased up to the end of this lease, lease id, start, end)"""
    samples: int = 0
    """Samples of all leases of the session."""

    def add(self, lease: int, start: int, end: int) -> None:
        """Note a new lease of [start, end)."""
        self.samples += end - start
        self.leases.append((self.samples, lease, start, end))

    def committed(self, samples: int) -> None:
        """The session's first `samples` samples are committed; their leases are not needed any more."""
        while self.leases and self.leases[0][0] <= samples:
            self.leases.popleft()

    def after(self, samples: int) -> list[tuple[int, int, int]]:
        """(lease id, start, end) of the leases that end beyond the session's first `samples` samples."""
        return [(lease, start, end) for upto, lease, start, end in self.leases if upto > samples]


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
class TransferReceived:
    """A complete PUSH or SEED."""

    peer: Peer
    transfer: Transfer


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


StreamEvent = (
    HelloReceived | ProgressReported | TransferReceived | WorkRequested | EvaluationReceived | ByeReceived | StreamLost | ProtocolViolation
)
