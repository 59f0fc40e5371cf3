"""One cluster for all tests here: a node for every kind of hardware, and the operator as `helm install` brings it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from builders.real_nodes import Kind, RealCluster, real_cluster
from nodes import images

SYSTEM = "diloco-system"
"""Namespace of the operator."""
JOBS = "training"
"""Namespace of the job."""

KINDS = {
    "cpu-0": Kind(labels={"cloud.google.com/gke-nodepool": "np-cpu"}, devices={}),
    "tpu-0": Kind(
        labels={
            "cloud.google.com/gke-nodepool": "np-v5p-0",
            "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
            "cloud.google.com/gke-tpu-topology": "2x2x1",
            "cloud.google.com/gke-accelerator-count": "4",
        },
        devices={"google.com/tpu": "4"},
        taints=[{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}],
    ),
    "gpu-0": Kind(
        labels={"cloud.google.com/gke-nodepool": "np-h100", "cloud.google.com/gke-accelerator": "nvidia-h100-80gb"},
        devices={"nvidia.com/gpu": "8"},
        taints=[{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}],
    ),
}


@pytest.fixture(scope="session")
def project_images() -> images.Images:
    return images.provided()


@pytest.fixture(scope="session")
def cluster(project_images: images.Images) -> Iterator[RealCluster]:
    """Namespaces under the restricted Pod Security profile, volumes, and the chart with its NetworkPolicies."""
    pause = project_images.pause
    on_nodes = {
        "cpu-0": [pause, project_images.operator, project_images.syncer, *project_images.of_page.values()],
        "tpu-0": [pause, project_images.jax],
        "gpu-0": [pause, project_images.torch],
    }
    with real_cluster(KINDS, on_nodes) as cluster:
        for namespace in (SYSTEM, JOBS):
            restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
            cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": restricted}})
        cluster.provide_volume("syncer-state")
        cluster.provide_read_only_volume("torch-packages", JOBS, project_images.torch_packages)
        values = {"watchNamespaces": [JOBS], "config": {"progressInterval": "1s"}}
        cluster.install_chart(SYSTEM, values)
        yield cluster
