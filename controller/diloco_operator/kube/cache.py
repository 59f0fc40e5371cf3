"""A cache of one resource's objects, with indexes. Reflectors fill it, and decisions read it.

See docs/decisions/0030-controller-loop.md.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from diloco_operator.kube.client import Obj

type ObjectKey = tuple[str, str]
"""(namespace, name); namespace is "" for a cluster-scoped object."""


@dataclass(frozen=True, slots=True)
class CachedObject[T]:
    """What a cache holds of one object. Shared by all readers: never change it."""

    namespace: str
    name: str
    uid: str
    version: str
    """resourceVersion."""
    deleting: bool
    """Its deletion was requested."""
    value: T
    """The projection: the parts of the object that are read. Whole objects are a hundred times as big."""
    label: str = ""
    """The value of the label that the reflector selects by, "" if it selects by none."""

    @property
    def key(self) -> ObjectKey:
        return self.namespace, self.name


type Projection[T] = Callable[[Obj, T | None], T]
"""Called with the API's object, and the projection of its earlier version, None if there was none. Raises ValueError, above all
`MalformedField`, for an object that cannot be used."""
type Handler[T] = Callable[[CachedObject[T] | None, CachedObject[T] | None], None]
"""Called with the old and the new cached object; None stands for no object. It must not block."""
type Indexer[T] = Callable[[CachedObject[T]], Iterable[Hashable]]
"""The index values of an object."""


def as_it_is(obj: Obj, _previous: Obj | None) -> Obj:
    """Return the projection that keeps the whole object."""
    return obj


class Cache[T]:
    """Objects by (namespace, name) and by indexes."""

    def __init__(self, indexers: Mapping[str, Indexer[T]] | None = None) -> None:
        self._objects: dict[ObjectKey, CachedObject[T]] = {}
        self._indexers = dict(indexers or {})
        self._indexes: dict[str, dict[Hashable, dict[ObjectKey, CachedObject[T]]]] = {name: {} for name in self._indexers}

    def get(self, namespace: str, name: str) -> CachedObject[T] | None:
        return self._objects.get((namespace, name))

    def by_index(self, index: str, value: Hashable) -> list[CachedObject[T]]:
        """Return all objects with `value` in `index`, in the order in which they came."""
        return list(self._indexes[index].get(value, {}).values())

    def count(self, index: str, value: Hashable) -> int:
        return len(self._indexes[index].get(value, ()))

    def __iter__(self) -> Iterator[CachedObject[T]]:
        """Iterate over a copy, since the cache may change during the iteration."""
        return iter(list(self._objects.values()))

    def __len__(self) -> int:
        return len(self._objects)

    def put(self, cached: CachedObject[T]) -> CachedObject[T] | None:
        """Add or replace an object. Return what the cache had under its key before."""
        key = cached.key
        old = self._objects.get(key)
        values_by_index = {name: set(indexer(cached)) for name, indexer in self._indexers.items()}  # if this fails, nothing has changed
        self._objects[key] = cached
        for name, values in values_by_index.items():
            index = self._indexes[name]
            if old is not None:
                self._unfile(index, set(self._indexers[name](old)) - values, key)
            for value in values:
                index.setdefault(value, {})[key] = cached
        return old

    def drop(self, key: ObjectKey) -> CachedObject[T] | None:
        """Remove an object. Return what the cache had."""
        old = self._objects.pop(key, None)
        if old is not None:
            for name, indexer in self._indexers.items():
                self._unfile(self._indexes[name], indexer(old), key)
        return old

    @staticmethod
    def _unfile(index: dict[Hashable, dict[ObjectKey, CachedObject[T]]], values: Iterable[Hashable], key: ObjectKey) -> None:
        for value in values:
            objects = index.get(value)
            if objects is not None:
                objects.pop(key, None)
                if not objects:
                    del index[value]
