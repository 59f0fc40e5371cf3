"""Nodes with accelerators that are in no row of the catalogue: what they have, and what would help. Pure.

See docs/decisions/0126-accelerator-catalogue.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from diloco_operator.accelerators.catalogue import ACCELERATOR_LABELS, CATALOGUE
from diloco_operator.accelerators.labels import INSTANCE_TYPE, VENDOR_LABELS, LabelDialect, part_of_accelerator
from diloco_operator.accelerators.model import Family

_MAX_NAMED = 2
"""How many resources a description names."""


class UnknownAccelerator(NamedTuple):
    """What is unknown about a node. A message tells nodes with equal ones together."""

    resource: str
    """The resource in the catalogue that pods request from this vendor. "" if the node offers none of a vendor in the catalogue."""
    what: str
    """What the node has, to stand after `has`."""
    remedy: str


def unknown_accelerator(labels: Mapping[str, str], devices: Iterable[str]) -> UnknownAccelerator | None:
    """Describe the accelerators of a node that `identify` does not know. `devices` are the resources that it offers, without incidental
    ones. None if nothing says that it has accelerators."""
    # The domain of a resource tells the vendor: `nvidia.com/mig-1g.10gb` is from the vendor whose GPUs are in the catalogue.
    vendors = {_domain(kind.resource): kind.resource for kind in CATALOGUE.values() if kind.resource}
    offered = [name for name in devices if _domain(name) in vendors]
    labelled = [key for key in ACCELERATOR_LABELS if key in labels]
    if not offered and not labelled:
        return None
    resource = vendors[_domain(offered[0])] if offered else ""
    has = " and ".join(offered[:_MAX_NAMED])
    key = _telling_label(labels, labelled)
    if not key:
        discovery = _discovery(resource)
        remedy = f"{discovery.name}, which sets the label {discovery.key}, or this label by hand" if discovery is not None else ""
        return UnknownAccelerator(resource, f"{has}, but no label that names the product", remedy)
    value = labels[key]
    product = f"{f'{has} with ' if has else ''}{key}={value}"
    if (part := part_of_accelerator(value)) or (offered and resource not in offered):
        part = part or f"no whole accelerators, which are {resource}"
        return UnknownAccelerator(resource, f"{product}: {part}", "nodes that offer whole accelerators")
    remedy = f"a row for {key}={value} in the operator's catalogue file (docs/operator.md, Further accelerators)"
    return UnknownAccelerator(resource, f"{product}, which is not in the catalogue", remedy)


def _telling_label(labels: Mapping[str, str], labelled: Sequence[str]) -> str:
    """Return the label that says most about the accelerators: the product, else the type of the machine, else the vendor. "" if there is
    none."""
    product = next((key for key in labelled if key not in VENDOR_LABELS), "")
    return product or (INSTANCE_TYPE.key if INSTANCE_TYPE.key in labels else next(iter(labelled), ""))


def _discovery(resource: str) -> LabelDialect | None:
    """Return the dialect of a program that labels nodes with accelerators of this resource. None if there is no such program."""
    rows = (kind for kind in CATALOGUE.values() if kind.resource == resource and kind.family is Family.HOST)
    return next((each.dialect for kind in rows for each in kind.labels if each.dialect.discovers and each.dialect.key), None)


def _domain(resource: str) -> str:
    return resource.partition("/")[0]
