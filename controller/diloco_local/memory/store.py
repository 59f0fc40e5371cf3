"""Objects, versions and history: the part of etcd and the watch cache in an API server. The store knows nothing of kinds.

Stored objects are never changed in place: writers put new ones, which may share parts with the old ones. So history can keep references,
and readers copy what they return.

See docs/decisions/0050-local-pods-and-nodes.md.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from diloco_operator.kube.client import EventType, Gone, Obj

KEPT = timedelta(minutes=5)
"""Changes are kept at least this long, and forgotten at the latest when they are twice as old: API servers have etcd compacted every five
minutes. A job's status has some KiB and is written each second, so all changes of a day would be a gigabyte."""


@dataclass(frozen=True, slots=True)
class Change:
    at: datetime
    version: int
    type: EventType
    obj: Obj
    old: Obj | None


@dataclass(slots=True, eq=False)
class Table:
    """All objects of one kind, by namespace and name, and their latest changes, at which watches can begin."""

    group: str
    plural: str
    rows: dict[str, dict[str, Obj]] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    first: int = 0
    """Position of changes[0] in the whole history."""
    compacted: int = 0
    """Changes up to this version are compacted."""
    waiters: list[asyncio.Future[None]] = field(default_factory=list)

    def get(self, namespace: str, name: str) -> Obj | None:
        row = self.rows.get(namespace)
        return row.get(name) if row else None

    def all(self, namespace: str = "") -> Iterator[Obj]:
        """Yield all objects, sorted by namespace and name, as etcd lists keys. "" means every namespace."""
        names = [namespace] if namespace else sorted(self.rows)
        for each in names:
            row = self.rows.get(each, {})
            for name in sorted(row):
                yield row[name]

    @property
    def end(self) -> int:
        return self.first + len(self.changes)

    def position_after(self, version: int) -> int:
        """The position in the history of the first change after `version`. Raises `Gone` if that is compacted."""
        if version < self.compacted:
            raise Gone(410, "Expired", f"too old resource version: {version} ({self.compacted})")
        return self.first + bisect.bisect_right(self.changes, version, key=lambda change: change.version)

    def change_at(self, position: int) -> Change:
        """Raises `Gone` if the change is forgotten because the watcher was too slow."""
        if position < self.first:
            raise Gone(410, "Expired", f"too old resource version: the watch fell behind ({self.compacted})")
        return self.changes[position - self.first]

    def forget(self, count: int) -> None:
        if count:
            self.compacted = self.changes[count - 1].version
            self.first += count
            del self.changes[:count]


class Store:
    """All tables, with one version counter. Optimistic concurrency is the callers' part: they check and put in one step, in one thread."""

    def __init__(self, window: int, clock: Callable[[], datetime]) -> None:
        self.version = 1
        self.compacted = 0
        self.tables: dict[tuple[str, str], Table] = {}
        self._window = window
        self._clock = clock
        self._by_uid: dict[str, tuple[Table, str, str]] = {}
        self._by_owner: dict[str, dict[str, None]] = {}
        """Owner's uid -> its dependents' uids, in the order of creation."""

    def table(self, group: str, plural: str) -> Table:
        key = (group, plural)
        if key not in self.tables:
            self.tables[key] = Table(group, plural, compacted=self.compacted)
        return self.tables[key]

    def put(self, table: Table, obj: Obj) -> Obj:
        """Store a new version. `obj` belongs to the store from now on: its resourceVersion is set."""
        meta = obj["metadata"]
        namespace, name = meta.get("namespace", ""), meta["name"]
        row = table.rows.setdefault(namespace, {})
        old = row.get(name)
        self.version += 1
        meta["resourceVersion"] = str(self.version)
        row[name] = obj
        if old is None:
            self._by_uid[meta["uid"]] = (table, namespace, name)
        self._index_owners(obj, old)
        self._record(table, EventType.ADDED if old is None else EventType.MODIFIED, obj, old)
        return obj

    def remove(self, table: Table, obj: Obj) -> None:
        meta = obj["metadata"]
        row = table.rows[meta.get("namespace", "")]
        old = row.pop(meta["name"])
        if not row:
            del table.rows[meta.get("namespace", "")]
        self.version += 1
        last = {**obj, "metadata": {**meta, "resourceVersion": str(self.version)}}
        self._by_uid.pop(meta["uid"], None)
        self._unindex_owners(old)
        self._record(table, EventType.DELETED, last, old)

    def by_uid(self, uid: str) -> tuple[Table, Obj] | None:
        entry = self._by_uid.get(uid)
        if entry is None:
            return None
        obj = entry[0].get(entry[1], entry[2])
        return (entry[0], obj) if obj is not None else None

    def dependents(self, uid: str) -> list[tuple[Table, Obj]]:
        entries = (self.by_uid(entry) for entry in self._by_owner.get(uid, ()))
        return [entry for entry in entries if entry is not None]

    def load(self, table: Table, obj: Obj) -> None:
        """Store an object of a dump at its old version. Watches see no change."""
        meta = obj["metadata"]
        table.rows.setdefault(meta.get("namespace", ""), {})[meta["name"]] = obj
        self._by_uid[meta["uid"]] = (table, meta.get("namespace", ""), meta["name"])
        self._index_owners(obj, None)

    def wake(self) -> None:
        """Wake every watch."""
        for table in self.tables.values():
            self._wake(table)

    def compact(self) -> None:
        """Compact all history: versions older than now are `Gone`."""
        self.compacted = self.version
        for table in self.tables.values():
            table.forget(len(table.changes))
            table.compacted = self.version

    def _record(self, table: Table, type_: EventType, obj: Obj, old: Obj | None) -> None:
        now = self._clock()
        table.changes.append(Change(now, self.version, type_, obj, old))
        if table.changes[0].at < now - 2 * KEPT:
            table.forget(bisect.bisect_left(table.changes, now - KEPT, key=lambda change: change.at))
        if len(table.changes) > self._window:
            table.forget(max(1, self._window // 4))
        if table.waiters:
            self._wake(table)

    def _wake(self, table: Table) -> None:
        waiters, table.waiters = table.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _index_owners(self, obj: Obj, old: Obj | None) -> None:
        refs = obj["metadata"].get("ownerReferences", ())
        if old is not None:
            if old["metadata"].get("ownerReferences", ()) == refs:
                return
            self._unindex_owners(old)
        for ref in refs:
            self._by_owner.setdefault(ref["uid"], {})[obj["metadata"]["uid"]] = None

    def _unindex_owners(self, obj: Obj) -> None:
        for ref in obj["metadata"].get("ownerReferences", ()):
            dependents = self._by_owner.get(ref["uid"])
            if dependents is not None:
                dependents.pop(obj["metadata"]["uid"], None)
                if not dependents:
                    del self._by_owner[ref["uid"]]
