"""How a node is paid for, and who may take it away, by the labels of clouds and autoscalers. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


class CapacityType(enum.StrEnum):
    """How a node is paid for. If its labels contradict each other, the first of these counts: the one that promises least."""

    SPOT = "Spot"
    FLEX_START = "FlexStart"
    """The node came when there was room, and ends at a known time, on GKE after at most seven days."""
    RESERVED = "Reserved"
    ON_DEMAND = "OnDemand"


@dataclass(frozen=True, slots=True)
class CapacityLabel:
    """A label that says how a node is paid for."""

    key: str
    source: str
    """URL of the page that documents the label and its values."""
    values: Mapping[str, CapacityType]
    """Value of the label -> what it means."""
    any_value: CapacityType | None = None
    """What every other value except "" means. None if it means nothing."""

    def of(self, labels: Mapping[str, str]) -> CapacityType | None:
        """Return what this label of a node says. None if the node has no such label, or if its value means nothing."""
        value = labels.get(self.key, "")
        return self.values.get(value) or (self.any_value if value else None)


def _label(key: str, source: str, any_value: CapacityType | None = None, **values: CapacityType) -> CapacityLabel:
    return CapacityLabel(
        key, source, MappingProxyType({value.replace("_", "-"): capacity for value, capacity in values.items()}), any_value
    )


CAPACITY_LABELS = (
    _label("cloud.google.com/gke-spot", "https://cloud.google.com/kubernetes-engine/docs/concepts/spot-vms", true=CapacityType.SPOT),
    _label(
        "cloud.google.com/gke-preemptible",
        "https://cloud.google.com/kubernetes-engine/docs/how-to/preemptible-vms",
        true=CapacityType.SPOT,
    ),
    _label(
        "cloud.google.com/gke-flex-start",
        "https://cloud.google.com/kubernetes-engine/docs/concepts/dws",
        true=CapacityType.FLEX_START,
    ),
    _label(
        "cloud.google.com/gke-provisioning",
        "https://cloud.google.com/kubernetes-engine/docs/concepts/dws",
        spot=CapacityType.SPOT,
        preemptible=CapacityType.SPOT,
        flex_start=CapacityType.FLEX_START,
    ),
    _label(
        "cloud.google.com/reservation-name",
        "https://cloud.google.com/kubernetes-engine/docs/how-to/consuming-reservations",
        any_value=CapacityType.RESERVED,
    ),
    CapacityLabel(
        "eks.amazonaws.com/capacityType",
        "https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html",
        MappingProxyType(
            {"SPOT": CapacityType.SPOT, "ON_DEMAND": CapacityType.ON_DEMAND, "CAPACITY_BLOCK": CapacityType.RESERVED},
        ),
    ),
    _label(
        "kubernetes.azure.com/scalesetpriority",
        "https://learn.microsoft.com/azure/aks/spot-node-pool",
        spot=CapacityType.SPOT,
        regular=CapacityType.ON_DEMAND,
    ),
    _label(
        "karpenter.sh/capacity-type",
        "https://karpenter.sh/docs/concepts/nodepools/#capacity-type",
        spot=CapacityType.SPOT,
        on_demand=CapacityType.ON_DEMAND,
        reserved=CapacityType.RESERVED,
    ),
)
"""EKS Auto Mode and node auto-provisioning on AKS use Karpenter's label, too."""


def capacity_of(labels: Mapping[str, str]) -> CapacityType:
    """Return how a node is paid for, by its labels. A node whose labels say nothing is on demand."""
    types = {type_ for label in CAPACITY_LABELS if (type_ := label.of(labels)) is not None}
    return next((each for each in CapacityType if each in types), CapacityType.ON_DEMAND)


def expressions(capacity: CapacityType, domain: str = "") -> list[list[dict[str, Any]]]:
    """Return alternatives of node affinity, each a list of matchExpressions. A node of this type meets one of them.

    Args:
        domain: the domain of the cluster's cloud, if all nodes' labels are of one cloud. Then there is one alternative: the label that
            makes this cloud create such nodes.
    """
    spoken = [label for label in CAPACITY_LABELS if label.key.startswith(domain)]
    if capacity is CapacityType.ON_DEMAND:
        # The labels of such a node may say nothing, so it is told by what they must not say.
        others = values_of(*(each for each in CapacityType if each is not capacity), labels=spoken)
        absent = [{"key": label.key, "operator": "DoesNotExist"} for label in spoken if label.any_value is not None]
        return [[{"key": key, "operator": "NotIn", "values": list(values)} for key, values in others.items()] + absent]
    alternatives: list[list[dict[str, Any]]] = [
        [{"key": key, "operator": "In", "values": list(values)}] for key, values in values_of(capacity, labels=spoken).items()
    ]
    alternatives += [[{"key": label.key, "operator": "Exists"}] for label in spoken if label.any_value is capacity]
    # If this cloud has no such nodes, the pods ask for the labels of all clouds, and wait for a node of another one.
    return (alternatives[:1] or expressions(capacity)) if domain else alternatives


def values_of(*types: CapacityType, labels: Iterable[CapacityLabel] = CAPACITY_LABELS) -> dict[str, tuple[str, ...]]:
    """Return label key -> its values that mean one of these types, for node affinity."""
    values_by_key = {label.key: tuple(value for value, capacity in label.values.items() if capacity in types) for label in labels}
    return {key: values for key, values in values_by_key.items() if values}
