"""Jobs on a cluster where other pods use some of the nodes."""

from __future__ import annotations

import asyncio

import pytest
from builders.cluster_scenes import TPU, occupy, play_shared, vacate
from builders.fake_cluster import FakeCluster
from builders.jobs import cpu_pool
from builders.pods import a_pod
from diloco_operator.api import names
from diloco_operator.fleet import SliceState
from diloco_operator.kube.client import Forbidden, Resource
from diloco_operator.operator import RunConfig
from diloco_operator.timeouts import WatchTimeouts


def slice_states(cluster: FakeCluster) -> dict[str, float | None]:
    """As the newest operator's /metrics reports them."""
    kind = {"accelerator": "tpu-v6e", "topology": "2x2"}
    return {state: cluster.metric("diloco_fleet_slices", **kind, state=state) for state in SliceState}


def all_of(count: int, *but: int) -> list[str]:
    return [f"np-{index}-0" for index in range(count) if index not in but]


@pytest.mark.slow
def test_units_take_the_slices_that_others_leave_and_fail_on_none() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        await occupy(cluster, "train-0", "np-0-0", tpu="4")
        await occupy(cluster, "train-1", "np-1-0", tpu="1")
        async with cluster.operating():
            await cluster.apply("lm", max=10)
            await cluster.trains_on("lm", *all_of(10, 0, 1))
            assert {unit["attempt"] for unit in (await cluster.status("lm"))["units"]} == {1}
            assert slice_states(cluster) == {"Free": 0, "Used": 2, "Reserved": 8, "Unusable": 0}
            assert cluster.metric("diloco_operator_sees_other_pods") == 1
            await cluster.pool_says("lm", "8 of this job; 2 used by other pods: team-a/train-0 and 1 more")
            await vacate(cluster, "train-0", "train-1")
            await cluster.trains_on("lm", *all_of(10))
            assert {unit["attempt"] for unit in (await cluster.status("lm"))["units"]} == {1}

    play_shared(scenario, 10)


@pytest.mark.slow
def test_job_that_waits_is_woken_when_another_pod_ends() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        pod = await occupy(cluster, "train-0", "np-0-0", tpu="4")
        async with cluster.operating():
            await cluster.apply("lm")
            await cluster.pool_says("lm", "the fleet has 1: 1 used by other pods: team-a/train-0")
            await cluster.settle(60)  # nothing else wakes the job
            await cluster.api.patch(names.PODS, "team-a", "train-0", {"status": {"phase": "Succeeded"}}, subresource="status")
            begun = asyncio.get_running_loop().time()
            await cluster.trains_on("lm", "np-0-0")
            assert asyncio.get_running_loop().time() - begun < 5  # far less than the time between two tries
            assert (await cluster.api.get(names.PODS, "team-a", "train-0"))["metadata"]["uid"] == pod["metadata"]["uid"]

    play_shared(scenario, 1)


@pytest.mark.slow
def test_pod_that_comes_beside_a_unit_evicts_nothing() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        async with cluster.operating():
            await cluster.apply("lm")
            await cluster.trains_on("lm", "np-0-0")
            await occupy(cluster, "train-0", "np-0-0", tpu="4")
            await asyncio.sleep(600)
            assert await cluster.units("lm") == {"v6e-0": ("np-0-0", "Training")}
            assert (await cluster.status("lm"))["units"][0]["attempt"] == 1
            await cluster.crash("lm-v6e-0-a1-0")
            await cluster.trains_on("lm", "np-1-0")  # no pod may return beside the other

    play_shared(scenario, 2)


@pytest.mark.slow
def test_pods_that_use_no_accelerators_leave_a_slice_to_units_that_fit_beside_them() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        await occupy(cluster, "agent", "np-0-0", cpu="2")
        async with cluster.operating():
            await cluster.apply("lm")
            await cluster.trains_on("lm", "np-0-0")

    play_shared(scenario, 1)


@pytest.mark.slow
def test_unit_that_needs_more_than_a_node_has_left_says_what_and_who_has_it() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        for index in range(3):
            await occupy(cluster, f"web-{index}", "cpu-0", cpu="10")
        pool = cpu_pool(max=1)
        pool["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "40"}}
        async with cluster.operating():
            await cluster.apply("lm", pool)
            assert "CPU left: team-a/web-0 and " in await cluster.pool_says("lm", "needs 40 CPU, node cpu-0 has ")
            assert await cluster.units("lm") == {"cpu-0": ("", "Pending")}
            await vacate(cluster, "web-0")
            await cluster.trains_on("lm", "cpu-0")

    play_shared(scenario, 0)


@pytest.mark.slow
def test_node_is_taken_only_once_its_device_plugin_reports() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        silent = {"status": {"allocatable": {TPU: "0"}}}
        await cluster.api.patch(names.NODES, "", "np-0-0", silent, subresource="status")
        async with cluster.operating():
            await cluster.apply("lm")
            await cluster.pool_says("lm", "1 unusable: node np-0-0 offers no google.com/tpu now: no device plugin has reported any")
            ready = {"status": {"allocatable": {TPU: "4"}}}
            await cluster.api.patch(names.NODES, "", "np-0-0", ready, subresource="status")
            await cluster.trains_on("lm", "np-0-0")

    play_shared(scenario, 1)


def test_pod_that_only_carries_the_label_of_a_job_is_another_pod() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        pod = a_pod("mine", node="np-0-0", container={"resources": {"limits": {TPU: "4"}}}, metadata={"labels": {names.LABEL_JOB: "lm"}})
        await cluster.api.create(names.PODS, pod)
        async with cluster.operating():
            await cluster.apply("lm", max=2)
            await cluster.trains_on("lm", "np-1-0")
            assert (await cluster.status("lm"))["units"][0]["attempt"] == 1
            await cluster.pool_says("lm", "1 used by other pods: default/mine")

    play_shared(scenario, 2)


@pytest.mark.slow
def test_operators_of_two_namespaces_take_different_slices() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        first, second = (RunConfig(stop_grace=0, namespaces=(namespace,)) for namespace in ("team-a", "team-b"))
        async with cluster.operating(first):
            await cluster.apply("lm", max=2, namespace="team-a")
            await cluster.trains_on("lm", "np-0-0", "np-1-0", namespace="team-a")
            async with cluster.operating(second):
                await cluster.apply("lm", max=3, namespace="team-b")
                await cluster.trains_on("lm", "np-2-0", "np-3-0", namespace="team-b")
                assert {unit["attempt"] for unit in (await cluster.status("lm", "team-b"))["units"]} == {1}
                message = (await cluster.status("lm", "team-b"))["pools"][0]["message"]
                assert "2 used by other pods: team-a/lm-v6e-0-a1-0 and 1 more" in message
                await cluster.api.delete(names.DILOCO_JOBS, "team-a", "lm")
                await cluster.trains_on("lm", "np-0-0", "np-2-0", "np-3-0", namespace="team-b")

    play_shared(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("namespaces", [(), ("default", "team-b")])
def test_operator_that_may_not_see_other_pods_says_so_and_works_on(namespaces: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: FakeCluster) -> None:
        forbidden = True

        def reject(verb: str, resource: Resource, namespace: str, name: str) -> None:
            task = asyncio.current_task()
            if forbidden and verb == "list" and task is not None and task.get_name().startswith("watching pods with "):
                raise Forbidden(403, "Forbidden", "pods is forbidden at the cluster scope")

        cluster.api.before = reject
        await occupy(cluster, "train-0", "np-1-0", tpu="4")
        run = RunConfig(stop_grace=0, namespaces=namespaces, watches=WatchTimeouts())
        async with cluster.operating(run):
            await cluster.apply("lm")
            await cluster.trains_on("lm", "np-0-0")
            assert "Without this right the operator does not see which nodes other pods use" in caplog.text
            assert caplog.text.count("Without this right") == (2 if namespaces else 1)  # once for each watch, not at each try
            assert cluster.metric("diloco_operator_sees_other_pods") == 0
            forbidden = False
            await asyncio.sleep(300)
            await cluster.apply("next", max=3)
            await cluster.trains_on("next", "np-2-0", "np-3-0")
            assert cluster.metric("diloco_operator_sees_other_pods") == 1

    play_shared(scenario)


@pytest.mark.slow
def test_operator_that_starts_anew_sees_the_same() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        await occupy(cluster, "train-0", "np-0-0", tpu="4")
        async with cluster.operating():
            await cluster.apply("lm", max=2)
            await cluster.trains_on("lm", "np-1-0", "np-2-0")
        async with cluster.operating():
            await cluster.apply("next", max=4)
            await cluster.trains_on("next", "np-3-0")
            await asyncio.sleep(60)
            await cluster.trains_on("lm", "np-1-0", "np-2-0")

    play_shared(scenario)
