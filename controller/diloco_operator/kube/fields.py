"""Reads fields of raw API objects as what they must be. Pure.

Whatever writes to an API server may send any JSON: a list where an object belongs, a number of 400 digits, a message of a megabyte. What
these functions return has the type that their signature says, is bounded, and can be shown in a terminal. Everything else raises
`MalformedField`, which names the field and never quotes its value: it may be secret. null counts as absent, as on a real API server.

See docs/decisions/0086-reading-the-api.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diloco_operator.kube.timestamps import parse_timestamp

type Fields = Mapping[str, Any]
"""A JSON object."""

TEXT_LIMIT = 1024
"""Characters of a foreign text, such as a kubelet's message."""
STRING_LIMIT = 1024
"""Characters of a name, label or other string that is compared. Kubernetes' own have 316 at most."""
MOST_COUNT = 2**63 - 1
"""Largest number in an int64, the type of counts in the API."""
MOST = 2**31 - 1
"""Largest number in an int32, the type of most numbers in the API."""


ERROR_LIMIT = 4096
"""Characters of an API server's error: its end may say what to do."""


class MalformedField(ValueError):
    """A field is not what it must be."""

    def __init__(self, at: str, what: str) -> None:
        super().__init__(f"{at} {what}")


def clip(text: str, limit: int = TEXT_LIMIT, *, lines: bool = False) -> str:
    """Return a foreign text, at most `limit` characters long and without control characters. `lines`: keep its line breaks."""
    cut = text[:limit]
    if not cut.isprintable():
        cut = "".join(map(_keep_line_breaks if lines else _masked, cut))
    return cut if len(text) <= limit else f"{cut[: limit - 1]}…"


def printable(value: Any) -> Any:
    """Return a JSON value without control characters in its strings and keys; line breaks stay."""
    match value:
        case str():
            return clip(value, len(value), lines=True)
        case Mapping():
            return {printable(key): printable(inner) for key, inner in value.items()}
        case list():
            return [printable(inner) for inner in value]
        case _:
            return value


def _masked(char: str) -> str:
    if char.isprintable():
        return char
    return " " if char.isspace() else "\ufffd"


def _keep_line_breaks(char: str) -> str:
    return char if char == "\n" else _masked(char)


def an_object(value: object, at: str) -> Fields:
    """Return `value`, which must be an object; an empty one for None."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise MalformedField(at, f"must be an object, not {kind_of_json(value)}")
    return value


def fields(holder: Fields, key: str, at: str = "") -> Fields:
    """Return the object `holder[key]`; empty without one. `at`: the path of `holder`."""
    value = holder.get(key)
    return value if type(value) is dict else an_object(value, _path(at, key))


def objects(holder: Fields, key: str, at: str = "") -> tuple[Fields, ...]:
    """Return the list of objects `holder[key]`; empty without one."""
    value = holder.get(key)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise MalformedField(_path(at, key), f"must be a list, not {kind_of_json(value)}")
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise MalformedField(f"{_path(at, key)}[{index}]", f"must be an object, not {kind_of_json(item)}")
    return tuple(value)


def string(holder: Fields, key: str, at: str = "", *, limit: int = STRING_LIMIT) -> str:
    """Return the string `holder[key]`, which is compared and must not be changed; "" without one."""
    value = holder.get(key)
    return "" if value is None else _string(value, _path(at, key), limit)


def needed_string(holder: Fields, key: str, at: str = "") -> str:
    """Return the string `holder[key]`, which must not be empty."""
    value = string(holder, key, at)
    if not value:
        raise MalformedField(_path(at, key), "is missing")
    return value


def strings(holder: Fields, key: str, at: str = "") -> dict[str, str]:
    """Return the map of strings `holder[key]`, a copy; empty without one."""
    where = _path(at, key)
    return {_string(name, where, STRING_LIMIT): _string(value, where, STRING_LIMIT) for name, value in fields(holder, key, at).items()}


def contents(holder: Fields, key: str, at: str = "") -> dict[str, str]:
    """Return the data of a ConfigMap, `holder[key]`: any strings, which are never shown; empty without one."""
    data = fields(holder, key, at)
    for value in data.values():
        if not isinstance(value, str):
            raise MalformedField(_path(at, key), f"must have strings as values, not {kind_of_json(value)}")
    return dict(data)


def text(holder: Fields, key: str, at: str = "", *, limit: int = TEXT_LIMIT, lines: bool = False) -> str:
    """Return the text `holder[key]` for people, clipped; "" without one."""
    value = holder.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedField(_path(at, key), f"must be a string, not {kind_of_json(value)}")
    return clip(value, limit, lines=lines)


def label_number(text: str) -> int:
    """The number in a label's text, -1 if it is not a number."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1


def whole_number(holder: Fields, key: str, at: str = "", *, least: int = -MOST, most: int = MOST) -> int:
    """Return the whole number `holder[key]`; 0 without one."""
    value = holder.get(key)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool):
        raise MalformedField(_path(at, key), f"must be a whole number, not {kind_of_json(value)}")
    if not least <= value <= most:
        raise MalformedField(_path(at, key), f"must be a number from {least} to {most}")
    return value


def moment(holder: Fields, key: str, at: str = "") -> float | None:
    """Return the time `holder[key]` in seconds since the epoch; None without one."""
    value = holder.get(key)
    if value is None or value == "":
        return None
    try:
        return parse_timestamp(_string(value, _path(at, key), 64))
    except MalformedField:
        raise
    except ValueError as error:
        raise MalformedField(_path(at, key), "must be a time such as 2026-11-20T21:00:00Z") from error


def metadata_of(obj: object) -> Fields:
    """Return the metadata of an object that may be malformed; empty without any."""
    meta = obj.get("metadata") if isinstance(obj, dict) else None
    return meta if isinstance(meta, dict) else {}


def controller_uid(meta: Fields) -> str:
    """Return the uid of the object that controls this one, by its ownerReferences; "" if none does."""
    for owner in objects(meta, "ownerReferences", "metadata"):
        if owner.get("controller"):
            return string(owner, "uid", "metadata.ownerReferences[]")
    return ""


def kind_of_json(value: object) -> str:
    """Return what a value is, in words."""
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a truth value", int: "a number", float: "a number"}
    return "nothing" if value is None else kinds.get(type(value), type(value).__name__)


def _string(value: object, at: str, limit: int) -> str:
    if not isinstance(value, str):
        raise MalformedField(at, f"must be a string, not {kind_of_json(value)}")
    if len(value) > limit:
        raise MalformedField(at, f"must have {limit} characters at most, not {len(value)}")
    if not value.isprintable():
        raise MalformedField(at, "must not contain control characters")
    return value


def _path(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key
