"""`kubectl diloco retry`."""

from __future__ import annotations

import asyncio

import pytest
from builders.cluster_scenes import begin, conditions, on_a_cluster, set_status, unit
from builders.fake_cluster import FakeCluster
from diloco_cli.cluster import CommandError
from diloco_cli.kubectl.retry import Retry, retry_job, wait_retried
from diloco_operator.api.names import DILOCO_JOBS
from diloco_operator.kube.client import Obj


async def retry(cluster: FakeCluster) -> Retry:
    return await retry_job(cluster.api, "team", "bytes-lm", cluster.said.append)


async def acted(cluster: FakeCluster, number: int, *units: Obj, **status: str) -> None:
    """The operator has acted on a retry."""
    body = {"status": {"retry": number, "conditions": conditions(**status), "units": list(units)}}
    await cluster.api.patch(DILOCO_JOBS, "team", "bytes-lm", body, subresource="status")


@on_a_cluster
async def test_retry_of_a_failed_job_is_asked_for_once(cluster: FakeCluster) -> None:
    await begin(cluster, Failed="True")
    assert [await retry(cluster) for _ in range(2)] == [Retry(1, ())] * 2
    assert (await cluster.api.get(DILOCO_JOBS, "team", "bytes-lm"))["spec"]["retry"] == 1
    assert cluster.said == [
        "dilocojob.diloco.dev/bytes-lm: retry 1: the job starts again from the beginning",
        "dilocojob.diloco.dev/bytes-lm: retry 1 is asked for already: the job starts again from the beginning",
    ]
    await acted(cluster, 1, Failed="True")
    assert await retry(cluster) == Retry(2, ())


@on_a_cluster
async def test_retry_counts_from_what_the_operator_acted_on_if_a_manifest_lowered_it(cluster: FakeCluster) -> None:
    await begin(cluster, Failed="True")
    await acted(cluster, 4, Failed="True")
    assert await retry(cluster) == Retry(5, ())


@on_a_cluster
async def test_of_two_retries_at_the_same_time_one_finds_the_other(cluster: FakeCluster) -> None:
    await begin(cluster, Failed="True")
    assert tuple(await asyncio.gather(retry(cluster), retry(cluster))) == (Retry(1, ()), Retry(1, ()))
    assert (await cluster.api.get(DILOCO_JOBS, "team", "bytes-lm"))["spec"]["retry"] == 1


@on_a_cluster
async def test_a_job_of_which_nothing_failed_is_not_retried(cluster: FakeCluster) -> None:
    await begin(cluster, unit(), Training="True")
    with pytest.raises(CommandError, match="has not failed, and none of its units was given up: there is nothing to retry"):
        await retry(cluster)
    await set_status(cluster, unit(state="Completed"), Complete="True")
    with pytest.raises(CommandError, match=r'"bytes-lm" is complete; to train on, raise spec\.training\.steps above 0'):
        await retry(cluster)
    assert "retry" not in (await cluster.api.get(DILOCO_JOBS, "team", "bytes-lm"))["spec"]


@on_a_cluster
async def test_units_that_a_part_gave_up_are_retried_in_its_cluster(cluster: FakeCluster) -> None:
    await begin(cluster, unit(), Training="True")
    parts = [{"name": "tokyo", "state": "Degraded", "message": "LearnersLost: far-0 was given up"}, {"name": "gone", "tokens": 9}]
    await cluster.api.patch(DILOCO_JOBS, "team", "bytes-lm", {"status": {"parts": parts}}, subresource="status")
    with pytest.raises(CommandError, match=r"nothing to retry here\. Units of a part are retried in its cluster \(tokyo\)"):
        await retry(cluster)


@on_a_cluster
async def test_a_retried_job_is_waited_for_until_it_trains(cluster: FakeCluster) -> None:
    await begin(cluster, Failed="True")
    asked = await retry(cluster)
    with pytest.raises(CommandError, match="has not started again after 30s"):
        await wait_retried(cluster.api, "team", "bytes-lm", cluster.said.append, asked, seconds=30)
    waiting = asyncio.create_task(wait_retried(cluster.api, "team", "bytes-lm", cluster.said.append, asked, seconds=600))
    await asyncio.sleep(1)
    await acted(cluster, 1, Failed="False", Training="False")
    await asyncio.sleep(1)
    assert not waiting.done()
    await acted(cluster, 1, Failed="False", Training="True")
    await waiting
    assert "trains" in cluster.said[-1]


@on_a_cluster
async def test_units_and_job_are_waited_for_within_one_time(cluster: FakeCluster) -> None:
    await begin(cluster, Failed="True")
    asked = await retry(cluster)
    now = asyncio.get_running_loop().time
    began = now()
    waiting = asyncio.create_task(wait_retried(cluster.api, "team", "bytes-lm", cluster.said.append, asked, seconds=60))
    await asyncio.sleep(50)
    await acted(cluster, 1, Failed="False", Training="False")
    with pytest.raises(CommandError, match="is not training after 1m:"):
        await waiting
    assert now() - began == pytest.approx(60, abs=1)


@on_a_cluster
async def test_retried_units_are_waited_for_although_the_others_train(cluster: FakeCluster) -> None:
    await begin(cluster, unit(), unit("v5p-1", "Failed"), Training="True")
    asked = await retry(cluster)
    assert (asked, cluster.said) == (Retry(1, ("v5p-1",)), ["dilocojob.diloco.dev/bytes-lm: retry 1: v5p-1 starts again"])
    waiting = asyncio.create_task(wait_retried(cluster.api, "team", "bytes-lm", cluster.said.append, asked, seconds=600))
    await asyncio.sleep(1)
    await acted(cluster, 1, unit(), unit("v5p-1", "Starting"), Training="True")
    await asyncio.sleep(1)
    assert not waiting.done()
    await acted(cluster, 1, unit(), unit("v5p-1", "Failed", message="exit 1"), Training="True")
    with pytest.raises(CommandError, match='unit v5p-1 of job "bytes-lm" failed again: exit 1'):
        await waiting
    await acted(cluster, 1, unit(), unit("v5p-1"), Training="True")
    await wait_retried(cluster.api, "team", "bytes-lm", cluster.said.append, asked, seconds=600)
