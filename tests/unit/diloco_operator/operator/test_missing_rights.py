"""What the operator may not read, and what it must not read: other namespaces go on, and strangers' Secrets stay closed."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from builders.cluster_scenes import play
from builders.fake_cluster import FakeCluster
from builders.kube_objects import eventually
from builders.virtual_time import until
from diloco_operator.api import names
from diloco_operator.certificates import view
from diloco_operator.kube.client import Obj
from diloco_operator.operator import RunConfig, caches

TEAMS = RunConfig(namespaces=("team-a", "team-b"), stop_grace=0)
"""An operator of the namespaces team-a and team-b."""


async def apply(cluster: FakeCluster, namespace: str) -> Obj:
    """The job `lm`."""
    return await cluster.apply("lm", namespace=namespace)


async def condition(cluster: FakeCluster, namespace: str, kind: str) -> Obj:
    """The condition of the namespace's job; reason "" without it."""
    conditions: list[Obj] = (await cluster.status("lm", namespace)).get("conditions", [])
    return next((each for each in conditions if each["type"] == kind), {"reason": ""})


async def has(cluster: FakeCluster, namespace: str, reason: str, kind: str = "Accepted") -> Obj:
    """Waits for the reason of the condition. Returns the condition."""

    async def true() -> bool:
        return bool((await condition(cluster, namespace, kind))["reason"] == reason)

    await eventually(true, f"{kind} of the job in {namespace} with reason {reason}", seconds=600)
    return await condition(cluster, namespace, kind)


async def works(cluster: FakeCluster, namespace: str) -> None:
    """The operator accepts the job and has made a pod of it."""

    async def true() -> bool:
        return bool(await cluster.pod_phases(namespace=namespace))

    await has(cluster, namespace, "SpecValid")
    await eventually(true, f"pods in {namespace}")


def play_teams(scenario: Callable[[FakeCluster], Coroutine[Any, Any, None]]) -> None:
    """On a cluster with nodes for both teams, without kubelets: no pod runs, and no syncer sends a report."""
    play(scenario, slices=("np-0", "np-1"), kubelets=False, namespaces=TEAMS.namespaces)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["list", "watch"])
def test_right_that_is_missing_in_one_namespace_stops_the_jobs_of_that_namespace_only(verb: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: FakeCluster) -> None:
        cluster.client.forbidden.add((verb, "secrets", "team-b"))
        await apply(cluster, "team-a")
        await apply(cluster, "team-b")
        async with cluster.operating(TEAMS):
            await works(cluster, "team-a")
            found = await has(cluster, "team-b", "RightsMissing")
            assert found["status"] == "False"
            assert (
                f'may not read secrets in namespace team-b: secrets is forbidden: User "operator" cannot {verb} resource'
                in found["message"]
            )
            assert "what runs is left alone" in found["message"]
            (problem,) = cluster.operator.caches.missing_rights
            assert "secrets in namespace team-b" in problem
            if verb == "list":  # between the list and a refused watch a job may begin
                assert list(await cluster.pod_phases(namespace="team-b")) == []
            cluster.client.forbidden.clear()
            await works(cluster, "team-b")
            assert cluster.operator.caches.missing_rights == []

    with caplog.at_level(logging.INFO):
        play_teams(scenario)
    lines = [record for record in caplog.records if "watching secrets in team-b is forbidden" in record.message]
    assert {record.levelname for record in lines} == {"ERROR"}
    assert len(lines) == 1  # it is tried again, and said once


def test_right_that_is_missing_in_the_whole_cluster_stops_the_jobs_of_every_namespace() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        cluster.client.forbidden.add(("list", "secrets", ""))
        await apply(cluster, "team-a")
        async with cluster.operating(RunConfig(stop_grace=0)):
            found = await has(cluster, "team-a", "RightsMissing")
            assert "may not read secrets in the cluster" in found["message"]
            assert list(await cluster.pod_phases(namespace="team-a")) == []
            cluster.client.forbidden.clear()
            await works(cluster, "team-a")

    play_teams(scenario)


@pytest.mark.slow
def test_right_that_is_taken_away_leaves_running_units_alone() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        await apply(cluster, "team-a")
        async with cluster.operating(TEAMS):
            await works(cluster, "team-a")
            cluster.client.forbidden |= {("list", "pods", "team-a"), ("watch", "pods", "team-a")}
            await has(cluster, "team-a", "RightsMissing")
            before = list(await cluster.pod_phases(namespace="team-a"))
            await asyncio.sleep(1000)
            assert list(await cluster.pod_phases(namespace="team-a")) == before
            cluster.client.forbidden.clear()
            await works(cluster, "team-a")

    play_teams(scenario)


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

    async def scenario(cluster: FakeCluster) -> None:
        uid = (await apply(cluster, "team-a"))["metadata"]["uid"]
        for secret in (
            a_secret("labelled"),
            a_secret("of-nobody", job="gone", owner="uid-of-a-job-that-is-gone"),
            a_secret("of-another", owner="uid-of-another"),
            a_secret("password", job="", token="hunter2"),
        ):
            await cluster.api.create(names.SECRETS, secret)
        async with cluster.operating(TEAMS):
            await works(cluster, "team-a")
            held = {
                name: cluster.operator.caches.cached_object(names.SECRETS, "team-a", name)
                for name in ("labelled", "of-nobody", "of-another")
            }
            assert all(each is None or not each.value.read for each in held.values())
            ours = cluster.operator.caches.cached_object(names.SECRETS, "team-a", "lm-ca")
            assert ours is not None
            assert ours.value.certificates.owner == uid
            assert ours.value.read
        assert set(read) == {"lm-ca", "lm-syncer-tls", "lm-learners-v6e-0"}

    play_teams(scenario)


def test_name_that_a_strangers_secret_has_is_reported_and_its_content_left_closed() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        await cluster.api.create(names.SECRETS, a_secret("lm-ca", **{"ca.key": "not for you"}))
        await apply(cluster, "team-a")
        async with cluster.operating(TEAMS):
            found = await has(cluster, "team-a", "NameTaken", "Training")
            assert "lm-ca" in found["message"]

    play_teams(scenario)


def test_secrets_that_came_before_their_job_are_read_when_it_comes() -> None:
    """A replica may see the Secrets that another one made before it sees the job: it must not take them for unreadable ones."""

    async def scenario(cluster: FakeCluster) -> None:
        await apply(cluster, "team-a")
        async with cluster.operating(TEAMS):
            await works(cluster, "team-a")
        made = (await cluster.api.get(names.SECRETS, "team-a", "lm-ca"))["metadata"]["resourceVersion"]
        cluster.client.forbidden.add(("list", "dilocojobs", "team-a"))
        async with cluster.operating(RunConfig(namespaces=("team-a",), stop_grace=0)):
            seen = cluster.operator.caches
            await until(lambda: seen.cached_object(names.SECRETS, "team-a", "lm-ca") is not None)
            held = seen.cached_object(names.SECRETS, "team-a", "lm-ca")
            assert held is not None
            assert not held.value.read
            cluster.client.forbidden.clear()

            def read() -> bool:
                held = seen.cached_object(names.SECRETS, "team-a", "lm-ca")
                return held is not None and held.value.read

            await until(read)
            await asyncio.sleep(10)
        assert (await cluster.api.get(names.SECRETS, "team-a", "lm-ca"))["metadata"]["resourceVersion"] == made

    play_teams(scenario)
