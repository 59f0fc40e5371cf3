"""The header of a push: which exchange it answers, and the work behind it."""

from __future__ import annotations

from dataclasses import dataclass

from diloco.algorithm.codec import Coding
from diloco.protocol.diloco_pb2 import Chunk


@dataclass(frozen=True, slots=True)
class PushCounts:
    """A unit's counts for its push of a fragment at outer step `t`. All its ranks send the same. See Chunk in diloco.proto."""

    fragment: int
    t: int
    steps: int
    tokens: int
    samples_done: int
    tokens_done: int
    steps_done: int


def push_header(counts: PushCounts, coding: Coding) -> Chunk:
    """Return the header of the push, without its base."""
    return Chunk(
        kind=Chunk.PUSH,
        fragment=counts.fragment,
        t=counts.t,
        coding=int(coding),  # type: ignore[arg-type]
        steps=counts.steps,
        tokens=counts.tokens,
        samples_done=counts.samples_done,
        tokens_done=counts.tokens_done,
        steps_done=counts.steps_done,
    )
