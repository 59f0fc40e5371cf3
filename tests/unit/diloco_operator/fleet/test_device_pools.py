"""What of ResourceSlices and ResourceClaims counts as accelerators of a node."""

from __future__ import annotations

from typing import Any

import pytest
from builders.dra import H100, a_device, a_device_slice, a_dra_node, an_allocated_claim
from builders.jobs import Obj
from builders.nodes import GPU, a_gpu_node, a_node, an_inventory
from diloco_operator.accelerators import CATALOGUE
from diloco_operator.api import names
from diloco_operator.fleet import NodeView, Shape, project_node
from diloco_operator.fleet.device_pools import DevicePools, product_names, project_claim, project_slice, with_claimable
from diloco_operator.fleet.nearby import oddity
from diloco_operator.fleet.slice_kinds import kind_of
from diloco_operator.kube.fields import MalformedField

HOST = Shape("nvidia-h100-80gb", chips_per_host=8)


def pools_of(*slices: Obj) -> DevicePools:
    pools = DevicePools()
    for each in slices:
        pools.replace(each["metadata"]["name"], None, project_slice(each))
    return pools


def seen(node: Obj, *slices: Obj) -> NodeView:
    view = project_node(node)
    return with_claimable(view, pools_of(*slices).products(view.name))


def test_a_node_offers_the_whole_gpus_of_its_resource_slices() -> None:
    mig = [a_device(f"gpu-7-mig-{index}", kind="mig") for index in range(3)]
    view = seen(a_dra_node("a"), a_device_slice("a", *(a_device(f"gpu-{index}") for index in range(7)), *mig))
    assert (dict(view.devices)[GPU], dict(view.allocatable.devices)[GPU]) == (7, 7)
    assert kind_of(view) == ("nvidia-h100-80gb", "", 7, ())


def test_a_node_without_labels_is_a_slice_and_its_own_labels_stay_as_they_are() -> None:
    inventory = an_inventory()
    inventory.update_node(seen(a_dra_node("a"), a_device_slice("a")))
    (found,) = inventory.free(HOST)
    assert (found.name, found.labels) == ("a", {names.NODE_HOSTNAME: "a"})
    assert list(inventory.signs) == []


@pytest.mark.parametrize(
    ("slices", "gpus"),
    [
        pytest.param([a_device_slice("a", gpus=4, slices=2, part="-0")], 0, id="one of two"),
        pytest.param(
            [
                a_device_slice("a", a_device("gpu-0"), slices=2, part="-0"),
                a_device_slice("a", a_device("gpu-1"), slices=2, part="-1"),
            ],
            2,
            id="both",
        ),
        pytest.param([a_device_slice("a", gpus=8), a_device_slice("a", gpus=6, generation=2, part="-new")], 6, id="an old generation"),
        pytest.param(
            [a_device_slice("a", gpus=8), a_device_slice("a", gpus=6, generation=2, slices=2, part="-new")], 0, id="half a new one"
        ),
        pytest.param([a_device_slice("a", a_device("gpu-0"), a_device("gpu-0"))], 0, id="one name twice"),
        pytest.param([a_device_slice("b", gpus=8)], 0, id="of another node"),
        pytest.param([a_device_slice("a", {**a_device("gpu-0"), "taints": [{"key": "x", "effect": "NoSchedule"}]})], 0, id="tainted"),
        pytest.param([a_device_slice("a", {**a_device("gpu-0"), "taints": [{"key": "x", "effect": "None"}]})], 1, id="only noted"),
        pytest.param([a_device_slice("a", {**a_device("gpu-0"), "allowMultipleAllocations": True})], 0, id="shared"),
    ],
)
def test_gpus_count_as_kube_scheduler_counts_them(slices: list[Obj], gpus: int) -> None:
    assert pools_of(*slices).products("a").total() == gpus


def test_resource_slices_come_change_and_go() -> None:
    pools = DevicePools()
    first, second = project_slice(a_device_slice("a")), project_slice(a_device_slice("b", gpus=2))
    assert pools.replace("x", None, first) == ({"a"}, {"a"})
    assert pools.replace("x", first, second) == ({"a", "b"}, {"a", "b"})
    assert (pools.products("a"), pools.products("b").total()) == ({}, 2)
    assert (pools.node_of(("b", "gpu-1")), pools.node_of(("b", "gpu-2")), pools.node_of(("a", "gpu-0"))) == ("b", "", "")
    assert pools.replace("x", second, None) == ({"b"}, {"b"})
    assert pools.products("b") == {}


def test_a_device_plugin_counts_before_resource_slices() -> None:
    view = seen(a_gpu_node("a", gpus=4), a_device_slice("a"))
    assert (dict(view.devices)[GPU], view.product) == (4, "")


def test_the_labels_of_a_node_tell_its_kind_where_it_has_some() -> None:
    mega = seen(a_gpu_node("a", kind="nvidia-h100-mega-80gb", gpus=0), a_device_slice("a"))
    assert kind_of(mega) == ("nvidia-h100-mega-80gb", "", 8, ())


def test_gpus_of_another_product_than_the_nodes_labels_name_are_none_of_its_kind() -> None:
    view = seen(a_gpu_node("a", gpus=0), a_device_slice("a", product="NVIDIA L4"))
    inventory = an_inventory()
    inventory.update_node(view)
    assert dict(view.devices)[GPU] == 0
    (why,) = inventory.counts(HOST).unusable
    assert why == f"node a offers no {GPU} now: DRA offers NVIDIA-L4 there, which is not what its labels say"


def test_of_a_node_with_two_products_those_that_a_claim_selects_count() -> None:
    devices = [a_device("gpu-0"), a_device("gpu-1"), a_device("gpu-2", "NVIDIA L4")]
    assert kind_of(seen(a_dra_node("a"), a_device_slice("a", *devices))) == ("nvidia-h100-80gb", "", 2, ())


def test_a_product_that_the_catalogue_lacks_is_named() -> None:
    view = seen(a_dra_node("a"), a_device_slice("a", product="NVIDIA GeForce RTX 3090"))
    found = oddity(view, kind_of(view))
    assert found is not None
    assert found.what == f"{GPU} with nvidia.com/gpu.product=NVIDIA-GeForce-RTX-3090, which is not in the catalogue"


def test_gpus_beside_a_tpu_make_no_other_kind_of_it() -> None:
    labels = {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice", "cloud.google.com/gke-tpu-topology": "2x2"}
    assert seen(a_node("a", labels=labels), a_device_slice("a")).product == ""


def test_every_product_that_a_claim_selects_is_one_that_tells_the_kind() -> None:
    for kind in CATALOGUE.values():
        for product in product_names(kind):
            view = seen(a_dra_node("a"), a_device_slice("a", product=product.replace("-", " ")))
            assert kind_of(view) == (kind.name, "", 8, ())


@pytest.mark.parametrize(
    "broken",
    [
        {"devices": "many"},
        {"devices": [{"name": 7}]},
        {"devices": [{"name": "gpu-0", "attributes": []}]},
        {"devices": [{"name": "gpu-0", "attributes": {"type": {"string": 1}}}]},
        {"devices": [a_device(f"gpu-{index}") for index in range(129)]},
        {"pool": {"name": "a", "generation": "1"}},
        {"pool": {}},
        {"nodeName": {}},
    ],
)
def test_a_malformed_resource_slice_is_refused(broken: dict[str, Any]) -> None:
    found = a_device_slice("a")
    found["spec"] |= broken
    with pytest.raises(MalformedField, match=r"^spec\."):
        project_slice(found)


def test_a_claim_holds_what_its_allocation_says() -> None:
    claim = an_allocated_claim("c", "a", ["gpu-0", "gpu-1"], pod="train")
    results = claim["status"]["allocation"]["devices"]["results"]
    results += [{**results[0], "driver": "compute-domain.nvidia.com"}, {**results[0], "adminAccess": True}]
    found = project_claim(claim)
    assert (found.user, found.devices) == ("train", (("a", "gpu-0"), ("a", "gpu-1")))
    # Its pod requests nvidia.com/gpu, and counts by that.
    assert project_claim({**claim, "metadata": {"annotations": {names.EXTENDED_RESOURCE_CLAIM: "true"}}}).devices == ()
    assert project_claim({"metadata": {}, "spec": {}}).devices == ()
    with pytest.raises(MalformedField):
        project_claim({**claim, "status": {"allocation": {"devices": {"results": [7]}}}})


def test_the_products_of_a_driver_are_written_as_feature_discovery_writes_them() -> None:
    assert H100.replace(" ", "-") in product_names(CATALOGUE["nvidia-h100-80gb"])
