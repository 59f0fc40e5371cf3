"""Which zone and network blocks a slice stands in."""

from __future__ import annotations

import pytest
from builders.nodes import a_gpu_node, a_tpu_node, an_inventory
from diloco_operator.fleet import Shape
from diloco_operator.fleet.locality import locality_of, shared_place

ZONE = {"topology.kubernetes.io/zone": "us-east5-a"}
REGION = {"topology.kubernetes.io/region": "us-east5"}
AWS = "topology.k8s.aws/network-node-layer-"
CLIQUE = "nvidia.com/gpu.clique"
GKE = "cloud.google.com/gce-topology-"


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, ("",)),
        (ZONE, ("us-east5-a",)),
        ({**ZONE, GKE + "block": "b1", GKE + "subblock": "s1", GKE + "host": "h1"}, ("us-east5-a", "b1", "s1")),
        ({**ZONE, AWS + "1": "nn-1", AWS + "2": "nn-2", AWS + "3": "nn-3"}, ("us-east5-a", "nn-1", "nn-2", "nn-3")),
        ({**ZONE, AWS + "1": "nn-1", AWS + "3": "nn-3"}, ("us-east5-a", "nn-1")),
        ({AWS + str(layer): str(layer) for layer in range(1, 6)}, ("", "1", "2", "3", "4")),  # AWS names four layers
        ({**ZONE, GKE + "subblock": "s1"}, ("us-east5-a",)),
        ({GKE + "block": "b1"}, ("", "b1")),
        ({**ZONE, CLIQUE: "c.1"}, ("us-east5-a", "c.1")),
        ({**ZONE, AWS + "1": "nn-1", CLIQUE: "c.1"}, ("us-east5-a", "nn-1", "c.1")),
        ({**ZONE, CLIQUE: ""}, ("us-east5-a",)),
    ],
)
def test_labels_name_the_zone_and_then_ever_nearer_network_blocks(labels: dict[str, str], expected: tuple[str, ...]) -> None:
    assert locality_of(labels) == expected


def test_host_has_the_locality_of_its_labels_and_a_tpu_slice_what_all_its_hosts_share() -> None:
    hosts = (a_tpu_node(f"t-{i}", topology="2x2x2", pool="np", labels={**ZONE, GKE + "block": f"b{i}"}) for i in range(2))
    inventory = an_inventory(a_gpu_node("g-0", labels={**ZONE, GKE + "block": "b1"}), *hosts)
    assert next(inventory.free(Shape("nvidia-h100-80gb", "", 8, 1))).locality == ("us-east5-a", "b1")
    assert next(inventory.free(Shape("tpu-v5p", "2x2x2", 4, 2))).locality == ("us-east5-a",)


@pytest.mark.parametrize(
    ("hosts", "place"),
    [
        ([], ""),
        ([{}], ""),
        ([{**REGION, **ZONE}], "us-east5/us-east5-a"),
        ([{**REGION, **ZONE, GKE + "block": "b1"}, {**REGION, **ZONE, GKE + "block": "b1"}], "us-east5/us-east5-a/b1"),
        ([{**REGION, **ZONE, GKE + "block": "b1"}, {**REGION, **ZONE, GKE + "block": "b2"}], "us-east5/us-east5-a"),
        ([{**REGION, **ZONE, GKE + "block": "b1"}, {**REGION, **ZONE}], "us-east5/us-east5-a"),
        ([{**REGION, **ZONE}, REGION], "us-east5"),
        # Equal names behind a difference are other places.
        ([{"topology.kubernetes.io/region": "r1", **ZONE}, {"topology.kubernetes.io/region": "r2", **ZONE}], ""),
        ([ZONE], "/us-east5-a"),
        ([{"topology.kubernetes.io/region": "a/b"}], "a-b"),
    ],
)
def test_hosts_stand_together_as_far_as_all_their_labels_agree(hosts: list[dict[str, str]], place: str) -> None:
    assert shared_place(hosts) == place
