"""The job's first parameters: which learner is asked for them, and what it has sent so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.fragments import Fragment
from diloco.algorithm.pieces import Portion

Array = NDArray[np.float32]


class Seeding:
    """One learner at a time is asked for the seed. A unit is named by the number of its (leader's) stream, a session by its holder."""

    def __init__(self) -> None:
        self.stream: int | None = None
        """The stream that was asked for the seed; None: none is."""
        self._asked: set[tuple[str, int]] = set()
        """Holders and ranks that were asked and whose seed was not taken: their version 0 is their own, not the job's."""
        self._payloads: dict[int, dict[int, tuple[Portion | None, memoryview]]] = {}
        """Per fragment and rank what has come, and which portion it is."""

    def ask(self, stream: int, holder: str, ranks: int = 1) -> None:
        """Ask the learner of `stream` with its ranks for the seed, and no other any more."""
        self.stop()
        self.stream = stream
        self._asked.update((holder, rank) for rank in range(ranks))

    def stop(self) -> None:
        """Ask no learner any more. What has come is forgotten."""
        self.stream = None
        self._payloads = {}

    def take(
        self, fragments: Sequence[Fragment], index: int, rank: int, portion: Portion | None, payload: memoryview
    ) -> Callable[[], list[Array]] | None:
        """Take the FLOAT32 payload of one fragment, or of a rank's portion of it, from a learner that is asked. Once the seed is complete,
        what puts it together, in any thread: per fragment, float32 [size], not checked for NaN."""
        if portion is None or portion.size:
            self._payloads.setdefault(index, {})[rank] = portion, payload
        if any(
            sum(payload.nbytes // 4 for _, payload in self._payloads.get(fragment.index, {}).values()) < fragment.size
            for fragment in fragments
        ):
            return None
        payloads, self._payloads = self._payloads, {}
        return lambda: [_value(fragment, list(payloads[fragment.index].values())) for fragment in fragments]

    def forget_own(self, holder: str, rank: int) -> bool:
        """Give this rank of the session the job's version 0. Returns whether it held one of its own."""
        own = (holder, rank) in self._asked
        self._asked.discard((holder, rank))
        return own


def _value(fragment: Fragment, payloads: Sequence[tuple[Portion | None, memoryview]]) -> Array:
    """Return the fragment's value from what all ranks sent of it."""
    if payloads[0][0] is None:
        return np.frombuffer(payloads[0][1], "<f4").astype(np.float32, copy=False)
    value = np.empty(fragment.size, np.float32)
    for portion, payload in payloads:
        assert portion is not None
        portion.place(np.frombuffer(payload, "<f4").astype(np.float32, copy=False), value)
    return value
