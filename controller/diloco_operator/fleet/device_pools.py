"""The GPUs that nodes offer by dynamic resource allocation (DRA): ResourceSlices, and the ResourceClaims that hold GPUs. Pure.

See docs/decisions/0269-dynamic-resource-allocation.md.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from diloco_operator.accelerators import NVIDIA_GPU, Accelerator, identify
from diloco_operator.accelerators.labels import NVIDIA_FEATURE_DISCOVERY
from diloco_operator.api import names
from diloco_operator.fleet.node import NodeView
from diloco_operator.kube.client import Obj
from diloco_operator.kube.fields import MOST_COUNT, Fields, MalformedField, fields, needed_string, objects, string, whole_number

PRODUCT_LABEL = NVIDIA_FEATURE_DISCOVERY.key
_MOST_DEVICES = 128
"""The API server allows no more devices in one ResourceSlice."""

type Device = tuple[str, str]
"""Pool and name of a device, unique for a driver."""


@dataclass(frozen=True, slots=True)
class DeviceSlice:
    """A ResourceSlice of GPUs."""

    node: str
    """"" if its devices are of no single node. Then they count for none."""
    pool: str
    generation: int
    slices: int
    """How many ResourceSlices the pool has in this generation."""
    devices: tuple[str, ...]
    """Names of all its devices."""
    whole: Mapping[str, str]
    """Device -> product, only for whole GPUs that a claim can get now."""


@dataclass(frozen=True, slots=True)
class ClaimedDevices:
    """A ResourceClaim. Its status, which kube-scheduler writes, says what it holds."""

    job: str
    """Its label LABEL_JOB."""
    user: str
    """The first pod that may use it. "" if none may."""
    devices: tuple[Device, ...]
    """GPUs that it holds. Empty if its pod requests them as well, since the pod is counted then."""


def project_slice(obj: Obj) -> DeviceSlice:
    """Project a raw ResourceSlice of NVIDIA's driver. Raises `MalformedField`."""
    spec = fields(obj, "spec")
    pool, devices = fields(spec, "pool", "spec"), objects(spec, "devices", "spec")
    if len(devices) > _MOST_DEVICES:
        raise MalformedField("spec.devices", f"must have {_MOST_DEVICES} devices at most, not {len(devices)}")
    return DeviceSlice(
        node=sys.intern(string(spec, "nodeName", "spec")),
        pool=sys.intern(needed_string(pool, "name", "spec.pool")),
        generation=whole_number(pool, "generation", "spec.pool", most=MOST_COUNT),
        slices=whole_number(pool, "resourceSliceCount", "spec.pool", most=MOST_COUNT),
        devices=tuple(needed_string(each, "name", "spec.devices[]") for each in devices),
        whole={needed_string(each, "name", "spec.devices[]"): product for each in devices if (product := _product(each))},
    )


def _product(device: Fields) -> str:
    """Return the product of a whole GPU, as GPU feature discovery writes it. "" if the device is part of a GPU, or no claim can get it
    now."""
    attributes = fields(device, "attributes", "spec.devices[]")
    kind, product = (
        string(fields(attributes, name, "spec.devices[].attributes"), "string", f"spec.devices[].attributes.{name}")
        for name in ("type", "productName")
    )
    tainted = any(taint.get("effect") in ("NoSchedule", "NoExecute") for taint in objects(device, "taints", "spec.devices[]"))
    shared = device.get("allowMultipleAllocations") is True
    return sys.intern(product.replace(" ", "-")) if kind == "gpu" and not tainted and not shared else ""


def project_claim(obj: Obj) -> ClaimedDevices:
    """Project a raw ResourceClaim. Raises `MalformedField`."""
    meta, status, at = fields(obj, "metadata"), fields(obj, "status"), "status.allocation.devices"
    users = objects(status, "reservedFor", "status")
    held = objects(fields(fields(status, "allocation", "status"), "devices", "status.allocation"), "results", at)
    # kube-scheduler made such a claim for a pod that requests the devices, and that request counts already.
    counted = names.EXTENDED_RESOURCE_CLAIM not in fields(meta, "annotations", "metadata")
    return ClaimedDevices(
        job=string(fields(meta, "labels", "metadata"), names.LABEL_JOB, "metadata.labels"),
        user=string(users[0], "name", "status.reservedFor[]") if users else "",
        devices=tuple(
            (string(each, "pool", at), string(each, "device", at))
            for each in held
            if counted and each.get("driver") == names.GPU_DRIVER and each.get("adminAccess") is not True
        ),
    )


class DevicePools:
    """The pools of devices, from their ResourceSlices. As for kube-scheduler, only the newest generation of a pool counts, and only once
    all its ResourceSlices exist."""

    def __init__(self) -> None:
        self._slices: dict[str, dict[str, DeviceSlice]] = {}
        """Pool -> name of a ResourceSlice -> the ResourceSlice."""
        self._pools: dict[str, set[str]] = {}
        """Node -> pools that have a ResourceSlice for it."""

    def replace(self, name: str, old: DeviceSlice | None, new: DeviceSlice | None) -> tuple[set[str], set[str]]:
        """Replace a ResourceSlice. `old` is None if it is new, `new` is None if it is gone. Returns the nodes and pools that may have
        changed."""
        pools = {each.pool for each in (old, new) if each is not None}
        nodes = set()
        for pool in pools:
            slices = self._slices.setdefault(pool, {})
            before = {each.node: None for each in slices.values()}
            slices.pop(name, None)
            if new is not None and new.pool == pool:
                slices[name] = new
            after = {each.node: None for each in slices.values()}
            for node in before.keys() - after.keys():
                self._pools[node].discard(pool)
                if not self._pools[node]:
                    del self._pools[node]
            for node in after:
                self._pools.setdefault(node, set()).add(pool)
            nodes |= before.keys() | after.keys()
            if not slices:
                del self._slices[pool]
        return nodes - {""}, pools

    def node_of(self, device: Device) -> str:
        """Return the node that has this whole GPU. "" if no node has."""
        pool, name = device
        return next((each.node for each in self._current(pool) if name in each.whole), "")

    def products(self, node: str) -> Counter[str]:
        """Return product -> how many whole GPUs of it the node has."""
        current = (each for pool in self._pools.get(node, ()) for each in self._current(pool) if each.node == node)
        return Counter(product for each in current for product in each.whole.values())

    def _current(self, pool: str) -> list[DeviceSlice]:
        """Return the ResourceSlices of the newest generation. Empty if some are missing, or if a device stands in two of them."""
        slices = self._slices.get(pool, {}).values()
        newest = max((each.generation for each in slices), default=0)
        current = [each for each in slices if each.generation == newest]
        devices = [device for each in current for device in each.devices]
        complete = all(each.slices == len(current) for each in current) and len(set(devices)) == len(devices)
        return current if complete else []


def pools_of(slices: Iterable[Obj]) -> DevicePools:
    """Return the pools of raw ResourceSlices of NVIDIA's driver. ResourceSlices that cannot be read are left out."""
    pools = DevicePools()
    for each in slices:
        try:
            pools.replace(str(fields(each, "metadata").get("name")), None, project_slice(each))
        except MalformedField:
            continue
    return pools


def product_names(kind: Accelerator) -> tuple[str, ...]:
    """Return the products of this kind, as GPU feature discovery writes them. Empty if only other labels of nodes tell the kind."""
    return tuple(value for labels in kind.labels if labels.key == PRODUCT_LABEL for value in labels.values)


def with_claimable(node: NodeView, products: Mapping[str, int]) -> NodeView:
    """Return the node with the GPUs that its ResourceSlices offer, if its device plugin offers none. `products` maps product -> GPUs.

    Only GPUs of one kind count, as a pool's claim selects them: the kind that the node's labels name, or else that of the most common
    product. All GPUs count if the catalogue knows no products of the kind.
    """
    if not products or dict(node.devices).get(NVIDIA_GPU):
        return node
    most_common = max(sorted(products), key=lambda product: products[product])
    offering = replace(node, product=most_common)
    identified = identify(offering.kind_labels)
    if identified is not None and identified[0].resource != NVIDIA_GPU:
        return node
    of_kind = product_names(identified[0]) if identified is not None else ()
    count = sum(amount for product, amount in products.items() if not of_kind or product in of_kind)
    devices = tuple(sorted({**dict(node.devices), NVIDIA_GPU: count}.items()))
    return replace(offering, devices=devices, allocatable=node.allocatable._replace(devices=devices))
