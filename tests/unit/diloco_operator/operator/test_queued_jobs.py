"""Jobs whose units Kueue gives quota to, through a whole operator: what it reads of Kueue, and what it says to Kueue at the end."""

from __future__ import annotations

from typing import Any

from builders.kube_objects import eventually
from builders.operator_run import running
from builders.workloads import FINALIZER, GATE, NO_QUOTA, a_workload, workloads_crd
from diloco_operator.api import names
from diloco_operator.kube.client import Obj, PatchType

from .test_missing_rights import TwoTeams, play

POD = "lm-v6e-0-a1-0"


async def _suspended_queue(cluster: TwoTeams, **spec: Any) -> None:
    """The job of team-a, in the queue `gpus`."""
    made = await cluster.apply("team-a")
    change = {"spec": {"suspend": True, "queueName": "gpus", **spec}}
    await cluster.api.patch(names.DILOCO_JOBS, "team-a", "lm", change, type=PatchType.MERGE)
    assert made["spec"]["queueName"] == ""


async def _resume(cluster: TwoTeams) -> None:
    await cluster.api.patch(names.DILOCO_JOBS, "team-a", "lm", {"spec": {"suspend": False}}, type=PatchType.MERGE)


async def _pod(cluster: TwoTeams) -> Obj:
    """The learner's pod, once it is there."""

    async def there() -> bool:
        return POD in await cluster.pods("team-a")

    await eventually(there, POD, seconds=600)
    return await cluster.api.get(names.PODS, "team-a", POD)


async def _says(cluster: TwoTeams, words: str, *, within: float = 600) -> None:
    """Waits until the unit's message has these words."""

    async def said() -> bool:
        job = await cluster.api.get(names.DILOCO_JOBS, "team-a", "lm")
        return any(words in unit["message"] for unit in job["status"].get("units", ()))

    await eventually(said, words, seconds=within)


def test_job_with_a_queue_begins_once_kueue_is_installed_and_repeats_its_words() -> None:
    async def scenario(cluster: TwoTeams) -> None:
        await _suspended_queue(cluster)
        await _resume(cluster)
        async with running(cluster.operator):
            missing = await cluster.has("team-a", "KueueMissing", "Placed")
            assert "the API server has no workloads in kueue.x-k8s.io/v1beta2. Install Kueue" in missing["message"]
            assert [name for name in await cluster.pods("team-a") if name == POD] == []
            await cluster.api.create(names.CUSTOM_RESOURCES, workloads_crd())
            pod = await _pod(cluster)
            assert pod["spec"]["schedulingGates"] == [GATE]
            await _says(cluster, "Kueue has not taken it up yet")
            group = pod["metadata"]["labels"][names.KUEUE_GROUP]
            workload = a_workload(group, says=NO_QUOTA)
            meta = {"name": group, "namespace": "team-a"}
            await cluster.api.create(names.WORKLOADS, {"metadata": meta, "spec": {}})
            await _says(cluster, "Kueue has not come to it yet")
            await cluster.api.patch(
                names.WORKLOADS, "team-a", group, {"status": workload["status"]}, type=PatchType.MERGE, subresource="status"
            )
            await _says(cluster, f"Kueue says: {NO_QUOTA}", within=5)  # no later reconcile has to find it out

    play(scenario)


def test_right_on_workloads_that_is_missing_is_named_in_status() -> None:
    async def scenario(cluster: TwoTeams) -> None:
        await cluster.api.create(names.CUSTOM_RESOURCES, workloads_crd())
        cluster.forbidden.add(("list", "workloads", "team-a"))
        await _suspended_queue(cluster)
        await _resume(cluster)
        async with running(cluster.operator):
            missing = await cluster.has("team-a", "KueueMissing", "Placed")
            assert 'cannot list resource "workloads"' in missing["message"]
            assert "the rights that docs/install.md lists" in missing["message"]
            cluster.forbidden.clear()
            await _pod(cluster)

    play(scenario)


def test_groups_of_a_job_that_is_deleted_are_released_after_it_is_gone() -> None:
    async def scenario(cluster: TwoTeams) -> None:
        await cluster.api.create(names.CUSTOM_RESOURCES, workloads_crd())
        await _suspended_queue(cluster)
        await _resume(cluster)
        async with running(cluster.operator):
            await _pod(cluster)
            held = {"metadata": {"finalizers": [FINALIZER]}}  # as Kueue's webhook does
            await cluster.api.patch(names.PODS, "team-a", POD, held, type=PatchType.MERGE)
            await cluster.api.delete(names.DILOCO_JOBS, "team-a", "lm")
            if POD in await cluster.pods("team-a"):
                await cluster.api.delete(names.PODS, "team-a", POD)  # as the garbage collector does

            async def released() -> bool:
                pod = await cluster.api.get(names.PODS, "team-a", POD)
                return bool(pod["metadata"].get("annotations", {}).get(names.KUEUE_RETRIABLE) == "false")

            await eventually(released, "the group's release", seconds=600)

    play(scenario)


def test_pod_of_a_job_that_is_gone_ends_although_its_node_does_not_answer() -> None:
    async def scenario(cluster: TwoTeams) -> None:
        await cluster.api.create(names.CUSTOM_RESOURCES, workloads_crd())
        await _suspended_queue(cluster)
        await _resume(cluster)
        async with running(cluster.operator):
            await _pod(cluster)
            admitted: Obj = {"metadata": {"finalizers": [FINALIZER]}, "spec": {"schedulingGates": None}}
            await cluster.api.patch(names.PODS, "team-a", POD, admitted, type=PatchType.MERGE)
            await cluster.api.bind("team-a", POD, "a-node-that-is-gone")
            await cluster.api.delete(names.DILOCO_JOBS, "team-a", "lm")
            if POD in await cluster.pods("team-a"):
                await cluster.api.delete(names.PODS, "team-a", POD)  # as the garbage collector does

            async def ended() -> bool:
                status = (await cluster.api.get(names.PODS, "team-a", POD))["status"]
                return (status.get("phase"), status.get("reason")) == ("Failed", "NodeLost")

            await eventually(ended, "the end of the pod", seconds=600)

    play(scenario)
