"""Brings dynamic resource allocation (DRA) into the inventory: ResourceSlices as devices of nodes, ResourceClaims as what others use there.

See docs/decisions/0269-dynamic-resource-allocation.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from diloco_operator.accelerators import NVIDIA_GPU
from diloco_operator.api.names import JobKey
from diloco_operator.fleet import Inventory, NodeView, PodUse
from diloco_operator.fleet.device_pools import ClaimedDevices, DevicePools, DeviceSlice, with_claimable
from diloco_operator.fleet.resources import Resources
from diloco_operator.kube.cache import CachedObject, ObjectKey
from diloco_operator.operator.caches import Caches
from diloco_operator.reconcile.observe.job import job_key


class DynamicResources:
    """Follows ResourceSlices and ResourceClaims. `changed` is called with a node and its name when the node offers other devices, `freed`
    when a free slice has more room than before."""

    def __init__(self, caches: Caches, inventory: Inventory, changed: Callable[[NodeView, str], None], freed: Callable[[], None]) -> None:
        self._caches = caches
        self._inventory = inventory
        self._changed = changed
        self._freed = freed
        self._pools = DevicePools()
        self._uses: dict[ObjectKey, tuple[PodUse, ...]] = {}
        """What each ResourceClaim holds of each node."""
        caches.on_slice_change(self._on_slice)
        caches.on_claim_change(self._on_claim)
        caches.on_ownership_change(self._on_job)

    def offered(self, node: NodeView) -> NodeView:
        """Return the node with what DRA offers there."""
        return with_claimable(node, self._pools.products(node.name))

    def _on_slice(self, old: CachedObject[DeviceSlice] | None, new: CachedObject[DeviceSlice] | None) -> None:
        cached = new or old
        assert cached is not None
        nodes, pools = self._pools.replace(cached.name, old.value if old else None, new.value if new else None)
        for name in sorted(nodes):
            if (node := self._caches.nodes.get("", name)) is not None:
                self._changed(node.value, name)
        for pool in sorted(pools):
            for claim in self._caches.claims_in(pool):
                self._count(claim.key, claim)

    def _on_claim(self, old: CachedObject[ClaimedDevices] | None, new: CachedObject[ClaimedDevices] | None) -> None:
        cached = new or old
        assert cached is not None
        self._count(cached.key, new)

    def _on_job(self, job: JobKey) -> None:
        for claim in self._caches.claims_with_label(job):
            self._count(claim.key, claim)

    def _count(self, key: ObjectKey, cached: CachedObject[ClaimedDevices] | None) -> None:
        before = self._uses.get(key, ())
        after = self._uses_of(cached) if cached is not None else ()
        if [*map(_counts_as, before)] == [*map(_counts_as, after)]:
            return
        if after:
            self._uses[key] = after
        else:
            del self._uses[key]
        # Additions first: else a node that the claim keeps would seem to have more room for a moment.
        has_freed = False
        for use in after:
            if self._inventory.replace_use(None, use):
                has_freed = True
        for use in before:
            if self._inventory.replace_use(use, None):
                has_freed = True
        if has_freed:
            self._freed()

    def _uses_of(self, cached: CachedObject[ClaimedDevices]) -> tuple[PodUse, ...]:
        """Return what a claim holds of each node. If this operator's job has reserved the node, the reservation counts in its place."""
        claim = cached.value
        uid = self._caches.uid_of_ours((cached.namespace, claim.job)) if claim.job else ""
        unit = (job_key(cached.namespace, claim.job, uid), "") if uid else None
        nodes = Counter(self._pools.node_of(device) for device in claim.devices)
        return tuple(
            PodUse(cached.namespace, claim.user or cached.name, node, Resources(devices=((NVIDIA_GPU, count),)), unit=unit)
            for node, count in sorted(nodes.items())
            if node
        )


def _counts_as(use: PodUse) -> tuple[object, ...]:
    return use.name, use.node, use.requests, use.unit
