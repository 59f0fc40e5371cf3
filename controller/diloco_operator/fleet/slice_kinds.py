"""Which kind of slice a node belongs to, by its labels and devices, and which kinds can hold a unit of a shape. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from diloco_operator.accelerators import CPU, Family, chip_count, has_accelerator_label, identify
from diloco_operator.api.spec import Pool
from diloco_operator.fleet.devices import telling
from diloco_operator.fleet.node import NodeView
from diloco_operator.fleet.resources import resources_of
from diloco_operator.fleet.slices import Shape, SliceKind, is_divisible


def kind_of(node: NodeView) -> SliceKind | None:
    """Return the kind of slice that the node belongs to.

    None if no unit can use the node: a label says that it has accelerators but nothing says which, or it is a TPU node with an unknown
    topology. `chips_per_host` is 0 while nothing says how many accelerators the node has: it has no driver yet, or its device plugin is
    down. A node with devices that the catalogue does not know is a cpu slice, for pools whose template requests just these devices.
    """
    identified = identify(node.kind_labels)
    if identified is None:
        devices = telling(node.devices)
        if not devices and has_accelerator_label(node.kind_labels):
            return None
        return SliceKind(CPU, devices=devices)
    accelerator, labels = identified
    topology = labels.topology_of(node.labels)
    if accelerator.family is Family.TPU and topology not in accelerator.host_options:
        return None
    # The label counts before the devices, which come and go while a device plugin starts.
    count = labels.count_of(node.labels) or dict(node.devices).get(accelerator.resource, 0)
    return SliceKind(accelerator.name, topology, count)


def slice_hosts(kind: SliceKind) -> int:
    """Return how many hosts one slice has: max(1, chips of the topology / chips per host) for a TPU, 1 otherwise."""
    return max(1, chip_count(kind.topology) // kind.chips_per_host) if kind.topology and kind.chips_per_host else 1


def silent_kinds(shape: Shape, kinds: Collection[SliceKind]) -> list[SliceKind]:
    """Return the kinds among `kinds` that may be of this shape, but do not say how many accelerators a host has."""
    if shape.accelerator == CPU:
        return []
    silent = SliceKind(shape.accelerator, shape.topology)
    return [silent] if silent in kinds else []


def kinds_for(shape: Shape, kinds: Collection[SliceKind]) -> list[SliceKind]:
    """Return the kinds among `kinds` that can hold a unit of this shape, the tightest fit first."""
    if shape.topology:
        exact = SliceKind(shape.accelerator, shape.topology, shape.chips_per_host)
        return [exact] if exact in kinds else []
    return sorted(kind for kind in _same_accelerator(shape, kinds) if _offers(kind, shape))


def kinds_with_other_devices(shape: Shape, kinds: Collection[SliceKind]) -> list[SliceKind]:
    """Return the kinds among `kinds` that would be of this shape if they had other devices. A pool without accelerators gets hosts with
    exactly the devices that its template requests; incidental ones do not matter."""
    return [] if shape.topology else [kind for kind in _same_accelerator(shape, kinds) if not _offers(kind, shape)]


def _same_accelerator(shape: Shape, kinds: Collection[SliceKind]) -> list[SliceKind]:
    return [kind for kind in kinds if kind.accelerator == shape.accelerator and kind.chips_per_host >= shape.chips_per_host]


def _offers(kind: SliceKind, shape: Shape) -> bool:
    offered, requested = dict(kind.devices), dict(shape.devices)
    return offered.keys() == requested.keys() and all(offered[name] >= amount for name, amount in requested.items())


def shape_of(pool: Pool) -> Shape:
    """Return the hardware that a unit of this pool needs. Raises ValueError if the pool breaks the CRD's rules."""
    unit = pool.shape
    devices = telling(resources_of(pool.template.spec).devices) if unit.accelerator == CPU else ()
    alone = is_divisible(unit.accelerator) and unit.hosts == 1 and uses_ports_of_host(pool.template.spec)
    return Shape(unit.accelerator, unit.topology, unit.accelerators_per_host, unit.hosts, devices, alone)


def uses_ports_of_host(spec: Mapping[str, Any]) -> bool:
    """Whether a pod of this spec takes ports of its host, so that a second one on the host would find them taken."""
    if spec.get("hostNetwork") is True:
        return True
    return any(port.get("hostPort") for container in _maps(spec.get("containers")) for port in _maps(container.get("ports")))


def _maps(listed: object) -> list[dict[str, Any]]:
    """The maps in a list of a template, which may be malformed."""
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
