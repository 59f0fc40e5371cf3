"""One stream of a learner as the engine sees it, and what is said on it."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from diloco.protocol.diloco_pb2 import Bye, Evaluation, Hello, Progress
from diloco.protocol.framing import Transfer
from diloco.syncer.outgoing import Outgoing
from diloco.syncer.sessions import UnitSession

QUEUED_MESSAGES = 8
"""Messages of one stream that may wait for the engine; then its reader waits, and flow control holds the learner back."""


class Peer:
    """A stream from Hello to its end. The engine alone changes it, but for `progress`, which the stream's reader overwrites."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.outgoing = Outgoing()
        self.session: UnitSession | None = None
        """None: not greeted yet, refused, or displaced."""
        self.join_decided = asyncio.Event()
        self.slots = asyncio.Semaphore(QUEUED_MESSAGES)
        self.progress: Progress | None = None
        self.seed: dict[int, memoryview] = {}
        self.identity_mismatch = ""
        """Why the stream ends before its Hello is looked at: the certificate says somebody else."""
        self.retry_reason = ""
        """Why the stream ends although the learner did nothing wrong: it is to come again."""


@dataclass(slots=True)
class UncommittedLeases:
    """The leases of one holder that are not committed: what a break of the stream may have swallowed is sent again."""

    leases: deque[tuple[int, int, int, int]] = field(default_factory=deque)
    """(samples leased up to its end, lease, start, end)"""
    samples: int = 0

    def add(self, lease: int, start: int, end: int) -> None:
        self.samples += end - start
        self.leases.append((self.samples, lease, start, end))

    def committed(self, samples: int) -> None:
        """The holder's first `samples` samples are committed: nobody asks for their leases any more."""
        while self.leases and self.leases[0][0] <= samples:
            self.leases.popleft()

    def after(self, samples: int) -> list[tuple[int, int, int]]:
        """(lease, start, end) of what lies beyond the holder's first `samples` samples."""
        return [(lease, start, end) for upto, lease, start, end in self.leases if upto > samples]


@dataclass(frozen=True, slots=True)
class HelloReceived:
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
    peer: Peer
    samples: int


@dataclass(frozen=True, slots=True)
class EvaluationReceived:
    peer: Peer
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class ByeReceived:
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
