"""Tapes for tests that want none, or one that they look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class AtOnce:
    """Commits that are durable at once, and kept in memory."""

    merges: list[Mapping[str, Any]] = field(default_factory=list)
    notes: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def note(self, kind: str, **what: Any) -> None:
        self.notes.append((kind, what))

    def commit(self, t: int, what: Mapping[str, Any], gradient: memoryview, result: memoryview, then: Callable[[int], None]) -> None:
        self.merges.append(what)
        then(0)

    def applied(self, t: int) -> None:
        pass
