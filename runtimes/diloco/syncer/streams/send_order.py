"""What waits for one learner, and what goes next. Pure: syncer and simulator share it.

- A pull goes after all versions of its own fragment, because its answer is coded against the newest one. It may go between two chunks of
  another fragment.
- The versions of one fragment go in order, because a delta needs its base. For the order of fragments see `begin`.
- An ordered message goes after all versions and pulls that were added before it, and before all that are added later.

What waits is bounded. For each fragment it is one pull, and one whole value or deltas up to that size.

See docs/decisions/0150-transfers.md.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Protocol


class Sized(Protocol):
    """A version of a fragment, as a delta or whole."""

    @property
    def size(self) -> float:
        """In bytes or in bits, but the same unit for all versions of one order."""
        ...


@dataclass(frozen=True, slots=True)
class _Queued[V: Sized]:
    number: int
    """Place in the order of everything that was added, for the comparison with ordered messages."""
    version: V
    delta: bool


class SendOrder[V: Sized, M]:
    """Versions `V` of fragments, and messages `M`, for one learner."""

    def __init__(self) -> None:
        self.sending: int | None = None
        """The fragment whose transfer is under way. The user sets it to None at the end of the transfer."""
        self._fragments: dict[int, list[_Queued[V]]] = {}
        """The waiting versions of each fragment, in order. The fragment that has waited longest comes first."""
        self._pulls: dict[int, tuple[int, int, M]] = {}
        """(number, outer step, message) of each fragment's pull."""
        self._ordered: deque[tuple[int, M]] = deque()
        self._added = 0
        self._favour = 0.0
        """How much more was sent of up-to-date fragments than of the others, while both waited. In the units of `Sized.size`."""

    def __len__(self) -> int:
        """How many versions and messages wait."""
        return len(self._pulls) + len(self._ordered) + sum(len(queue) for queue in self._fragments.values())

    @property
    def size(self) -> float:
        """The size of all versions that wait."""
        return sum(queued.version.size for queue in self._fragments.values() for queued in queue)

    @property
    def has_version(self) -> bool:
        """The turn of a version has come."""
        limit = self._limit
        return any(queue[0].number < limit for queue in self._fragments.values())

    def fits(self, fragment: int, delta: float, whole: float) -> bool:
        """Whether a delta of this size may wait behind the others: together they must be no larger than one whole value."""
        queue = self._fragments.get(fragment, ())
        return all(queued.delta for queued in queue) and sum(queued.version.size for queued in queue) + delta <= whole

    def add(self, fragment: int, t: int, version: V, *, delta: bool) -> None:
        """Add version `t`. A whole one replaces the fragment's waiting versions. A pull up to `t` is dropped: its exchange is over."""
        if fragment in self._pulls and self._pulls[fragment][1] <= t:
            del self._pulls[fragment]
        queue = self._fragments.setdefault(fragment, [])
        if not delta:
            queue.clear()
        queue.append(_Queued(self._next_number(), version, delta))

    def pull(self, fragment: int, t: int, overlap_steps: int, message: M) -> None:
        """Add a pull of outer step `t`. It replaces a pull of the same fragment. `overlap_steps` is tau.

        Pulls of steps before t - tau are dropped, because their exchanges are over.
        """
        self._pulls = {p: pull for p, pull in self._pulls.items() if pull[1] >= t - overlap_steps}
        self._pulls[fragment] = (self._next_number(), t, message)

    def post(self, message: M) -> None:
        self._ordered.append((self._next_number(), message))

    def clear(self) -> None:
        self._fragments.clear()
        self._pulls.clear()
        self._ordered.clear()

    def next_pull(self) -> M | None:
        """Take a pull whose turn has come, or return None."""
        limit = self._limit
        for p, (number, _, message) in self._pulls.items():
            if number < limit and p != self.sending and p not in self._fragments:
                del self._pulls[p]
                return message
        return None

    def next_ordered(self) -> M | None:
        """Take an ordered message whose turn has come, or return None. Call `next_pull` first until it returns None."""
        return self._ordered.popleft()[1] if self._ordered and self.sending is None and not self.has_version else None

    def begin(self) -> V:
        """Begin the next transfer. There must be one.

        A fragment that is one delta behind is cheap to keep up to date, and then takes part in every exchange. One that is further behind,
        or that the learner does not hold yet, costs several times as much. While both kinds wait, each gets half of the bytes. So on a wide
        enough link the up-to-date fragments stay so, and on a narrow one no fragment waits for ever.
        """
        limit = self._limit
        ready = [(p, queue) for p, queue in self._fragments.items() if queue[0].number < limit]
        current = [entry for entry in ready if len(entry[1]) == 1 and entry[1][0].delta]
        behind = [entry for entry in ready if len(entry[1]) > 1 or not entry[1][0].delta]
        cheap = bool(current) and not (behind and self._favour > 0)
        self.sending, queue = current[0] if cheap else behind[0]
        version = queue.pop(0).version
        if not queue:
            del self._fragments[self.sending]
        if not current or not behind:
            self._favour = 0.0
        elif cheap:
            self._favour += version.size
        else:
            self._favour -= version.size
        return version

    def _next_number(self) -> int:
        self._added += 1
        return self._added

    @property
    def _limit(self) -> float:
        """Number of the first ordered message. What was added after it waits for it."""
        return self._ordered[0][0] if self._ordered else math.inf
