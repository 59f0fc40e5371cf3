"""When events are so many that people read them better as one. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

SINGLE_EVENTS = 10
"""Different events of one kind that are told one by one within the window."""
WINDOW = 600.0
"""Seconds without an event of a kind after which it is told one by one again."""
_KINDS = 4096


@dataclass(slots=True)
class _Kind:
    last: float
    told: set[str] = field(default_factory=set)


class EventAggregator:
    """Counts different messages of one kind (the same job, type and reason). Keeps the last 4,096 kinds."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Hashable, _Kind] = OrderedDict()

    def aggregates(self, kind: Hashable, message: str, now: float) -> bool:
        """Whether this message is one too many to be told by itself: 10 others of its kind were, in the last 10 minutes."""
        known = self._kinds.get(kind)
        if known is None or now - known.last >= WINDOW:
            known = self._kinds[kind] = _Kind(now)
        known.last = now
        self._kinds.move_to_end(kind)
        if len(self._kinds) > _KINDS:
            self._kinds.popitem(last=False)
        if message in known.told:
            return False
        if len(known.told) >= SINGLE_EVENTS:
            return True
        known.told.add(message)
        return False
