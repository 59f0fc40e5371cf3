"""ProvisioningRequests through the operator and an API server: asked, granted, bound, withdrawn."""

from __future__ import annotations

from typing import Any

import pytest
from builders.jobs import a_manifest, gpu_pool
from builders.kube_objects import eventually
from builders.nodes import a_gpu_node
from builders.operator_run import running
from builders.provisioning import a_condition, provisioning_crd
from diloco_operator.api import names
from diloco_operator.kube.client import AlreadyExists, NotFound, Obj, PatchType, Resource

from .test_missing_rights import TwoTeams, play

CLASS = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
FIRST = "lm-h100-0-a1"


class Team(TwoTeams):
    """Its jobs have a pool of GPUs that the cluster does not have. The test is the autoscaler and the scheduler."""

    async def begin(self) -> None:
        await super().begin()
        self.spec = {"mode": "ProvisioningRequest", "class": CLASS, "timeout": "10m", "parameters": {"ValidUntilSeconds": "60"}}

    async def apply(self, namespace: str = "team-a") -> Obj:
        pool = gpu_pool("h100", hosts=2, max=1, provisioning=self.spec)
        return await self.api.create(names.DILOCO_JOBS, a_manifest("lm", namespace=namespace, min=1, max=1, pools=[pool]))

    async def request(self, name: str = FIRST) -> Obj:
        async def there() -> bool:
            return name in await self.requests()

        await eventually(there, f"the request {name}", seconds=600)
        return await self.api.get(names.PROVISIONING_REQUESTS, "team-a", name)

    async def requests(self) -> list[str]:
        return await self._names(names.PROVISIONING_REQUESTS)

    async def templates(self) -> list[str]:
        return await self._names(names.POD_TEMPLATES)

    async def _names(self, resource: Resource) -> list[str]:
        return sorted(obj["metadata"]["name"] for obj in (await self.api.list(resource, "team-a")).items)

    async def answer(self, *conditions: Obj, name: str = FIRST) -> None:
        status = {"status": {"conditions": list(conditions)}}
        await self.api.patch(names.PROVISIONING_REQUESTS, "team-a", name, status, type=PatchType.MERGE, subresource="status")

    async def unit(self) -> Obj:
        job = await self.api.get(names.DILOCO_JOBS, "team-a", "lm")
        units: list[Obj] = job.get("status", {}).get("units", [])
        return units[0] if units else {"reason": "", "message": "", "slice": ""}

    async def unit_says(self, field: str, words: str) -> Obj:
        async def true() -> bool:
            return words in (await self.unit()).get(field, "")

        await eventually(true, f"the unit's {field} {words!r}", seconds=600)
        return await self.unit()

    async def learners(self) -> list[str]:
        found = await self.api.list(names.PODS, "team-a", label_selector=f"{names.LABEL_COMPONENT}=learner")
        return sorted(obj["metadata"]["name"] for obj in found.items)


def play_with_team(scenario: Any) -> None:
    async def of_team(_: TwoTeams) -> None:
        team = Team()
        await team.begin()
        await scenario(team)

    play(of_team)


def test_request_is_granted_its_pods_come_and_the_binding_tells_the_slice() -> None:
    async def scenario(team: Team) -> None:
        await team.api.create(names.CUSTOM_RESOURCES, provisioning_crd())
        await team.apply()
        async with running(team.operator):
            request = await team.request()
            assert request["spec"]["podSets"] == [{"count": 2, "podTemplateRef": {"name": FIRST}}]
            assert request["spec"]["parameters"] == {"ValidUntilSeconds": "60"}
            assert (await team.templates(), await team.learners()) == ([FIRST], [])
            await team.answer(a_condition("Accepted", message="in the queue"))
            await team.unit_says("message", "it says: Accepted=True: Said: in the queue")
            assert await team.learners() == []
            for node in (a_gpu_node("new-0"), a_gpu_node("new-1")):
                await team.api.create(names.NODES, node)
                name = node["metadata"]["name"]
                await team.api.patch(names.NODES, "", name, {"status": node["status"]}, type=PatchType.MERGE, subresource="status")
            await team.answer(a_condition("Accepted"), a_condition("Provisioned"))

            async def both() -> bool:
                return await team.learners() == [f"{FIRST}-0", f"{FIRST}-1"]

            await eventually(both, "the pods of the unit", seconds=60)
            await team.api.bind("team-a", f"{FIRST}-0", "new-1")
            await team.api.bind("team-a", f"{FIRST}-1", "new-0")
            await team.unit_says("slice", "new-1+new-0")
            assert await team.requests() == [FIRST]  # as long as the attempt runs

    play_with_team(scenario)


def test_slice_that_comes_while_a_request_waits_is_taken_and_the_request_goes() -> None:
    async def scenario(team: Team) -> None:
        await team.api.create(names.CUSTOM_RESOURCES, provisioning_crd())
        await team.apply()
        async with running(team.operator):
            await team.request()
            await team.answer(a_condition("Accepted", message="in the queue"))
            for node in (a_gpu_node("gpu-0"), a_gpu_node("gpu-1")):
                await team.api.create(names.NODES, node)
                name = node["metadata"]["name"]
                await team.api.patch(names.NODES, "", name, {"status": node["status"]}, type=PatchType.MERGE, subresource="status")
            await team.unit_says("slice", "gpu-0+gpu-1")

            async def only_pods() -> bool:
                return (await team.requests(), await team.templates()) == ([], [])

            await eventually(only_pods, "the request to go", seconds=60)
            assert await team.learners() == ["lm-h100-0-a2-0", "lm-h100-0-a2-1"]

    play_with_team(scenario)


def test_failed_request_is_withdrawn_and_asked_anew_and_a_job_that_is_suspended_asks_for_nothing() -> None:
    async def scenario(team: Team) -> None:
        await team.api.create(names.CUSTOM_RESOURCES, provisioning_crd())
        await team.apply()
        async with running(team.operator):
            await team.request()
            await team.answer(a_condition("Failed", message="max node group size reached"))
            await team.unit_says("message", "max node group size reached")
            await team.request("lm-h100-0-a2")
            assert await team.requests() == await team.templates() == ["lm-h100-0-a2"]
            await team.api.patch(names.DILOCO_JOBS, "team-a", "lm", {"spec": {"suspend": True}}, type=PatchType.MERGE)

            async def nothing() -> bool:
                return await team.requests() == await team.templates() == []

            await eventually(nothing, "the requests to go", seconds=60)

    play_with_team(scenario)


def test_deleted_job_takes_its_requests_with_it() -> None:
    async def scenario(team: Team) -> None:
        await team.api.create(names.CUSTOM_RESOURCES, provisioning_crd())
        await team.apply()
        async with running(team.operator):
            await team.request()
            await team.api.delete(names.DILOCO_JOBS, "team-a", "lm")

            async def nothing() -> bool:
                return await team.requests() == await team.templates() == []

            await eventually(nothing, "the garbage collector", seconds=60)

    play_with_team(scenario)


def test_job_says_that_the_cluster_has_no_such_requests_and_asks_once_it_has() -> None:
    async def scenario(team: Team) -> None:
        await team.apply()
        async with running(team.operator):
            found = await team.has("team-a", "InsufficientCapacity", "Placed")
            assert "the API server has no provisioningrequests in autoscaling.x-k8s.io/v1; install an autoscaler" in found["message"]
            with pytest.raises(NotFound):
                await team.api.list(names.PROVISIONING_REQUESTS, "team-a")
            assert await team.templates() == []
            await team.api.create(names.CUSTOM_RESOURCES, provisioning_crd())
            await team.request()

    play_with_team(scenario)


def test_request_of_a_stranger_under_the_name_is_named_and_left_alone() -> None:
    async def scenario(team: Team) -> None:
        await team.api.create(names.CUSTOM_RESOURCES, provisioning_crd())
        spec = {"provisioningClassName": CLASS, "podSets": [{"count": 1, "podTemplateRef": {"name": "theirs"}}]}
        theirs = await team.api.create(names.PROVISIONING_REQUESTS, {"metadata": {"name": FIRST, "namespace": "team-a"}, "spec": spec})
        await team.apply()
        async with running(team.operator):
            unit = await team.unit_says("message", "does not belong to this job; delete")
            assert unit["reason"] == "PodsRefused"
        there = await team.api.get(names.PROVISIONING_REQUESTS, "team-a", FIRST)
        assert there["metadata"]["uid"] == theirs["metadata"]["uid"]
        with pytest.raises(AlreadyExists):
            await team.api.create(names.PROVISIONING_REQUESTS, {"metadata": {"name": FIRST, "namespace": "team-a"}, "spec": spec})

    play_with_team(scenario)
