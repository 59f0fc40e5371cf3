"""Copies of plain JSON values, many times faster than copy.deepcopy."""

from __future__ import annotations

import math
from typing import Any

_LEAVES = frozenset((str, int, bool, type(None)))


def copy_json(value: Any) -> Any:
    """A deep copy in plain JSON types: a string enum becomes its string, a tuple a list. Raises TypeError for values that JSON lacks."""
    kind = type(value)
    if kind is dict:
        return {key if type(key) is str else _key(key): each if type(each) in _LEAVES else copy_json(each) for key, each in value.items()}
    if kind is list:
        return [each if type(each) in _LEAVES else copy_json(each) for each in value]
    return value if kind in _LEAVES else _unusual(value)


def copy_json_without_nulls(value: Any) -> Any:
    """Like `copy_json`, but without the nulls in maps."""
    kind = type(value)
    if kind is dict:
        return {
            key if type(key) is str else _key(key): each if type(each) in _LEAVES else copy_json_without_nulls(each)
            for key, each in value.items()
            if each is not None
        }
    if kind is list:
        return [each if type(each) in _LEAVES else copy_json_without_nulls(each) for each in value]
    if kind in _LEAVES:
        return value
    plain = _unusual(value)
    return copy_json_without_nulls(plain) if isinstance(plain, (dict, list)) else plain


def _key(key: Any) -> str:
    if isinstance(key, str):
        return str.__str__(key)
    raise TypeError(f"a map's key must be a string, not {key!r:.100}")


def _unusual(value: Any) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, (tuple, list)):
        return [copy_json(each) for each in value]
    if isinstance(value, dict):
        return {_key(key): copy_json(each) for key, each in value.items()}
    raise TypeError(f"{type(value).__name__} is not a JSON value: {value!r:.100}")
