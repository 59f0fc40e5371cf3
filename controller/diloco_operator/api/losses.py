"""Losses over outer steps as status has them: `1:5.5452 8:3.25`. People can read it, and it is far shorter than a list of objects. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from diloco_operator.kube.fields import MOST_COUNT

_MOST = 1e300
"""Larger losses are written as this one: the largest float, rounded to five digits, would be more than a float can hold."""
POINT_LENGTH = len(f"{MOST_COUNT}:-1.2345e-300 ")
"""The most characters of one point."""


class LossPoint(NamedTuple):
    """The loss at one outer step."""

    step: int
    loss: float
    """Finite."""


def format_losses(points: Iterable[tuple[int, float]]) -> str:
    """Write `step:loss` for each point, with spaces between and five digits of the loss."""
    return " ".join(f"{step}:{min(max(loss, -_MOST), _MOST):.5g}" for step, loss in points)


def parse_losses(text: str) -> tuple[LossPoint, ...]:
    """Read the points of such a text. Raises ValueError with the form of a point."""
    points = []
    for word in text.split(" ") if text else ():
        step, colon, loss = word.partition(":")
        try:
            point = LossPoint(int(step), float(loss))
        except ValueError:
            colon = ""
            point = LossPoint(0, 0.0)
        if not colon or not 0 <= point.step <= MOST_COUNT or not math.isfinite(point.loss):
            raise ValueError(f"{word[:40]!r} is not a loss at an outer step, such as 8:3.25")
        points.append(point)
    return tuple(points)


def losses_field(points: int) -> tuple[PlainValidator, PlainSerializer, WithJsonSchema]:
    """Annotations that make a `tuple[LossPoint, ...]` a string in the API. `points`: how many there may be."""
    longest = POINT_LENGTH * points

    def from_api(value: object) -> tuple[LossPoint, ...]:
        if isinstance(value, tuple):
            return value
        if not isinstance(value, str) or len(value) > longest:
            raise ValueError(f"must be a string of at most {longest} characters, such as '1:5.5452 8:3.25'")
        return parse_losses(value)

    return (
        PlainValidator(from_api),
        PlainSerializer(format_losses, return_type=str),
        WithJsonSchema({"type": "string", "maxLength": longest}),
    )
