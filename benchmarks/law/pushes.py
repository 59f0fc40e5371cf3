"""What units push in arms of the learning law, where it is not what they trained. Pure but for what an arm remembers of its last round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from builders.regression import Answer, as_it_is
from diloco.algorithm.codec import BLOCK
from diloco.learner.store import Float32Array

from benchmarks.law.trials import TRAINED

type Change = Callable[[Answer, Float32Array], Float32Array]
"""Returns the difference that a unit pushes, float32 [n], of its answer and the difference that it trained."""


def in_two_bits(values: Float32Array) -> Float32Array:
    """Return float32 [n] as it comes out of two bits: of each block -1, 0 or 1 times its absolute maximum, as Int4 has -7 to 7."""
    padded = np.zeros(-(-values.size // BLOCK) * BLOCK, np.float32)
    padded[: values.size] = values
    blocks = padded.reshape(-1, BLOCK)
    scales = np.abs(blocks).max(axis=1, keepdims=True)
    levels = np.rint(np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales > 0))
    found: Float32Array = (levels * scales).reshape(-1)[: values.size]
    return found


class _OneRoundLate:
    """Pushes what the round before has trained: the first one twice, and the last one never."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], Float32Array] = {}

    def __call__(self, answer: Answer, trained: Float32Array) -> Float32Array:
        key = answer.unit, answer.offer.fragment
        late = self._last.get(key, trained)
        self._last[key] = trained
        return late


def _two_bits(_: Answer, trained: Float32Array) -> Float32Array:
    return in_two_bits(trained)


_CHANGES: Final[Mapping[str, Callable[[], Change]]] = {
    "2 bit": lambda: _two_bits,
    "a round late": _OneRoundLate,
}
"""By the name that an arm has."""


def changed(pushes: str, held: Callable[[str, int], Float32Array]) -> Callable[[Answer], Answer]:
    """Return what changes the answers of an arm's units. `held`: what a unit adopted last of a fragment, float32 [n]."""
    if pushes == TRAINED:
        return as_it_is
    change = _CHANGES[pushes]()

    def of(answer: Answer) -> Answer:
        base = held(answer.unit, answer.offer.fragment)
        return replace(answer, values=base + change(answer, answer.values - base))

    return of
