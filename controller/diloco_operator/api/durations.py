"""Durations as a job has them, in Go's style: `5s`, `1h30m`, `0.5s`, `250ms`. Pure."""

from __future__ import annotations

import functools
import re
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

DURATION_PATTERN = r"^([0-9]{1,6}(\.[0-9]{1,3})?(ms|s|m|h))+$"
"""The form that the CRD accepts: at most six digits a number and 20 characters in all, so that no sum overflows Go's int64 nanoseconds."""
DURATION_MAX_LENGTH = 20

_WHOLE = re.compile(DURATION_PATTERN)
_PART = re.compile(r"([0-9.]+)(ms|s|m|h)")
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


@functools.lru_cache(maxsize=4096)
def parse_duration(text: str) -> float:
    """Return seconds. Raises ValueError with the form of a duration."""
    if len(text) > DURATION_MAX_LENGTH or not _WHOLE.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration: write numbers with a unit of ms, s, m or h, such as 30s, 10m or 1h30m")
    return sum(float(number) * _MILLISECONDS[unit] for number, unit in _PART.findall(text)) / 1000


@functools.lru_cache(maxsize=4096)
def format_duration(seconds: float) -> str:
    """Write the shortest form of a duration, to the millisecond: 5400 -> `1h30m`, 0.25 -> `250ms`, 0 -> `0s`.

    Raises ValueError for values that no field of a job can hold: negative, infinite or not a number.
    """
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"a duration cannot be {seconds}")
    left = round(seconds * 1000)
    parts = []
    for unit in ("h", "m", "s", "ms"):
        count, left = divmod(left, _MILLISECONDS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def _from_api(value: object) -> float:
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ValueError("an integer with this many digits is no duration") from None
    raise ValueError(f"{value!r} is not a duration: write it as a string such as 30s, 10m or 1h30m")


type Duration = Annotated[
    float,
    BeforeValidator(_from_api),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "maxLength": DURATION_MAX_LENGTH, "x-diloco-duration": True}),
]
"""Seconds in the program, a Go-style string in the API."""
