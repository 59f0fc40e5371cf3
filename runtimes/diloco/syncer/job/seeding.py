"""The job's first parameters: which learner is asked for them, and what it has sent so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.fragments import Fragment
from diloco.algorithm.pieces import Portion

Array = NDArray[np.float32]


class Seeding:
    """One learner at a time is asked for the seed. The stream of its (leader's) process names a unit."""

    def __init__(self) -> None:
        self.stream: int | None = None
        """Number of the stream that was asked for the seed. None if none is."""
        self._payloads: dict[int, dict[int, tuple[Portion | None, memoryview]]] = {}
        """For each fragment and rank, which portion has come, and its payload. The portion is None in a unit of one process."""

    def ask(self, stream: int) -> None:
        """Note that the learner of `stream`, with all its ranks, is asked for the seed, in place of any other."""
        self.stop()
        self.stream = stream

    def stop(self) -> None:
        """Note that no learner is asked any more. What has come is forgotten."""
        self.stream = None
        self._payloads = {}

    def take(
        self, fragments: Sequence[Fragment], index: int, rank: int, portion: Portion | None, payload: memoryview
    ) -> Callable[[], list[Array]] | None:
        """Take the FLOAT32 payload of one fragment, or of a rank's portion of it, from the learner that was asked.

        Returns None until the seed is complete. Then returns a function, for any thread, that puts the seed together: for each fragment
        float32 [size], not checked for NaN.
        """
        if portion is None or portion.size:
            self._payloads.setdefault(index, {})[rank] = portion, payload
        if any(
            sum(payload.nbytes // 4 for _, payload in self._payloads.get(fragment.index, {}).values()) < fragment.size
            for fragment in fragments
        ):
            return None
        payloads, self._payloads = self._payloads, {}
        return lambda: [_value(fragment, list(payloads[fragment.index].values())) for fragment in fragments]


def _value(fragment: Fragment, payloads: Sequence[tuple[Portion | None, memoryview]]) -> Array:
    if payloads[0][0] is None:
        return np.frombuffer(payloads[0][1], "<f4").astype(np.float32, copy=False)
    value = np.empty(fragment.size, np.float32)
    for portion, payload in payloads:
        assert portion is not None
        portion.place(np.frombuffer(payload, "<f4").astype(np.float32, copy=False), value)
    return value
