"""How a node is paid for, and who may take it away, by the labels of clouds and autoscalers. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


class CapacityType(enum.StrEnum):
    """How a node was paid for. The order is that in which labels that contradict each other count: what promises least comes first."""

    SPOT = "Spot"
    FLEX_START = "FlexStart"
    """It came when there was room, and ends at a time that is known: on GKE after seven days at the latest."""
    RESERVED = "Reserved"
    ON_DEMAND = "OnDemand"


@dataclass(frozen=True, slots=True)
class CapacityLabel:
    """A label that says how a node is paid for."""

    key: str
    source: str
    """URL of the page that documents the label and its values."""
    values: Mapping[str, CapacityType]
    """Other values say nothing."""
    any_value: CapacityType | None = None
    """What every other value but "" stands for; None: it says nothing."""

    def of(self, labels: Mapping[str, str]) -> CapacityType | None:
        """Return what this label of a node says; None: nothing."""
        value = labels.get(self.key, "")
        return self.values.get(value) or (self.any_value if value else None)


def _label(key: str, source: str, any_value: CapacityType | None = None, **values: CapacityType) -> CapacityLabel:
    return CapacityLabel(key, source, MappingProxyType({value.replace("_", "-"): said for value, said in values.items()}), any_value)


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
"""Karpenter's label is that of EKS Auto Mode and of node auto-provisioning on AKS, too."""


def capacity_of(labels: Mapping[str, str]) -> CapacityType:
    """Return how the node with these labels is paid for. On demand is what a node is whose labels say nothing."""
    said = {found for label in CAPACITY_LABELS if (found := label.of(labels)) is not None}
    return next((each for each in CapacityType if each in said), CapacityType.ON_DEMAND)


def expressions(capacity: CapacityType, domain: str = "") -> list[list[dict[str, Any]]]:
    """Return alternatives, each a list of matchExpressions of node affinity, of which a node of this type meets one. `domain`: where all
    labels of the cluster's nodes are of one cloud, its own; then there is one alternative, with the label by which that cloud makes such
    nodes."""
    spoken = [label for label in CAPACITY_LABELS if label.key.startswith(domain)]
    if capacity is CapacityType.ON_DEMAND:  # its labels may say nothing
        others = values_of(*(each for each in CapacityType if each is not capacity), labels=spoken)
        absent = [{"key": label.key, "operator": "DoesNotExist"} for label in spoken if label.any_value is not None]
        return [[{"key": key, "operator": "NotIn", "values": list(values)} for key, values in others.items()] + absent]
    found: list[list[dict[str, Any]]] = [
        [{"key": key, "operator": "In", "values": list(values)}] for key, values in values_of(capacity, labels=spoken).items()
    ]
    found += [[{"key": label.key, "operator": "Exists"}] for label in spoken if label.any_value is capacity]
    # A cloud that has no such nodes gets all labels, and the pods wait for a node of another one.
    return (found[:1] or expressions(capacity)) if domain else found


def values_of(*types: CapacityType, labels: Iterable[CapacityLabel] = CAPACITY_LABELS) -> dict[str, tuple[str, ...]]:
    """Return label key -> its values that stand for one of these types; for node affinity."""
    found = {label.key: tuple(value for value, said in label.values.items() if said in types) for label in labels}
    return {key: values for key, values in found.items() if values}
