"""Keeps the objects that cannot be used, writes a log line for each, and tells listeners.

See docs/decisions/0086-reading-the-api.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from diloco_operator.kube.client import Resource

log = logging.getLogger(__name__)

_LINES, _INTERVAL = 50, 10.0
"""Log lines that may come at once, and seconds for each further one: a user who writes malformed objects must not fill the log."""


@dataclass(frozen=True, slots=True)
class MalformedObject:
    """An object that is left out of a cache, or that can be used only in part. Its texts are clipped."""

    resource: Resource
    namespace: str
    name: str
    uid: str
    label: str
    """The value of the label that the cache selects by, "" if it selects by none."""
    problem: str
    """What is wrong, in words, without the object's content."""
    error: Exception | None = None
    """What the program raised, if it failed at the object instead of recognising the problem. That is a defect."""
    used: bool = False
    """The cache has it, without the part that is wrong."""

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name

    def __str__(self) -> str:
        where = f"{self.namespace}/" if self.namespace else ""
        how = "can be used only in part" if self.used else "cannot be used"
        return f"{self.resource.kind} {where}{self.name} (uid {self.uid or 'unknown'}) {how}: {self.problem}"


type _Key = tuple[Resource, str, str]


class MalformedObjects:
    """The malformed objects that one process knows, without a limit."""

    def __init__(self) -> None:
        self._held: dict[_Key, MalformedObject] = {}
        self._by_label: dict[tuple[str, str], dict[_Key, MalformedObject]] = {}
        self._counts: dict[Resource, int] = {}
        self._listeners: list[Callable[[MalformedObject], None]] = []
        self._lines = float(_LINES)
        self._last_line = 0.0
        self._unlogged = 0

    def on_found(self, listener: Callable[[MalformedObject], None]) -> None:
        """Call `listener` with each malformed object from now on: once, and again when something else is wrong with it."""
        self._listeners.append(listener)

    def __iter__(self) -> Iterator[MalformedObject]:
        return iter(list(self._held.values()))

    def of_label(self, namespace: str, label: str) -> list[MalformedObject]:
        """Return the objects in `namespace` whose label has this value."""
        return list(self._by_label.get((namespace, label), {}).values())

    def count(self, resource: Resource) -> int:
        return self._counts.get(resource, 0)

    def add(self, malformed: MalformedObject) -> None:
        """Add an object that cannot be used. Every list adds it again; log and listeners get it once."""
        key = (malformed.resource, *malformed.key)
        old = self._held.get(key)
        if old is not None and (old.uid, old.problem) == (malformed.uid, malformed.problem):
            return
        self.remove(malformed.resource, malformed.key)
        self._held[key] = malformed
        self._by_label.setdefault((malformed.namespace, malformed.label), {})[key] = malformed
        self._counts[malformed.resource] = self.count(malformed.resource) + 1
        self._log(malformed)
        for listener in self._listeners:
            listener(malformed)

    def remove(self, resource: Resource, key: tuple[str, str]) -> None:
        """Remove an object that is gone, or can be used now."""
        old = self._held.pop((resource, *key), None)
        if old is None:
            return
        self._counts[resource] -= 1
        same = self._by_label[(old.namespace, old.label)]
        del same[(resource, *key)]
        if not same:
            del self._by_label[(old.namespace, old.label)]

    def _log(self, malformed: MalformedObject) -> None:
        now = asyncio.get_running_loop().time()
        self._lines = min(_LINES, self._lines + (now - self._last_line) / _INTERVAL)
        self._last_line = now
        if self._lines < 1:
            self._unlogged += 1
            return
        self._lines -= 1
        more = f" ({self._unlogged} others were not logged)" if self._unlogged else ""
        self._unlogged = 0
        if malformed.error is not None:
            log.error("%s; this is a defect, please report it%s", malformed, more, exc_info=malformed.error)
        else:
            log.warning("%s%s", malformed, more)
