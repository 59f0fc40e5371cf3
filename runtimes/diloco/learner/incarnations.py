"""The states of the syncer that this process has met, numbered.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

import threading


class Incarnations:
    """Numbers the values of `Welcome.incarnation` in the order in which they were met. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: list[bytes] = []

    def number(self, name: bytes) -> int:
        """Return the number of this incarnation. One that was not met before gets the next number."""
        with self._lock:
            if name not in self._names:
                self._names.append(name)
            return self._names.index(name)

    def known(self, name: bytes) -> int | None:
        """Return its number. None if it was not met yet."""
        with self._lock:
            return self._names.index(name) if name in self._names else None

    def name(self, number: int) -> bytes:
        with self._lock:
            return self._names[number]
