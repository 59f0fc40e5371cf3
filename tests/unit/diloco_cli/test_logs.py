"""`kubectl diloco logs`."""

from __future__ import annotations

from typing import Any

import pytest
from builders.cluster_scenes import add_pod, begin, conditions, on_a_cluster, owner_of, unit
from builders.fake_cluster import FakeCluster
from builders.pod_logs import Logs
from builders.pods import a_learner_pod
from diloco_cli.cluster import CommandError
from diloco_cli.kubectl.logs import show_logs, syncer_source, unit_logs
from diloco_cli.pod_logs import Source
from diloco_cli.unit_pods import UnitPod, owned_by, unit_pods
from diloco_cli.view_model import JobView
from diloco_operator.api.names import DILOCO_JOBS
from diloco_operator.api.status import UnitStatus
from diloco_operator.kube.client import BadRequest, LogRequest, NotFound


async def printed(logs: Logs, *sources: Source, follow: bool = False, tail: int | None = None) -> bytes:
    out: list[bytes] = []
    await show_logs(logs, "team", sources, out.append, follow=follow, tail=tail)
    return b"".join(out)


@on_a_cluster
async def test_pods_that_others_gave_the_labels_of_a_unit_are_none_of_it(cluster: FakeCluster) -> None:
    await begin(cluster, unit(), pods=[a_learner_pod()])
    await add_pod(cluster, a_learner_pod(attempt=9), owned=False)
    job = await cluster.api.get(DILOCO_JOBS, "team", "bytes-lm")
    assert [pod.attempt for pod in await unit_pods(cluster.api, job, "v5p-0")] == [1]
    assert owned_by(job["metadata"]["uid"], [{**a_learner_pod(ownerReferences=[owner_of(job)], labels={})}]) == {}


@on_a_cluster
async def test_logs_are_of_the_newest_attempt_and_every_host_is_told_apart(cluster: FakeCluster) -> None:
    await begin(cluster, unit(), pods=[a_learner_pod(attempt=1), a_learner_pod(attempt=2, host=1), a_learner_pod(attempt=2, host=0)])
    pods = await unit_pods(cluster.api, await cluster.api.get(DILOCO_JOBS, "team", "bytes-lm"), "v5p-0")
    record = a_unit(attempt=2, failed_attempt=1)
    both = unit_logs("v5p-0", record, pods, host=None, previous=False, container="")
    or_previous = "; -p prints that of attempt 1"
    assert both.sources == [
        Source("bytes-lm-v5p-0-a2-0", "learner", "[host 0] ", instead=or_previous),
        Source("bytes-lm-v5p-0-a2-1", "learner", "[host 1] ", instead=or_previous),
    ]
    [side] = unit_logs("v5p-0", record, pods, host=1, previous=False, container="side").sources
    assert side == Source("bytes-lm-v5p-0-a2-1", "side", instead=or_previous)
    assert unit_logs("v5p-0", record, pods, host=None, previous=True, container="") == ([Source("bytes-lm-v5p-0-a1-0", "learner")], "")
    with pytest.raises(CommandError, match="has no host 2 in attempt 2; it has 0, 1"):
        unit_logs("v5p-0", record, pods, host=2, previous=False, container="")


def a_view(*, suspend: bool = False, **status: Any) -> JobView:
    return JobView.of({"metadata": {"namespace": "team", "name": "bytes-lm"}, "spec": {"suspend": suspend}, "status": status})


def a_unit(**fields: Any) -> UnitStatus:
    return UnitStatus(name="v5p-0", pool="v5p", **{"state": "Training", **fields})


def a_unit_pod(attempt: int) -> UnitPod:
    return UnitPod(f"bytes-lm-v5p-0-a{attempt}-0", f"uid-{attempt}", attempt, 0, "tpu-0", ended=True)


def test_newest_log_that_there_is_is_printed_with_a_note() -> None:
    """Attempt 2 was disrupted, so its pods are gone."""
    record = a_unit(state="Pending", attempt=2, failed_attempt=1)
    found = unit_logs("v5p-0", record, [a_unit_pod(1)], host=None, previous=False, container="")
    assert found == ([Source("bytes-lm-v5p-0-a1-0", "learner")], "attempt 2 of v5p-0 has no pods; this is the log of attempt 1")
    again = unit_logs("v5p-0", record, [a_unit_pod(1)], host=None, previous=True, container="")
    assert again.sources == [Source("bytes-lm-v5p-0-a1-0", "learner")]


@pytest.mark.parametrize(
    ("record", "pods", "words"),
    [
        (
            a_unit(state="Pending", reason="NoCapacity", message="no slice is free"),
            (),
            r"has never run, .*: Pending \(NoCapacity: no slice",
        ),
        (
            a_unit(state="Pending", attempt=3, reason="Suspended", message="the job is suspended"),
            (),
            "has no pods now: attempt 3 .*suspended",
        ),
        (
            a_unit(state="Pending", attempt=1, reason="NodeLost"),
            (),
            r"has no pods now: .*\(NodeLost\)\. Only pods that ended by themselves",
        ),
        (a_unit(attempt=1), (1,), "has only the pods of attempt 1, its first; leave out -p"),
        (a_unit(state="BackingOff", attempt=2, failed_attempt=2), (2,), "attempt 2, which failed; leave out -p"),
        (a_unit(attempt=2), (2,), "has only the pods of attempt 2: none before has failed"),
        (a_unit(attempt=3, failed_attempt=2), (3,), "attempt 2 failed, but none of its pods is there any more"),
        (None, (4,), "has only the pods of attempt 4: none before has failed"),
    ],
)
def test_a_log_that_is_not_there_is_explained(record: UnitStatus | None, pods: tuple[int, ...], words: str) -> None:
    with pytest.raises(CommandError, match=words):
        unit_logs("v5p-0", record, [a_unit_pod(attempt) for attempt in pods], host=None, previous=True, container="")


@pytest.mark.parametrize("follow", [False, True])
async def test_lines_of_several_hosts_stay_whole(follow: bool) -> None:
    logs = Logs(one=[b"step 1\nst", b"ep 2\n"], two=[b"step ", b"1\nend"])
    text = await printed(logs, Source("one", "learner", "[host 0] "), Source("two", "learner", "[host 1] "), follow=follow, tail=5)
    assert sorted(text.splitlines()) == [b"[host 0] step 1", b"[host 0] step 2", b"[host 1] end", b"[host 1] step 1"]
    assert logs.asked == [(pod, LogRequest("learner", follow=follow, tail_lines=5)) for pod in ("one", "two")]


async def test_one_log_comes_through_byte_by_byte() -> None:
    assert await printed(Logs(bytes_lm_syncer=[b"a\r\n\n\xff", b"b"]), syncer_source(a_view(), "")) == b"a\r\n\n\xffb"


async def test_syncer_before_its_last_restart_has_a_log_of_its_own() -> None:
    logs = Logs(bytes_lm_syncer=[b"step 1"])
    assert await printed(logs, syncer_source(a_view(), "", previous=True)) == b"step 1"
    assert logs.asked == [("bytes-lm-syncer", LogRequest("syncer", previous=True))]


async def test_syncer_without_a_run_before_its_restart_says_why_and_what_to_do() -> None:
    first = BadRequest(400, "BadRequest", 'previous terminated container "syncer" in pod "bytes-lm-syncer" not found')
    with pytest.raises(CommandError, match=r"has no such log: .*not found\. .*a pod that was replaced took its log along\. Leave out -p"):
        await printed(Logs(bytes_lm_syncer=first), syncer_source(a_view(), "", previous=True))


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (
            a_view(suspend=True, state="Suspended", conditions=conditions(Suspended="True")),
            "no pod bytes-lm-syncer now; the job is suspended, .* `kubectl diloco resume bytes-lm -n team` starts a new one",
        ),
        (a_view(state="Failed", conditions=conditions(Failed="True")), "the job has ended, and its pod was deleted"),
        (
            a_view(state="Suspended", conditions=conditions(Suspended="True"), home={"name": "whole", "namespace": "there"}),
            "a part has none; in the cluster of job whole: kubectl diloco logs whole syncer -n there",
        ),
        (
            a_view(state="Queued", reason="WaitingForHardware", conditions=conditions(Placed="False")),
            r"when the job can run: Queued \(WaitingForHardware\): about Placed\. A pod that was replaced took its log along",
        ),
        (a_view(), "when the job can run: The operator has not seen this job yet"),
    ],
)
@pytest.mark.parametrize("previous", [False, True])
async def test_a_syncer_without_a_pod_says_why(view: JobView, words: str, previous: bool) -> None:
    with pytest.raises(CommandError, match=words):
        await printed(Logs(), syncer_source(view, "", previous=previous))


async def test_a_log_that_is_not_there_yet_is_told() -> None:
    waiting = BadRequest(400, "BadRequest", 'container "learner" in pod "one" is waiting to start: ContainerCreating')
    with pytest.raises(CommandError, match=r"pod one has no log: .*ContainerCreating"):
        await printed(Logs(one=waiting), Source("one", "learner"))
    with pytest.raises(CommandError, match="ContainerCreating; -p prints that of attempt 1"):
        await printed(Logs(one=waiting), Source("one", "learner", instead="; -p prints that of attempt 1"))
    gone = NotFound(404, "NotFound", 'nodes "tpu-0" not found')
    with pytest.raises(CommandError, match="the node of pod one is gone, and the log with it"):
        await printed(Logs(one=gone), Source("one", "learner"))
    with pytest.raises(CommandError, match="there is no pod two now"):
        await printed(Logs(one=waiting), Source("two", "learner"))
