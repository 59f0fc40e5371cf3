"""Which of the flows that share something are heavy, and when they harm a light one. Pure.

See docs/decisions/0091-fairness-on-one-loop.md.
"""

from __future__ import annotations

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
        """When each light flow last used something, the earliest first; old entries are dropped."""
        self._heavy: dict[K, float] = {}
        """When each heavy flow last wanted more than a light one may, the earliest first; old entries are dropped."""

    def note(self, flow: K, wanted: int, now: float) -> None:
        """Note that `flow` uses something now. `wanted`: how much it has and still wants."""
        if wanted > self._limit:
            self._light.pop(flow, None)
            self._heavy.pop(flow, None)
            self._heavy[flow] = now
        elif flow not in self._heavy:
            self._light.pop(flow, None)
            self._light[flow] = now

    def any_light(self, flows: Iterable[K], now: float) -> bool:
        """Whether one of `flows` is not heavy."""
        _forget(self._heavy, now - HEAVY_SECONDS)
        return any(flow not in self._heavy for flow in flows)

    def is_contended(self, flow: K, holders: Iterable[K], now: float) -> bool:
        """Return whether `flow` is heavy while a light flow is present, or is among `holders`, which use something now."""
        _forget(self._light, now - self._present)
        light_at_work = self.any_light(holders, now)  # also drops old entries of `_heavy`, so it comes first
        return flow in self._heavy and (bool(self._light) or light_at_work)


def _forget[K](moments: dict[K, float], before: float) -> None:
    """Drop the moments earlier than `before`; the earliest come first."""
    while moments and (first := next(iter(moments.items())))[1] < before:
        del moments[first[0]]
