"""What the coding of a process's pushes has left out, fragment by fragment, until the next push carries it.

int4 rounds each value to a fifteenth of the range of its block. A change that is small beside its neighbours would be rounded to nothing in
every push, so what one push leaves out is added to the fragment's next one.

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
    """Outer step of the push. 0 before the first push."""
    values: Float32Array | None = field(default=None, repr=False)
    """None if nothing is known or nothing was left out."""


class Remainders:
    """The remainders of one generation of a connection: a learner that takes all parameters anew begins with none.

    A push carries what the last *merged* push left out. A push that is not merged (dropped on the way, late, refused, or its exchange
    skipped) counts as never coded, and the next one carries the same remainder again. The training in it is still in the model, or was
    overwritten by a merge that it missed. So its own remainder would count training twice, or be of values that are gone.

    Holds one array for each fragment, and another for each open exchange. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._merged: dict[int, _Remainder] = {}
        """For each fragment, the remainder of its last merged push."""
        self._open: dict[int, _Remainder] = {}
        """For each fragment, the remainder of its last push, as long as that may still be merged."""

    def add_to(self, fragment: int, values: Float32Array) -> None:
        """Add the fragment's remainder to `values`, float32 [size]."""
        with self._lock:
            carried = self._merged.get(fragment)
        if carried is not None and carried.values is not None:
            np.add(values, carried.values, out=values)

    def coded(self, fragment: int, t: int, left_out: Float32Array) -> None:
        """Keep a copy of what the push of outer step `t` leaves out, float32 [size]. An open push before it was not merged."""
        values = left_out.copy()
        with self._lock:
            self._open[fragment] = _Remainder(t, values)

    def received(self, fragment: int, t: int, merged: int) -> None:
        """Note that version `t` of the fragment has come. `merged`: outer step of this process's last push that is in it, or 0."""
        with self._lock:
            pushed = self._open.get(fragment)
            if pushed is not None and pushed.t <= t:
                del self._open[fragment]
            if merged == self._merged.get(fragment, _Remainder(0)).t:
                return
            # If a newer push has replaced the merged one in `_open`, the merged one's remainder is lost: nothing is carried.
            self._merged[fragment] = pushed if pushed is not None and pushed.t == merged else _Remainder(merged)
