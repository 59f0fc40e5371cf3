"""The type of the catalogue's rows. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from diloco_operator.accelerators.labels import GKE_TPU, NodeLabels
from diloco_operator.accelerators.topology import MESH, torus

CPU = "cpu"
"""The kind for machines without accelerators."""
NVIDIA_GPU = "nvidia.com/gpu"
"""The resource of NVIDIA's whole GPUs."""
NAME_PATTERN = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
"""The names of all kinds match it."""
MAX_NAME = 63


class Family(enum.StrEnum):
    TPU = "tpu"
    """A unit is a whole slice; its hosts follow from the topology."""
    HOST = "host"
    """A unit is a group of hosts with accelerators: GPUs, Gaudi, Trainium."""
    CPU = "cpu"
    """A unit is a group of hosts without accelerators."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a container needs to open the devices of its host, beyond the restricted Pod Security profile."""

    root: bool = False
    """Only root may open them."""
    capabilities: tuple[str, ...] = ()
    """Capabilities that root needs besides. Another user would not get them: the kernel gives them to root only."""
    profile: str = "restricted"
    """The strictest Pod Security profile that admits this: https://kubernetes.io/docs/concepts/security/pod-security-standards/."""


UNPRIVILEGED = Access()
"""For device files that are open to every user."""
AS_ROOT = Access(root=True, profile="baseline")
"""For AMD: /dev/kfd and /dev/dri belong to root and a group whose number differs from host to host. See
https://github.com/ROCm/k8s-device-plugin/issues/93."""
AS_ROOT_WITH_LOCKED_MEMORY = Access(root=True, capabilities=("SYS_RESOURCE",), profile="privileged")
"""For TPUs: their VFIO devices belong to root, and the driver locks memory, so the program must first raise its limit, as `diloco-launch`
does. See https://cloud.google.com/kubernetes-engine/docs/how-to/tpus#privileged-mode."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One kind of hardware: a row of the catalogue."""

    name: str
    """The name in spec.pools[].accelerator."""
    family: Family
    resource: str = ""
    """The extended resource that a pod requests. "" for cpu."""
    labels: tuple[NodeLabels, ...] = ()
    """The labels of its nodes. Each entry alone means this kind."""
    taints: tuple[str, ...] = ()
    """Keys of the taints that its nodes may have because of the hardware. Its pods tolerate them, and need no other toleration."""
    host_sizes: tuple[int, ...] = ()
    """How many accelerators hosts of this kind have, ascending."""
    peak_tflops: float = 0.0
    """Dense bfloat16 TFLOP/s of one accelerator, without sparsity. 0 if unknown. It is a prior for a unit's speed until the unit has
    reported its own, and never enters a merge weight."""
    memory_gb: float = 0.0
    """High-bandwidth memory of one accelerator, in GB."""
    host_options: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """For TPUs, topology -> the chips that its hosts may have. Several if the topology label is ambiguous."""
    topology_rule: str = ""
    """For TPUs, the topologies in words, for messages."""
    sources: tuple[str, ...] = ()
    """URLs of the pages that state host sizes, peak and memory."""
    access: Access = UNPRIVILEGED

    @property
    def topologies(self) -> tuple[str, ...]:
        return tuple(self.host_options)

    def node_selector(self, topology: str) -> dict[str, str]:
        """Return the node labels that GKE wants a pod of a TPU slice to select. {} for other families."""
        return next((each.selector(topology) for each in self.labels if each.dialect.topology), {})


def tpu_3d(
    name: str, label: str, *, peak: float, memory: float, pod: tuple[int, int, int], max_chips: int, sources: tuple[str, ...]
) -> Accelerator:
    """Return a TPU whose slices are 3-D tori of hosts with 4 chips."""
    return Accelerator(
        name,
        Family.TPU,
        resource="google.com/tpu",
        labels=(GKE_TPU.of(label),),
        taints=("google.com/tpu",),
        host_sizes=(4,),
        peak_tflops=peak,
        memory_gb=memory,
        host_options=torus(*pod, max_chips=max_chips),
        topology_rule="2x2x1, 2x2x2, 2x2x4, 2x4x4, or AxBxC of multiples of 4 with A <= B <= C, "
        f"at most {'x'.join(map(str, pod))} and {max_chips} chips",
        sources=sources,
        access=AS_ROOT_WITH_LOCKED_MEMORY,
    )


def tpu_2d(name: str, label: str, *, peak: float, memory: float, sources: tuple[str, ...]) -> Accelerator:
    """Return a TPU whose slices are 2-D meshes of hosts with 1, 4 or 8 chips."""
    return Accelerator(
        name,
        Family.TPU,
        resource="google.com/tpu",
        labels=(GKE_TPU.of(label),),
        taints=("google.com/tpu",),
        host_sizes=(1, 4, 8),
        peak_tflops=peak,
        memory_gb=memory,
        host_options=MESH,
        topology_rule=", ".join(MESH),
        sources=sources,
        access=AS_ROOT_WITH_LOCKED_MEMORY,
    )


def host_accelerator(
    name: str,
    resource: str,
    *labels: NodeLabels,
    host_sizes: tuple[int, ...],
    peak: float,
    memory: float,
    sources: tuple[str, ...],
    taints: tuple[str, ...] = (),
    access: Access = UNPRIVILEGED,
) -> Accelerator:
    """Return an accelerator of single hosts. Its pods always tolerate the taint that is named like the resource: clusters use it by
    convention (https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#extendedresourcetoleration)."""
    return Accelerator(
        name,
        Family.HOST,
        resource=resource,
        labels=labels,
        taints=(resource, *taints),
        host_sizes=host_sizes,
        peak_tflops=peak,
        memory_gb=memory,
        sources=sources,
        access=access,
    )
