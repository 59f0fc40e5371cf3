"""Kinds that not every cluster has: an operator follows them where they are, and works on where they are not."""

from __future__ import annotations

import asyncio
import logging

import pytest
from builders.fake_cluster import FakeCluster
from builders.virtual_time import until
from builders.workloads import workloads_crd
from diloco_operator.api import names

from .test_missing_rights import TEAMS, apply, play_teams, works

NO_KUEUE = "the API server has no workloads in kueue.x-k8s.io/v1beta2"


def unreadable(cluster: FakeCluster, namespace: str) -> str | None:
    """Why Workloads cannot be read there; None: they can."""
    return cluster.operator.caches.unreadable(namespace).get(names.WORKLOADS)


def test_cluster_without_kueue_trains_and_follows_workloads_once_it_is_installed(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: FakeCluster) -> None:
        await apply(cluster, "team-a")
        async with cluster.operating(TEAMS):
            await works(cluster, "team-a")
            assert (unreadable(cluster, "team-a"), unreadable(cluster, "team-b")) == (NO_KUEUE, NO_KUEUE)
            assert cluster.operator.caches.missing_rights == []
            await cluster.api.create(names.CUSTOM_RESOURCES, workloads_crd())
            await until(lambda: unreadable(cluster, "team-a") is None, within=120)

    with caplog.at_level(logging.INFO):
        play_teams(scenario)
    said = [record for record in caplog.records if NO_KUEUE in record.message]
    assert [record.levelname for record in said] == ["INFO", "INFO"]  # once for each of the two namespaces, and it is no fault


def test_right_on_workloads_that_is_missing_in_one_namespace_is_named_there_and_stops_nothing() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        await cluster.api.create(names.CUSTOM_RESOURCES, workloads_crd())
        cluster.client.forbidden.add(("list", "workloads", "team-b"))
        await apply(cluster, "team-b")
        async with cluster.operating(TEAMS):
            await works(cluster, "team-b")
            assert unreadable(cluster, "team-a") is None
            assert "cannot list" in (unreadable(cluster, "team-b") or "")
            cluster.client.forbidden.clear()
            await asyncio.sleep(60)
            assert unreadable(cluster, "team-b") is None

    play_teams(scenario)
