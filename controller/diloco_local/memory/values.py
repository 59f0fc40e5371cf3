"""A schema's checks of single values: bounds, patterns, enums, formats. Pure."""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Callable, Mapping, Sized
from datetime import datetime
from typing import Any

type Check = Callable[[Any], str | None]
"""Returns the error of a value, or None. A check ignores values of types that it does not apply to."""

_RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})")


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def json_type(value: Any) -> str:
    """The name that a schema has for the type of this value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def show(value: Any) -> str:
    """The value for a message: JSON of at most 100 characters; for maps and lists only the type."""
    if isinstance(value, (dict, list)):
        return f'"{json_type(value)}"'
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:97]}…"


def invalid(value: Any, message: str) -> str:
    return message if isinstance(value, (dict, list)) else f"Invalid value: {show(value)}: {message}"


def parse_time(text: str) -> datetime:
    """Parse an RFC 3339 time. Raises ValueError."""
    if not _RFC3339.fullmatch(text):
        raise ValueError(f"{text!r} is not a time like 2006-01-02T15:04:05Z")
    return datetime.fromisoformat(text.upper())


def _is_time(text: str) -> bool:
    try:
        parse_time(text)
    except ValueError:
        return False
    return True


_INT64 = (-(2**63), 2**63 - 1)
FORMATS: Mapping[str, Check] = {
    "int64": lambda v: None if not is_number(v) or _INT64[0] <= v <= _INT64[1] else invalid(v, "must be of format int64"),
    "date-time": lambda v: None if not isinstance(v, str) or _is_time(v) else invalid(v, "must be a time like 2006-01-02T15:04:05Z"),
}


@functools.lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern as Go reads it: a `$` at its end matches only at the very end of the text, not before a final newline. Raises
    re.error."""
    if pattern.endswith("$") and not pattern.endswith("\\$"):
        pattern = pattern[:-1] + r"\Z"
    return re.compile(pattern)


def _bound_checks(schema: Mapping[str, Any]) -> list[Check]:
    checks: list[Check] = []
    if (low := schema.get("minimum")) is not None:
        if schema.get("exclusiveMinimum"):
            checks.append(_number_check(operator.gt, low, f"must be greater than {low}"))
        else:
            checks.append(_number_check(operator.ge, low, f"must be greater than or equal to {low}"))
    if (high := schema.get("maximum")) is not None:
        if schema.get("exclusiveMaximum"):
            checks.append(_number_check(operator.lt, high, f"must be less than {high}"))
        else:
            checks.append(_number_check(operator.le, high, f"must be less than or equal to {high}"))
    return checks


def _number_check(fits: Callable[[Any, Any], bool], bound: Any, text: str) -> Check:
    return lambda v: None if not is_number(v) or fits(v, bound) else invalid(v, text)


def _size_checks(schema: Mapping[str, Any]) -> list[Check]:
    sizes: tuple[tuple[str, type[Sized], bool, str], ...] = (
        ("minLength", str, True, "must have at least {} characters"),
        ("maxLength", str, False, "must have at most {} characters"),
        ("minItems", list, True, "must have at least {} items"),
        ("maxItems", list, False, "must have at most {} items"),
        ("maxProperties", dict, False, "must have at most {} properties"),
    )

    def check(kind: type[Sized], limit: int, least: bool, text: str) -> Check:
        def check_size(value: Any) -> str | None:
            if not isinstance(value, kind):
                return None
            fits = len(value) >= limit if least else len(value) <= limit
            return None if fits else invalid(value, text)

        return check_size

    return [check(kind, schema[name], least, text.format(schema[name])) for name, kind, least, text in sizes if name in schema]


CHECKED = frozenset(
    (
        *("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties"),
        *("enum", "pattern", "format"),
    )
)
"""Keywords of a schema that `compile_checks` knows."""


def compile_checks(schema: Mapping[str, Any]) -> tuple[Check, ...]:
    """The checks that a schema makes of one value. Raises `re.error` for a pattern that does not compile."""
    checks = _bound_checks(schema) + _size_checks(schema)
    if (allowed := schema.get("enum")) is not None:
        options = ", ".join(show(option) for option in allowed)
        checks.append(lambda v: None if v in allowed else f"Unsupported value: {show(v)}: supported values: {options}")
    if (pattern := schema.get("pattern")) is not None:
        compiled = compile_pattern(pattern)
        checks.append(lambda v: None if not isinstance(v, str) or compiled.search(v) else invalid(v, f"must match {pattern!r}"))
    if name := schema.get("format"):
        checks.append(FORMATS[name])
    return tuple(checks)
