"""Every row of the accelerator catalogue, from the labels of a node to a pod that fits the node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders.jobs import a_job
from builders.nodes import a_node, an_inventory
from builders.stage import Stage
from diloco_local.scheduling import unschedulable_reason
from diloco_operator.accelerators import (
    ACCELERATOR_LABELS,
    CATALOGUE,
    CPU,
    Accelerator,
    Family,
    NodeLabels,
    chip_count,
    identify,
    of_family,
)
from diloco_operator.accelerators.labels import DIALECTS, NFD_PCI
from diloco_operator.api import names
from diloco_operator.fleet import Shape

Obj = dict[str, Any]
ENTRIES = [(kind, entry) for kind in CATALOGUE.values() for entry in kind.labels]
IDS = [f"{kind.name} by {entry.key}" for kind, entry in ENTRIES]
HOST_ENTRIES = [(kind, entry) for kind, entry in ENTRIES if kind.family is Family.HOST]
HOST_IDS = [f"{kind.name} by {entry.key}" for kind, entry in HOST_ENTRIES]
TPUS = [CATALOGUE[name] for name in of_family(Family.TPU)]
HOSTS = [CATALOGUE[name] for name in of_family(Family.HOST)]


def nodes_of(kind: Accelerator, entry: NodeLabels, *, value: str = "", topology: str = "", hosts: int = 1, per_host: int = 0) -> list[Obj]:
    """The hosts of one slice, labelled in one dialect and with every taint that the row names."""
    count = per_host or kind.host_sizes[-1]
    labels = {**entry.on_node(topology=topology, per_host=count), names.NODE_POOL: "np-0"}
    if value:
        labels[entry.key] = value
    taints = [{"key": key, "value": "present", "effect": "NoSchedule"} for key in kind.taints]
    return [a_node(f"host-{index}", labels=labels, devices={kind.resource: str(count)}, taints=taints) for index in range(hosts)]


def place_on(nodes: list[Obj], **pool: Any) -> list[Obj]:
    """The learner pods of a job with one unit, after the operator has placed it on these nodes."""
    stage = Stage(a_job().with_learners(1, 1).with_pool("only", max=1, **pool), *nodes)
    stage.settle()
    return [pod for pod in stage.pods.values() if pod["metadata"]["labels"][names.LABEL_COMPONENT] == names.COMPONENT_LEARNER]


def pool_of(kind: Accelerator, topology: str = "", per_host: int = 0) -> Obj:
    if kind.family is not Family.TPU:
        return {"accelerator": kind.name}
    several = len(kind.host_options[topology]) > 1
    return {"accelerator": kind.name, "topology": topology, **({"chipsPerHost": per_host} if several else {})}


def assert_fits(pods: list[Obj], nodes: list[Obj]) -> None:
    """The scheduler can bind every pod to the node that placement chose, and to no other."""
    by_name = {node["metadata"]["name"]: node for node in nodes}
    assert len(pods) == len(nodes)
    for pod in pods:
        chosen = by_name.pop(pod["metadata"]["annotations"][names.ANNOTATION_NODE])
        assert unschedulable_reason(pod, chosen, {}) is None
        assert all(unschedulable_reason(pod, other, {}) is not None for other in nodes if other is not chosen)


@pytest.mark.parametrize(("kind", "entry"), ENTRIES, ids=IDS)
def test_node_with_the_labels_of_a_row_becomes_a_slice_and_then_a_pod_that_fits_it(kind: Accelerator, entry: NodeLabels) -> None:
    topology = kind.topologies[0] if kind.family is Family.TPU else ""
    per_host = kind.host_options[topology][0] if topology else kind.host_sizes[-1]
    for value in entry.values:
        nodes = nodes_of(kind, entry, value=value, topology=topology, per_host=per_host)
        assert_fits(place_on(nodes, **pool_of(kind, topology, per_host)), nodes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TPUS, ids=lambda kind: kind.name)
def test_every_host_size_of_a_tpu_topology_becomes_a_slice_and_then_pods_that_fit_it(kind: Accelerator) -> None:
    for topology in [each for each in kind.topologies if chip_count(each) <= 32]:
        for per_host in kind.host_options[topology]:
            hosts = chip_count(topology) // per_host
            nodes = nodes_of(kind, kind.labels[0], topology=topology, hosts=hosts, per_host=per_host)
            assert_fits(place_on(nodes, **pool_of(kind, topology, per_host)), nodes)


@pytest.mark.parametrize("kind", HOSTS, ids=lambda kind: kind.name)
def test_hosts_of_every_size_of_a_row_form_a_unit(kind: Accelerator) -> None:
    for size in kind.host_sizes:
        nodes = nodes_of(kind, kind.labels[0], hosts=2, per_host=size)
        assert_fits(place_on(nodes, accelerator=kind.name, hosts=2, acceleratorsPerHost=size), nodes)


@pytest.mark.parametrize(("kind", "entry"), HOST_ENTRIES, ids=HOST_IDS)
def test_node_of_a_row_is_not_free_before_its_driver_offers_devices(kind: Accelerator, entry: NodeLabels) -> None:
    for offered in ({}, {kind.resource: "0"}):
        (node,) = nodes_of(kind, entry)
        node["status"] = {**node["status"], "capacity": offered, "allocatable": offered}
        inventory = an_inventory(node)
        counts = inventory.counts(Shape(kind.name, chips_per_host=1))
        assert (list(inventory.free(Shape(kind.name))), counts.total, counts.unusable_count) == ([], 1, 1)
        assert f"offers no {kind.resource} now" in counts.unusable[0]
        assert inventory.counts(Shape(CPU)).total == 0


def test_a_cloud_decides_before_a_feature_discovery() -> None:
    """Both H100 of GKE are one product to NVIDIA's feature discovery."""
    mega = {"cloud.google.com/gke-accelerator": "nvidia-h100-mega-80gb", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    found = identify(mega)
    assert found is not None
    assert found[0].name == "nvidia-h100-mega-80gb"


def test_memory_tells_kinds_apart_that_have_one_name_on_aws() -> None:
    label = "karpenter.k8s.aws/instance-gpu-name"
    memory = "karpenter.k8s.aws/instance-gpu-memory"
    kinds = [identify({label: "a100", memory: size}) for size in ("40960", "81920", "1")]
    assert [kind and kind[0].name for kind in kinds] == ["nvidia-a100-40gb", "nvidia-a100-80gb", None]


def test_every_dialect_has_a_source_and_every_row_its_own() -> None:
    assert {entry.dialect for _, entry in ENTRIES} <= set(DIALECTS)
    assert all(dialect.source.startswith("https://") for dialect in DIALECTS)
    assert all(dialect.key for dialect in DIALECTS if dialect is not NFD_PCI)
    assert all(kind.sources for kind in CATALOGUE.values() if kind.name != CPU)


@pytest.mark.slow
def test_no_other_file_names_the_resources_and_labels_of_accelerators() -> None:
    """A fact that stands twice is changed once. Tests and examples may write nodes out."""
    facts = {kind.resource for kind in CATALOGUE.values() if kind.resource}
    facts |= set(ACCELERATOR_LABELS)
    facts |= {each for dialect in DIALECTS for each in (dialect.qualifier, dialect.count, dialect.topology) if each}
    root = Path(__file__).parents[3]
    sources = [
        path
        for folder in ("controller", "runtimes", "benchmarks", "hack", "helm")
        for path in (root / folder).rglob("*")
        if path.suffix in (".py", ".yaml", ".tpl", ".json", ".sh") and "accelerators" not in path.parts
    ]
    assert len(sources) > 100
    found = [f"{path.relative_to(root)}: {fact}" for path in sources for fact in facts if fact in path.read_text()]
    assert found == []


# Nodes as their clouds and device plugins make them, written out: labels, resources, taint keys, and what they are.
REAL_NODES = {
    "GKE, a3-highgpu-8g": (
        {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb", "node.kubernetes.io/instance-type": "a3-highgpu-8g"},
        {"cpu": "208", "memory": "1872Gi", "nvidia.com/gpu": "8"},
        ["nvidia.com/gpu"],
        {"accelerator": "nvidia-h100-80gb"},
    ),
    "GKE, a4x-highgpu-4g": (
        {"cloud.google.com/gke-accelerator": "nvidia-gb200", "kubernetes.io/arch": "arm64"},
        {"nvidia.com/gpu": "4"},
        ["nvidia.com/gpu", "kubernetes.io/arch"],
        {"accelerator": "nvidia-gb200"},
    ),
    "GKE, ct6e-standard-8t": (
        {
            "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
            "cloud.google.com/gke-tpu-topology": "2x4",
            "cloud.google.com/gke-accelerator-count": "8",
        },
        {"google.com/tpu": "8"},
        ["google.com/tpu"],
        {"accelerator": "tpu-v6e", "topology": "2x4", "chipsPerHost": 8},
    ),
    "Karpenter on AWS, p5.48xlarge": (
        {
            "karpenter.k8s.aws/instance-gpu-name": "h100",
            "karpenter.k8s.aws/instance-gpu-count": "8",
            "karpenter.k8s.aws/instance-gpu-memory": "81920",
            "karpenter.sh/capacity-type": "on-demand",
        },
        {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32", "vpc.amazonaws.com/pod-eni": "120"},
        ["nvidia.com/gpu"],
        {"accelerator": "nvidia-h100-80gb"},
    ),
    "EKS Auto Mode, p4d.24xlarge": (
        {"eks.amazonaws.com/instance-gpu-name": "a100", "eks.amazonaws.com/instance-gpu-memory": "40960"},
        {"nvidia.com/gpu": "8"},
        ["nvidia.com/gpu"],
        {"accelerator": "nvidia-a100-40gb"},
    ),
    "EKS node group, p5en.48xlarge": (
        {"node.kubernetes.io/instance-type": "p5en.48xlarge", "eks.amazonaws.com/nodegroup": "h200"},
        {"nvidia.com/gpu": "8"},
        [],
        {"accelerator": "nvidia-h200-141gb"},
    ),
    "AKS, Standard_ND96isr_H100_v5": (
        {"node.kubernetes.io/instance-type": "Standard_ND96isr_H100_v5", "kubernetes.azure.com/accelerator": "nvidia"},
        {"nvidia.com/gpu": "8"},
        [],
        {"accelerator": "nvidia-h100-80gb"},
    ),
    "NVIDIA GPU feature discovery, DGX": (
        {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8", "nvidia.com/gpu.memory": "81559"},
        {"nvidia.com/gpu": "8"},
        [],
        {"accelerator": "nvidia-h100-80gb"},
    ),
    "AMD GPU node labeller, MI300X": (
        {"amd.com/gpu.device-id": "74a1", "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "192G"},
        {"amd.com/gpu": "8"},
        ["amd.com/gpu"],
        {"accelerator": "amd-mi300x-192gb"},
    ),
    "EKS node group, p6-b300.48xlarge": (
        {"node.kubernetes.io/instance-type": "p6-b300.48xlarge"},
        {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "16"},
        [],
        {"accelerator": "nvidia-b300"},
    ),
    "GKE, a4x-maxgpu-4g": (
        {"cloud.google.com/gke-accelerator": "nvidia-gb300", "kubernetes.io/arch": "arm64"},
        {"nvidia.com/gpu": "4"},
        ["nvidia.com/gpu", "kubernetes.io/arch"],
        {"accelerator": "nvidia-gb300"},
    ),
    "OKE, BM.GPU.H100.8": (
        {"node.kubernetes.io/instance-type": "BM.GPU.H100.8"},
        {"nvidia.com/gpu": "8"},
        ["nvidia.com/gpu"],
        {"accelerator": "nvidia-h100-80gb"},
    ),
    "Karpenter on AWS, g6e.12xlarge": (
        {"karpenter.k8s.aws/instance-gpu-name": "l40s", "karpenter.k8s.aws/instance-gpu-memory": "45776"},
        {"nvidia.com/gpu": "4"},
        ["nvidia.com/gpu"],
        {"accelerator": "nvidia-l40s", "acceleratorsPerHost": 4},
    ),
    "AMD GPU node labeller, MI355X": (
        {"amd.com/gpu.device-id": "75a3", "amd.com/gpu.vram": "288G"},
        {"amd.com/gpu": "8"},
        ["amd.com/gpu"],
        {"accelerator": "amd-mi355x-288gb"},
    ),
    "node feature discovery, Gaudi 3": (
        {"feature.node.kubernetes.io/pci-1200_1da3_1060.present": "true"},
        {"habana.ai/gaudi": "8", "hugepages-2Mi": "0"},
        ["habana.ai/gaudi"],
        {"accelerator": "gaudi-3"},
    ),
    "Karpenter on AWS, trn2.48xlarge": (
        {"karpenter.k8s.aws/instance-accelerator-name": "trainium2", "karpenter.k8s.aws/instance-accelerator-count": "16"},
        {"aws.amazon.com/neuron": "16", "aws.amazon.com/neuroncore": "128"},
        ["aws.amazon.com/neuron"],
        {"accelerator": "trainium-2"},
    ),
}


@pytest.mark.parametrize(("labels", "resources", "taints", "pool"), REAL_NODES.values(), ids=REAL_NODES)
def test_node_as_its_cloud_makes_it_runs_a_unit_that_takes_all_its_accelerators(
    labels: dict[str, str], resources: dict[str, str], taints: list[str], pool: Obj
) -> None:
    node = a_node("real", labels=labels, devices=resources, taints=[{"key": key, "effect": "NoSchedule"} for key in taints])
    pods = place_on([node], **pool)
    assert_fits(pods, [node])
    resource = CATALOGUE[pool["accelerator"]].resource
    assert pods[0]["spec"]["containers"][0]["resources"]["limits"] == {resource: resources[resource]}
