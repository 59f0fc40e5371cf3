"""Pods that name no node ask in the one dialect of labels that the cluster speaks, and by a plain selector where it serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from builders.jobs import a_job, gpu_pool, template, tpu_pool
from builders.nodes import a_gpu_node, a_node
from builders.pods import starts
from builders.stage import Stage

Obj = dict[str, Any]
GKE = {"cloud.google.com/gke-nodepool": "default-pool"}
KARPENTER = {"karpenter.sh/nodepool": "general", "karpenter.k8s.aws/instance-family": "m7i", "karpenter.sh/capacity-type": "on-demand"}
AUTO_MODE = {"eks.amazonaws.com/compute-type": "auto", "eks.amazonaws.com/instance-family": "c6g"}
NODE_GROUP = {"eks.amazonaws.com/nodegroup": "system", "node.kubernetes.io/instance-type": "m7i.large"}
AKS = {"kubernetes.azure.com/cluster": "MC_a", "node.kubernetes.io/instance-type": "Standard_D8s_v5"}
GPU = {"nvidia.com/gpu": "8"}
FEATURE_DISCOVERY = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
AUTOSCALER = {"mode": "Autoscaler"}


def cordoned(name: str, labels: Obj, devices: Obj | None = None) -> Obj:
    """A node that no unit gets, so that nodes are asked for."""
    return a_node(name, labels=labels, devices=devices or {}, cordoned=True)


def asked(pool: Obj, *nodes: Obj) -> Obj:
    """What the first pod of the pool's first unit says of its node."""
    stage = Stage(a_job().with_learners(1, 1).with_pools(pool), *nodes)
    stage.settle()
    starts(stage.syncer, stage.now)
    stage.settle()
    spec: Obj = stage.pod(f"{pool['name']}-0", 1)["spec"]
    return spec


def h100(**fields: Any) -> Obj:
    return gpu_pool(**{"provisioning": AUTOSCALER, **fields})


def terms(spec: Obj) -> list[list[Obj]]:
    required = (spec["affinity"].get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return [term["matchExpressions"] for term in required.get("nodeSelectorTerms", ())]


def keys(spec: Obj) -> list[list[str]]:
    return [[each["key"] for each in term] for term in terms(spec)]


@pytest.mark.parametrize(
    ("nodes", "selector"),
    [
        pytest.param([GKE], {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}, id="GKE, before its first GPU node"),
        pytest.param([KARPENTER], {"karpenter.k8s.aws/instance-gpu-name": "h100"}, id="EKS whose nodes Karpenter makes"),
        pytest.param([AUTO_MODE], {"eks.amazonaws.com/instance-gpu-name": "h100"}, id="EKS Auto Mode"),
    ],
)
def test_a_cluster_of_one_cloud_is_asked_by_a_plain_selector_in_its_own_labels(nodes: Sequence[Obj], selector: Obj) -> None:
    spec = asked(h100(), *(cordoned(f"node-{index}", labels) for index, labels in enumerate(nodes)))
    assert spec["nodeSelector"] == selector
    assert terms(spec) == []


@pytest.mark.parametrize("labels", [NODE_GROUP, AKS], ids=["node groups of EKS", "AKS"])
def test_machines_that_come_under_several_names_are_one_alternative_with_all_of_them(labels: Obj) -> None:
    spec = asked(h100(), cordoned("node-0", labels))
    assert keys(spec) == [["node.kubernetes.io/instance-type"]]
    assert {"p5.48xlarge", "Standard_ND96isr_H100_v5"} <= set(terms(spec)[0][0]["values"])


def test_nodes_of_the_kind_decide_before_other_nodes_do() -> None:
    """Karpenter made them: the node group runs Karpenter itself."""
    made = {**KARPENTER, "karpenter.k8s.aws/instance-gpu-name": "h100"}
    spec = asked(h100(), cordoned("gpu-0", {**made, **FEATURE_DISCOVERY}, GPU), cordoned("system-0", NODE_GROUP))
    assert spec["nodeSelector"] == {"karpenter.k8s.aws/instance-gpu-name": "h100"}


def test_what_a_feature_discovery_says_is_asked_for_only_where_no_cloud_says_more() -> None:
    """A node that does not exist yet has no such label, unless an autoscaler looks at one that does."""
    found = cordoned("gpu-0", FEATURE_DISCOVERY, GPU)
    assert asked(h100(), found)["nodeSelector"] == FEATURE_DISCOVERY
    assert asked(h100(), found, cordoned("node-0", GKE))["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}


def test_clouds_side_by_side_and_clusters_of_no_known_cloud_get_alternatives() -> None:
    both = asked(h100(), cordoned("node-0", NODE_GROUP), cordoned("node-1", KARPENTER))
    assert [each[0] for each in keys(both)] == ["karpenter.k8s.aws/instance-gpu-name", "node.kubernetes.io/instance-type"]
    assert len(terms(asked(h100()))) > 3


@pytest.mark.parametrize(
    ("labels", "capacity", "selector"),
    [
        (GKE, "Spot", {"cloud.google.com/gke-spot": "true"}),
        (GKE, "FlexStart", {"cloud.google.com/gke-flex-start": "true"}),
        (KARPENTER, "Spot", {"karpenter.sh/capacity-type": "spot"}),
        (KARPENTER, "Reserved", {"karpenter.sh/capacity-type": "reserved"}),
    ],
)
def test_how_nodes_are_paid_for_is_said_in_the_same_dialect(labels: Obj, capacity: str, selector: Obj) -> None:
    spec = asked(h100(capacity=capacity), cordoned("node-0", labels))
    assert selector.items() <= spec["nodeSelector"].items()
    assert terms(spec) == []


def test_nodes_on_demand_have_none_of_the_clouds_other_labels() -> None:
    [term] = terms(asked(h100(capacity="OnDemand"), cordoned("node-0", GKE)))
    assert {each["key"].partition("/")[0] for each in term} == {"cloud.google.com"}
    assert {"key": "cloud.google.com/gke-spot", "operator": "NotIn", "values": ["true"]} in term


def test_a_template_keeps_what_it_selects() -> None:
    zone = {"topology.kubernetes.io/zone": "a"}
    spec = asked(h100(template=template(nodeSelector=zone)), cordoned("node-0", GKE))
    assert spec["nodeSelector"] == {**zone, "cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
    other = {"cloud.google.com/gke-accelerator": "nvidia-h200-141gb"}
    spec = asked(h100(template=template(nodeSelector=other)), cordoned("node-0", GKE))
    assert spec["nodeSelector"] == other  # no node has both: the scheduler says so
    assert keys(spec) == [["cloud.google.com/gke-accelerator"]]


def test_the_dialect_follows_the_nodes_that_come_and_go() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_pools(h100()), cordoned("node-0", KARPENTER))
    stage.lose_node("node-0")
    stage.set_node(cordoned("node-1", GKE))
    stage.settle()
    starts(stage.syncer, stage.now)
    stage.settle()
    assert stage.pod("h100-0", 1)["spec"]["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}


def test_slices_of_tpus_are_selected_by_type_topology_and_chips() -> None:
    spec = asked(tpu_pool(provisioning=AUTOSCALER), cordoned("node-0", GKE))
    assert spec["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "2x2x2"
    assert terms(spec) == []


def test_a_pod_that_is_bound_to_what_it_asked_for_trains() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_pools(h100()), cordoned("node-0", GKE))
    stage.settle()
    starts(stage.syncer, stage.now)
    stage.settle()
    stage.set_node(a_gpu_node("new-0"))
    stage.binds("h100-0", 1, "new-0")
    stage.settle()
    assert stage.unit("h100-0")["slice"] == "new-0"
