"""For how long the record of what happened to a job may be put off. Pure."""

from __future__ import annotations

from collections.abc import Hashable


class StatusPostponement[K: Hashable]:
    """At most `seconds` for each key, from the first time that it is put off until it is written."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[K, float] = {}

    def allows(self, key: K, now: float) -> bool:
        """Whether the record of `key` may be put off (once more) at `now`, seconds of any clock that does not go back."""
        return now - self._since.setdefault(key, now) < self._seconds

    def reset(self, key: K) -> None:
        """It is written, or there is nothing to write any more."""
        self._since.pop(key, None)
