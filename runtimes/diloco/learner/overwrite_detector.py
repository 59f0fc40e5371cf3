"""Detects a program that undoes adoptions in its next step, by a few elements before and after an adoption. Pure.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from diloco.learner.leave import LoopError

FIRST, EVERY = 16, 32
"""The first FIRST adoptions are looked at, then one in EVERY."""
LOST = 3
"""This many adoptions in a row that do not last are no coincidence."""


class OverwriteDetector:
    """Looks at the adoptions of one program."""

    def __init__(self) -> None:
        self._seen = 0
        self._lost = 0

    @property
    def looks(self) -> bool:
        """The present adoption shall be looked at."""
        return self._seen < FIRST or self._seen % EVERY == 0

    def adopted(self) -> None:
        self._seen += 1

    def judge(self, name: str, before: NDArray[np.float32], adopted: NDArray[np.float32], *after: NDArray[np.float32]) -> None:
        """Judge the same elements of a parameter before and after an adoption, and after each of the next two steps.

        Raises LoopError when the program has gone on from the values before the adoption LOST times in a row.
        """
        if (lasting := lasts(before, adopted, *after)) is None:
            return
        self._lost = 0 if lasting else self._lost + 1
        if self._lost >= LOST:
            raise LoopError(
                f"the program undoes what it adopts: after a step parameter {name!r} goes on from the values that it had before "
                f"an adoption, {LOST} times in a row. Something keeps a copy of the parameters, such as float32 masters of bfloat16 "
                "ones. Overwrite it in join(on_adopt=…), which is called with the names of what was adopted"
            )


def lasts(before: NDArray[np.float32], adopted: NDArray[np.float32], after: NDArray[np.float32], later: NDArray[np.float32]) -> bool | None:
    """Whether the first step after the adoption went on from the adopted values. None if too little changed to tell.

    The first step itself moves the parameters, about as far as the step after it does. The adoption must have moved them much further.
    """
    changed = adopted != before
    old, new, first, second = (value[changed].astype(np.float64) for value in (before, adopted, after, later))
    moved = new - old
    size, step = float(np.linalg.norm(moved)), float(np.linalg.norm(second - first))
    rounding = float(np.linalg.norm(new)) * 2**-8
    if not math.isfinite(size) or size <= 4 * step or size <= 4 * rounding:
        return None
    return float((first - old) @ moved / (size * size)) >= 0.5
