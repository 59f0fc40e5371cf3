"""Extended resources: the devices that a node offers and that a pod requests. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from diloco_operator.accelerators import CATALOGUE, NVIDIA_GPU, is_incidental
from diloco_operator.api import names
from diloco_operator.kube.quantities import quantity

type Devices = tuple[tuple[str, int], ...]
"""Extended resources with their amounts, sorted by name."""


def is_extended_resource(name: str) -> bool:
    """Whether Kubernetes counts this resource as extended: its name has a domain outside kubernetes.io. So cpu, memory, `hugepages-*` and
    `attachable-volumes-*` are not. This is `IsExtendedResourceName` in
    https://github.com/kubernetes/kubernetes/blob/master/pkg/apis/core/v1/helper/helpers.go."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def offered_devices(capacity: Mapping[str, object], allocatable: Mapping[str, object]) -> Devices:
    """Return the devices of a node, from its status. The amount is 0 for devices that the node has but cannot allocate now."""
    names = {name for name in (*capacity, *allocatable) if is_extended_resource(name)}
    amounts = allocatable or capacity
    return tuple((name, _count(amounts.get(name))) for name in sorted(names))


def telling(devices: Devices) -> Devices:
    """Return the devices that say what a node is for, or what a pod needs: all but incidental ones."""
    return tuple(each for each in devices if not is_incidental(each[0]))


def has_accelerators(devices: Devices) -> bool:
    """Whether any of the devices is an accelerator of the catalogue."""
    return any(amount > 0 and any(kind.resource == name for kind in CATALOGUE.values()) for name, amount in devices)


def claimed_devices(spec: Mapping[str, object]) -> Devices:
    """Return the accelerators that a learner pod of this spec claims: as many as the operator's ResourceClaimTemplate says, or one if the
    pool's template brings a claim of its own. Other claims do not count."""
    claims = spec.get("resourceClaims")
    for claim in claims if isinstance(claims, list) else ():
        if isinstance(claim, dict) and claim.get("name") == names.ACCELERATOR_CLAIM:
            return ((NVIDIA_GPU, max(1, names.accelerators_claimed(str(claim.get("resourceClaimTemplateName"))))),)
    return ()


def _count(amount: object) -> int:
    """Return the quantity as a whole number, or 0 if it is missing or malformed."""
    try:
        return math.floor(quantity(str(amount)))
    except ValueError:
        return 0
