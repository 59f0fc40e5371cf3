"""Points in time as the Kubernetes API writes them: RFC 3339 in UTC; seconds since the epoch in the program. Pure."""

from __future__ import annotations

import datetime
import functools
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, ValidationInfo, WithJsonSchema

_LATEST = 253_370_764_800.0
"""The beginning of the year 9999."""


@functools.lru_cache(maxsize=65536)
def parse_timestamp(text: str) -> float:
    """Return seconds since the epoch of an RFC 3339 time. Raises ValueError for anything else, also for a time without a zone.

    A time before 1970 counts as 1970 (Kubernetes' zero time is in the year 1), one after 9998 as the end of 9998: so every time of the
    program can be written again.
    """
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not an RFC 3339 time such as 2026-11-20T21:00:00Z") from error
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone: write it in UTC, such as 2026-11-20T21:00:00Z")
    return min(max(moment.timestamp(), 0.0), _LATEST)


@functools.lru_cache(maxsize=65536)
def format_timestamp(seconds: float) -> str:
    """Return RFC 3339 in UTC, to the millisecond; whole seconds as Kubernetes writes them, without a fraction. Times before 1970 and after
    9998 become the nearest time between."""
    milliseconds = round(min(max(seconds, 0.0), _LATEST) * 1000)
    whole, fraction = divmod(milliseconds, 1000)
    text = datetime.datetime.fromtimestamp(whole, tz=datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{fraction:03d}Z" if fraction else f"{text}Z"


def _from_api(value: object, info: ValidationInfo) -> float:
    """Convert a time. With a validation context it comes from an API server, where a time is always a string."""
    if isinstance(value, str):
        return parse_timestamp(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and not info.context:
        try:
            return float(value)
        except OverflowError:
            raise ValueError("an integer with this many digits is no time") from None
    raise ValueError(f"{value!r} is not an RFC 3339 time such as 2026-11-20T21:00:00Z")


type Timestamp = Annotated[
    float,
    BeforeValidator(_from_api),
    PlainSerializer(format_timestamp, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""Seconds since the epoch in the program, an RFC 3339 string in the API."""
