"""Jobs through the real operator whose nodes are asked for by ProvisioningRequest, on a real control plane. The autoscaler is a stand-in
that follows the documented behaviour: cluster autoscaler cannot be built here, and flex-start is GKE's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from builders.control_plane import ControlPlane
from builders.growing_cluster import GrowingCluster, growing_cluster
from builders.growing_pools import GROWN, Answer, a_pool, growing_pools, install_requests
from builders.jobs import JobBuilder, gpu_pool, tpu_pool
from builders.kube_jobs import operator
from builders.local import is_gone, wait_for
from builders.local_jobs import learner_template
from diloco_operator.api import names

type Obj = dict[str, Any]


QUEUED = {"key": names.QUEUED_TAINT, "value": "true", "effect": "NoSchedule"}


@pytest.fixture
async def cluster(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[GrowingCluster]:
    """Without Karpenter; the operator of the chart runs."""
    install_requests(plane)
    async with growing_cluster(plane, tmp_path, nodes=GROWN) as found:
        with operator(plane, tmp_path):
            yield found


def a_job(name: str, *pools: Obj) -> Obj:
    """It never ends, and its pools are asked in their order."""
    training = {"steps": 1_000_000, "syncInterval": 8, "fragments": 8, "overlapSteps": 2}
    builder = JobBuilder(name).with_learners(1, 1).with_restarts(5, initial="0s").with_spec(placement={"objective": "Preference"})
    return builder.with_pools(*pools).with_training(**training).build()


def by_request(timeout: str) -> Obj:
    asks = {"mode": "ProvisioningRequest", "class": "queued-provisioning.gke.io", "timeout": timeout}
    return {"provisioning": asks, "template": learner_template(QUADRATIC_STEP_MS=100), "max": 1}


async def test_hosts_of_a_slice_come_by_one_request_and_go_when_the_job_is_suspended(cluster: GrowingCluster) -> None:
    pools = [a_pool("np-0", "tpu-v5p", topology="2x2x2", hosts=2, queued=True, in_stock=False)]
    pools[0].taints = [*pools[0].taints, QUEUED]
    async with growing_pools(cluster.client, pools):
        await cluster.apply(a_job("slice", tpu_pool("v5p", "tpu-v5p", "2x2x2", **by_request("5m"))))
        unit = await cluster.unit("slice", "v5p-0", lambda unit: "the request is in the queue" in unit.get("message", ""))
        assert (unit["reason"], unit["slice"]) == ("WaitingForNodes", "")
        pools[0].in_stock = True
        await cluster.unit("slice", "v5p-0", lambda unit: unit.get("slice") == "np-0")
        for host in range(2):
            pod = await cluster.pod(f"slice-v5p-0-a1-{host}", lambda pod: bool(pod and pod["spec"].get("nodeName")))
            assert pod["metadata"]["annotations"][names.CONSUME_REQUEST] == "slice-v5p-0-a1"
        await cluster.change("slice", {"suspend": True})
        for resource in (names.PROVISIONING_REQUESTS, names.POD_TEMPLATES):
            await wait_for(cluster.client, resource, "default", "slice-v5p-0-a1", is_gone)
        for node in ("np-0-0", "np-0-1"):
            await wait_for(cluster.client, names.NODES, "", node, is_gone)


async def test_request_that_fails_leaves_its_unit_to_the_next_pool_which_trains(cluster: GrowingCluster) -> None:
    def answers(name: str) -> Answer:
        return Answer.FAIL if name.startswith("refused-v5p") else Answer.PROVISION

    async with growing_pools(cluster.client, [a_pool("gpus", "nvidia-h100-80gb", per_host=8)], answer=answers):
        gpus = gpu_pool("h100", hosts=1, acceleratorsPerHost=8, **by_request("5m"))
        await cluster.apply(a_job("refused", tpu_pool("v5p", "tpu-v5p", "2x2x2", **by_request("5m")), gpus))
        unit = await cluster.unit("refused", "h100-0", lambda unit: unit.get("state") == "Training")
        assert (unit["slice"], unit["failures"]) == ("gpus-0", [])
        said = await cluster.told("refused", "UnitGaveSliceUp", source=names.FIELD_MANAGER)
        assert "ProvisioningRequest refused-v5p-0-a1 failed" in said
        assert "max node group size reached" in said


async def test_request_that_says_provisioned_and_brings_no_node_is_withdrawn_in_time(cluster: GrowingCluster) -> None:
    async with growing_pools(cluster.client, [], answer=lambda _: Answer.LIE):
        await cluster.apply(a_job("lie", tpu_pool("v5p", "tpu-v5p", "2x2x2", **by_request("3s"))))
        unit = await cluster.unit("lie", "v5p-0", lambda unit: unit.get("reason") == "NotProvisioned")
        assert "within 3s (provisioning.timeout of pool v5p)" in unit["message"]
        assert unit["failures"] == []
        await wait_for(cluster.client, names.PROVISIONING_REQUESTS, "default", "lie-v5p-0-a1", is_gone)
