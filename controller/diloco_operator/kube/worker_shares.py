"""How many workers the keys of one lane may hold. Pure.

See docs/decisions/0091-fairness-on-one-loop.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable
from typing import Final

from diloco_operator.kube.flows import Flows

ALPHA: Final = 4
"""A lane may hold this many times the workers that are free. So one lane alone holds ALPHA / (ALPHA + 1) of all, and each of n lanes
ALPHA / (n ALPHA + 1), once lanes that held more have given some back. Some stay free for a lane that holds none. These are the dynamic
thresholds of shared switch buffers (Choudhury and Hahne, 1998)."""
PRESENT_SECONDS: Final = 5.0
"""How long a lane that is no crowd counts as present after it held a worker: what happens to a job takes several reconciles in a row."""
IN_CONTENTION: Final = 1
"""Workers of a crowd while a lane that is no crowd is present."""


class WorkerShares:
    """Counts the workers that each lane holds. A lane that holds none may always have a free one.

    A lane is a crowd for a while after it wanted more workers than it would get alone. While another lane is present that is no crowd, a
    crowd has `IN_CONTENTION` workers: with more, the others' decisions and writes would wait for the crowd's, on the event loop and on the
    API server.
    """

    def __init__(self, workers: int) -> None:
        self._free = workers
        self._held: Counter[Hashable] = Counter()
        self._flows: Flows[Hashable] = Flows(math.ceil(workers * ALPHA / (ALPHA + 1)), PRESENT_SECONDS)

    def may_have_one(self, lane: Hashable, now: float) -> bool:
        """Return whether a key of this lane may have a worker now. The worker that asks is free."""
        if self._held[lane] >= ALPHA * self._free:
            return False
        return self._held[lane] < IN_CONTENTION or not self.crowds_others(lane, now)

    def crowds_others(self, lane: Hashable, now: float) -> bool:
        """Return whether the lane is a crowd while another lane is present that is not."""
        return self._flows.is_contended(lane, self._held, now)

    def others_at_work(self, now: float) -> bool:
        """Whether a lane that is no crowd holds a worker."""
        return self._flows.any_light(self._held, now)

    def took(self, lane: Hashable, waiting: int, now: float) -> None:
        """Note that a worker has taken a key of this lane. `waiting`: keys of the lane that still wait for a worker."""
        self._held[lane] += 1
        self._free -= 1
        self._flows.note(lane, self._held[lane] + waiting, now)

    def gave_back(self, lane: Hashable, waiting: int, now: float) -> None:
        self._flows.note(lane, self._held[lane] + waiting, now)
        self._free += 1
        self._held[lane] -= 1
        if not self._held[lane]:
            del self._held[lane]
