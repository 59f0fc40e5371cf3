"""When fragments are exchanged, as a unit sees it: which of them the syncer will pull before the unit's next step boundary.

Pure, and without a clock: from boundary to boundary the unit counts the outer steps that it hears of. So it knows how many come during one
of its own steps.

See docs/decisions/0151-step-boundary.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from diloco.algorithm.fragments import offsets

_SAMPLES: Final = 5
"""Counts of outer steps per local step that are remembered. The second largest is believed: one pause of the program or the syncer does not
make a unit slow, and a slow unit that is sometimes faster stays slow."""


@dataclass(frozen=True, slots=True)
class Timetable:
    """The fragments of a job, and when each is exchanged."""

    sizes: tuple[int, ...]
    """Elements of each fragment."""
    offsets: tuple[int, ...]
    """Fragment p is exchanged at outer steps t with t mod H == offsets[p]."""
    interval: int
    """H."""
    overlap: int
    """tau. The exchange of outer step t is over when the syncer takes step t + tau + 1, or earlier."""

    def next_exchange(self, fragment: int, t: int) -> int:
        """Return the first outer step after `t` at which the fragment is exchanged."""
        return t + 1 + (self.offsets[fragment] - t - 1) % self.interval

    def next_step(self, t: int) -> int:
        """Return the first outer step after `t` at which any fragment is exchanged."""
        return min(self.next_exchange(fragment, t) for fragment in range(len(self.offsets)))

    @property
    def longest_wait(self) -> float:
        """The most outer steps between a pull and the boundary that answers it in time: the overlap less one, which the way to the syncer
        takes. At least 1, so that a unit whose steps are as long as outer steps always answers at its boundaries."""
        return max(1.0, self.overlap - 1.0)

    @property
    def most_ahead(self) -> int:
        """Elements that may be staged for pulls that have not come yet: half of the model."""
        return sum(self.sizes) // 2


def timetable(sizes: Sequence[int], interval: int, overlap: int) -> Timetable:
    """Return the timetable of fragments with these `sizes`, in elements. `interval`: H. `overlap`: tau."""
    return Timetable(tuple(sizes), offsets(len(sizes), interval), interval, overlap)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast outer steps come, measured in a unit's own steps."""

    t: int = 0
    """Newest outer step that the unit has heard of, by a pull or a broadcast."""
    step: int = 0
    """The local step at whose end it heard of that."""
    counts: tuple[float, ...] = ()
    """Outer steps per local step, the newest last."""

    def heard(self, step: int, t: int) -> Pace:
        """Note at the boundary after local step `step` that `t` is the newest known outer step. Outer steps that come while the unit waits
        for work, without a step of its own, say nothing about its pace."""
        if t <= self.t:
            return self
        steps = step - self.step
        counts = (*self.counts, (t - self.t) / steps)[-_SAMPLES:] if steps else self.counts
        return Pace(t, step, counts)

    def restart(self, step: int, t: int) -> Pace:
        """Begin anew at outer step `t` of the syncer, also if that is earlier than before."""
        return replace(self, t=t, step=step)

    @property
    def per_step(self) -> float:
        """Outer steps that come during one local step. 0 if that is not known yet."""
        return sorted(self.counts)[-2] if len(self.counts) > 1 else 0.0

    def late(self, table: Timetable, step: int) -> dict[int, int]:
        """Return the exchanges for which an answer at the boundary after the next step would be late: fragment -> outer step, the nearest
        first. `step` is the local step before the present boundary."""
        per_step, longest_wait = self.per_step, table.longest_wait
        if not per_step:
            return {}
        coming = sorted([(table.next_exchange(fragment, self.t), fragment) for fragment in range(len(table.offsets))])
        # The clock may have moved on since `t`, but not to the next exchange: the unit would have heard of that.
        now = min(self.t + per_step * (step - self.step + 1), coming[0][0] - 1)
        return {fragment: t for t, fragment in coming if now + per_step - t > longest_wait}
