"""What a process receives of a fragment: all of it, or the portion that its rank owns.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

from collections.abc import Buffer, Sequence
from functools import cache
from typing import Protocol

from diloco.algorithm.codec import Coding, payload_bytes, value_of
from diloco.algorithm.cut import cut_bytes, value_of_cut
from diloco.algorithm.fragments import Fragment
from diloco.algorithm.pieces import Portion
from diloco.learner.store import Float32Array


class Broadcasts(Protocol):
    """Broadcasts of the fragments of a model, by index."""

    def size(self, fragment: int) -> int:
        """Return elements that this process receives of it."""
        ...

    def payload_bytes(self, coding: Coding, fragment: int) -> int:
        """Return bytes of a broadcast."""
        ...

    def value(self, coding: Coding, payload: Buffer, fragment: int, base: Float32Array) -> Float32Array:
        """Return the values, float32 [size], that a broadcast against `base`, float32 [size], stands for. Raises CodecError."""
        ...


class Whole:
    """All of each fragment, in a unit of one process. See `Broadcasts`."""

    def __init__(self, fragments: Sequence[Fragment]) -> None:
        self._fragments = fragments

    def size(self, fragment: int) -> int:
        return self._fragments[fragment].size

    def payload_bytes(self, coding: Coding, fragment: int) -> int:
        return payload_bytes(coding, self.size(fragment))

    def value(self, coding: Coding, payload: Buffer, fragment: int, base: Float32Array) -> Float32Array:
        return value_of(coding, payload, base)


class OfRank:
    """What one rank of many owns of each fragment. See `Broadcasts`."""

    def __init__(self, portions: Sequence[Portion]) -> None:
        self._portions = portions
        self._cut_bytes = cache(lambda coding, fragment: cut_bytes(coding, portions[fragment]))

    def size(self, fragment: int) -> int:
        return self._portions[fragment].size

    def payload_bytes(self, coding: Coding, fragment: int) -> int:
        return self._cut_bytes(coding, fragment)

    def value(self, coding: Coding, payload: Buffer, fragment: int, base: Float32Array) -> Float32Array:
        return value_of_cut(coding, payload, self._portions[fragment], base)
