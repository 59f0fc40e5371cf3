"""Deletion: grace periods, finalizers, and garbage collection of dependents.

A real cluster collects garbage in the background, some time later. This server carries out all consequences of a deletion before the call
returns, in a fixed order, so that tests are repeatable. Each consequence is a separate change that watches see.

See docs/decisions/0050-local-pods-and-nodes.md.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from diloco_operator.kube.client import Obj
from diloco_operator.kube.pods import has_ended

from diloco_local.memory.kinds import Kind
from diloco_local.memory.pods import DEFAULT_GRACE_SECONDS
from diloco_local.memory.store import Store, Table
from diloco_local.memory.values import parse_time

_NAMESPACES, _DEFINITIONS = ("", "namespaces"), ("apiextensions.k8s.io", "customresourcedefinitions")


def stamp(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


class Collector:
    """`kinds`: every registered kind by (group, plural). `unregister(crd)` is called when a definition is gone."""

    def __init__(
        self, store: Store, clock: Callable[[], datetime], kinds: dict[tuple[str, str], Kind], unregister: Callable[[Obj], None]
    ) -> None:
        self._store = store
        self._clock = clock
        self._kinds = kinds
        self._unregister = unregister

    def delete(self, table: Table, obj: Obj, *, grace: int | None = None) -> None:
        """Begin, speed up or complete the deletion of a stored object. `grace`: seconds, None for the object's own."""
        marked = self._marked(table, obj, grace)
        key = (table.group, table.plural)
        ends = not marked["metadata"].get("finalizers") and not marked["metadata"]["deletionGracePeriodSeconds"]
        # Also if the pod ends at once: watches see the mark before the deletion.
        if marked is not obj and (not ends or key == _NAMESPACES or self._kinds[key].graceful):
            marked = self._store.put(table, marked)
        if key == _NAMESPACES:
            self._empty_namespace(marked["metadata"]["name"])
        elif ends:
            self._remove(table, marked)

    def written(self, table: Table, obj: Obj, old: Obj | None) -> None:
        """Call this after every create and update: it completes a deletion that nothing holds up any more, and collects the object if its
        owners have gone."""
        meta = obj["metadata"]
        if "deletionTimestamp" in meta:
            if (table.group, table.plural) == _NAMESPACES:
                self._settle_namespace(meta["name"])
            elif not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds"):
                self._remove(table, obj)
        elif old is None or meta.get("ownerReferences") != old["metadata"].get("ownerReferences"):
            self._attend(table, obj)

    def _marked(self, table: Table, obj: Obj, grace: int | None) -> Obj:
        """The object with the time and grace period of its deletion. The very same object if nothing changes."""
        meta = obj["metadata"]
        wanted = self._grace(table, obj, grace)
        now = self._clock()
        if "deletionTimestamp" not in meta:
            marks = {"deletionTimestamp": stamp(now + timedelta(seconds=wanted)), "deletionGracePeriodSeconds": wanted}
            if "generation" in meta:
                marks["generation"] = meta["generation"] + 1
            status = {"status": {**obj.get("status", {}), "phase": "Terminating"}} if (table.group, table.plural) == _NAMESPACES else {}
            return {**obj, "metadata": {**meta, **marks}, **status}
        left = meta["deletionGracePeriodSeconds"]
        if wanted >= left or (grace is None and wanted > 0):
            return obj  # a grace period can only become shorter
        begun = parse_time(meta["deletionTimestamp"]) - timedelta(seconds=left)
        marks = {"deletionTimestamp": stamp(begun + timedelta(seconds=wanted)), "deletionGracePeriodSeconds": wanted}
        return {**obj, "metadata": {**meta, **marks}}

    def _grace(self, table: Table, obj: Obj, asked: int | None) -> int:
        if not self._kinds[table.group, table.plural].graceful:
            return 0
        spec = obj["spec"]
        if not spec.get("nodeName") or has_ended(obj):
            return 0  # no kubelet has a process to stop
        return asked if asked is not None else int(spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS))

    def _remove(self, table: Table, obj: Obj) -> None:
        meta = obj["metadata"]
        self._store.remove(table, obj)
        for dependents_table, dependent in self._store.dependents(meta["uid"]):
            self._attend(dependents_table, dependent)
        if namespace := meta.get("namespace"):
            self._settle_namespace(namespace)
        if (table.group, table.plural) == _DEFINITIONS:
            defined = self._store.table(obj["spec"]["group"], obj["spec"]["names"]["plural"])
            for each in list(defined.all()):
                self._remove(defined, each)
            self._unregister(obj)

    # --- owners -------------------------------------------------------------------------------------------------------
    def _attend(self, table: Table, obj: Obj) -> None:
        """Collect an object if all its owners have gone; otherwise remove its references to owners that have gone."""
        meta = obj["metadata"]
        refs = meta.get("ownerReferences")
        if not refs or "deletionTimestamp" in meta or table.get(meta.get("namespace", ""), meta["name"]) is not obj:
            return
        living = [ref for ref in refs if self._lives(ref, meta.get("namespace", ""))]
        if not living:
            self.delete(table, obj)
        elif len(living) < len(refs):
            self._store.put(table, {**obj, "metadata": {**meta, "ownerReferences": living}})

    def _lives(self, ref: dict[str, str], namespace: str) -> bool:
        """Whether the owner exists. Also True if this server does not know its kind: dependents of such owners are never collected."""
        group = ref["apiVersion"].rpartition("/")[0]
        if not any(kind.resource.group == group and kind.resource.kind == ref["kind"] for kind in self._kinds.values()):
            return True
        owner = self._store.by_uid(ref["uid"])
        # An owner in another namespace does not count.
        return owner is not None and owner[1]["metadata"].get("namespace", "") in ("", namespace)

    # --- namespaces ---------------------------------------------------------------------------------------------------
    def _empty_namespace(self, name: str) -> None:
        for table in list(self._store.tables.values()):
            for obj in list(table.all(name)):
                # An earlier deletion may have taken the object along.
                current = table.get(name, obj["metadata"]["name"])
                if current is not None and "deletionTimestamp" not in current["metadata"]:
                    self.delete(table, current)
        self._settle_namespace(name)

    def _settle_namespace(self, name: str) -> None:
        """Remove the namespace if it is being deleted and nothing is left in it."""
        table = self._store.tables[_NAMESPACES]
        space = table.get("", name)
        if space is None or "deletionTimestamp" not in space["metadata"]:
            return
        if not space["metadata"].get("finalizers") and not any(each.rows.get(name) for each in self._store.tables.values()):
            self._remove(table, space)
