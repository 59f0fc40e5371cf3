"""Which of the flows that share something are heavy, and when they harm a light one. Pure.

See docs/decisions/0091-fairness-on-one-loop.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable
from typing import Final

HEAVY_SECONDS: Final = 5.0
"""How long a flow counts as heavy after it wanted much at once."""


class Flows[K: Hashable]:
    """A flow is heavy for `HEAVY_SECONDS` after it wanted more than `light` at once. Any other flow is light, and counts as present for
    `present` seconds after it last used something. `now`: seconds of a clock that does not go back."""

    def __init__(self, light: int, present: float) -> None:
        self._limit = light
        self._present = present
        self._light: dict[K, float] = {}
        """When each light flow last used something, the earliest first. `note` drops old entries."""
        self._heavy: dict[K, float] = {}
        """When each heavy flow last wanted more than a light one may, the earliest first. `note` drops old entries."""

    def note(self, flow: K, wanted: int, now: float) -> None:
        """Note that `flow` uses something now. `wanted`: how much it has and still wants."""
        _drop_before(self._light, now - self._present)
        _drop_before(self._heavy, now - HEAVY_SECONDS)
        if wanted > self._limit:
            self._light.pop(flow, None)
            self._heavy.pop(flow, None)
            self._heavy[flow] = now
        elif flow not in self._heavy:
            self._light.pop(flow, None)
            self._light[flow] = now

    def any_light(self, flows: Iterable[K], now: float) -> bool:
        """Whether one of `flows` is not heavy."""
        return any(not self._is_heavy(flow, now) for flow in flows)

    def is_contended(self, flow: K, holders: Iterable[K], now: float) -> bool:
        """Return whether `flow` is heavy while a light flow is present, or is among `holders`, which use something now."""
        if not self._is_heavy(flow, now):
            return False
        latest = next(reversed(self._light.values()), None)
        is_light_present = latest is not None and latest >= now - self._present
        return is_light_present or self.any_light(holders, now)

    def _is_heavy(self, flow: K, now: float) -> bool:
        return flow in self._heavy and self._heavy[flow] >= now - HEAVY_SECONDS


def _drop_before[K](moments: dict[K, float], before: float) -> None:
    """Drop the moments earlier than `before`; the earliest come first."""
    old = list(itertools.takewhile(lambda flow: moments[flow] < before, moments))
    for flow in old:
        del moments[flow]
