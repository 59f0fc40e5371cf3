"""What becomes of the model when its job is deleted: through the operator, with the garbage collector, in memory."""

from __future__ import annotations

import asyncio

import pytest
from builders.cluster_scenes import play
from builders.fake_cluster import NS, FakeCluster
from builders.kube_objects import eventually
from diloco_operator.api import names
from diloco_operator.kube.client import NotFound, Obj, Resource


async def there(cluster: FakeCluster, resource: Resource, name: str) -> Obj | None:
    try:
        return await cluster.api.get(resource, NS, name)
    except NotFound:
        return None


async def apply(cluster: FakeCluster, retain: str, **spec: object) -> None:
    await cluster.apply("lm", spec={"syncer": {"storage": {"retain": retain}}, **spec})


async def complete(cluster: FakeCluster) -> None:
    await cluster.trains("lm")
    await cluster.complete((NS, "lm"))
    await cluster.when("lm", lambda status: status["units"][0]["state"] == "Completed")


async def job_is_gone(cluster: FakeCluster) -> None:
    async def holds() -> bool:
        gone = [await there(cluster, *what) is None for what in ((names.DILOCO_JOBS, "lm"), (names.SERVICES, "lm"))]
        return all(gone)

    await eventually(holds, "the job and what it owns to be gone", seconds=500)


async def set_retain(cluster: FakeCluster, retain: str) -> None:
    await cluster.edit(syncer={"storage": {"retain": retain}})


@pytest.mark.slow
@pytest.mark.parametrize("retain", ["Delete", "Keep"])
def test_time_to_live_takes_the_model_only_if_it_may(retain: str) -> None:
    async def scenario(cluster: FakeCluster) -> None:
        async with cluster.operating():
            await apply(cluster, retain, ttlSecondsAfterFinished=60)
            await complete(cluster)
            await job_is_gone(cluster)
            assert (await there(cluster, names.VOLUME_CLAIMS, "lm-syncer") is not None) == (retain == "Keep")

    play(scenario, slices=["np-a"])


@pytest.mark.parametrize(("before", "after"), [("Delete", "Keep"), ("Keep", "Delete")])
def test_last_word_counts_even_if_it_comes_while_no_operator_runs_and_the_time_is_up(before: str, after: str) -> None:
    async def scenario(cluster: FakeCluster) -> None:
        async with cluster.operating():
            await apply(cluster, before, ttlSecondsAfterFinished=3600)
            await complete(cluster)
        await set_retain(cluster, after)
        await asyncio.sleep(4000)
        async with cluster.operating():
            await job_is_gone(cluster)
            assert (await there(cluster, names.VOLUME_CLAIMS, "lm-syncer") is not None) == (after == "Keep")

    play(scenario, slices=["np-a"])


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [("Delete", "Keep"), ("Keep", "Delete")])
def test_user_who_waits_for_the_status_loses_nothing_and_leaves_nothing(before: str, after: str) -> None:
    async def scenario(cluster: FakeCluster) -> None:
        async with cluster.operating():
            await apply(cluster, before)
            await complete(cluster)
            await set_retain(cluster, after)

            async def follows() -> bool:
                status = await cluster.status()
                return bool(status["model"]["retain"] == after)

            await eventually(follows, "status.model to follow", seconds=500)
            message = next(each["message"] for each in (await cluster.status())["conditions"] if each["type"] == "Complete")
            assert f"(syncer.storage.retain: {after})" in message
            await cluster.api.delete(names.DILOCO_JOBS, NS, "lm")
            await job_is_gone(cluster)
            assert (await there(cluster, names.VOLUME_CLAIMS, "lm-syncer") is not None) == (after == "Keep")

    play(scenario, slices=["np-a"])


@pytest.mark.slow
def test_job_of_the_same_name_waits_until_the_kept_claim_is_deleted() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        async with cluster.operating():
            await apply(cluster, "Keep", ttlSecondsAfterFinished=60)
            await complete(cluster)
            await job_is_gone(cluster)
            cluster.done.clear()
            kept = await there(cluster, names.VOLUME_CLAIMS, "lm-syncer")
            await apply(cluster, "Keep")

            async def refused() -> bool:
                return "keeps the model of an earlier job" in str(await cluster.status())

            await eventually(refused, "the job to say what is in its way", seconds=500)
            await asyncio.sleep(600)
            assert await there(cluster, names.VOLUME_CLAIMS, "lm-syncer") == kept
            assert await cluster.pod_phases("lm") == {}
            await cluster.api.delete(names.VOLUME_CLAIMS, NS, "lm-syncer")
            await cluster.trains("lm")

    play(scenario, slices=["np-a"])
