"""What the operator may not read, and what it must not read: other namespaces go on, and strangers' Secrets stay closed."""

from __future__ import annotations

import asyncio
import base64
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from builders.jobs import a_manifest, tpu_pool
from builders.kube_objects import eventually
from builders.nodes import a_node, a_tpu_slice
from builders.operator_run import an_operator, running
from builders.virtual_time import run_virtual, until
from diloco_operator.api import names
from diloco_operator.api.crd import build_crd
from diloco_operator.certificates import view
from diloco_operator.kube.client import Forbidden, Obj, PatchType, Resource
from diloco_operator.kube.memory import MemoryApi
from diloco_operator.operator import RunConfig, caches

from .test_operator import SilentTelemetry


class TwoTeams:
    """An API server with nodes for both, and an operator of the namespaces team-a and team-b. `forbidden`: (verb, plural, namespace)."""

    def __init__(self) -> None:
        self.api = MemoryApi(random=random.Random(1))
        self.forbidden: set[tuple[str, str, str]] = set()
        self.api.before = self._reject
        self.operator = an_operator(
            self.api,
            cast("Any", SilentTelemetry()),  # no syncer has sent a report
            now=lambda: 1_795_208_400.0 + asyncio.get_running_loop().time(),
            run=RunConfig(namespaces=("team-a", "team-b"), stop_grace=0),
        )

    def _reject(self, verb: str, resource: Resource, namespace: str, name: str) -> None:
        if (verb, resource.plural, namespace) in self.forbidden:
            what = f'cannot {verb} resource "{resource.plural}" in the namespace "{namespace}"'
            raise Forbidden(403, "Forbidden", f'{resource.plural} is forbidden: User "operator" {what}')

    async def begin(self) -> None:
        await self.api.create(names.CUSTOM_RESOURCES, build_crd())
        for namespace in ("team-a", "team-b"):
            await self.api.create(names.NAMESPACES, {"metadata": {"name": namespace}})
        for index in range(2):
            for node in [a_node(f"cpu-{index}"), *a_tpu_slice(f"np-{index}", kind="tpu-v6e-slice", topology="2x2")]:
                await self.api.create(names.NODES, node)
                name = node["metadata"]["name"]
                await self.api.patch(names.NODES, "", name, {"status": node["status"]}, type=PatchType.MERGE, subresource="status")

    async def apply(self, namespace: str) -> Obj:
        pools = [tpu_pool("v6e", "tpu-v6e", "2x2", max=1)]
        return await self.api.create(names.DILOCO_JOBS, a_manifest("lm", namespace=namespace, min=1, max=1, pools=pools))

    async def condition(self, namespace: str, kind: str) -> Obj:
        """The condition of the namespace's job; reason "" without it."""
        job = await self.api.get(names.DILOCO_JOBS, namespace, "lm")
        conditions: list[Obj] = job.get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == kind), {"reason": ""})

    async def has(self, namespace: str, reason: str, kind: str = "Accepted") -> Obj:
        """Waits for the reason of the condition. Returns the condition."""

        async def true() -> bool:
            return bool((await self.condition(namespace, kind))["reason"] == reason)

        await eventually(true, f"{kind} of the job in {namespace} with reason {reason}", seconds=600)
        return await self.condition(namespace, kind)

    async def pods(self, namespace: str) -> list[str]:
        self.api.before, before = None, self.api.before
        found = await self.api.list(names.PODS, namespace)
        self.api.before = before
        return [obj["metadata"]["name"] for obj in found.items]

    async def works(self, namespace: str) -> None:
        """The operator accepts the job and has made a pod of it."""

        async def true() -> bool:
            return bool(await self.pods(namespace))

        await self.has(namespace, "SpecValid")
        await eventually(true, f"pods in {namespace}")


def play(scenario: Callable[[TwoTeams], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        cluster = TwoTeams()
        await cluster.begin()
        await scenario(cluster)

    run_virtual(run())


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_right_that_is_missing_in_one_namespace_stops_the_jobs_of_that_namespace_only(verb: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: TwoTeams) -> None:
        cluster.forbidden.add((verb, "secrets", "team-b"))
        await cluster.apply("team-a")
        await cluster.apply("team-b")
        async with running(cluster.operator):
            await cluster.works("team-a")
            found = await cluster.has("team-b", "RightsMissing")
            assert found["status"] == "False"
            assert (
                f'may not read secrets in namespace team-b: secrets is forbidden: User "operator" cannot {verb} resource'
                in found["message"]
            )
            assert "what runs is left alone" in found["message"]
            (problem,) = cluster.operator.caches.missing_rights
            assert "secrets in namespace team-b" in problem
            if verb == "list":  # between the list and a refused watch a job may begin
                assert await cluster.pods("team-b") == []
            cluster.forbidden.clear()
            await cluster.works("team-b")
            assert cluster.operator.caches.missing_rights == []

    with caplog.at_level(logging.INFO):
        play(scenario)
    lines = [record for record in caplog.records if "watching secrets in team-b is forbidden" in record.message]
    assert {record.levelname for record in lines} == {"ERROR"}
    assert len(lines) == 1  # it is tried again, and said once


def test_right_that_is_taken_away_leaves_running_units_alone() -> None:
    async def scenario(cluster: TwoTeams) -> None:
        await cluster.apply("team-a")
        async with running(cluster.operator):
            await cluster.works("team-a")
            cluster.forbidden |= {("list", "pods", "team-a"), ("watch", "pods", "team-a")}
            await cluster.has("team-a", "RightsMissing")
            before = await cluster.pods("team-a")
            await asyncio.sleep(1000)
            assert await cluster.pods("team-a") == before
            cluster.forbidden.clear()
            await cluster.works("team-a")

    play(scenario)


def a_secret(name: str, *, job: str = "lm", owner: str = "", **data: str) -> Obj:
    owners = [{"apiVersion": names.API_VERSION, "kind": names.KIND, "name": job, "uid": owner, "controller": True}] if owner else []
    meta = {"namespace": "team-a", "name": name, "labels": {names.LABEL_JOB: job}, "ownerReferences": owners}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": meta,
        "data": {k: base64.b64encode(v.encode()).decode() for k, v in data.items()},
    }


def test_content_of_a_secret_is_read_only_if_the_job_of_its_label_owns_it(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    whole = view.project_certificates

    def recording(obj: Obj) -> Any:
        read.append(obj["metadata"]["name"])
        return whole(obj)

    monkeypatch.setattr(caches, "project_certificates", recording)

    async def scenario(cluster: TwoTeams) -> None:
        uid = (await cluster.apply("team-a"))["metadata"]["uid"]
        for secret in (
            a_secret("labelled"),
            a_secret("of-nobody", job="gone", owner="uid-of-a-job-that-is-gone"),
            a_secret("of-another", owner="uid-of-another"),
            a_secret("password", job="", token="hunter2"),
        ):
            await cluster.api.create(names.SECRETS, secret)
        async with running(cluster.operator):
            await cluster.works("team-a")
            held = {name: cluster.operator.caches.shown(names.SECRETS, "team-a", name) for name in ("labelled", "of-nobody", "of-another")}
            assert all(each is None or not each.value.read for each in held.values())
            ours = cluster.operator.caches.shown(names.SECRETS, "team-a", "lm-ca")
            assert ours is not None
            assert ours.value.certificates.owner == uid
            assert ours.value.read
        assert set(read) == {"lm-ca", "lm-syncer-tls", "lm-learners-v6e-0"}

    play(scenario)


def test_name_that_a_strangers_secret_has_is_reported_and_its_content_left_closed() -> None:
    async def scenario(cluster: TwoTeams) -> None:
        await cluster.api.create(names.SECRETS, a_secret("lm-ca", **{"ca.key": "not for you"}))
        await cluster.apply("team-a")
        async with running(cluster.operator):
            found = await cluster.has("team-a", "NameTaken", "Training")
            assert "lm-ca" in found["message"]

    play(scenario)


def test_secrets_that_came_before_their_job_are_read_when_it_comes() -> None:
    """A replica may see the Secrets that another one made before it sees the job: it must not take them for unreadable ones."""

    async def scenario(cluster: TwoTeams) -> None:
        await cluster.apply("team-a")
        async with running(cluster.operator):
            await cluster.works("team-a")
        made = (await cluster.api.get(names.SECRETS, "team-a", "lm-ca"))["metadata"]["resourceVersion"]
        late = TwoTeams()
        late.api, late.api.before = cluster.api, late._reject
        late.operator = an_operator(
            late.api,
            cast("Any", SilentTelemetry()),  # no syncer has sent a report
            now=lambda: 1_795_208_400.0 + asyncio.get_running_loop().time(),
            run=RunConfig(namespaces=("team-a",), stop_grace=0),
        )
        late.forbidden.add(("list", "dilocojobs", "team-a"))
        async with running(late.operator):
            seen = late.operator.caches
            await until(lambda: seen.shown(names.SECRETS, "team-a", "lm-ca") is not None)
            held = seen.shown(names.SECRETS, "team-a", "lm-ca")
            assert held is not None
            assert not held.value.read
            late.forbidden.clear()

            def read() -> bool:
                held = seen.shown(names.SECRETS, "team-a", "lm-ca")
                return held is not None and held.value.read

            await until(read)
            await asyncio.sleep(10)
        assert (await late.api.get(names.SECRETS, "team-a", "lm-ca"))["metadata"]["resourceVersion"] == made

    play(scenario)
