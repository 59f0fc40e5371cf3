"""The rows of the accelerator catalogue, in the order of the API reference. Pure data.

To add a kind, add a row, then run `make crds docs`; `tests/unit/diloco_operator/test_accelerator_rows.py` takes every row from a
node to a running pod. Names are part of the API: vendor, model, and the memory where the model comes with several sizes.
"""

from __future__ import annotations

from diloco_operator.accelerators.labels import (
    EKS_AUTO_MODE_GPU,
    GKE_GPU,
    INSTANCE_TYPE,
    KARPENTER_AWS_GPU,
    NVIDIA_FEATURE_DISCOVERY,
)
from diloco_operator.accelerators.model import CPU, Accelerator, Family, host_accelerator, tpu_2d, tpu_3d

_NVIDIA = "nvidia.com/gpu"
_GKE_TPU_SIZES = "https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus"
_GPU_MACHINES = "https://cloud.google.com/compute/docs/gpus"
_EC2 = "https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html"
_AZURE = "https://learn.microsoft.com/azure/virtual-machines/sizes/gpu-accelerated/nd-family"

ROWS = (
    tpu_3d(
        "tpu-v4",
        "tpu-v4-podslice",
        peak=275,
        memory=32,
        pod=(16, 16, 16),
        max_chips=4096,
        sources=(_GKE_TPU_SIZES, "https://cloud.google.com/tpu/docs/v4"),
    ),
    tpu_2d("tpu-v5e", "tpu-v5-lite-podslice", peak=197, memory=16, sources=(_GKE_TPU_SIZES, "https://cloud.google.com/tpu/docs/v5e")),
    tpu_3d(
        "tpu-v5p",
        "tpu-v5p-slice",
        peak=459,
        memory=95,
        pod=(16, 20, 28),
        max_chips=6144,
        sources=(_GKE_TPU_SIZES, "https://cloud.google.com/tpu/docs/v5p"),
    ),
    tpu_2d("tpu-v6e", "tpu-v6e-slice", peak=918, memory=32, sources=(_GKE_TPU_SIZES, "https://cloud.google.com/tpu/docs/v6e")),
    tpu_3d(
        "tpu7x",
        "tpu7x",
        peak=2307,
        memory=192,
        pod=(16, 24, 24),
        max_chips=9216,
        sources=(_GKE_TPU_SIZES, "https://cloud.google.com/tpu/docs/tpu7x"),
    ),
    host_accelerator(
        "nvidia-l4",
        _NVIDIA,
        GKE_GPU.of("nvidia-l4"),
        # The memory tells a whole L4 from the parts of one that g6f and gr6f have.
        KARPENTER_AWS_GPU.of("l4", qualifier="22888"),
        EKS_AUTO_MODE_GPU.of("l4", qualifier="22888"),
        NVIDIA_FEATURE_DISCOVERY.of("NVIDIA-L4"),
        INSTANCE_TYPE.of(
            "g6.48xlarge",
            "g6.24xlarge",
            "g6.16xlarge",
            "g6.12xlarge",
            "g6.8xlarge",
            "g6.4xlarge",
            "g6.2xlarge",
            "g6.xlarge",
            "gr6.8xlarge",
            "gr6.4xlarge",
        ),
        host_sizes=(1, 2, 4, 8),
        peak=121,
        memory=24,
        sources=(_GPU_MACHINES, _EC2, "https://www.nvidia.com/en-us/data-center/l4/"),
    ),
    host_accelerator(
        "nvidia-a100-40gb",
        _NVIDIA,
        GKE_GPU.of("nvidia-tesla-a100"),
        KARPENTER_AWS_GPU.of("a100", qualifier="40960"),
        EKS_AUTO_MODE_GPU.of("a100", qualifier="40960"),
        NVIDIA_FEATURE_DISCOVERY.of("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB"),
        INSTANCE_TYPE.of("p4d.24xlarge", "Standard_ND96asr_v4"),
        host_sizes=(1, 2, 4, 8),
        peak=312,
        memory=40,
        sources=(_GPU_MACHINES, _EC2, _AZURE, "https://www.nvidia.com/en-us/data-center/a100/"),
    ),
    host_accelerator(
        "nvidia-a100-80gb",
        _NVIDIA,
        GKE_GPU.of("nvidia-a100-80gb"),
        KARPENTER_AWS_GPU.of("a100", qualifier="81920"),
        EKS_AUTO_MODE_GPU.of("a100", qualifier="81920"),
        NVIDIA_FEATURE_DISCOVERY.of("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"),
        INSTANCE_TYPE.of(
            "p4de.24xlarge",
            "Standard_ND96amsr_A100_v4",
            "Standard_NC96ads_A100_v4",
            "Standard_NC48ads_A100_v4",
            "Standard_NC24ads_A100_v4",
        ),
        host_sizes=(1, 2, 4, 8),
        peak=312,
        memory=80,
        sources=(_GPU_MACHINES, _EC2, _AZURE, "https://www.nvidia.com/en-us/data-center/a100/"),
    ),
    host_accelerator(
        "nvidia-h100-80gb",
        _NVIDIA,
        GKE_GPU.of("nvidia-h100-80gb"),
        KARPENTER_AWS_GPU.of("h100"),
        EKS_AUTO_MODE_GPU.of("h100"),
        NVIDIA_FEATURE_DISCOVERY.of("NVIDIA-H100-80GB-HBM3"),
        INSTANCE_TYPE.of("p5.48xlarge", "p5.4xlarge", "Standard_ND96isr_H100_v5"),
        host_sizes=(1, 2, 4, 8),
        peak=989,
        memory=80,
        sources=(_GPU_MACHINES, _EC2, _AZURE, "https://www.nvidia.com/en-us/data-center/h100/"),
    ),
    host_accelerator(
        "nvidia-h100-mega-80gb",
        _NVIDIA,
        GKE_GPU.of("nvidia-h100-mega-80gb"),
        host_sizes=(1, 2, 4, 8),
        peak=989,
        memory=80,
        sources=(_GPU_MACHINES, "https://www.nvidia.com/en-us/data-center/h100/"),
    ),
    host_accelerator(
        "nvidia-h200-141gb",
        _NVIDIA,
        GKE_GPU.of("nvidia-h200-141gb"),
        KARPENTER_AWS_GPU.of("h200"),
        EKS_AUTO_MODE_GPU.of("h200"),
        NVIDIA_FEATURE_DISCOVERY.of("NVIDIA-H200"),
        INSTANCE_TYPE.of("p5en.48xlarge", "p5e.48xlarge", "Standard_ND96isr_H200_v5"),
        host_sizes=(1, 2, 4, 8),
        peak=989,
        memory=141,
        sources=(_GPU_MACHINES, _EC2, _AZURE, "https://www.nvidia.com/en-us/data-center/h200/"),
    ),
    host_accelerator(
        "nvidia-b200",
        _NVIDIA,
        GKE_GPU.of("nvidia-b200"),
        KARPENTER_AWS_GPU.of("b200"),
        EKS_AUTO_MODE_GPU.of("b200"),
        NVIDIA_FEATURE_DISCOVERY.of("NVIDIA-B200"),
        INSTANCE_TYPE.of("p6-b200.48xlarge"),
        host_sizes=(1, 2, 4, 8),
        peak=2250,
        memory=180,
        sources=(_GPU_MACHINES, _EC2, "https://www.nvidia.com/en-us/data-center/dgx-b200/"),
    ),
    host_accelerator(
        "nvidia-gb200",
        _NVIDIA,
        GKE_GPU.of("nvidia-gb200"),
        NVIDIA_FEATURE_DISCOVERY.of("NVIDIA-GB200"),
        INSTANCE_TYPE.of("p6e-gb200.36xlarge", "Standard_ND128isr_NDR_GB200_v6"),
        # Its hosts are Arm machines, which GKE taints.
        taints=("kubernetes.io/arch",),
        host_sizes=(4,),
        peak=2500,
        memory=186,
        sources=(
            _GPU_MACHINES,
            _EC2,
            _AZURE,
            "https://www.nvidia.com/en-us/data-center/gb200-nvl72/",
            "https://cloud.google.com/kubernetes-engine/docs/how-to/prepare-arm-workloads-for-deployment",
        ),
    ),
    Accelerator(CPU, Family.CPU),
)
