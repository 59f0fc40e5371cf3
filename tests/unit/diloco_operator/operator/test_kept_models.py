"""What becomes of the model when its job is deleted: through the operator, with the garbage collector, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from builders.operator_run import running
from diloco_operator.api import names
from diloco_operator.kube.client import NotFound, Obj, PatchType, Resource

from .test_ended_pods import KEY, World, play


async def there(world: World, resource: Resource, name: str) -> Obj | None:
    try:
        return await world.api.get(resource, "default", name)
    except NotFound:
        return None


async def eventually(what: str, holds: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(1000):
        if await holds():
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"it never came to: {what}")


async def complete(world: World) -> None:
    await world.trains()
    await world.cluster.complete(KEY)
    await world.until("the job is complete", lambda unit: unit["state"] == "Completed")


async def job_is_gone(world: World) -> None:
    async def holds() -> bool:
        gone = [await there(world, *what) is None for what in ((names.DILOCO_JOBS, "lm"), (names.SERVICES, "lm"))]
        return all(gone)

    await eventually("the job and what it owns to be gone", holds)


async def set_retain(world: World, retain: str) -> None:
    body = {"spec": {"syncer": {"storage": {"retain": retain}}}}
    await world.api.patch(names.DILOCO_JOBS, "default", "lm", body, type=PatchType.MERGE)


@pytest.mark.parametrize("retain", ["Delete", "Keep"])
def test_time_to_live_takes_the_model_only_if_it_may(retain: str) -> None:
    async def scenario(world: World) -> None:
        async with running(world.operator()):
            await world.apply("lm", ttlSecondsAfterFinished=60, syncer={"storage": {"retain": retain}})
            await complete(world)
            await job_is_gone(world)
            assert (await there(world, names.VOLUME_CLAIMS, "lm-syncer") is not None) == (retain == "Keep")

    play(scenario)


@pytest.mark.parametrize(("before", "after"), [("Delete", "Keep"), ("Keep", "Delete")])
def test_last_word_counts_even_if_it_comes_while_no_operator_runs_and_the_time_is_up(before: str, after: str) -> None:
    async def scenario(world: World) -> None:
        async with running(world.operator()):
            await world.apply("lm", ttlSecondsAfterFinished=3600, syncer={"storage": {"retain": before}})
            await complete(world)
        await set_retain(world, after)
        await asyncio.sleep(4000)
        async with running(world.operator()):
            await job_is_gone(world)
            assert (await there(world, names.VOLUME_CLAIMS, "lm-syncer") is not None) == (after == "Keep")

    play(scenario)


@pytest.mark.parametrize(("before", "after"), [("Delete", "Keep"), ("Keep", "Delete")])
def test_user_who_waits_for_the_status_loses_nothing_and_leaves_nothing(before: str, after: str) -> None:
    async def scenario(world: World) -> None:
        async with running(world.operator()):
            await world.apply("lm", syncer={"storage": {"retain": before}})
            await complete(world)
            await set_retain(world, after)

            async def follows() -> bool:
                status = (await world.job())["status"]
                return bool(status["model"]["retain"] == after)

            await eventually("status.model to follow", follows)
            message = next(each["message"] for each in (await world.job())["status"]["conditions"] if each["type"] == "Complete")
            assert f"(syncer.storage.retain: {after})" in message
            await world.api.delete(names.DILOCO_JOBS, "default", "lm")
            await job_is_gone(world)
            assert (await there(world, names.VOLUME_CLAIMS, "lm-syncer") is not None) == (after == "Keep")

    play(scenario)


def test_job_of_the_same_name_waits_until_the_kept_claim_is_deleted() -> None:
    async def scenario(world: World) -> None:
        async with running(world.operator()):
            await world.apply("lm", ttlSecondsAfterFinished=60, syncer={"storage": {"retain": "Keep"}})
            await complete(world)
            await job_is_gone(world)
            world.cluster.done.clear()
            kept = await there(world, names.VOLUME_CLAIMS, "lm-syncer")
            await world.apply("lm", syncer={"storage": {"retain": "Keep"}})

            async def refused() -> bool:
                return "keeps the model of an earlier job" in str((await world.job()).get("status"))

            await eventually("the job to say what is in its way", refused)
            await asyncio.sleep(600)
            assert await there(world, names.VOLUME_CLAIMS, "lm-syncer") == kept
            assert await world.pods() == {}
            await world.api.delete(names.VOLUME_CLAIMS, "default", "lm-syncer")
            await world.trains()

    play(scenario)
