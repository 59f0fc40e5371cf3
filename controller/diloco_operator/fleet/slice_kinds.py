"""What kind of slice a node belongs to, from its labels and capacity, and which kinds a wanted shape can be made of."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import NamedTuple

from diloco_operator.accelerators import CATALOGUE, CPU, Family, chip_count
from diloco_operator.api import names
from diloco_operator.api.job import Pool
from diloco_operator.fleet.node import NodeView
from diloco_operator.fleet.slices import Shape


class SliceKind(NamedTuple):
    """Slices of one kind are interchangeable but for capacity, labels and taints."""

    accelerator: str
    topology: str
    chips_per_host: int


@functools.cache
def _by_label() -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    tpus: dict[str, str] = {}
    gpus: dict[str, str] = {}
    products: dict[str, str] = {}
    for kind in CATALOGUE.values():
        labels = tpus if kind.family is Family.TPU else gpus
        labels.update(dict.fromkeys(kind.gke_labels, kind.name))
        products.update(dict.fromkeys(kind.gpu_products, kind.name))
    return tpus, gpus, products


def kind_of(node: NodeView) -> SliceKind | None:
    """None for hardware that the catalogue does not know, and for an accelerator that offers no device (no driver yet)."""
    tpus, gpus, products = _by_label()
    labels = node.labels
    if tpu := labels.get(names.NODE_TPU_TYPE):
        topology = labels.get(names.NODE_TPU_TOPOLOGY, "")
        # The label, not the capacity, is the fact: a device plugin that starts makes the capacity come and go.
        chips = _number(labels.get(names.NODE_ACCELERATOR_COUNT)) or node.tpus
        name = tpus.get(tpu)
        if name is None or topology not in CATALOGUE[name].host_options or chips == 0:
            return None
        return SliceKind(name, topology, chips)
    name = gpus.get(labels.get(names.NODE_GPU_TYPE, "")) or products.get(labels.get(names.NODE_GPU_PRODUCT, ""))
    if name is not None:
        return SliceKind(name, "", node.gpus) if node.gpus else None
    if node.tpus or node.gpus or names.NODE_GPU_TYPE in labels or names.NODE_GPU_PRODUCT in labels:
        return None
    return SliceKind(CPU, "", 0)


def slice_hosts(kind: SliceKind) -> int:
    """Hosts of one slice: max(1, chips of the topology / chips per host) for a TPU, 1 otherwise."""
    return max(1, chip_count(kind.topology) // kind.chips_per_host) if kind.topology else 1


def kinds_for(shape: Shape, there: Collection[SliceKind]) -> list[SliceKind]:
    """The kinds, of those that are there, of which a unit of this shape can be made; the tightest fit first."""
    if shape.topology:
        exact = SliceKind(shape.accelerator, shape.topology, shape.chips_per_host)
        return [exact] if exact in there else []
    return sorted(k for k in there if k.accelerator == shape.accelerator and k.chips_per_host >= shape.chips_per_host)


def shape_of(pool: Pool) -> Shape:
    """What a unit of this pool needs. Raises ValueError where the CRD's rules do not hold."""
    unit = pool.shape
    return Shape(unit.accelerator, unit.topology, unit.accelerators_per_host, unit.hosts)


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0
