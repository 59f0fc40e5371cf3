"""What the coding of a process's pushes has left out, fragment by fragment, on its way into the next push.

int4 rounds each value to a fifteenth of the range of its block. A change that is small beside its neighbours is rounded to nothing in every
push, so what is left out of one push is added to the next one of the fragment.

See docs/decisions/0062-merge-numerics.md.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np

from diloco.learner.store import Float32Array


@dataclass(frozen=True, slots=True)
class _Remainder:
    """What a push left out."""

    t: int
    """Outer step of the push; 0: before the first."""
    values: Float32Array | None = field(default=None, repr=False)
    """None: nothing."""


class Remainders:
    """The remainders of one generation of a connection: a learner that takes all parameters anew begins with nothing.

    A push holds what the last *merged* push left out. One that is not merged (dropped on the way, late, refused, of an exchange that was
    skipped) counts as never coded: what it held of the remainder is held again by the next one. What it held of the training is still in
    the model, or was overwritten with a merge that it missed; a remainder of it would be counted twice, or be of values that are gone.

    An array of each fragment, and one of each whose exchange is open. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._merged: dict[int, _Remainder] = {}
        """Remainders of the last merged push."""
        self._open: dict[int, _Remainder] = {}
        """Remainders of the last push, as long as it may still be merged."""

    def add_to(self, fragment: int, values: Float32Array) -> None:
        """Add what is carried of the fragment to `values`, float32 [size]."""
        with self._lock:
            carried = self._merged.get(fragment)
        if carried is not None and carried.values is not None:
            np.add(values, carried.values, out=values)

    def coded(self, fragment: int, t: int, left_out: Float32Array) -> None:
        """Keep what the push of outer step `t` leaves out, float32 [size]; the array is copied. One before it that is open was not
        merged."""
        values = left_out.copy()
        with self._lock:
            self._open[fragment] = _Remainder(t, values)

    def received(self, fragment: int, t: int, merged: int) -> None:
        """Note that version `t` of the fragment has come. `merged`: the outer step of the last push of this process that is in it; 0: none
        is."""
        with self._lock:
            pushed = self._open.get(fragment)
            if pushed is not None and pushed.t <= t:
                del self._open[fragment]
            if merged == self._merged.get(fragment, _Remainder(0)).t:
                return
            # Where a newer push has taken the place of the one that was merged, nothing is known of what that left out.
            self._merged[fragment] = pushed if pushed is not None and pushed.t == merged else _Remainder(merged)
