"""What the fleet has beside what a pool asks for: slices of other sizes, nodes that are odd, and the labels that its nodes speak."""

from __future__ import annotations

from typing import Any

import pytest
from builders.nodes import GPU, TPU, a_gpu_node, a_node, a_tpu_node, a_tpu_slice, an_inventory
from diloco_operator.accelerators import Sign
from diloco_operator.accelerators.labels import GKE_GPU, GKE_TPU
from diloco_operator.fleet import Inventory, Shape, project_node
from diloco_operator.fleet.nearby import Oddity, oddity
from diloco_operator.fleet.slice_kinds import kind_of
from diloco_operator.fleet.slices import NearbySlices, OddNodes, SliceKind

SINGLE = Shape("tpu-v5p", "2x2x1", 4, 1)
PAIR = Shape("tpu-v5p", "2x2x2", 4, 2)
H100 = Shape("nvidia-h100-80gb", "", 8, 1)
KIND = "correct the label, or add the kind to the operator's catalogue file"


# --- other topologies and sizes ---------------------------------------------------------------------------------------
def test_slices_of_other_topologies_are_near_those_with_most_free_ones_first() -> None:
    four = [a_tpu_slice(f"np-{index}", 4, topology="2x2x4") for index in range(2)]
    inventory = an_inventory(*(a_tpu_node(f"tpu-{index}") for index in range(4)), *four[0], *four[1], a_gpu_node("g"))
    inventory.set_reservations("job", {"tpu-0", "np-0-0"})
    inventory.update_node(project_node(a_tpu_node("tpu-1", ready=False)))
    single, quad = SliceKind("tpu-v5p", "2x2x1", 4), SliceKind("tpu-v5p", "2x2x4", 4)
    assert inventory.counts(PAIR).nearby == (NearbySlices(single, 4, 2), NearbySlices(quad, 2, 1))
    inventory.set_reservations("other", {"tpu-2"})
    assert inventory.counts(PAIR).nearby == (NearbySlices(single, 4, 1), NearbySlices(quad, 2, 1))  # of more slices in all
    assert inventory.counts(SINGLE).nearby == (NearbySlices(quad, 2, 1),)


def test_hosts_with_too_few_accelerators_are_near_and_what_is_free_of_them_is_not_counted() -> None:
    inventory = an_inventory(
        a_gpu_node("g", gpus=4), a_gpu_node("silent", gpus=0), a_gpu_node("large"), a_node("cpu", devices={"x/y": "1"})
    )
    assert inventory.counts(H100).nearby == (NearbySlices(SliceKind("nvidia-h100-80gb", "", 4), 1, 0),)
    assert inventory.counts(Shape("cpu")).nearby == ()


# --- nodes of no kind -------------------------------------------------------------------------------------------------
def of_product(product: str, resource: str = "") -> Oddity:
    label = f"{GKE_GPU.key}={product}"
    has = f"{f'{resource} with ' if resource else ''}{label}, which is not in the catalogue"
    return Oddity(resource, has, f"a row for {label} in the operator's catalogue file (docs/operator.md, Further accelerators)")


@pytest.mark.parametrize(
    ("node", "odd"),
    [
        (a_tpu_node("n"), None),
        (a_node("n"), None),
        (a_node("n", devices={"example.com/npu": "4", "rdma/hca": "1"}), None),
        (a_tpu_node("n", topology="9x9x9"), Oddity(TPU, "topology 9x9x9, which tpu-v5p does not come in", KIND)),
        (a_tpu_node("n", topology=""), Oddity(TPU, "no label with the topology of its slice", KIND)),
        (a_node("n", labels={GKE_GPU.key: "nvidia-b999"}, devices={GPU: "8", "rdma/hca": "1"}), of_product("nvidia-b999", GPU)),
        (a_node("n", labels={GKE_GPU.key: "nvidia-b999"}), of_product("nvidia-b999")),
    ],
)
def test_node_is_odd_if_its_accelerators_are_of_no_kind_of_the_catalogue(node: Any, odd: Oddity | None) -> None:
    view = project_node(node)
    assert oddity(view, kind_of(view)) == odd


def test_odd_nodes_of_the_vendor_or_of_an_unknown_one_are_told_in_groups_the_largest_first() -> None:
    inventory = an_inventory(
        *(a_node(name, labels={GKE_GPU.key: "nvidia-b999"}, devices={GPU: "8"}) for name in ("b", "a")),
        a_tpu_node("odd", topology="9x9x9"),
        *(a_node(f"unknown-{index}", labels={GKE_GPU.key: f"nvidia-c{index}"}) for index in range(3)),
    )
    c0, c1, c2 = (OddNodes(*of_product(f"nvidia-c{index}")[1:], 1, f"unknown-{index}") for index in range(3))
    assert inventory.counts(H100).odd == (OddNodes(*of_product("nvidia-b999", GPU)[1:], 2, "b"), c0, c1)  # three groups at most
    tpu = OddNodes("topology 9x9x9, which tpu-v5p does not come in", KIND, 1, "odd")
    assert inventory.counts(SINGLE).odd == (c0, c1, c2)
    inventory.remove_node("unknown-1")
    assert inventory.counts(SINGLE).odd == (c0, c2, tpu)
    assert inventory.counts(Shape("cpu")).odd == ()


def test_node_is_odd_until_it_changes_to_a_known_kind_or_goes() -> None:
    inventory = an_inventory(*(a_tpu_node(name, topology="9x9x9") for name in ("a", "b")))
    copy = inventory.copy()
    assert [(each.nodes, each.first) for each in inventory.counts(SINGLE).odd] == [(2, "a")]
    inventory.update_node(project_node(a_tpu_node("a")))
    assert [(each.nodes, each.first) for each in inventory.counts(SINGLE).odd] == [(1, "b")]
    inventory.update_node(project_node(a_tpu_node("b", topology="8x8x8x8")))
    assert [each.what for each in inventory.counts(SINGLE).odd] == ["topology 8x8x8x8, which tpu-v5p does not come in"]
    inventory.remove_node("b")
    assert inventory.counts(SINGLE).odd == ()
    assert [each.nodes for each in copy.counts(SINGLE).odd] == [2]


# --- labels -----------------------------------------------------------------------------------------------------------
def shown(inventory: Inventory) -> set[Sign]:
    return set(inventory.signs)


def test_signs_are_those_of_the_nodes_that_are_there() -> None:
    gke = {Sign(dialect, "") for dialect in (GKE_TPU, GKE_GPU)}  # the label of the node pool marks a cluster of GKE
    h100, v5p = Sign(GKE_GPU, "nvidia-h100-80gb"), Sign(GKE_TPU, "tpu-v5p")
    inventory = an_inventory(a_gpu_node("g-0"), a_gpu_node("g-1"), a_tpu_node("t"), a_node("plain"))
    copy = inventory.copy()
    assert shown(inventory) == {*gke, h100, v5p}
    inventory.remove_node("g-0")
    assert shown(inventory) == {*gke, h100, v5p}
    inventory.update_node(project_node(a_gpu_node("g-1", cordoned=True)))
    assert shown(inventory) == {*gke, h100, v5p}
    inventory.update_node(project_node(a_node("g-1")))
    assert shown(inventory) == {*gke, v5p}
    inventory.remove_node("t")
    assert shown(inventory) == set()
    assert shown(copy) == {*gke, h100, v5p}
