"""Copies of plain JSON values, several times faster than copy.deepcopy."""

from __future__ import annotations

import math
from typing import Any


def own(value: Any) -> Any:
    """A deep copy in plain JSON types: a string enum becomes its string, a tuple a list. Raises TypeError for what JSON has not."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if kind is dict:
        return {key: own(each) for key, each in value.items()}
    if kind is list:
        return [own(each) for each in value]
    return _unusual(value)


def _unusual(value: Any) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, tuple):
        return [own(each) for each in value]
    if isinstance(value, dict):
        return {own(key): own(each) for key, each in value.items()}
    raise TypeError(f"{type(value).__name__} is not a JSON value: {value!r:.100}")


def without_nulls(value: Any) -> Any:
    """A deep copy in which no map has a null; for plain JSON values only."""
    kind = type(value)
    if kind is dict:
        return {key: without_nulls(each) if type(each) in _NESTED else each for key, each in value.items() if each is not None}
    if kind is list:
        return [without_nulls(each) for each in value]
    return value


_NESTED = (dict, list)
