"""How a node is paid for, as GKE, EKS, AKS and Karpenter label it. The values are those of the pages that `CAPACITY_LABELS` names."""

from __future__ import annotations

from typing import Any

import pytest
from builders.nodes import a_gpu_node, an_inventory
from diloco_operator.api.spec import Capacity
from diloco_operator.fleet import CapacityType, Shape
from diloco_operator.fleet.affinity import REQUIRED, attracts, node_terms
from diloco_operator.fleet.capacity import CAPACITY_LABELS, capacity_of, expressions, values_of

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


# --- node affinity ----------------------------------------------------------------------------------------------------
def meets(labels: dict[str, str], alternatives: list[list[dict[str, Any]]]) -> bool:
    terms = [{"matchExpressions": each} for each in alternatives]
    return attracts(node_terms({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}), labels, "node")


# A label of a reservation without a value says nothing, and no expression can ask for that; clouds do not set it so.
@pytest.mark.parametrize(("key", "value", "capacity"), [("name", "n0", "OnDemand"), *(each for each in SAID if each[1])])
def test_node_meets_the_expressions_of_its_own_capacity_and_of_no_other(key: str, value: str, capacity: str) -> None:
    assert {str(each) for each in CapacityType if meets({key: value}, expressions(each))} == {capacity}


@pytest.mark.parametrize(
    ("capacity", "domain", "alternatives"),
    [
        ("Spot", "cloud.google.com/", [[{"key": "cloud.google.com/gke-spot", "operator": "In", "values": ["true"]}]]),
        ("FlexStart", "cloud.google.com/", [[{"key": "cloud.google.com/gke-flex-start", "operator": "In", "values": ["true"]}]]),
        ("Reserved", "cloud.google.com/", [[{"key": "cloud.google.com/reservation-name", "operator": "Exists"}]]),
        (
            *("OnDemand", "cloud.google.com/"),
            [
                [
                    {"key": "cloud.google.com/gke-spot", "operator": "NotIn", "values": ["true"]},
                    {"key": "cloud.google.com/gke-preemptible", "operator": "NotIn", "values": ["true"]},
                    {"key": "cloud.google.com/gke-flex-start", "operator": "NotIn", "values": ["true"]},
                    {"key": "cloud.google.com/gke-provisioning", "operator": "NotIn", "values": ["spot", "preemptible", "flex-start"]},
                    {"key": "cloud.google.com/reservation-name", "operator": "DoesNotExist"},
                ]
            ],
        ),
        ("OnDemand", "karpenter.sh/", [[{"key": "karpenter.sh/capacity-type", "operator": "NotIn", "values": ["spot", "reserved"]}]]),
        # Karpenter makes no flex-start nodes: the pods wait for a node of a cloud that does.
        (
            *("FlexStart", "karpenter.sh/"),
            [
                [{"key": "cloud.google.com/gke-flex-start", "operator": "In", "values": ["true"]}],
                [{"key": "cloud.google.com/gke-provisioning", "operator": "In", "values": ["flex-start"]}],
            ],
        ),
    ],
)
def test_nodes_of_one_cloud_are_asked_for_by_the_label_with_which_it_makes_them(
    capacity: str, domain: str, alternatives: list[list[dict[str, Any]]]
) -> None:
    assert expressions(CapacityType(capacity), domain) == alternatives
