"""What waits for one learner, and what goes next. Pure: syncer and simulator share it.

- Pulls: after everything that waits for the pull's own fragment, because the answer is coded against that base. Other fragments do not
  matter to it, so it may go between two chunks of another one.
- Versions: those of one fragment in order, because a delta needs its base. For the order of fragments see `begin`.
- Ordered messages: after all versions and pulls that were added before, and before all that are added later.

What waits is bounded: of each fragment deltas up to the size of one whole value, or one whole value; and one pull.

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
        """Bytes or bits, the same of all."""
        ...


@dataclass(frozen=True, slots=True)
class _Queued[V: Sized]:
    number: int
    """Counts everything that has its place relative to ordered messages."""
    version: V
    delta: bool


class SendOrder[V: Sized, M]:
    """Versions `V` of fragments, and messages `M`, for one learner."""

    def __init__(self) -> None:
        self.sending: int | None = None
        """The fragment whose transfer is under way; to be set to None at its end."""
        self._fragments: dict[int, list[_Queued[V]]] = {}
        """Per fragment what waits, in order. Ordered by how long the fragment has waited."""
        self._pulls: dict[int, tuple[int, int, M]] = {}
        """Per fragment (number, outer step, message) of the pull that waits."""
        self._ordered: deque[tuple[int, M]] = deque()
        self._added = 0
        self._favour = 0.0
        """Size of what up-to-date fragments had more than the others, while both waited."""

    def __len__(self) -> int:
        """Return versions and messages that wait."""
        return len(self._pulls) + len(self._ordered) + sum(len(queue) for queue in self._fragments.values())

    @property
    def size(self) -> float:
        """Return the size of all versions that wait."""
        return sum(one.version.size for queue in self._fragments.values() for one in queue)

    @property
    def has_version(self) -> bool:
        """Return whether the turn of a version has come."""
        limit = self._limit
        return any(queue[0].number < limit for queue in self._fragments.values())

    def fits(self, fragment: int, delta: float, whole: float) -> bool:
        """Return whether a delta of this size may wait behind the others: together they are no larger than one whole value."""
        queue = self._fragments.get(fragment, ())
        return all(one.delta for one in queue) and sum(one.version.size for one in queue) + delta <= whole

    def add(self, fragment: int, t: int, version: V, *, delta: bool) -> None:
        """Add version `t`. A whole one replaces all that waits of the fragment: the learner gets the newest. A pull that waits is dropped,
        as its exchange is over."""
        if fragment in self._pulls and self._pulls[fragment][1] <= t:
            del self._pulls[fragment]
        queue = self._fragments.setdefault(fragment, [])
        if not delta:
            queue.clear()
        queue.append(_Queued(self._next_number(), version, delta))

    def pull(self, fragment: int, t: int, overlap_steps: int, message: M) -> None:
        """Add a pull of outer step `t`. It replaces one of its fragment. `overlap_steps`: tau. Pulls of steps before t - tau are dropped,
        as their exchanges are over."""
        self._pulls = {p: pull for p, pull in self._pulls.items() if pull[1] >= t - overlap_steps}
        self._pulls[fragment] = (self._next_number(), t, message)

    def post(self, message: M) -> None:
        """Add an ordered message."""
        self._ordered.append((self._next_number(), message))

    def clear(self) -> None:
        """Drop all that waits."""
        self._fragments.clear()
        self._pulls.clear()
        self._ordered.clear()

    def next_pull(self) -> M | None:
        """Take a pull whose turn has come."""
        limit = self._limit
        for p, (number, _, message) in self._pulls.items():
            if number < limit and p != self.sending and p not in self._fragments:
                del self._pulls[p]
                return message
        return None

    def next_ordered(self) -> M | None:
        """Take an ordered message whose turn has come, once no pull's has."""
        return self._ordered.popleft()[1] if self._ordered and self.sending is None and not self.has_version else None

    def begin(self) -> V:
        """Begin the next transfer. There must be one.

        A fragment that is one delta behind is cheap to keep up to date, and then takes part in every exchange. One that is further behind,
        or that the learner does not hold yet, costs several times as much. While both wait, each kind gets half of the bytes: on a wide
        enough link what is up to date stays so, and on one that is too narrow no fragment waits for ever.
        """
        limit = self._limit
        ready = [(p, queue) for p, queue in self._fragments.items() if queue[0].number < limit]
        current = [one for one in ready if len(one[1]) == 1 and one[1][0].delta]
        behind = [one for one in ready if len(one[1]) > 1 or not one[1][0].delta]
        cheap = bool(current) and not (behind and self._favour > 0)
        self.sending, queue = current[0] if cheap else behind[0]
        version = queue.pop(0).version
        if not queue:
            del self._fragments[self.sending]
        self._favour = self._favour + (version.size if cheap else -version.size) if current and behind else 0.0
        return version

    def _next_number(self) -> int:
        self._added += 1
        return self._added

    @property
    def _limit(self) -> float:
        """What has this number or a larger one waits for an ordered message."""
        return self._ordered[0][0] if self._ordered else math.inf
