"""Losses over outer steps as a job has them: `1:5.5452 8:3.25`, one line for people, and far shorter than a list of objects. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from diloco_operator.kube.fields import MOST_COUNT

_MOST = 1e300
"""Five digits of the largest float are more than a float can hold."""
POINT_LENGTH = len(f"{MOST_COUNT}:-1.2345e-300 ")
"""Characters that one point takes at most."""


class LossPoint(NamedTuple):
    """The loss at one outer step."""

    step: int
    loss: float
    """Finite."""


def format_losses(points: Iterable[tuple[int, float]]) -> str:
    """Return `step:loss` of each point, five digits of the loss, with spaces between. No loss is beyond `_MOST`."""
    return " ".join(f"{step}:{min(max(loss, -_MOST), _MOST):.5g}" for step, loss in points)


def parse_losses(text: str) -> tuple[LossPoint, ...]:
    """Return the points of such a text. Raises ValueError with the form that it must have."""
    found = []
    for word in text.split(" ") if text else ():
        step, colon, loss = word.partition(":")
        try:
            point = LossPoint(int(step), float(loss))
        except ValueError:
            colon = ""
            point = LossPoint(0, 0.0)
        if not colon or not 0 <= point.step <= MOST_COUNT or not math.isfinite(point.loss):
            raise ValueError(f"{word[:40]!r} is not a loss at an outer step, such as 8:3.25")
        found.append(point)
    return tuple(found)


def losses_field(points: int) -> tuple[PlainValidator, PlainSerializer, WithJsonSchema]:
    """Return what makes `tuple[LossPoint, ...]` of at most so many points a string in the API."""
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
