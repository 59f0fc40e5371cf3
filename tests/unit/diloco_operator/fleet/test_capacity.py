"""How a node is paid for, as GKE, EKS, AKS and Karpenter label it. The values are those of the pages that `CAPACITY_LABELS` names."""

from __future__ import annotations

import pytest
from builders.nodes import a_gpu_node, an_inventory
from diloco_operator.api.spec import Capacity
from diloco_operator.fleet import CapacityType, Shape
from diloco_operator.fleet.capacity import CAPACITY_LABELS, capacity_of, values_of

H100 = Shape("nvidia-h100-80gb", "", 8, 1)
SAID = [
    ("cloud.google.com/gke-spot", "true", "Spot"),
    ("cloud.google.com/gke-spot", "false", "OnDemand"),
    ("cloud.google.com/gke-preemptible", "true", "Spot"),
    ("cloud.google.com/gke-flex-start", "true", "FlexStart"),
    ("cloud.google.com/gke-provisioning", "spot", "Spot"),
    ("cloud.google.com/gke-provisioning", "preemptible", "Spot"),
    ("cloud.google.com/gke-provisioning", "flex-start", "FlexStart"),
    ("cloud.google.com/gke-provisioning", "standard", "OnDemand"),
    ("cloud.google.com/reservation-name", "may-2026", "Reserved"),
    ("cloud.google.com/reservation-name", "", "OnDemand"),
    ("eks.amazonaws.com/capacityType", "SPOT", "Spot"),
    ("eks.amazonaws.com/capacityType", "ON_DEMAND", "OnDemand"),
    ("eks.amazonaws.com/capacityType", "CAPACITY_BLOCK", "Reserved"),
    ("eks.amazonaws.com/capacityType", "NEWS", "OnDemand"),
    ("kubernetes.azure.com/scalesetpriority", "spot", "Spot"),
    ("kubernetes.azure.com/scalesetpriority", "regular", "OnDemand"),
    ("karpenter.sh/capacity-type", "spot", "Spot"),
    ("karpenter.sh/capacity-type", "on-demand", "OnDemand"),
    ("karpenter.sh/capacity-type", "reserved", "Reserved"),
]


@pytest.mark.parametrize(("key", "value", "capacity"), SAID)
def test_slice_has_the_capacity_that_the_label_of_its_node_says(key: str, value: str, capacity: str) -> None:
    (slice_,) = an_inventory(a_gpu_node("g0", labels={key: value})).free(H100)
    assert slice_.capacity == capacity


def test_every_label_has_a_case_and_every_type_can_be_asked_for() -> None:
    assert {label.key for label in CAPACITY_LABELS} == {key for key, _, _ in SAID}
    assert all(label.source.startswith("https://") for label in CAPACITY_LABELS)
    assert {str(each) for each in CapacityType} == {str(each) for each in Capacity} - {"Scavenged"}


def test_of_labels_that_contradict_each_other_the_one_that_promises_least_counts() -> None:
    reserved = {"karpenter.sh/capacity-type": "reserved", "cloud.google.com/reservation-name": "r"}
    assert capacity_of(reserved) is CapacityType.RESERVED
    assert capacity_of({**reserved, "cloud.google.com/gke-flex-start": "true"}) is CapacityType.FLEX_START
    assert capacity_of({**reserved, "cloud.google.com/gke-spot": "true"}) is CapacityType.SPOT
    assert capacity_of({"karpenter.sh/capacity-type": "reserved", "eks.amazonaws.com/capacityType": "ON_DEMAND"}) is CapacityType.RESERVED
    assert capacity_of({}) is CapacityType.ON_DEMAND


def test_values_for_an_affinity_leave_out_labels_without_such_a_value() -> None:
    assert values_of(CapacityType.FLEX_START) == {
        "cloud.google.com/gke-flex-start": ("true",),
        "cloud.google.com/gke-provisioning": ("flex-start",),
    }
    assert values_of(CapacityType.RESERVED) == {
        "eks.amazonaws.com/capacityType": ("CAPACITY_BLOCK",),
        "karpenter.sh/capacity-type": ("reserved",),
    }
