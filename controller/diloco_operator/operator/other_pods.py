"""Brings into the inventory what pods use that are not of this operator's units.

See docs/decisions/0130-what-occupies-a-node.md.
"""

from __future__ import annotations

from collections.abc import Callable

from diloco_operator.api import names
from diloco_operator.api.names import JobKey
from diloco_operator.fleet import Inventory, PodUse
from diloco_operator.kube.cache import CachedObject, ObjectKey
from diloco_operator.operator.caches import Caches
from diloco_operator.reconcile import PodView
from diloco_operator.reconcile.observe.job import job_key


class OtherPods:
    """Keeps the inventory's account of other pods. `freed` is called when a free slice has more room than before, `met` with a node's name
    when a learner of another operator came there."""

    def __init__(self, caches: Caches, inventory: Inventory, freed: Callable[[], None], met: Callable[[str], None]) -> None:
        self._caches = caches
        self._inventory = inventory
        self._freed = freed
        self._met = met
        self._labelled: dict[ObjectKey, PodUse] = {}
        """Pods with the label of a job that count."""
        caches.on_use_change(self._replace)
        caches.on_pod_change(self._on_pod)
        caches.on_ownership_change(self._count_again)

    def _on_pod(self, old: CachedObject[PodView] | None, new: CachedObject[PodView] | None) -> None:
        cached = new or old
        if cached is not None:
            self._count(cached.key, new)

    def _replace(self, old: PodUse | None, new: PodUse | None) -> None:
        if self._inventory.replace_use(old, new):
            self._freed()
        if new is not None and new is not old and new.learner is not None:
            self._met(new.node)

    def _count_again(self, job: JobKey) -> None:
        for cached in self._caches.labelled_pods(job):
            self._count(cached.key, cached)

    def _count(self, key: ObjectKey, cached: CachedObject[PodView] | None) -> None:
        before = self._labelled.pop(key, None)
        after = self._use(cached.value, before) if cached is not None else None
        if after is not None:
            self._labelled[key] = after
        self._replace(before, after)

    def _use(self, pod: PodView, before: PodUse | None) -> PodUse | None:
        """Return what the pod counts as; None if it does not count. A learner of this operator that requests accelerators does not: its job
        has reserved the node. One that requests none counts unless its job has reserved the node. The syncer counts: it may be on a node
        that a unit could have."""
        if pod.uses is None:
            return None
        unit, learner = None, False
        if pod.component == names.COMPONENT_LEARNER:
            if not pod.problem and self._caches.is_ours(pod):
                if pod.takes_accelerators:
                    return None
                unit = (job_key(pod.namespace, pod.job, pod.owner), pod.unit)
            else:
                learner = not pod.uses.empty and self._caches.is_of_other_operator(pod)
        use = PodUse(pod.namespace, pod.name, pod.node, pod.uses, (pod.created, pod.uid) if learner else None, unit)
        if before is not None and _counts_as(before) == _counts_as(use):
            return before
        return use


def _counts_as(use: PodUse) -> tuple[object, ...]:
    return use.node, use.requests, use.learner, use.unit
