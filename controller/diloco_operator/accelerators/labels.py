"""How nodes say which accelerators they have: the label dialects of clouds and feature discoveries. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LabelDialect:
    """Labels that one cloud or one feature discovery sets on nodes."""

    name: str
    source: str
    """URL of the page that documents these labels and their values."""
    key: str = ""
    """The label whose value names the accelerator. "" if each row has a key of its own."""
    qualifier: str = ""
    """A second label, for values of `key` that several kinds have."""
    count: str = ""
    """The label with the number of accelerators on the host, which a slice needs before the device plugin has started. "" if none has
    it."""
    topology: str = ""
    """The label with the topology of the slice. "" if none has it."""
    shared: bool = False
    """Whether nodes without accelerators have `key`, too."""
    discovers: bool = False
    """Whether a program that has to be installed sets these labels. Nodes have the labels of clouds from the beginning."""
    marks: tuple[str, ...] = ()
    """Every node in a cluster of this dialect has at least one of these labels, with accelerators or without."""
    payment: str = ""
    """Domain of the labels that say how the same nodes are paid for. "" if they are of several domains."""

    def of(self, *values: str, key: str = "", qualifier: str = "") -> NodeLabels:
        """Return the labels of a row in this dialect: `key` has one of `values`, and the label `qualifier` has the value given here."""
        return NodeLabels(self, key or self.key, values, qualifier)


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """The labels, in one dialect, of the nodes that have an accelerator."""

    dialect: LabelDialect
    key: str
    values: tuple[str, ...]
    qualifier: str = ""
    """The value that the dialect's `qualifier` label must have. "" if `key` alone decides."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels has the accelerator."""
        return labels.get(self.key) in self.values and (not self.qualifier or labels.get(self.dialect.qualifier) == self.qualifier)

    def selector(self, topology: str) -> dict[str, str]:
        """Return a node selector for slices of this topology."""
        return {self.key: self.values[0], self.dialect.topology: topology}

    def on_node(self, *, topology: str = "", per_host: int = 0) -> dict[str, str]:
        """Return the labels that the dialect sets on a node with the accelerator."""
        labels = {self.key: self.values[0]}
        if self.qualifier:
            labels[self.dialect.qualifier] = self.qualifier
        if self.dialect.count:
            labels[self.dialect.count] = str(per_host)
        if self.dialect.topology:
            labels[self.dialect.topology] = topology
        return labels

    def count_of(self, labels: Mapping[str, str]) -> int:
        """Accelerators of the host by its labels, or 0 if it has no label for them."""
        text = labels.get(self.dialect.count, "") if self.dialect.count else ""
        return int(text) if text.isdecimal() else 0

    def topology_of(self, labels: Mapping[str, str]) -> str:
        """Topology of the slice by its labels, or "" if it has no label for it."""
        return labels.get(self.dialect.topology, "") if self.dialect.topology else ""


_GKE_MARKS = ("cloud.google.com/gke-nodepool",)
_KARPENTER_AWS_MARKS = ("karpenter.k8s.aws/instance-family",)

GKE_TPU = LabelDialect(
    "GKE",
    "https://cloud.google.com/kubernetes-engine/docs/how-to/tpus",
    key="cloud.google.com/gke-tpu-accelerator",
    count="cloud.google.com/gke-accelerator-count",
    topology="cloud.google.com/gke-tpu-topology",
    marks=_GKE_MARKS,
    payment="cloud.google.com/",
)
GKE_GPU = LabelDialect(
    "GKE",
    "https://cloud.google.com/kubernetes-engine/docs/how-to/gpus",
    key="cloud.google.com/gke-accelerator",
    marks=_GKE_MARKS,
    payment="cloud.google.com/",
)
KARPENTER_AWS_GPU = LabelDialect(
    "Karpenter on AWS",
    "https://karpenter.sh/docs/reference/instance-types/",
    key="karpenter.k8s.aws/instance-gpu-name",
    qualifier="karpenter.k8s.aws/instance-gpu-memory",
    marks=_KARPENTER_AWS_MARKS,
    payment="karpenter.sh/",
)
KARPENTER_AWS_ACCELERATOR = LabelDialect(
    "Karpenter on AWS",
    "https://karpenter.sh/docs/reference/instance-types/",
    key="karpenter.k8s.aws/instance-accelerator-name",
    marks=_KARPENTER_AWS_MARKS,
    payment="karpenter.sh/",
)
EKS_AUTO_MODE_GPU = LabelDialect(
    "EKS Auto Mode",
    "https://docs.aws.amazon.com/eks/latest/userguide/create-node-pool.html",
    key="eks.amazonaws.com/instance-gpu-name",
    qualifier="eks.amazonaws.com/instance-gpu-memory",
    marks=("eks.amazonaws.com/instance-family",),
    payment="karpenter.sh/",
)
NVIDIA_FEATURE_DISCOVERY = LabelDialect(
    "NVIDIA GPU feature discovery",
    "https://github.com/NVIDIA/k8s-device-plugin/blob/main/docs/gpu-feature-discovery/README.md",
    key="nvidia.com/gpu.product",
    discovers=True,
)
AMD_PRODUCT = LabelDialect(
    "AMD GPU node labeller",
    "https://instinct.docs.amd.com/projects/k8s-device-plugin/en/latest/user-guide/installation.html",
    key="amd.com/gpu.product-name",
    discovers=True,
)
AMD_DEVICE = LabelDialect(
    "AMD GPU node labeller",
    "https://instinct.docs.amd.com/projects/gpu-operator/en/latest/installation/openshift-olm.html",
    key="amd.com/gpu.device-id",
    discovers=True,
)
NFD_PCI = LabelDialect(
    "node feature discovery, PCI device",
    "https://kubernetes-sigs.github.io/node-feature-discovery/stable/usage/features.html",
    discovers=True,
)
INSTANCE_TYPE = LabelDialect(
    "instance type (EKS, AKS)",
    "https://kubernetes.io/docs/reference/labels-annotations-taints/#nodekubernetesioinstance-type",
    key="node.kubernetes.io/instance-type",
    shared=True,
    # Managed node groups of EKS, and AKS.
    marks=("eks.amazonaws.com/nodegroup", "kubernetes.azure.com/cluster"),
)

DIALECTS = (
    GKE_TPU,
    GKE_GPU,
    KARPENTER_AWS_GPU,
    KARPENTER_AWS_ACCELERATOR,
    EKS_AUTO_MODE_GPU,
    NVIDIA_FEATURE_DISCOVERY,
    AMD_PRODUCT,
    AMD_DEVICE,
    NFD_PCI,
    INSTANCE_TYPE,
)
"""All dialects, in the order in which they decide. A cloud knows its machines better than a feature discovery, which takes one H100 for
another."""

VENDOR_LABELS = ("kubernetes.azure.com/accelerator", "karpenter.azure.com/sku-gpu-name")
"""Labels of nodes with accelerators that do not tell the kind: AKS names only the vendor, and node auto-provisioning on AKS says `H100` for
two sizes of memory. See https://learn.microsoft.com/azure/aks/node-auto-provisioning-node-pools."""


NVLINK_DOMAIN = "nvidia.com/gpu.clique"
"""The label that all hosts have in common whose GPUs one NVLink network connects, such as a rack of NVL72. NVIDIA's feature discovery sets
it: https://github.com/NVIDIA/k8s-device-plugin/blob/main/docs/gpu-feature-discovery/README.md."""


def part_of_accelerator(product: str) -> str:
    """Say what a product is that is no whole accelerator, by its name from NVIDIA's feature discovery. "" for whole accelerators. See
    https://github.com/NVIDIA/k8s-device-plugin/blob/main/docs/gpu-feature-discovery/README.md."""
    if "-MIG-" in product:
        return "parts of GPUs (MIG)"
    if product.endswith("-SHARED"):
        return "GPUs that several pods share (time-slicing or MPS)"
    return ""
