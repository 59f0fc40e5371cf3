"""Extended resources of nodes and pods."""

from __future__ import annotations

import pytest
from diloco_operator.fleet.devices import Devices, has_accelerators, is_extended_resource, offered_devices, telling

NPU, GPU = "example.com/npu", "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("resource", "extended"),
    [
        ("example.com/npu", True),
        ("amd.com/gpu", True),
        ("cpu", False),
        ("ephemeral-storage", False),
        ("hugepages-2Mi", False),
        ("attachable-volumes-aws-ebs", False),
        ("scheduling.kubernetes.io/foo", False),
        ("kubernetes.io/batch-cpu", False),
        ("requests.example.com/npu", False),
    ],
)
def test_extended_resources_are_what_kubernetes_says(resource: str, extended: bool) -> None:
    assert is_extended_resource(resource) is extended


@pytest.mark.parametrize(
    ("capacity", "allocatable", "devices"),
    [
        ({GPU: "8", NPU: "4", "cpu": "8"}, {GPU: "7", NPU: "4", "cpu": "7"}, ((NPU, 4), (GPU, 7))),
        ({GPU: "8"}, {"cpu": "7"}, ((GPU, 0),)),  # its device plugin is down
        ({GPU: "8"}, {}, ((GPU, 8),)),  # a simulated node need not say what is allocatable
        ({}, {GPU: 8}, ((GPU, 8),)),
        ({}, {GPU: "many", NPU: None}, ((NPU, 0), (GPU, 0))),
        ({}, {NPU: "1k"}, ((NPU, 1000),)),  # so the API server writes 1000
        ({}, {}, ()),
    ],
)
def test_node_offers_what_it_can_allocate_of_each_device_that_it_has(
    capacity: dict[str, object], allocatable: dict[str, object], devices: Devices
) -> None:
    assert offered_devices(capacity, allocatable) == devices


def test_devices_of_the_network_tell_nothing_of_a_node() -> None:
    assert telling((("example.com/npu", 1), ("rdma/hca", 2))) == (("example.com/npu", 1),)


@pytest.mark.parametrize(
    ("devices", "accelerators"), [(((NPU, 4), (GPU, 1)), True), (((GPU, 0),), False), (((NPU, 4),), False), ((), False)]
)
def test_accelerators_are_devices_of_the_catalogue(devices: Devices, accelerators: bool) -> None:
    assert has_accelerators(devices) is accelerators
