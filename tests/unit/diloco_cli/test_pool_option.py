"""Pools in few words, and what the nodes of a cluster decide of them."""

from __future__ import annotations

import pytest
from builders.nodes import a_gpu_node, a_node, a_tpu_node, a_tpu_slice
from diloco_cli.pool_option import BadPool, PoolRequest, of_slices, pool_name, read_pool, simulated_nodes, slices_of
from diloco_operator.accelerators import ACCELERATOR_NAMES, CATALOGUE
from diloco_operator.api.spec import Capacity
from diloco_operator.fleet.capacity import capacity_of
from diloco_operator.fleet.node import project_node
from diloco_operator.fleet.slices import SliceKind
from diloco_operator.kube.client import Obj

H100, V5P = SliceKind("nvidia-h100-80gb", "", 8), SliceKind("tpu-v5p", "2x2x2", 4)


def there(*nodes: Obj) -> dict[SliceKind, int]:
    return dict(slices_of(map(project_node, nodes)))


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("cpu=2", {"name": "cpu", "accelerator": "cpu", "learners": {"max": 2}}),
        ("v5p=1x2x2x2", {"name": "v5p", "accelerator": "tpu-v5p", "topology": "2x2x2", "learners": {"max": 1}}),
        ("nvidia-h100-80gb=2", {"name": "h100-80gb", "accelerator": "nvidia-h100-80gb", "learners": {"max": 2}}),
        ("l4=3x4", {"name": "l4", "accelerator": "nvidia-l4", "acceleratorsPerHost": 4, "learners": {"max": 3}}),
        ("b200=2,hosts=4", {"name": "b200", "accelerator": "nvidia-b200", "hosts": 4, "learners": {"max": 2}}),
        ("l4=3,min=1,spares=2", {"name": "l4", "accelerator": "nvidia-l4", "learners": {"min": 1, "max": 3}, "spares": 2}),
        ("l4=1,flex-start,name=later", {"name": "later", "accelerator": "nvidia-l4", "capacity": "FlexStart", "learners": {"max": 1}}),
        (
            "v5p=1x2x2x4,spot,autoscaler",
            {
                "name": "v5p",
                "accelerator": "tpu-v5p",
                "topology": "2x2x4",
                "capacity": "Spot",
                "learners": {"max": 1},
                "provisioning": {"mode": "Autoscaler"},
            },
        ),
    ],
)
def test_what_the_text_says_alone_needs_no_cluster(text: str, fields: Obj) -> None:
    assert read_pool(text, {}).fields() == fields


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v5p", r"write KIND=UNITS, such as h100=2"),
        ("v5p=0", r"write KIND=UNITS"),
        ("v5q=1", r"v5q is no kind of accelerator; the kinds are tpu-v4, "),
        ("v5p=2x2x2", r"tpu-v5p has no topology 2x2; .*The first number is that of the units: v5p=1x2x2x1"),
        ("l4=1x3", r"hosts of nvidia-l4 come with .* accelerators, not 3; write l4=1"),
        ("l4=1,spott", r"--pool l4=1,spott: 'spott' says nothing of a pool; write hosts=N, .* or one of reserved, on-demand, spot, "),
        ("l4=1,spot=yes", r"'spot=yes' says nothing of a pool"),
        ("l4=1,hosts", r"'hosts' says nothing of a pool; write hosts=N"),
        ("l4=1,", r"'' says nothing of a pool"),
        ("l4=1,spot,reserved", r"a pool has one capacity, and spot and reserved are two; leave one out"),
        ("l4=1,hosts=2,hosts=3", r"hosts is there twice; leave one out"),
        ("l4=1,hosts=0", r"hosts=0 is no number from 1; write hosts=1"),
        ("l4=1,spares=-1", r"spares=-1 is no number from 0; write spares=1"),
        ("v5p=1x2x2x2,hosts=2", r"the hosts of a TPU slice follow from its topology; leave hosts out, .*: 2x2x1, 2x2x2, "),
        ("l4=1,name=A_pool", r"name must be of at most 15 characters of a-z, 0-9 and -, and begin with a letter"),
        ("l4=1,chips=4", r"chips are those of a TPU's host, and nvidia-l4 is no TPU; leave chips out"),
        ("v6e=1x2x4,chips=5", r"hosts of a slice of 2x4 have .* chips, not 5; write chips="),
        ("v6e=1x2x4,chips=0", r"chips=0 is no number from 1"),
        ("cpu=1x2", r"cpu has no accelerators to count; write cpu=1"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_write(text: str, message: str) -> None:
    with pytest.raises(BadPool, match=message):
        read_pool(text, None)


def test_the_nodes_decide_which_of_several_kinds_is_meant() -> None:
    assert read_pool("h100=1", there(a_gpu_node("a"))).kind.name == "nvidia-h100-80gb"
    with pytest.raises(BadPool, match=r"h100 may be nvidia-h100-80gb or .*, and the cluster has none of them; write one"):
        read_pool("h100=1", {})
    assert read_pool("h100=1", None).kind.name == "nvidia-h100-80gb", "without a cluster the first row of the catalogue"


def test_the_nodes_decide_the_topology_of_a_slice() -> None:
    assert read_pool("v5p=1", {V5P: 3, H100: 1}).topology == "2x2x2"
    with pytest.raises(BadPool, match=r"comes in slices, and the cluster has slices of 2x2x1 and 2x2x2; write the topology"):
        read_pool("v5p=1", {V5P: 3, SliceKind("tpu-v5p", "2x2x1", 4): 1})
    with pytest.raises(BadPool, match=r"the cluster has no slices of tpu-v5p"):
        read_pool("v5p=1", {H100: 1})
    assert read_pool("v5p=1", None).topology == "2x2x1", "without a cluster one host"


def test_where_a_topology_leaves_a_choice_of_hosts_the_nodes_decide() -> None:
    four, eight = SliceKind("tpu-v6e", "2x4", 4), SliceKind("tpu-v6e", "2x4", 8)
    assert read_pool("v6e=1x2x4", {eight: 1}).fields()["chipsPerHost"] == 8
    for cluster in ({}, {four: 1, eight: 1}):
        with pytest.raises(BadPool, match=r"hosts of a slice of 2x4 have . or . chips, .*; write which behind it, such as chips="):
            read_pool("v6e=1x2x4", cluster)
        assert read_pool("v6e=1x2x4,chips=4", cluster).fields()["chipsPerHost"] == 4
        assert read_pool("v6e=1x2x4,chips=8", cluster).fields()["chipsPerHost"] == 8
    with pytest.raises(BadPool, match=r"hosts of a slice of 2x4 have .* chips, and the cluster has both"):
        read_pool("v6e=1", {four, eight})
    assert read_pool("v6e=1,chips=8", {four, eight}).per_host == 8
    assert read_pool("v6e=1,chips=8", None).per_host == 8, "the first topology with such hosts"


@pytest.mark.parametrize("capacity", list(Capacity))
def test_every_capacity_has_a_word_and_simulated_nodes_that_are_held_so(capacity: Capacity) -> None:
    pool = PoolRequest("p", CATALOGUE["nvidia-l4"], 2, hosts=2, spares=1, capacity=capacity)
    word = {"Reserved": "reserved", "OnDemand": "on-demand", "Spot": "spot", "FlexStart": "flex-start", "Scavenged": "scavenged"}[capacity]
    assert read_pool(f"l4=2,name=p,hosts=2,spares=1,{word}", None) == pool
    _syncer, *nodes = simulated_nodes([pool], {})
    assert len(nodes) == 6, "two units and a spare of two hosts"
    held = {capacity_of(node["metadata"]["labels"]).value for node in nodes}
    assert held == {"OnDemand" if capacity is Capacity.SCAVENGED else capacity.value}


def test_a_capacity_for_all_pools_is_for_those_that_name_none() -> None:
    assert read_pool("l4=1", None).held_as(Capacity.SPOT).capacity is Capacity.SPOT
    assert read_pool("l4=1,reserved", None).held_as(Capacity.SPOT).capacity is Capacity.RESERVED


def test_slices_are_counted_whole() -> None:
    nodes = [*a_tpu_slice("one", 2), *a_tpu_slice("half", 1), a_gpu_node("g0"), a_gpu_node("g1"), a_node("c")]
    assert there(*nodes) == {V5P: 1, H100: 2, SliceKind("cpu"): 1}, "three hosts of 2x2x2 are one slice of two hosts"


def test_a_cluster_gets_a_pool_for_each_kind_of_accelerator_the_fastest_first() -> None:
    """Peaks: 989 TFLOP/s of an H100, 459 of a v5p."""
    pools = of_slices(there(*a_tpu_slice("one", 2), a_gpu_node("g"), a_node("c")))
    assert [(each.name, each.kind.name, each.units) for each in pools] == [("h100-80gb", "nvidia-h100-80gb", 1), ("v5p", "tpu-v5p", 1)]
    assert [each.name for each in of_slices(there(a_node("c")))] == ["cpu"], "and one of hosts without accelerators if there is no other"


def test_pools_of_one_kind_have_names_of_their_own() -> None:
    pools = of_slices(there(a_tpu_node("x"), *a_tpu_slice("one", 2)))
    assert [(each.name, each.topology) for each in pools] == [("v5p-a", "2x2x1"), ("v5p-b", "2x2x2")]


@pytest.mark.parametrize("kind", ACCELERATOR_NAMES)
def test_every_kind_makes_a_name_that_a_pool_may_have(kind: str) -> None:
    name = pool_name(kind)
    assert 1 <= len(name) <= 15
    assert name[0].isalpha()
    assert name[-1].isalnum()


@pytest.mark.parametrize("kind", ACCELERATOR_NAMES)
def test_simulated_nodes_are_what_the_pool_asks_for(kind: str) -> None:
    pool = read_pool(f"{kind}=2", None)
    nodes = simulated_nodes([pool], {"cpu": "8", "memory": "16Gi", "pods": "110"})
    found = slices_of(map(project_node, nodes))
    if kind == "cpu":
        assert found == {SliceKind("cpu"): 3}, "one is the syncer's"
    else:
        [(slices, count)] = [each for each in found.items() if each[0].accelerator == kind]
        assert (slices.topology, count) == (pool.topology, 2)
    assert all(node["status"]["capacity"]["cpu"] == "8" for node in nodes)
    assert len({node["metadata"]["name"] for node in nodes}) == len(nodes)
