"""Decides when similar events are so many that they become one. Pure.

See docs/decisions/0031-writes.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

SINGLE_EVENTS = 10
"""So many different events of one kind are written one by one within the window."""
WINDOW = 600.0
"""After so many seconds without an event of a kind, its events are written one by one again."""
_KINDS = 4096


@dataclass(slots=True)
class _Kind:
    last: float
    single: set[str] = field(default_factory=set)
    """Messages that were written one by one."""


class EventAggregator:
    """Counts different messages of one kind (the same job, type and reason). Keeps the last 4,096 kinds."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Hashable, _Kind] = OrderedDict()

    def count(self, kind: Hashable, message: str, now: float) -> bool:
        """Count a message. True: it must join the combined event, since 10 others of its kind were written one by one in the last 10
        minutes."""
        known = self._kinds.get(kind)
        if known is None or now - known.last >= WINDOW:
            known = self._kinds[kind] = _Kind(now)
        known.last = now
        self._kinds.move_to_end(kind)
        if len(self._kinds) > _KINDS:
            self._kinds.popitem(last=False)
        if message in known.single:
            return False
        if len(known.single) >= SINGLE_EVENTS:
            return True
        known.single.add(message)
        return False
