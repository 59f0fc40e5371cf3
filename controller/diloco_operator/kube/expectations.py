"""Writes whose effect the watch has not shown yet.

A reconcile from a stale cache would create objects twice and count events twice. So a key with open expectations is not processed until the
cache has shown their effect. A watch may compress a creation and a deletion into nothing, so expectations expire: their reader then asks
the server whether the cache is behind, and forgets or renews them.

See docs/decisions/0031-writes.md.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from diloco_operator.kube.cache import CachedObject
from diloco_operator.kube.client import Obj, Resource
from diloco_operator.timeouts import RECONCILE


@dataclass(frozen=True, slots=True)
class _Target:
    resource: Resource
    namespace: str
    name: str


@dataclass(slots=True)
class _Expectation[K]:
    key: K
    gone_uid: str = ""
    """Not empty: a deletion of the object with this uid. Empty: a creation, or with `version` a change."""
    version: str = ""
    """Not empty: the object at this resourceVersion or a later one."""


class Expectations[K: Hashable]:
    """Open expectations by key. `time` returns seconds of a clock that does not go back."""

    def __init__(self, time: Callable[[], float], *, expiry: float = RECONCILE.expectation) -> None:
        self._time = time
        self._expiry = expiry
        self._targets: dict[_Target, list[_Expectation[K]]] = {}
        self._by_key: dict[K, dict[_Target, float]] = {}
        """What each key waits for, and until when at most."""

    def expect_create(self, key: K, resource: Resource, namespace: str, name: str) -> None:
        """Let `key` wait until the cache shows an object of this name. Call it before the request is sent."""
        self._expect(_Target(resource, namespace, name), _Expectation(key))

    def expect_delete(self, key: K, resource: Resource, namespace: str, name: str, uid: str) -> None:
        """Let `key` wait until the cache shows this object terminating, replaced, or not at all. Call it before the request is sent."""
        self._expect(_Target(resource, namespace, name), _Expectation(key, gone_uid=uid))

    def expect_version(self, key: K, resource: Resource, shown: CachedObject[Any] | None, written: Obj) -> None:
        """Let `key` wait until the cache shows the version in `written`, the answer to a write. `shown`: what the cache shows now."""
        version = str(written["metadata"]["resourceVersion"])
        if shown is not None and not _older(shown.version, version):
            return
        meta = written["metadata"]
        target = _Target(resource, meta.get("namespace", ""), meta["name"])
        self._expect(target, _Expectation(key, version=version))

    def cancel(self, key: K, resource: Resource, namespace: str, name: str) -> None:
        """Forget an expectation whose request failed or was not sent: there is nothing to wait for."""
        self._settle(_Target(resource, namespace, name), lambda expectation: expectation.key == key)

    def observe(self, resource: Resource, old: CachedObject[Any] | None, new: CachedObject[Any] | None) -> None:
        """Observe that the cache changed from `old` to `new`; None stands for no object."""
        seen = new if new is not None else old
        if seen is None or not self._targets:
            return
        target = _Target(resource, seen.namespace, seen.name)
        if target in self._targets:
            self._settle(target, lambda expectation: _met(expectation, new))

    def open(self, key: K) -> bool:
        """Return whether `key` still waits for something, or has waited in vain."""
        return self.expires_in(key) is not None

    def expires_in(self, key: K) -> float | None:
        """Return seconds until the last expectation of `key` expires, 0 if all have expired. None if it has none."""
        waits = self._by_key.get(key)
        return max(0.0, max(waits.values()) - self._time()) if waits else None

    def renew(self, key: K) -> float:
        """Let `key` wait once more for everything that it waits for. Return the seconds until that expires."""
        expires = self._time() + self._expiry
        waits = self._by_key.get(key, {})
        for target in waits:
            waits[target] = expires
        return self._expiry

    def waiting_for(self, key: K) -> list[str]:
        """Return what `key` waits for, human-readable: `Pod ns/name`."""
        return sorted(f"{target.resource.kind} {target.namespace}/{target.name}" for target in self._by_key.get(key, ()))

    def forget(self, key: K) -> None:
        for target in list(self._by_key.get(key, ())):
            self._settle(target, lambda expectation: expectation.key == key)

    def _expect(self, target: _Target, expectation: _Expectation[K]) -> None:
        self._targets.setdefault(target, []).append(expectation)
        self._by_key.setdefault(expectation.key, {})[target] = self._time() + self._expiry

    def _settle(self, target: _Target, met: Callable[[_Expectation[K]], bool]) -> None:
        still_open = []
        settled: set[K] = set()
        for expectation in self._targets.get(target, ()):
            if met(expectation):
                settled.add(expectation.key)
            else:
                still_open.append(expectation)
        if still_open:
            self._targets[target] = still_open
        else:
            self._targets.pop(target, None)
        for key in settled - {expectation.key for expectation in still_open}:
            waits = self._by_key.get(key, {})
            waits.pop(target, None)
            if not waits:
                self._by_key.pop(key, None)


def _met[K](expectation: _Expectation[K], new: CachedObject[Any] | None) -> bool:
    if new is None:
        return True  # the expected deletion, or a deletion that overtook the creation or the change
    if expectation.gone_uid:
        return new.uid != expectation.gone_uid or new.deleting
    if expectation.version:
        return not _older(new.version, expectation.version)
    return True


def _older(version: str, than: str) -> bool:
    """Return whether a resourceVersion comes before another. Since 1.35 Kubernetes promises that they compare as decimal numbers. If a
    server writes them otherwise, every other version counts as older, and the expectation ends when it expires."""
    if version.isdecimal() and than.isdecimal():
        return int(version) < int(than)
    return version != than
