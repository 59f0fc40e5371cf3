"""The order in which an operator that starts is told of objects."""

from __future__ import annotations

import asyncio
from typing import Any

from builders.fake_cluster import wall_clock
from builders.jobs import a_job
from builders.kube_objects import owned_by
from builders.operator_run import an_api
from builders.virtual_time import run_virtual, until
from diloco_local.memory import MemoryApi
from diloco_operator.api import names
from diloco_operator.kube.client import ObjList, Resource
from diloco_operator.kube.reflector import PAGE_SIZE
from diloco_operator.operator.caches import Caches


class JobsBetweenPages:
    """The API server. It answers the list of jobs after the first page of Secrets, and before the second."""

    def __init__(self, api: MemoryApi) -> None:
        self._api = api
        self.first_page = asyncio.Event()
        self.jobs = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def list(self, resource: Resource, namespace: str = "", *, continue_token: str = "", **options: Any) -> ObjList:
        if resource == names.DILOCO_JOBS:
            await self.first_page.wait()
        elif resource == names.SECRETS and continue_token:
            await self.jobs.wait()
        page = await self._api.list(resource, namespace, continue_token=continue_token, **options)
        if resource == names.SECRETS and not continue_token:
            self.first_page.set()
        return page


def test_a_secret_that_comes_before_its_job_on_an_earlier_page_is_read_all_the_same() -> None:
    async def scenario() -> None:
        api = await an_api(wall_clock)
        await api.create(names.NAMESPACES, {"metadata": {"name": "team"}})
        job = await api.create(names.DILOCO_JOBS, a_job().with_learners(1, 1).with_pool().build())
        key = ("team", job["metadata"]["name"])
        meta = {"namespace": "team", "labels": {names.LABEL_JOB: key[1]}, "ownerReferences": [owned_by(job, controller=True)]}
        await api.create(names.SECRETS, {"metadata": {**meta, "name": names.authority_secret_name(key[1])}})
        for number in range(PAGE_SIZE):
            await api.create(names.SECRETS, {"metadata": {**meta, "name": f"z-{number}"}})
        client = JobsBetweenPages(api)
        caches = Caches(client, rng=lambda: 0.0)
        following = [asyncio.create_task(reflector.run()) for reflector in caches.reflectors]
        try:
            await until(lambda: caches.jobs.get(*key) is not None)
            client.jobs.set()
            await until(lambda: caches.children(key).authority is not None, within=5.0)
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    run_virtual(scenario())
