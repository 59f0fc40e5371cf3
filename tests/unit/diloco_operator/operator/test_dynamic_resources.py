"""Jobs on hosts whose GPUs only dynamic resource allocation (DRA) offers."""

from __future__ import annotations

import asyncio

from builders.cluster_scenes import gone, malformed, operated
from builders.dra import a_device_slice, a_dra_node, an_allocated_claim, claim, hold, offer
from builders.fake_cluster import NS, FakeCluster
from builders.jobs import gpu_pool, template
from builders.kube_objects import eventually
from builders.nodes import GPU, a_gpu_node
from diloco_operator.api import names
from diloco_operator.kube.client import Obj

AUTOSCALER = {"mode": "Autoscaler", "timeout": "10m"}
LABELS = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
GPUS = [f"gpu-{index}" for index in range(8)]


def waits(status: Obj) -> bool:
    return [unit["reason"] for unit in status.get("units", ())] == ["WaitingForNodes"]


async def learner(cluster: FakeCluster, name: str) -> Obj:
    """The spec of this pod."""
    found: Obj = (await cluster.api.get(names.PODS, NS, name))["spec"]
    return found


@operated(a_dra_node("a"), scheduler=True)
async def test_a_unit_claims_the_gpus_of_a_host_that_has_no_device_plugin(cluster: FakeCluster) -> None:
    await offer(cluster, "a")
    await cluster.apply("lm", gpu_pool(max=1))
    await cluster.trains_on("lm", "a")
    spec = await learner(cluster, "lm-h100-0-a1-0")
    (container,) = spec["containers"]
    (wanted,) = spec["resourceClaims"]
    assert GPU not in {**container["resources"]["requests"], **container["resources"]["limits"]}
    assert container["resources"]["claims"] == [{"name": wanted["name"]}]
    made = await cluster.api.get(names.CLAIM_TEMPLATES, NS, wanted["resourceClaimTemplateName"])
    (request,) = made["spec"]["spec"]["devices"]["requests"]
    product = 'device.attributes["gpu.nvidia.com"].productName.replace(" ", "-")'
    assert request["exactly"] == {
        "deviceClassName": "gpu.nvidia.com",
        "allocationMode": "ExactCount",
        "count": 8,
        "selectors": [{"cel": {"expression": f'{product} in ["NVIDIA-H100-80GB-HBM3"]'}}],
    }
    assert made["spec"]["metadata"]["labels"] == {names.LABEL_JOB: "lm"}
    await cluster.api.delete(names.DILOCO_JOBS, NS, "lm")
    await eventually(lambda: gone(cluster, names.CLAIM_TEMPLATES, made["metadata"]["name"]), "the template goes with the job")


@operated(a_dra_node("a"), a_gpu_node("b"), scheduler=True)
async def test_each_pod_asks_as_its_host_offers(cluster: FakeCluster) -> None:
    await offer(cluster, "a")
    await cluster.apply("lm", gpu_pool(max=2), min=2)
    await cluster.trains_on("lm", "a", "b")
    units = await cluster.units("lm")
    by_slice = {slice_: await learner(cluster, f"lm-{unit}-a1-0") for unit, (slice_, _) in units.items()}
    assert ("resourceClaims" in by_slice["a"], "resourceClaims" in by_slice["b"]) == (True, False)
    assert by_slice["b"]["containers"][0]["resources"]["limits"][GPU] == "8"


@operated(a_dra_node("a"), scheduler=True)
async def test_units_share_a_host_and_their_claims_count_once(cluster: FakeCluster) -> None:
    await offer(cluster, "a")
    await cluster.apply("lm", gpu_pool(max=2, acceleratorsPerHost=4), min=2)
    await cluster.trains_on("lm", "a", "a")
    for unit, devices in (("h100-0", GPUS[:4]), ("h100-1", GPUS[4:])):
        held = an_allocated_claim(unit, "a", devices, pod=f"lm-{unit}-a1-0", labels={names.LABEL_JOB: "lm"})
        held["metadata"]["namespace"] = NS
        await hold(cluster, held)
    await cluster.settle(60)
    await cluster.crash("lm-h100-0-a1-0")  # its claim outlasts it here: it is no one else's
    await cluster.when("lm", lambda status: [unit["attempt"] for unit in status["units"]] == [2, 1])
    await cluster.trains_on("lm", "a", "a")
    (made,) = await cluster.names_of(names.CLAIM_TEMPLATES)
    assert names.accelerators_claimed(made) == 4


@operated(a_dra_node("a"), scheduler=True)
async def test_gpus_that_others_claim_are_not_free(cluster: FakeCluster) -> None:
    await offer(cluster, "a")
    await claim(cluster, "theirs", "a", GPUS[:2], pod="train-0")
    await cluster.apply("lm", gpu_pool(max=1))
    assert "team-a/train-0" in await cluster.pool_says("lm", "used by other pods")
    await cluster.settle(60)
    await cluster.api.delete(names.RESOURCE_CLAIMS, "team-a", "theirs")
    await cluster.trains_on("lm", "a")


@operated(a_dra_node("a"), scheduler=True)
async def test_a_claim_is_counted_in_whatever_order_it_and_its_resource_slice_come(cluster: FakeCluster) -> None:
    await claim(cluster, "theirs", "a", ["gpu-0", "gpu-1-mig-0"])
    await cluster.apply("lm", gpu_pool(max=1, acceleratorsPerHost=8))
    await cluster.settle()
    await offer(cluster, "a")
    await cluster.pool_says("lm", "used by other pods")
    assert cluster.metric("diloco_fleet_slices", accelerator="nvidia-h100-80gb", topology="", state="Used") == 1


@operated(a_dra_node("a", labels=LABELS), scheduler=True)
async def test_a_delegated_unit_on_a_host_without_a_device_plugin_has_a_slice(cluster: FakeCluster) -> None:
    await offer(cluster, "a")
    await cluster.api.patch(names.NODES, "", "a", {"spec": {"unschedulable": True}})
    await cluster.apply("lm", gpu_pool(max=1, provisioning=AUTOSCALER))
    await cluster.when("lm", waits)
    await cluster.add([a_dra_node("b", labels=LABELS)])
    await offer(cluster, "b")
    await cluster.trains_on("lm", "b")
    status = await cluster.status("lm")
    assert (status["learners"]["placed"], status["units"][0]["attempt"]) == (1, 1)
    (wanted,) = (await learner(cluster, "lm-h100-0-a1-0"))["resourceClaims"]
    assert await cluster.names_of(names.CLAIM_TEMPLATES) == [wanted["resourceClaimTemplateName"]]


@operated(a_dra_node("a"), kubelets=False)
async def test_a_delegated_pod_asks_for_no_label_where_the_claim_alone_tells_the_kind(cluster: FakeCluster) -> None:
    await offer(cluster, "a")
    await cluster.api.patch(names.NODES, "", "a", {"spec": {"unschedulable": True}})
    await cluster.apply("lm", gpu_pool(max=1, provisioning=AUTOSCALER))
    await cluster.when("lm", waits)
    spec = await learner(cluster, "lm-h100-0-a1-0")
    assert ("nodeAffinity" in spec.get("affinity", {}), spec.get("nodeSelector", {})) == (False, {})


@operated(scheduler=True)
async def test_a_template_with_a_claim_of_its_own_keeps_it(cluster: FakeCluster) -> None:
    own = {"name": names.ACCELERATOR_CLAIM, "resourceClaimTemplateName": "eight-of-ours"}
    await cluster.apply("lm", gpu_pool(max=1, template=template(resourceClaims=[own]), provisioning=AUTOSCALER))
    await cluster.when("lm", waits)
    spec = await learner(cluster, "lm-h100-0-a1-0")
    assert (spec["resourceClaims"], spec["containers"][0].get("resources")) == ([own], None)
    assert await cluster.names_of(names.CLAIM_TEMPLATES) == []
    await cluster.add([a_dra_node("a", labels=LABELS)])
    await offer(cluster, "a")
    await cluster.trains_on("lm", "a")


@operated(a_dra_node("a"), a_dra_node("b"), scheduler=True)
async def test_a_resource_slice_that_cannot_be_read_costs_its_own_node_alone(cluster: FakeCluster) -> None:
    broken = a_device_slice("a")
    broken["spec"]["devices"][3]["attributes"] = {"type": {"string": ["gpu"]}}
    await cluster.api.create(names.RESOURCE_SLICES, broken)
    await offer(cluster, "b")
    await cluster.apply("lm", gpu_pool(max=2), max=2)
    await cluster.trains_on("lm", "b")
    assert malformed(cluster, names.RESOURCE_SLICES) == 1


@operated(a_gpu_node("a"), a_dra_node("b"), scheduler=True, runs=False)
async def test_without_the_right_to_read_them_only_hosts_with_a_device_plugin_are_taken(cluster: FakeCluster) -> None:
    await offer(cluster, "b")
    cluster.client.forbidden |= {("list", "resourceslices", ""), ("list", "resourceclaims", "")}
    async with cluster.operating():
        await cluster.apply("lm", gpu_pool(max=2), max=2)
        await cluster.trains_on("lm", "a")
        assert cluster.operator.caches.missing_rights == []
        cluster.client.forbidden.clear()
        await cluster.trains_on("lm", "a", "b")


@operated(a_dra_node("a"), scheduler=True)
async def test_a_template_that_the_api_server_refuses_is_named(cluster: FakeCluster) -> None:
    await offer(cluster, "a")
    cluster.client.rejects = lambda obj: "cannot create resourceclaimtemplates" if obj["kind"] == "ResourceClaimTemplate" else ""
    await cluster.apply("lm", gpu_pool(max=1))
    status = await cluster.when("lm", lambda status: [each["reason"] for each in status.get("units", ())] == ["PodsRefused"])
    assert "cannot create resourceclaimtemplates" in status["units"][0]["message"]
    cluster.client.rejects = lambda _: ""
    await cluster.trains_on("lm", "a")


@operated(a_dra_node("a"), scheduler=True)
async def test_a_host_whose_resource_slices_go_is_no_slice_and_says_why(cluster: FakeCluster) -> None:
    await offer(cluster, "a")
    await cluster.api.delete(names.RESOURCE_SLICES, "", "a-gpus")
    await cluster.apply("lm", gpu_pool(max=1))
    await asyncio.sleep(60)
    assert (await cluster.units("lm"))["h100-0"][0] == ""
    await offer(cluster, "a")
    await cluster.trains_on("lm", "a")


@operated(a_dra_node("a"), scheduler=True)
async def test_a_unit_that_trains_outlives_the_resource_slices_of_its_host(cluster: FakeCluster) -> None:
    await offer(cluster, "a")
    await cluster.apply("lm", gpu_pool(max=1))
    await cluster.trains_on("lm", "a")
    await cluster.api.delete(names.RESOURCE_SLICES, "", "a-gpus")
    await cluster.settle(600)
    await offer(cluster, "a")
    await cluster.settle(600)
    (unit,) = (await cluster.status("lm"))["units"]
    assert (unit["slice"], unit["state"], unit["attempt"]) == ("a", "Training", 1)
