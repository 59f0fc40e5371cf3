"""Which nodes go, come and are drained, by the names that people have for them."""

from __future__ import annotations

import pytest
from builders.jobs import Obj, a_manifest, gpu_pool, tpu_pool
from builders.nodes import a_gpu_node, a_node, a_tpu_node, a_tpu_slice, an_inventory
from diloco_local.preview.changes import BadChange, ChangeOptions, Changes, changes_of
from diloco_local.preview.contents import ready
from diloco_operator.api import names
from diloco_operator.fleet import Shape

V5P = [*a_tpu_slice("np-a", 2), *a_tpu_slice("np-b", 2)]
H100 = [a_gpu_node("gpu-0"), a_gpu_node("gpu-1")]
FLEET = [*V5P, *H100, a_node("cpu-0")]
JOBS = [a_manifest("lm", pools=[tpu_pool("fast", topology="2x2x2"), gpu_pool("slow")])]


def changes(*, jobs: list[Obj] | None = None, **asked: str) -> Changes:
    return changes_of(ChangeOptions(**{option: (value,) for option, value in asked.items()}), FLEET, JOBS if jobs is None else jobs)


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("np-a", ["np-a-0", "np-a-1"]),  # a node pool
        ("fast", ["np-a-0", "np-a-1", "np-b-0", "np-b-1"]),  # a pool of a job
        ("nvidia-h100-80gb", ["gpu-0", "gpu-1"]),  # a kind
        ("h100", ["gpu-0", "gpu-1"]),  # a part of its name; the fleet has no nvidia-h100-mega-80gb
    ],
)
def test_a_pool_goes_by_any_of_its_names(name: str, gone: list[str]) -> None:
    assert changes(without=name).removed == tuple(gone)


def test_a_pool_of_a_job_is_the_nodes_that_it_can_use() -> None:
    jobs = [a_manifest("lm", pools=[tpu_pool("fast", topology="2x2x4")])]
    with pytest.raises(BadChange, match="the fleet has no node that pool fast can use"):
        changes(without="fast", jobs=jobs)


def test_node_pools_of_other_clouds_have_names_too() -> None:
    node = a_node("n1", labels={"karpenter.sh/nodepool": "burst"})
    assert changes_of(ChangeOptions(without=("burst",)), [node], ()).removed == ("n1",)


def test_slices_that_come_are_whole_node_pools_like_those_that_are_there() -> None:
    added = [ready(node, 0.0) for node in changes(add="fast=2x2x2x2").added]
    assert [node["metadata"]["name"] for node in added] == ["added-fast-0-0", "added-fast-0-1", "added-fast-1-0", "added-fast-1-1"]
    assert {node["metadata"]["labels"][names.NODE_POOL] for node in added} == {"added-fast-0", "added-fast-1"}
    free = an_inventory(*added).free(Shape("tpu-v5p", "2x2x2", 4))
    assert [slice_.name for slice_ in free] == ["added-fast-0", "added-fast-1"]


def test_hosts_that_come_have_labels_and_taints_of_those_that_are_there_and_not_their_troubles() -> None:
    taints = [
        {"key": "team", "value": "a", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
    ]
    model = a_gpu_node("gpu-0", gpus=4, labels={"zone": "z1"}, taints=taints, cordoned=True)
    [added] = changes_of(ChangeOptions(add=("h100=1",)), [model], ()).added
    assert added["metadata"]["labels"]["zone"] == "z1"
    assert added["metadata"]["labels"][names.NODE_HOSTNAME] == "added-h100-0"
    assert added["spec"] == {"taints": taints[:1]}
    assert added["status"]["allocatable"]["nvidia.com/gpu"] == "4"


def test_hosts_of_a_kind_that_is_not_there_are_as_the_catalogue_says() -> None:
    [added] = changes_of(ChangeOptions(add=("h200=1x8",)), FLEET, ()).added
    free = an_inventory(ready(added, 0.0)).free(Shape("nvidia-h200-141gb", "", 8))
    assert [slice_.name for slice_ in free] == ["added-h200-0"]


def test_a_topology_with_hosts_of_two_sizes_gets_those_that_a_job_asks_for() -> None:
    def chips(*jobs: Obj) -> set[str]:
        added = changes_of(ChangeOptions(add=("v6e=1x2x4",)), (), jobs).added
        return {node["status"]["capacity"]["google.com/tpu"] for node in added}

    assert chips() == {"4"}
    assert chips(a_manifest("lm", pools=[tpu_pool("v6e", "tpu-v6e", "2x4", chipsPerHost=8)])) == {"8"}


def test_names_that_are_taken_are_left_alone() -> None:
    there = a_gpu_node("added-h100-0")
    assert [node["metadata"]["name"] for node in changes_of(ChangeOptions(add=("h100=1", "h100=1")), [there], ()).added] == [
        "added-h100-1",
        "added-h100-2",
    ]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (ChangeOptions(add=("slow=2x2x2",)), "nvidia-h100-80gb has no topologies; write slow=COUNT"),
        (ChangeOptions(add=("fast=2",)), "tpu-v5p has no slice without a topology; it has 2x2x1, "),
        (ChangeOptions(add=("fast=0x2x2x2",)), "write POOL=COUNTxTOPOLOGY"),
        (ChangeOptions(add=("both=1",)), "pools of this name ask for nvidia-h100-80gb and for tpu-v5p; write the kind instead"),
        (ChangeOptions(add=("a100=1",)), "--add a100=1: a100 may be nvidia-a100-40gb or nvidia-a100-80gb; write one of these"),
        (ChangeOptions(drain=("gpu-7",)), "there is no node of this name; did you mean gpu-"),
        (ChangeOptions(without=("h100",), drain=("gpu-0",)), "the node goes with --without already"),
        (ChangeOptions(without=("npu",)), "there is no node pool, pool of a job or accelerator of this name"),
    ],
)
def test_what_cannot_be_done_says_what_can(asked: ChangeOptions, said: str) -> None:
    other = a_manifest("other", pools=[tpu_pool("both"), gpu_pool("x")])
    third = a_manifest("third", pools=[gpu_pool("both")])
    with pytest.raises(BadChange) as raised:
        changes_of(asked, FLEET, [*JOBS, other, third])
    assert said in str(raised.value)


def test_a_node_of_two_names_is_drained_once() -> None:
    assert changes_of(ChangeOptions(drain=("gpu-0", "gpu-0")), [a_tpu_node("tpu-0"), *H100], ()).drained == ("gpu-0",)
