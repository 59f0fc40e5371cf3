"""The catalogue of hardware kinds: facts that placement, the CRD and the unit's shape are made from. Pure.

Sources: labels, machine types and topologies from the GKE documentation (TPUs in GKE, GPU machine types), `nvidia.com/gpu.product`
from NVIDIA's GPU feature discovery, peaks from the vendors' data sheets (dense bfloat16, without sparsity). A peak is a prior for a
unit's speed until it has reported its own; it never enters a merge weight.
"""

from __future__ import annotations

import enum
import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

RESOURCE_TPU = "google.com/tpu"
RESOURCE_GPU = "nvidia.com/gpu"
CPU = "cpu"
"""The kind for machines without accelerators."""


class Family(enum.StrEnum):
    TPU = "tpu"
    GPU = "gpu"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One kind of hardware."""

    name: str
    """As in spec.pools[].accelerator."""
    family: Family
    gke_labels: tuple[str, ...] = ()
    """Values of the GKE node label (`gke-tpu-accelerator` for a TPU, `gke-accelerator` for a GPU) that mean this kind."""
    gpu_products: tuple[str, ...] = ()
    """Values of `nvidia.com/gpu.product` that mean this kind."""
    resource: str = ""
    """Extended resource that a pod asks for; "" for cpu."""
    host_sizes: tuple[int, ...] = ()
    """Accelerators that hosts of this kind come with, ascending."""
    peak_tflops: float = 0.0
    """Dense bfloat16 TFLOP/s of one accelerator; 0: unknown."""
    memory_gb: float = 0.0
    """High-bandwidth memory of one accelerator."""
    host_options: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """TPU: every topology, with the chips per host that it can be built from; more than one where the label alone does not tell."""
    topology_rule: str = ""
    """TPU: the topologies in words, for messages."""

    @property
    def topologies(self) -> tuple[str, ...]:
        return tuple(self.host_options)

    @property
    def dimensions(self) -> int:
        """Dimensions of a topology, 0 without topologies."""
        return max((len(parse_topology(topology)) for topology in self.host_options), default=0)


@dataclass(frozen=True, slots=True)
class UnitShape:
    """What one learner unit occupies."""

    accelerator: str
    hosts: int
    accelerators_per_host: int
    """0 for cpu."""
    resource: str
    topology: str = ""

    @property
    def accelerators(self) -> int:
        return self.hosts * self.accelerators_per_host

    @property
    def peak_tflops(self) -> float:
        """Prior for the speed of a unit, dense bfloat16 TFLOP/s; 0 for cpu."""
        return self.accelerators * CATALOGUE[self.accelerator].peak_tflops


_TOPOLOGY = re.compile(r"^[1-9][0-9]{0,2}(x[1-9][0-9]{0,2}){1,2}$")


def parse_topology(text: str) -> tuple[int, ...]:
    """Sizes of a topology: `2x2x4` -> (2, 2, 4). Raises ValueError for anything else."""
    if not _TOPOLOGY.fullmatch(text):
        raise ValueError(f"{text!r} is not a topology: write sizes with x between them, such as 2x4 or 2x2x2")
    return tuple(int(size) for size in text.split("x"))


def chip_count(topology: str) -> int:
    """Chips of a slice: the product of its sizes."""
    return math.prod(parse_topology(topology))


def _torus(*pod: int, max_chips: int) -> dict[str, tuple[int, ...]]:
    """Topologies of a 3-D TPU with 4 chips per host: four small ones, then AxBxC of 4x4x4 cubes, A <= B <= C, that fit into the pod."""
    small = ["2x2x1", "2x2x2", "2x2x4", "2x4x4"]
    large = [
        sizes
        for sizes in itertools.product(*(range(4, size + 1, 4) for size in pod))
        if list(sizes) == sorted(sizes) and math.prod(sizes) <= max_chips
    ]
    large.sort(key=lambda sizes: (math.prod(sizes), sizes))
    return dict.fromkeys([*small, *("x".join(map(str, sizes)) for sizes in large)], (4,))


_MESH = {"1x1": (1,), "2x2": (4,), "2x4": (4, 8), "4x4": (4,), "4x8": (4,), "8x8": (4,), "8x16": (4,), "16x16": (4,)}


def _tpu3d(name: str, label: str, peak: float, memory: float, pod: tuple[int, int, int], max_chips: int) -> Accelerator:
    return Accelerator(
        name,
        Family.TPU,
        gke_labels=(label,),
        resource=RESOURCE_TPU,
        host_sizes=(4,),
        peak_tflops=peak,
        memory_gb=memory,
        host_options=_torus(*pod, max_chips=max_chips),
        topology_rule="2x2x1, 2x2x2, 2x2x4, 2x4x4, or AxBxC of multiples of 4 with A <= B <= C, "
        f"at most {'x'.join(map(str, pod))} and {max_chips} chips",
    )


def _tpu2d(name: str, label: str, peak: float, memory: float) -> Accelerator:
    return Accelerator(
        name,
        Family.TPU,
        gke_labels=(label,),
        resource=RESOURCE_TPU,
        host_sizes=(1, 4, 8),
        peak_tflops=peak,
        memory_gb=memory,
        host_options=_MESH,
        topology_rule=", ".join(_MESH),
    )


def _gpu(
    name: str, peak: float, memory: float, *products: str, labels: tuple[str, ...] = (), host_sizes: tuple[int, ...] = (1, 2, 4, 8)
) -> Accelerator:
    return Accelerator(
        name,
        Family.GPU,
        gke_labels=labels or (name,),
        gpu_products=products,
        resource=RESOURCE_GPU,
        host_sizes=host_sizes,
        peak_tflops=peak,
        memory_gb=memory,
    )


_ALL = (
    _tpu3d("tpu-v4", "tpu-v4-podslice", 275, 32, (16, 16, 16), 4096),
    _tpu2d("tpu-v5e", "tpu-v5-lite-podslice", 197, 16),
    _tpu3d("tpu-v5p", "tpu-v5p-slice", 459, 95, (16, 20, 28), 6144),
    _tpu2d("tpu-v6e", "tpu-v6e-slice", 918, 32),
    _tpu3d("tpu7x", "tpu7x", 2307, 192, (16, 24, 24), 9216),
    _gpu("nvidia-l4", 121, 24, "NVIDIA-L4"),
    _gpu("nvidia-a100-40gb", 312, 40, "NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB", labels=("nvidia-tesla-a100",)),
    _gpu("nvidia-a100-80gb", 312, 80, "NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"),
    _gpu("nvidia-h100-80gb", 989, 80, "NVIDIA-H100-80GB-HBM3"),
    _gpu("nvidia-h100-mega-80gb", 989, 80),
    _gpu("nvidia-h200-141gb", 989, 141, "NVIDIA-H200"),
    _gpu("nvidia-b200", 2250, 180, "NVIDIA-B200"),
    _gpu("nvidia-gb200", 2500, 186, "NVIDIA-GB200", host_sizes=(4,)),
    Accelerator(CPU, Family.CPU),
)

CATALOGUE: Mapping[str, Accelerator] = MappingProxyType({accelerator.name: accelerator for accelerator in _ALL})
"""Every kind by its name."""
ACCELERATOR_NAMES: tuple[str, ...] = tuple(CATALOGUE)


def of_family(*families: Family) -> tuple[str, ...]:
    """Names of the kinds of these families."""
    return tuple(accelerator.name for accelerator in _ALL if accelerator.family in families)


def unit_shape(
    accelerator: str,
    *,
    topology: str = "",
    chips_per_host: int | None = None,
    hosts: int | None = None,
    accelerators_per_host: int | None = None,
) -> UnitShape:
    """Hosts and accelerators of a unit, from the fields of a pool. Raises ValueError where the CRD's rules do not hold.

    TPU: hosts = chips of the topology / chips per host. GPU and cpu: hosts as given, 1 if not.
    """
    kind = CATALOGUE.get(accelerator)
    if kind is None:
        raise ValueError(f"accelerator {accelerator!r} is not in the catalogue: {', '.join(ACCELERATOR_NAMES)}")
    if kind.family is Family.TPU:
        options = kind.host_options.get(topology)
        if options is None:
            raise ValueError(f"{accelerator} has no topology {topology!r}; it has {kind.topology_rule}")
        size = chips_per_host if chips_per_host is not None else options[0] if len(options) == 1 else None
        if size not in options:
            raise ValueError(f"{accelerator} {topology} needs chipsPerHost of {' or '.join(map(str, options))}, not {chips_per_host}")
        return UnitShape(accelerator, chip_count(topology) // size, size, kind.resource, topology)
    per_host = 0 if kind.family is Family.CPU else accelerators_per_host or kind.host_sizes[-1]
    return UnitShape(accelerator, hosts or 1, per_host, kind.resource)
