"""The loss over outer steps in a bounded number of points, for the report and the snapshot. Pure.

See docs/decisions/0041-what-a-syncer-says.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from diloco.contract import MOST_HELD_OUT_POINTS, MOST_LOSS_POINTS


class LossPoint(NamedTuple):
    t: int
    """Outer step."""
    loss: float
    """Finite."""


class LossCurve:
    """At most `limit` points in ascending order of their outer steps, always with the newest.

    All but the newest are at least `spacing` outer steps apart. When the curve is full, the spacing doubles and about half of the points
    go. So the points are spread evenly over the whole training.
    """

    def __init__(self, limit: int, spacing: int = 1, points: tuple[LossPoint, ...] = ()) -> None:
        """Keep at most `limit` points, at least 3. Raises ValueError for points or a spacing that no curve has."""
        steps = [point.t for point in points]
        if spacing < 1 or any(a >= b for a, b in itertools.pairwise(steps)) or not all(math.isfinite(p.loss) for p in points):
            raise ValueError("the points of a loss history must be finite and in ascending order of their steps")
        self._limit = limit
        self._spacing = spacing
        self._points = list(points)
        self._thin()

    @property
    def points(self) -> tuple[LossPoint, ...]:
        return tuple(self._points)

    def add(self, t: int, loss: float) -> None:
        """Add the loss at outer step `t`. It replaces points at `t` and later. A loss that is not finite is left out."""
        if not math.isfinite(loss):
            return
        while self._points and self._points[-1].t >= t:
            self._points.pop()
        if len(self._points) > 1 and self._points[-1].t - self._points[-2].t < self._spacing:
            self._points.pop()  # it was kept only because it was the newest
        self._points.append(LossPoint(t, loss))
        self._thin()

    def to_json(self) -> dict[str, Any]:
        return {"spacing": self._spacing, "points": [list(point) for point in self._points]}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], limit: int) -> LossCurve:
        """Read the result of `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(limit, int(stored["spacing"]), tuple(LossPoint(int(t), float(loss)) for t, loss in stored["points"]))

    def _thin(self) -> None:
        while len(self._points) > self._limit:
            self._spacing *= 2
            *earlier, newest = self._points
            kept: list[LossPoint] = []
            for point in earlier:
                if not kept or point.t - kept[-1].t >= self._spacing:
                    kept.append(point)
            self._points = [*kept, newest]


class LossHistory:
    def __init__(self, stored: Mapping[str, Any] | None = None) -> None:
        """Restore `stored`, a result of `to_json`, if it is given. Raises KeyError, TypeError or ValueError for anything else."""
        curves = stored or {}
        self.training = LossCurve.from_json(curves["training"], MOST_LOSS_POINTS) if curves else LossCurve(MOST_LOSS_POINTS)
        self.held_out = LossCurve.from_json(curves["heldOut"], MOST_HELD_OUT_POINTS) if curves else LossCurve(MOST_HELD_OUT_POINTS)

    def to_json(self) -> dict[str, Any]:
        return {"training": self.training.to_json(), "heldOut": self.held_out.to_json()}
