"""How `kubectl diloco` finds jobs and waits for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from builders.cluster_scenes import begin, on_a_cluster, set_status, unit
from builders.fake_cluster import FakeCluster
from diloco_cli.cluster import CommandError
from diloco_cli.jobs import find_job, list_jobs, wait_until
from diloco_local.memory import MemoryApi
from diloco_operator.api.names import DILOCO_JOBS
from diloco_operator.kube.client import Obj, Unavailable


@on_a_cluster
async def test_an_unknown_job_is_told_with_those_that_there_are(cluster: FakeCluster) -> None:
    await begin(cluster)
    with pytest.raises(CommandError, match='no DiLoCoJob "bites-lm" in namespace "team"; there are: bytes-lm'):
        await find_job(cluster.api, "team", "bites-lm")
    with pytest.raises(CommandError, match='in namespace "elsewhere"; there are none in it; choose another namespace with -n'):
        await find_job(cluster.api, "elsewhere", "bytes-lm")


@on_a_cluster
async def test_a_cluster_without_the_crd_is_told_to_install_the_operator(cluster: FakeCluster) -> None:
    with pytest.raises(CommandError, match=r"has no dilocojobs\.diloco\.dev: install the operator first"):
        await list_jobs(cluster.api, "team")


@on_a_cluster
async def test_waiting_goes_on_through_a_lost_api_server_and_forgotten_history(cluster: FakeCluster) -> None:
    await begin(cluster, unit(state="Starting"))
    broken = Flaky(cluster.api)
    waiting = asyncio.create_task(wait_until(broken, "team", "bytes-lm", lambda view: view.complete, seconds=600))  # type: ignore[arg-type]
    await asyncio.sleep(1)
    await set_status(cluster, Complete="True")
    cluster.api.compact()
    view = await waiting
    assert view is not None
    assert broken.refused == 2  # one watch, and the read after it


@on_a_cluster
async def test_waiting_ends_with_the_job(cluster: FakeCluster) -> None:
    await begin(cluster)
    waiting = asyncio.create_task(wait_until(cluster.api, "team", "bytes-lm", lambda view: view.complete, seconds=600))
    await asyncio.sleep(1)
    await cluster.api.delete(DILOCO_JOBS, "team", "bytes-lm")
    with pytest.raises(CommandError, match='job "bytes-lm" was deleted'):
        await waiting


@on_a_cluster
async def test_streams_that_end_at_once_are_asked_for_once_a_second(cluster: FakeCluster) -> None:
    await begin(cluster, unit(state="Starting"))
    proxy = Closing(cluster.api)
    assert await wait_until(proxy, "team", "bytes-lm", lambda view: view.complete, seconds=60) is None
    assert proxy.watches == 60
    waiting = asyncio.create_task(wait_until(proxy, "team", "bytes-lm", lambda view: view.complete, seconds=600))
    await set_status(cluster, Complete="True")
    assert await waiting is not None


class Closing:
    """A proxy that ends each watch after what it has to say at once."""

    def __init__(self, api: MemoryApi) -> None:
        self._api = api
        self.watches = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def watch(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        self.watches += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0), contextlib.aclosing(self._api.watch(*args, **kwargs)) as events:  # type: ignore[type-var]
                async for event in events:
                    yield event


class Flaky:
    """The first watch and the read that follows it meet no API server."""

    def __init__(self, api: MemoryApi) -> None:
        self._api = api
        self.refused = 0
        self._down = False

    async def get(self, *args: Any, **kwargs: Any) -> Obj:
        if self._down:
            self._down = False
            self._refuse()
        return await self._api.get(*args, **kwargs)

    async def watch(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        if not self.refused:
            self._down = True
            self._refuse()
        async for event in self._api.watch(*args, **kwargs):
            yield event

    def _refuse(self) -> None:
        self.refused += 1
        raise Unavailable(503, "ServiceUnavailable", "connection refused")
