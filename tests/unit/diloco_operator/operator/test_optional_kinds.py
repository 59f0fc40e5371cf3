"""Kinds that not every cluster has: an operator follows them where they are, and works on where they are not."""

from __future__ import annotations

import asyncio
import logging

import pytest
from builders.fake_cluster import FakeCluster
from builders.provisioning import a_condition, a_request, provisioning_crd
from builders.virtual_time import until
from diloco_operator.api import names
from diloco_operator.kube.client import Resource
from diloco_operator.operator import caches as operator_caches
from diloco_operator.reconcile.grantors.provisioning_request import REQUESTS
from diloco_operator.reconcile.grantors.provisioning_view import RequestState

from .test_missing_rights import TEAMS, apply, play_teams, works

NO_KUEUE = "the API server has no workloads in kueue.x-k8s.io/v1beta2"
UNKNOWN = "the API server has no provisioningrequests in autoscaling.x-k8s.io/v1"


def _without(caches: operator_caches.Caches, namespace: str) -> dict[Resource, str]:
    """Which of these two kinds cannot be read, and why."""
    found = caches.without(namespace)
    return {each: found[each] for each in (names.PROVISIONING_REQUESTS, names.WORKLOADS) if each in found}


def _states(caches: operator_caches.Caches, namespace: str) -> dict[str, RequestState]:
    return {name: request.state for name, request in REQUESTS.among(caches.children((namespace, "lm"))).items()}


def test_cluster_without_provisioning_requests_trains_and_follows_them_once_they_are_installed(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: FakeCluster) -> None:
        await apply(cluster, "team-a")
        async with cluster.operating(TEAMS):
            await works(cluster, "team-a")
            caches = cluster.operator.caches
            assert _without(caches, "team-a") == {names.PROVISIONING_REQUESTS: UNKNOWN, names.WORKLOADS: NO_KUEUE}
            assert caches.missing_rights == []
            await cluster.api.create(names.CUSTOM_RESOURCES, provisioning_crd())
            obj = a_request(a_condition("Provisioned"))
            obj["metadata"] = {key: value for key, value in obj["metadata"].items() if key in ("name", "labels")} | {"namespace": "team-a"}
            await cluster.api.create(names.PROVISIONING_REQUESTS, {"metadata": obj["metadata"], "spec": obj["spec"]})
            await until(lambda: _states(caches, "team-a") == {"lm-v6e-0-a1": RequestState.WAITING}, within=120)
            assert _without(caches, "team-a") == {names.WORKLOADS: NO_KUEUE}
            assert _states(caches, "team-b") == {}

    with caplog.at_level(logging.INFO):
        play_teams(scenario)
    said = [record for record in caplog.records if UNKNOWN in record.message]
    assert [record.levelname for record in said] == ["INFO", "INFO"]  # once for each of the two namespaces, and it is no fault


def test_right_on_requests_that_is_missing_in_one_namespace_is_named_there_and_stops_nothing() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        await cluster.api.create(names.CUSTOM_RESOURCES, provisioning_crd())
        cluster.client.forbidden.add(("list", "provisioningrequests", "team-b"))
        await apply(cluster, "team-b")
        async with cluster.operating(TEAMS):
            await works(cluster, "team-b")
            caches = cluster.operator.caches
            assert _without(caches, "team-a") == {names.WORKLOADS: NO_KUEUE}
            assert "cannot list" in _without(caches, "team-b")[names.PROVISIONING_REQUESTS]
            cluster.client.forbidden.clear()
            await asyncio.sleep(60)
            assert _without(caches, "team-b") == {names.WORKLOADS: NO_KUEUE}

    play_teams(scenario)
