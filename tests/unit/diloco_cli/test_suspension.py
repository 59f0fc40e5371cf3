"""`kubectl diloco suspend` and `resume`."""

from __future__ import annotations

import asyncio

import pytest
from builders.cluster_scenes import begin, on_a_cluster, set_status
from builders.fake_cluster import FakeCluster
from diloco_cli.cluster import CommandError
from diloco_cli.kubectl.suspension import set_suspend, wait_suspended, wait_training
from diloco_operator.api.names import DILOCO_JOBS, LABEL_HOME


@on_a_cluster
async def test_suspend_and_resume_set_the_field_once(cluster: FakeCluster) -> None:
    await begin(cluster)
    for want in (True, True, False, False):
        await set_suspend(cluster.api, "team", "bytes-lm", cluster.said.append, suspend=want)
        assert (await cluster.api.get(DILOCO_JOBS, "team", "bytes-lm"))["spec"]["suspend"] is want
    assert [text.removeprefix("dilocojob.diloco.dev/bytes-lm ") for text in cluster.said] == [
        "suspended", "is suspended already", "resumed", "is not suspended",
    ]  # fmt: skip


@on_a_cluster
async def test_a_job_that_is_over_cannot_be_suspended(cluster: FakeCluster) -> None:
    await begin(cluster, Complete="True")
    with pytest.raises(CommandError, match='job "bytes-lm" is complete already and cannot be suspended'):
        await set_suspend(cluster.api, "team", "bytes-lm", cluster.said.append, suspend=True)
    await set_status(cluster, Failed="True")
    with pytest.raises(CommandError, match=r"is failed already .*; kubectl diloco retry bytes-lm -n team starts it again"):
        await set_suspend(cluster.api, "team", "bytes-lm", cluster.said.append, suspend=True)


@on_a_cluster
async def test_a_part_is_suspended_and_resumed_at_home(cluster: FakeCluster) -> None:
    await begin(cluster)
    made = {"metadata": {"labels": {LABEL_HOME: "uid-whole"}}}
    await cluster.api.patch(DILOCO_JOBS, "team", "bytes-lm", made, field_manager="home")
    with pytest.raises(CommandError, match=r"is suspended with the job that it belongs to$"):
        await set_suspend(cluster.api, "team", "bytes-lm", cluster.said.append, suspend=True)
    await cluster.write_status(DILOCO_JOBS, "bytes-lm", {"home": {"name": "whole", "namespace": "research"}}, namespace="team")
    for suspend, command in ((True, "suspend"), (False, "resume")):
        with pytest.raises(CommandError, match=f"in the cluster of job whole: kubectl diloco {command} whole -n research"):
            await set_suspend(cluster.api, "team", "bytes-lm", cluster.said.append, suspend=suspend)


@on_a_cluster
async def test_suspending_is_waited_for(cluster: FakeCluster) -> None:
    await begin(cluster, Suspended="False", Training="True")
    await set_suspend(cluster.api, "team", "bytes-lm", cluster.said.append, suspend=True)
    waiting = asyncio.create_task(wait_suspended(cluster.api, "team", "bytes-lm", cluster.said.append, seconds=600))
    await asyncio.sleep(1)
    assert not waiting.done()
    await set_status(cluster, Suspended="True")
    await waiting
    assert cluster.said[-1].endswith("no pod runs any more, the state is saved")


@on_a_cluster
async def test_resuming_is_not_taken_for_done_while_the_status_is_of_before(cluster: FakeCluster) -> None:
    await begin(cluster, Suspended="True", Training="False", Accepted="True", Placed="False")
    await set_suspend(cluster.api, "team", "bytes-lm", cluster.said.append, suspend=False)
    with pytest.raises(
        CommandError, match=r"is not training after 30s: Placed=False PlacedReason: about Placed\. .* status bytes-lm -n team`"
    ):
        await wait_training(cluster.api, "team", "bytes-lm", cluster.said.append, seconds=30)
    waiting = asyncio.create_task(wait_training(cluster.api, "team", "bytes-lm", cluster.said.append, seconds=600))
    await asyncio.sleep(1)
    await set_status(cluster, Suspended="False", Training="True")
    await waiting
    assert "trains" in cluster.said[-1]


@on_a_cluster
async def test_a_job_that_fails_is_not_waited_for(cluster: FakeCluster) -> None:
    await begin(cluster, Failed="True")
    with pytest.raises(CommandError, match='job "bytes-lm" failed: FailedReason: about Failed'):
        await wait_training(cluster.api, "team", "bytes-lm", cluster.said.append, seconds=600)
