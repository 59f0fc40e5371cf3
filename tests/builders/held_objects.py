"""Finds what an object still holds: a walk over its attributes and containers, as far as the program's own objects go."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

_CONTAINERS = (list, tuple, set, frozenset, deque)


def held_by(root: object, wanted: Callable[[object], bool], *, without: Iterable[type] = ()) -> list[str]:
    """The paths from `root` to each value that is wanted, sorted. Objects of the types `without`, and those of other libraries, are not
    entered."""
    left_out, seen, found = tuple(without), {id(root)}, []
    queue: deque[tuple[str, object]] = deque([(type(root).__name__, root)])
    while queue:
        path, value = queue.popleft()
        if wanted(value):
            found.append(path)
            continue
        if isinstance(value, left_out):
            continue
        for name, part in _parts(value):
            if isinstance(part, str | tuple) or id(part) not in seen:
                seen.add(id(part))
                queue.append((f"{path}{name}", part))
    return sorted(found)


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, part in list(value.items()):
            yield ".key", key
            yield f"[{key!r}]", part
    elif isinstance(value, _CONTAINERS):
        for part in list(value):
            yield "[]", part
    if type(value).__module__.startswith("diloco_operator"):
        for name in _attributes(value):
            yield f".{name}", getattr(value, name)


def _attributes(value: Any) -> Iterator[str]:
    yield from getattr(value, "__dict__", ())
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        yield from (name for name in ((slots,) if isinstance(slots, str) else slots) if hasattr(value, name) and not name.startswith("__"))
