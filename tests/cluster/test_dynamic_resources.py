"""Hosts whose GPUs only ResourceSlices offer, on a real API server: kube-scheduler allocates what the operator's pods claim.

See docs/decisions/0269-dynamic-resource-allocation.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.contended_slices import an_operator
from builders.control_plane import ON_LATE, ControlPlane
from builders.dra import a_device, a_device_slice
from builders.jobs import a_manifest, gpu_pool
from builders.operator_process import wait_for
from diloco_operator.api import names

type Obj = dict[str, Any]

NODES = ["dra-0", "dra-1"]
DRA = f"/apis/{names.DRA}/v1"
# https://github.com/NVIDIA/k8s-dra-driver-gpu: the DeviceClass that comes with the driver.
WHOLE_GPUS = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"


@pytest.fixture
def dra(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Two hosts with four GPUs each and a part of one, and no device plugin."""
    plane = control_plane
    plane.install_crd()
    plane.offer_late_volumes()
    device_class = {"metadata": {"name": names.GPU_DRIVER}, "spec": {"selectors": [{"cel": {"expression": WHOLE_GPUS}}]}}
    plane.request("POST", f"{DRA}/deviceclasses", device_class)
    devices = [*(a_device(f"gpu-{index}") for index in range(4)), a_device("gpu-4-mig-0", kind="mig")]
    for name in NODES:
        plane.add_node(name)
        plane.request("POST", f"{DRA}/resourceslices", a_device_slice(name, *devices))
    yield plane
    plane.kubectl("delete", "node", *NODES)
    plane.kubectl("delete", "resourceslice", *(f"{name}-gpus" for name in NODES), "--ignore-not-found")
    plane.kubectl("delete", "deviceclass", names.GPU_DRIVER)


def listed(plane: ControlPlane, kind: str, where: str) -> list[Obj]:
    found: list[Obj] = json.loads(plane.kubectl("get", kind, "-n", where, "-o", "json").stdout)["items"]
    return found


def held(claim: Obj) -> list[tuple[str, str]]:
    """Pool and device of each device that a ResourceClaim holds."""
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return sorted((each["pool"], each["device"]) for each in results)


def other_pod_claims(plane: ControlPlane, where: str, node: str) -> None:
    """A pod that is of no job gets one GPU of the node."""
    request = {"name": "gpu", "exactly": {"deviceClassName": names.GPU_DRIVER, "count": 1}}
    template = {"metadata": {"name": "one"}, "spec": {"spec": {"devices": {"requests": [request]}}}}
    plane.request("POST", f"{DRA}/namespaces/{where}/resourceclaimtemplates", template)
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
    spec = {"containers": [container], "nodeSelector": {names.NODE_HOSTNAME: node}, "automountServiceAccountToken": False}
    spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
    plane.request("POST", f"/api/v1/namespaces/{where}/pods", {"metadata": {"name": "other"}, "spec": spec})
    wait_for(lambda: any(map(held, listed(plane, "resourceclaims", where))), "kube-scheduler to allocate the other pod's claim")


def test_a_unit_gets_the_gpus_of_a_host_without_a_device_plugin_by_a_claim(
    dra: ControlPlane, namespaces: list[str], tmp_path: Path
) -> None:
    plane, (where, elsewhere, *_) = dra, namespaces
    other_pod_claims(plane, elsewhere, NODES[0])

    def pod() -> Obj | None:
        return next(iter(each for each in listed(plane, "pods", where) if each["metadata"]["name"] == "lm-h100-0-a1-0"), None)

    with an_operator(plane, tmp_path, where) as operator:
        manifest = a_manifest("lm", min=1, max=1, pools=[gpu_pool(max=1, acceleratorsPerHost=4)], spec=ON_LATE)
        plane.kubectl("apply", "-n", where, "-f", "-", input=json.dumps(manifest))
        wait_for(lambda: ((pod() or {}).get("spec", {})).get("nodeName"), "kube-scheduler to bind the unit's pod", operator)
        bound = pod()
        assert bound is not None
        assert bound["spec"]["nodeName"] == NODES[1]  # of the other host three GPUs are free
        (claim,) = listed(plane, "resourceclaims", where)
        assert held(claim) == [(NODES[1], f"gpu-{index}") for index in range(4)]
        assert claim["status"]["reservedFor"][0]["name"] == bound["metadata"]["name"]
        plane.kubectl("delete", "dilocojob", "lm", "-n", where, "--wait=false")
        wait_for(
            lambda: "deletionTimestamp" in (pod() or {"metadata": {"deletionTimestamp": ""}})["metadata"], "its pod to be deleted", operator
        )
        plane.kubectl("delete", "pods", "--all", "-n", where, "--force", "--grace-period=0")  # no kubelet ends them here

        def left() -> list[Obj]:
            kinds = ("pods", "resourceclaims", "resourceclaimtemplates", "dilocojobs")
            return [each for kind in kinds for each in listed(plane, kind, where)]

        wait_for(lambda: not left(), "nothing of the job to be left", operator)
