"""Deletion: grace periods, finalizers, and garbage collection of dependents.

A real cluster collects garbage in the background, some time later. Here all consequences of a deletion happen before the call returns, in a
fixed order, so that tests are repeatable. Each consequence is a separate change that watches see.

See docs/decisions/0050-local-pods-and-nodes.md.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from diloco_operator.kube.client import Obj

from diloco_local.memory.crds import CLEANUP
from diloco_local.memory.kinds import Kind
from diloco_local.memory.pods import DEFAULT_GRACE_SECONDS
from diloco_local.memory.store import Store, Table
from diloco_local.memory.values import parse_time

FOREGROUND = "foregroundDeletion"
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

    def delete(self, table: Table, obj: Obj, *, grace: int | None = None, propagation: str = "Background") -> None:
        """Begin, speed up or complete the deletion of a stored object."""
        if propagation == "Orphan":
            self._orphan(obj)
        elif propagation == "Foreground" and FOREGROUND not in obj["metadata"].get("finalizers", ()):
            meta = obj["metadata"]
            obj = {**obj, "metadata": {**meta, "finalizers": [*meta.get("finalizers", ()), FOREGROUND]}}
        marked = self._marked(table, obj, grace)
        meta = marked["metadata"]
        key = (table.group, table.plural)
        holding = bool(meta.get("finalizers")) or meta["deletionGracePeriodSeconds"] > 0 or key in (_NAMESPACES, _DEFINITIONS)
        if not holding:
            if self._kinds[key].graceful:  # watches see the end of the grace period, however short it was
                marked = self._store.put(table, marked)
            self._remove(table, marked)
            return
        if marked is not table.get(meta.get("namespace", ""), meta["name"]):
            self._store.put(table, marked)
        if FOREGROUND in meta.get("finalizers", ()):
            self._collect_foreground(meta["uid"])
        if key == _NAMESPACES:
            self._empty_namespace(meta["name"])
        elif key == _DEFINITIONS:
            self._empty_definition(marked)

    def written(self, table: Table, obj: Obj, old: Obj | None) -> None:
        """Complete a deletion without finalizers, and collect objects without an owner, after every create and update."""
        meta = obj["metadata"]
        if "deletionTimestamp" in meta:
            self._complete(table, obj)
            return
        refs = meta.get("ownerReferences")
        if refs and (old is None or refs != old["metadata"].get("ownerReferences")):
            self._attend(table, obj)

    def _marked(self, table: Table, obj: Obj, grace: int | None) -> Obj:
        """Return the object with the time and grace period of its deletion; the same object if nothing changes."""
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
        if not spec.get("nodeName") or obj.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            return 0  # no kubelet has a process to stop
        return asked if asked is not None else int(spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS))

    def _complete(self, table: Table, obj: Obj) -> None:
        meta = obj["metadata"]
        if FOREGROUND in meta.get("finalizers", ()):
            self._settle_foreground(meta["uid"])
        elif (table.group, table.plural) == _NAMESPACES:
            self._settle_namespace(meta["name"])
        elif (table.group, table.plural) == _DEFINITIONS:
            self._settle_definition(obj["spec"]["group"], obj["spec"]["names"]["plural"])
        elif not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds"):
            self._remove(table, obj)

    def _remove(self, table: Table, obj: Obj) -> None:
        meta = obj["metadata"]
        self._store.remove(table, obj)
        for dependents_table, dependent in self._store.dependents(meta["uid"]):
            self._attend(dependents_table, dependent)
        for ref in meta.get("ownerReferences", ()):
            self._settle_foreground(ref["uid"])
        if namespace := meta.get("namespace"):
            self._settle_namespace(namespace)
        self._settle_definition(table.group, table.plural)

    # --- owners -------------------------------------------------------------------------------------------------------
    def _owner(self, ref: dict[str, str], namespace: str) -> Obj | None:
        found = self._store.by_uid(ref["uid"])
        if found is None:
            return None
        meta = found[1]["metadata"]
        here = meta.get("namespace", "") in ("", namespace)  # an owner in another namespace does not count
        return found[1] if here and meta["name"] == ref["name"] else None

    def _resolvable(self, ref: dict[str, str]) -> bool:
        """Return whether this server knows the owner's kind. Dependents of other owners are not collected."""
        group = ref["apiVersion"].rpartition("/")[0]
        return any(kind.resource.group == group and kind.resource.kind == ref["kind"] for kind in self._kinds.values())

    def _attend(self, table: Table, obj: Obj) -> None:
        """Collect an object if all its owners are gone or wait for it; otherwise remove references to owners that are gone."""
        meta = obj["metadata"]
        if "deletionTimestamp" in meta or table.get(meta.get("namespace", ""), meta["name"]) is not obj:
            return
        solid: list[Obj] = []
        waiting: list[Obj] = []
        for ref in meta.get("ownerReferences", ()):
            if not self._resolvable(ref):
                solid.append(ref)
                continue
            owner = self._owner(ref, meta.get("namespace", ""))
            if owner is None:
                continue
            foreground = "deletionTimestamp" in owner["metadata"] and FOREGROUND in owner["metadata"].get("finalizers", ())
            (waiting if foreground else solid).append(ref)
        if not solid:
            self.delete(table, obj, propagation="Foreground" if waiting and self._store.dependents(meta["uid"]) else "Background")
        elif len(solid) < len(meta["ownerReferences"]):
            written = self._store.put(table, {**obj, "metadata": {**meta, "ownerReferences": solid}})
            self.written(table, written, obj)

    def _orphan(self, owner: Obj) -> None:
        uid = owner["metadata"]["uid"]
        for table, obj in self._store.dependents(uid):
            meta = dict(obj["metadata"])
            meta["ownerReferences"] = [ref for ref in meta["ownerReferences"] if ref["uid"] != uid]
            if not meta["ownerReferences"]:
                del meta["ownerReferences"]
            self._store.put(table, {**obj, "metadata": meta})

    def _collect_foreground(self, uid: str) -> None:
        for table, obj in self._store.dependents(uid):
            self._attend(table, obj)
        self._settle_foreground(uid)

    def _settle_foreground(self, uid: str) -> None:
        """Complete the deletion of an owner that waited for its blocking dependents, once the last of them is gone."""
        found = self._store.by_uid(uid)
        if found is None:
            return
        table, owner = found
        meta = owner["metadata"]
        if "deletionTimestamp" not in meta or FOREGROUND not in meta.get("finalizers", ()):
            return
        for _, dependent in self._store.dependents(uid):
            if any(ref["uid"] == uid and ref.get("blockOwnerDeletion") for ref in dependent["metadata"]["ownerReferences"]):
                return
        finalizers = [each for each in meta["finalizers"] if each != FOREGROUND]
        rest = {**meta, "finalizers": finalizers}
        if not finalizers:
            del rest["finalizers"]
        self._complete(table, self._store.put(table, {**owner, "metadata": rest}))

    # --- what holds other things: namespaces, definitions -------------------------------------------------------------
    def _empty_namespace(self, name: str) -> None:
        for table in list(self._store.tables.values()):
            for obj in list(table.all(name)):
                if (table.group, table.plural) != _NAMESPACES:
                    current = table.get(name, obj["metadata"]["name"])
                    if current is not None and "deletionTimestamp" not in current["metadata"]:
                        self.delete(table, current)
        self._settle_namespace(name)

    def _settle_namespace(self, name: str) -> None:
        table = self._store.tables[_NAMESPACES]
        found = table.get("", name)
        if found is None or "deletionTimestamp" not in found["metadata"]:
            return
        if not found["metadata"].get("finalizers") and not any(each.rows.get(name) for each in self._store.tables.values()):
            self._remove(table, found)

    def _empty_definition(self, crd: Obj) -> None:
        group, plural = crd["spec"]["group"], crd["spec"]["names"]["plural"]
        table = self._store.table(group, plural)
        for obj in list(table.all()):
            current = table.get(obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
            if current is not None and "deletionTimestamp" not in current["metadata"]:
                self.delete(table, current)
        self._settle_definition(group, plural)

    def _settle_definition(self, group: str, plural: str) -> None:
        definitions = self._store.tables[_DEFINITIONS]
        crd = definitions.get("", f"{plural}.{group}")
        if crd is None or "deletionTimestamp" not in crd["metadata"] or self._store.table(group, plural).rows:
            return
        finalizers = [each for each in crd["metadata"].get("finalizers", ()) if each != CLEANUP]
        if finalizers:
            return
        self._remove(definitions, crd)
        self._unregister(crd)
