"""What an autoscaler says about pods that wait for nodes stands in the job's status."""

from __future__ import annotations

import asyncio
import logging

import pytest
from builders.fake_cluster import FakeCluster
from builders.jobs import a_manifest, gpu_pool
from builders.kube_objects import eventually
from diloco_operator.api import names
from diloco_operator.kube.client import Obj

from .test_missing_rights import TEAMS, play_teams

LIMIT = "pod didn't trigger scale-up: 1 max node group size reached"
POD = "lm-h100-0-a1-0"


async def apply_waiting_job(cluster: FakeCluster) -> None:
    """A job whose only unit waits for a node."""
    pool = gpu_pool(max=1, provisioning={"mode": "Autoscaler"})
    await cluster.api.create(names.DILOCO_JOBS, a_manifest("lm", namespace="team-a", min=1, max=1, pools=[pool]))
    await eventually(lambda: _exists(cluster), "the learner's pod", seconds=600)


async def _exists(cluster: FakeCluster) -> bool:
    return POD in list(await cluster.pod_phases(namespace="team-a"))


async def say(cluster: FakeCluster, message: object, *, by: str, number: int = 0, about: str = "", name: str = "said-") -> None:
    """Write an Event about the pod, or about the uid `about`, `number` seconds after the first one. `name`: how its name begins."""
    uid = about or (await cluster.api.get(names.PODS, "team-a", POD))["metadata"]["uid"]
    subject = {"kind": "Pod", "namespace": "team-a", "name": POD, "uid": uid}
    event = {
        "metadata": {"generateName": name, "namespace": "team-a"},
        "involvedObject": subject,
        "reason": "NotTriggerScaleUp",
        "message": message,
        "source": {"component": by},
        "lastTimestamp": f"2026-11-20T12:00:{number:02d}Z",
        "type": "Normal",
    }
    await cluster.api.create(names.EVENTS, event)


async def unit(cluster: FakeCluster) -> Obj:
    found: Obj = (await cluster.api.get(names.DILOCO_JOBS, "team-a", "lm"))["status"]["units"][0]
    return found


@pytest.mark.slow
def test_the_latest_message_of_the_autoscaler_stands_with_the_unit_that_waits() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        async with cluster.operating(TEAMS):
            await apply_waiting_job(cluster)
            await say(cluster, LIMIT, by="cluster-autoscaler", number=2)
            await say(cluster, "triggered scale-up", by="cluster-autoscaler", number=1)
            await say(cluster, "no nodes available", by="default-scheduler", number=3)

            async def said() -> bool:
                return str((await unit(cluster))["message"]).endswith(f"; it says: {LIMIT}")

            await eventually(said, "the autoscaler's words in status", seconds=600)
            assert (await unit(cluster))["reason"] == "WaitingForNodes"

    play_teams(scenario)


@pytest.mark.slow
def test_the_message_is_found_behind_many_events_of_others() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        async with cluster.operating(TEAMS):
            await apply_waiting_job(cluster)
            for _ in range(600):  # more than one page of 500
                await say(cluster, "no nodes available", by="default-scheduler")
            await say(cluster, LIMIT, by="cluster-autoscaler", name="z-last-by-name-")

            async def said() -> bool:
                return str((await unit(cluster))["message"]).endswith(f"; it says: {LIMIT}")

            await eventually(said, "the autoscaler's words in status", seconds=600)

    play_teams(scenario)


@pytest.mark.slow
def test_malformed_events_and_those_about_others_say_nothing() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        async with cluster.operating(TEAMS):
            await apply_waiting_job(cluster)
            await say(cluster, "of another pod", by="karpenter", about="another-uid")
            await say(cluster, "x" * 4000, by="karpenter", number=1)

            async def said() -> bool:
                return "it says: xxx" in (await unit(cluster))["message"]

            await eventually(said, "the words", seconds=600)
            assert len((await unit(cluster))["message"]) < 1000

    play_teams(scenario)


def test_without_the_right_to_list_events_the_unit_waits_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: FakeCluster) -> None:
        cluster.client.forbidden.add(("list", "events", "team-a"))
        async with cluster.operating(TEAMS):
            await apply_waiting_job(cluster)
            await asyncio.sleep(120)
            assert (await unit(cluster))["reason"] == "WaitingForNodes"

    with caplog.at_level(logging.WARNING):
        play_teams(scenario)
    assert sum("what autoscalers say" in record.message for record in caplog.records) == 1
