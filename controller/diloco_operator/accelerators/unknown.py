"""Nodes with accelerators of which no row of the catalogue is: what they have, and what makes a row of it. Pure.

See docs/decisions/0126-accelerator-catalogue.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from diloco_operator.accelerators.catalogue import ACCELERATOR_LABELS, CATALOGUE
from diloco_operator.accelerators.labels import INSTANCE_TYPE, VENDOR_LABELS, LabelDialect, part_of_accelerator
from diloco_operator.accelerators.model import Family

_MAX_NAMED = 2
"""Resources that a description names."""


class UnknownAccelerator(NamedTuple):
    """What all nodes with equal ones are told together by."""

    resource: str
    """That of the catalogue which pods request from this vendor; "" where the node offers none of a vendor that the catalogue has."""
    what: str
    """Goes after `has`."""
    remedy: str


def unknown_accelerator(labels: Mapping[str, str], devices: Iterable[str]) -> UnknownAccelerator | None:
    """Find the accelerators of a node that `identify` does not know. `devices`: the resources that it offers, without incidental ones.
    None: nothing says that it has accelerators."""
    # By the domain of a resource: `nvidia.com/mig-1g.10gb` is of the vendor whose GPUs the catalogue has.
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
    """Return the label that says most of the accelerators: one of a product, else the type of the machine, else one of a vendor; "": there
    is none."""
    product = next((key for key in labelled if key not in VENDOR_LABELS), "")
    return product or (INSTANCE_TYPE.key if INSTANCE_TYPE.key in labels else next(iter(labelled), ""))


def _discovery(resource: str) -> LabelDialect | None:
    """Return the program that labels nodes with accelerators of this resource."""
    rows = (kind for kind in CATALOGUE.values() if kind.resource == resource and kind.family is Family.HOST)
    return next((each.dialect for kind in rows for each in kind.labels if each.dialect.discovers and each.dialect.key), None)


def _domain(resource: str) -> str:
    return resource.partition("/")[0]
