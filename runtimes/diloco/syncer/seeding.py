"""The job's first parameters: which learner is asked for them, and what it has sent so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.fragments import Fragment


class Seeding:
    """One learner at a time is asked for the seed. Streams are named by their number, sessions by their holder."""

    def __init__(self) -> None:
        self.stream: int | None = None
        """The stream that was asked for the seed; None: none is."""
        self._asked: set[str] = set()
        """Holders that were asked and whose seed was not taken: their version 0 is their own, not the job's."""
        self._payloads: dict[int, memoryview] = {}

    def ask(self, stream: int, holder: str) -> None:
        """The learner of `stream` is asked for the seed, and no other any more."""
        self.stop()
        self.stream = stream
        self._asked.add(holder)

    def stop(self) -> None:
        """No learner is asked any more. What has come is forgotten."""
        self.stream = None
        self._payloads = {}

    def take(self, stream: int, fragments: Sequence[Fragment], index: int, payload: memoryview) -> list[NDArray[np.float32]] | None:
        """Take the FLOAT32 payload of one fragment. The whole seed once it is complete: per fragment, float32 [size], not checked for NaN.

        A payload from a stream that is not asked is ignored.
        """
        if stream != self.stream:
            return None
        self._payloads[index] = payload
        if len(self._payloads) < len(fragments):
            return None
        payloads, self._payloads = self._payloads, {}
        return [np.frombuffer(payloads[fragment.index], "<f4").astype(np.float32, copy=False) for fragment in fragments]

    def holds_own(self, holder: str) -> bool:
        """Whether the session holds a version 0 of its own, which is not the job's. It gets the job's now."""
        own = holder in self._asked
        self._asked.discard(holder)
        return own
