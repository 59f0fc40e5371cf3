"""What `diloco submit` creates in a cluster, and what it leaves where that fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from builders.cluster_scenes import on_a_cluster
from builders.fake_cluster import FakeCluster
from builders.jobs import Obj
from builders.virtual_time import run_virtual
from diloco_cli.cluster import CommandError
from diloco_cli.diloco.submission import Script, Submission, config_map_of, job_of
from diloco_cli.diloco.submitted import create_job
from diloco_cli.pool_option import read_pool
from diloco_local.memory import MemoryApi
from diloco_operator.api import names
from diloco_operator.api.crd import build_crd
from diloco_operator.kube.client import Invalid, NotFound, Unavailable


def wanted(**fields: Any) -> tuple[Obj, Obj]:
    given: dict[str, Any] = {"script": Script("train.py", "pass\n"), "steps": 10, **fields}
    asked = Submission("train", image="none", pools=[read_pool("cpu=1", None)], namespace="team", **given)
    config_map = config_map_of(asked)
    assert config_map is not None
    return job_of(asked), config_map


async def scripts(cluster: FakeCluster) -> list[Obj]:
    return (await cluster.api.list(names.CONFIG_MAPS, "team")).items


async def a_namespace(cluster: FakeCluster) -> None:
    await cluster.api.create(names.CUSTOM_RESOURCES, build_crd())
    await cluster.api.create(names.NAMESPACES, {"metadata": {"name": "team"}})


@on_a_cluster
async def test_the_script_belongs_to_the_job(cluster: FakeCluster) -> None:
    await a_namespace(cluster)
    job = await create_job(cluster.api, *wanted())
    [script] = await scripts(cluster)
    [owner] = script["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("DiLoCoJob", "train", job["metadata"]["uid"])
    assert script["data"] == {"train.py": "pass\n"}


@on_a_cluster
async def test_a_job_that_is_there_stays_as_it_is(cluster: FakeCluster) -> None:
    await a_namespace(cluster)
    await create_job(cluster.api, *wanted())
    with pytest.raises(CommandError, match=r'there is a job "train" in namespace "team" already; give --name .* kubectl delete dlj train'):
        await create_job(cluster.api, *wanted(script=Script("train.py", "other\n")))
    assert len(await scripts(cluster)) == 1


@on_a_cluster
async def test_a_refused_job_leaves_no_script(cluster: FakeCluster) -> None:
    await a_namespace(cluster)
    with pytest.raises(Invalid):
        await create_job(cluster.api, *wanted(least=5))
    assert await scripts(cluster) == []


@on_a_cluster
async def test_a_cluster_without_the_operators_kinds_is_told_and_left_as_it_was(cluster: FakeCluster) -> None:
    await cluster.api.create(names.NAMESPACES, {"metadata": {"name": "team"}})
    with pytest.raises(CommandError, match=r"this cluster has no dilocojobs.diloco.dev: install the operator first"):
        await create_job(cluster.api, *wanted())
    assert await scripts(cluster) == []


class FailingOnce:
    """A client with one write that fails; `error` is raised instead of the write with this number, from 0."""

    def __init__(self, api: Any, number: int, error: BaseException) -> None:
        self._api, self._left, self._error = api, number, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def create(self, *args: Any, **how: Any) -> Obj:
        return await self._write(self._api.create, *args, **how)

    async def patch(self, *args: Any, **how: Any) -> Obj:
        return await self._write(self._api.patch, *args, **how)

    async def _write(self, act: Callable[..., Awaitable[Obj]], *args: Any, **how: Any) -> Obj:
        self._left -= 1
        if self._left == -1:
            raise self._error
        return await act(*args, **how)


@pytest.mark.parametrize("error", [Unavailable(503, "", "no connection"), asyncio.CancelledError()], ids=["unavailable", "Ctrl-C"])
@pytest.mark.parametrize("number", range(3))
def test_whichever_write_fails_no_script_and_no_job_stays(number: int, error: BaseException) -> None:
    async def scenario() -> None:
        cluster = FakeCluster(MemoryApi())
        await a_namespace(cluster)
        client: Any = FailingOnce(cluster.api, number, error)
        with contextlib.suppress(type(error)):
            await create_job(client, *wanted())
            return  # there is no such write
        jobs = (await cluster.api.list(names.DILOCO_JOBS, "team")).items
        assert (jobs, await scripts(cluster)) == ([], [])

    run_virtual(scenario())


@on_a_cluster
async def test_a_missing_namespace_is_named(cluster: FakeCluster) -> None:
    await cluster.api.create(names.CUSTOM_RESOURCES, build_crd())
    with pytest.raises(NotFound, match='namespaces "team" not found'):
        await create_job(cluster.api, *wanted())


@on_a_cluster
async def test_a_script_that_no_job_owns_is_taken(cluster: FakeCluster) -> None:
    await a_namespace(cluster)
    job, config_map = wanted()
    await cluster.api.create(names.CONFIG_MAPS, config_map)
    await create_job(cluster.api, job, config_map)
    [script] = await scripts(cluster)
    assert script["metadata"]["ownerReferences"]


@on_a_cluster
async def test_the_script_of_a_deleted_job_is_waited_for(cluster: FakeCluster) -> None:
    await a_namespace(cluster)
    job, config_map = wanted()
    other = await cluster.api.create(names.DILOCO_JOBS, {**job, "metadata": {**job["metadata"], "name": "old"}})
    old = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "old", "uid": other["metadata"]["uid"]}
    metadata = {**config_map["metadata"], "ownerReferences": [old]}
    await cluster.api.create(names.CONFIG_MAPS, {**config_map, "metadata": metadata})
    with pytest.raises(CommandError, match=r"of a deleted job does not go"):
        await create_job(cluster.api, job, config_map, seconds=1.0)
    creating = asyncio.create_task(create_job(cluster.api, job, config_map))
    await asyncio.sleep(2.0)
    assert not creating.done()
    await cluster.api.delete(names.CONFIG_MAPS, "team", metadata["name"])
    made = await creating
    [script] = await scripts(cluster)
    assert script["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]


@on_a_cluster
async def test_a_strangers_config_map_is_left_alone(cluster: FakeCluster) -> None:
    await a_namespace(cluster)
    job, config_map = wanted()
    await cluster.api.create(names.CONFIG_MAPS, {**config_map, "data": {"other": "x"}})
    with pytest.raises(CommandError, match=r"has another content"):
        await create_job(cluster.api, job, config_map)
    assert [each["data"] for each in await scripts(cluster)] == [{"other": "x"}]
