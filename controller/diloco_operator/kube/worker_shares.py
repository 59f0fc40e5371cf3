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
"""A lane may hold so many times the workers that are free: alone ALPHA / (ALPHA + 1) of all, and of n lanes each ALPHA / (n ALPHA + 1) as
soon as those that hold more have given some back. So some are free for a lane that holds none. These are the dynamic thresholds of shared
switch buffers (Choudhury and Hahne, 1998)."""
PRESENT_SECONDS: Final = 5.0
"""A lane without a crowd counts as present for so long after it held a worker: what happens to its jobs comes in a row of reconciles."""
IN_CONTENTION: Final = 1
"""Workers of a crowd meanwhile."""


class WorkerShares:
    """Counts who holds workers. A lane that holds none may always have a free one.

    A lane is a crowd for a while after it wanted more workers than it would get alone. While a lane that is none is present, a crowd has
    `IN_CONTENTION` workers: each decision and each write of the others would wait for those of the crowd, on the event loop and on the API
    server.
    """

    def __init__(self, workers: int) -> None:
        """Share so many workers."""
        self._free = workers
        self._held: Counter[Hashable] = Counter()
        self._flows: Flows[Hashable] = Flows(math.ceil(workers * ALPHA / (ALPHA + 1)), PRESENT_SECONDS)

    def may_have_one(self, lane: Hashable, now: float) -> bool:
        """Return whether a key of this lane may have a worker now. One is free: it asks."""
        if self._held[lane] >= ALPHA * self._free:
            return False
        return self._held[lane] < IN_CONTENTION or not self.crowds_others(lane, now)

    def crowds_others(self, lane: Hashable, now: float) -> bool:
        """Return whether the lane is a crowd while another lane is present that is none."""
        return self._flows.is_contended(lane, self._held, now)

    def others_at_work(self, now: float) -> bool:
        """Whether a lane that is no crowd holds a worker."""
        return self._flows.any_light(self._held, now)

    def took(self, lane: Hashable, waiting: int, now: float) -> None:
        """Note that a worker has a key of this lane, in which so many others wait for one."""
        self._held[lane] += 1
        self._free -= 1
        self._flows.note(lane, self._held[lane] + waiting, now)

    def gave_back(self, lane: Hashable, waiting: int, now: float) -> None:
        """Note that the worker is free again."""
        self._flows.note(lane, self._held[lane] + waiting, now)
        self._free += 1
        self._held[lane] -= 1
        if not self._held[lane]:
            del self._held[lane]
