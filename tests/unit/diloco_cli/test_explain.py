"""`kubectl diloco explain`: one page that says what a job lacks, why, and what would help."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from builders.cluster_scenes import NOW, SINCE, Limited, begin, conditions, on_a_cluster, unit
from builders.fake_cluster import FakeCluster
from builders.jobs import Obj, a_manifest, gpu_pool, tpu_pool
from builders.nodes import a_tpu_node, a_tpu_slice
from diloco_cli.explanation import Explanation
from diloco_cli.kubectl.explain import explained
from diloco_cli.kubectl.explanation_text import explanation_text
from diloco_cli.runbook import url_of
from diloco_operator.api.names import ANNOTATION_SAID, DILOCO_JOBS, EVENTS, LABEL_UNIT, NODES, PRIORITY_CLASSES, RESOURCE_SLICES
from diloco_operator.kube.client import Client, Gone, ObjList, Resource

SHORT = "pool v5p needs 1 more slice of tpu-v5p 2x2x1; the fleet has 1: 1 held by job team/other"
REMEDIES = ["wait until job team/other ends, or suspend it", "more nodes"]


async def set_status(cluster: FakeCluster, **status: Any) -> None:
    await cluster.api.patch(DILOCO_JOBS, "team", "bytes-lm", {"status": status}, subresource="status")


async def tell(cluster: FakeCluster, reason: str, message: str, at: str = SINCE, **about: str) -> None:
    job = await cluster.api.get(DILOCO_JOBS, "team", "bytes-lm")
    ref = {"kind": "DiLoCoJob", "namespace": "team", "name": "bytes-lm", "uid": job["metadata"]["uid"], **about}
    unit, _, said = message.removeprefix("(combined from similar events) ").partition(": ")
    marks = {LABEL_UNIT: unit, ANNOTATION_SAID: said}
    meta = {"name": f"e{abs(hash((reason, message, at)))}", "namespace": "team", "annotations": marks}
    await cluster.api.create(
        EVENTS, {"metadata": meta, "involvedObject": ref, "reason": reason, "message": message, "lastTimestamp": at, "type": "Warning"}
    )


async def page(cluster: FakeCluster, *forbidden: Resource, width: int = 0) -> str:
    return explanation_text(await found_by(cluster, *forbidden), NOW, width)


async def found_by(cluster: FakeCluster, *forbidden: Resource) -> Explanation:
    client: Client = Limited(cluster.api, *forbidden)
    return await explained(client, "team", "bytes-lm", lambda: NOW)


def learners(contributing: int, desired: int) -> Obj:
    return {"desired": desired, "placed": contributing, "contributing": contributing, "min": 1, "max": desired}


def a_pool(name: str = "v5p", placed: int = 1, **fields: Any) -> Obj:
    return {"name": name, "placed": placed, "contributing": placed, "reason": "", "message": "", **fields}


@on_a_cluster
async def test_a_job_that_is_well_is_told_in_two_lines(cluster: FakeCluster) -> None:
    await begin(cluster)
    await set_status(
        cluster, state="Training", reason="QuorumContributing", conditions=conditions(Training="True"), learners=learners(1, 1),
        units=[unit()], pools=[a_pool(reason="AtMaximum", message="pool v5p has the 1 unit of its learners.max")],
    )  # fmt: skip
    assert (await page(cluster)).splitlines() == [
        "bytes-lm in namespace team is Training (QuorumContributing): 1 of 1 unit contributes; nothing waits for hardware",
        "",
        "POOL v5p (tpu-v5p 2x2x1): 1 placed of at most 4, 1 contributing",
        "  why not more    AtMaximum: pool v5p has the 1 unit of its learners.max",
    ]


@on_a_cluster
async def test_a_pool_that_waits_says_since_when_why_what_would_help_and_what_nodes_there_are(cluster: FakeCluster) -> None:
    await begin(cluster)
    for node in (a_tpu_node("up"), a_tpu_node("down", cordoned=True), *a_tpu_slice("other", 2)):
        await cluster.api.create(NODES, node)
    waits = [
        unit(f"v5p-{i}", "Pending", 0, reason="NoCapacity", message="waits for a slice; the message of pool v5p says why") for i in (1, 2)
    ]
    await set_status(
        cluster, state="Training", reason="QuorumContributing", conditions=conditions(Training="True"), learners=learners(1, 3),
        units=[unit(), *waits], pools=[a_pool(reason="NoFreeSlice", message=SHORT, remedies=REMEDIES, waitingSince=SINCE)],
    )  # fmt: skip
    assert (await page(cluster)).splitlines() == [
        "bytes-lm in namespace team is Training (QuorumContributing): 1 of 3 units contribute; pool v5p waits for slices",
        "  cause           NoFreeSlice (pool v5p): Every slice that fits the pool is in use or not ready.",
        "  next step       wait until job team/other ends, or suspend it",
        f"  runbook         {url_of('NoFreeSlice')}",
        "",
        "POOL v5p (tpu-v5p 2x2x1): 1 placed of at most 4, 1 contributing",
        f"  why not more    NoFreeSlice since 2026-11-20T21:00:00Z (1m00s ago): {SHORT}",
        "  what would help - wait until job team/other ends, or suspend it",
        "                  - more nodes",
        "  nodes now       2 slices of tpu-v5p 2x2x1, 1 not usable: node down is cordoned",
        "  in line         no other job waits for such hardware",
        "",
        "UNITS v5p-1, v5p-2: Pending, NoCapacity",
        "  why             waits for a slice; the message of pool v5p says why",
        "  since           2026-11-20T21:00:00Z (1m00s ago)",
    ]


@on_a_cluster
async def test_a_job_that_waits_says_its_place_in_line_and_what_comes_by_itself(cluster: FakeCluster) -> None:
    await begin(cluster)
    pools = [a_pool(placed=0, reason="NoFreeSlice", message=SHORT, remedies=REMEDIES)]
    await set_status(
        cluster, state="Queued", conditions=conditions(Training="False"), learners=learners(0, 2), pools=pools,
        units=[unit("v5p-0", "BackingOff", 1, reason="Disrupted", message="evicted", notBefore="2026-11-20T21:01:42Z")],
    )  # fmt: skip
    older = {**pools[0], "name": "theirs"}
    job = a_manifest("older", namespace="team", pools=[tpu_pool("theirs", topology="2x2x1")], spec={"priorityClassName": "high"})
    await cluster.api.create(PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 100})
    await cluster.api.create(DILOCO_JOBS, job)
    await cluster.write_status(DILOCO_JOBS, "older", {"pools": [older]}, namespace="team")
    told = (await page(cluster)).splitlines()
    assert told[1:4] == [
        "  cause           NoFreeSlice (pool v5p): Every slice that fits the pool is in use or not ready.",
        "  next step       wait until job team/other ends, or suspend it",
        "  by itself       in 42s v5p-0 may start again",
    ]
    assert "  in line         2nd of 2 jobs that wait for such hardware" in told
    assert "in line" not in await page(cluster, PRIORITY_CLASSES)


@on_a_cluster
async def test_a_unit_that_failed_says_how_when_and_where_its_log_is(cluster: FakeCluster) -> None:
    await begin(cluster)
    crashed = unit(
        "v5p-1", "BackingOff", 3, reason="Crashed", message="attempt 3 ended: exit 1; starts again", restarts=2, slice="np-1",
        failures=["2026-11-20T21:00:00Z"], notBefore="2026-11-20T21:02:30Z", failedAttempt=3, lastFailure="Crashed: exit 1",
    )  # fmt: skip
    await set_status(
        cluster, state="Degraded", reason="LearnersFailed", conditions=conditions(Training="True"), learners=learners(1, 2),
        units=[unit(), crashed], pools=[a_pool(placed=2)],
        hosts=[{"node": "tpu-7", "message": "v5p-1 crashed", "avoidedUntil": "2026-11-20T21:10:00Z"}],
    )  # fmt: skip
    await tell(cluster, "UnitCrashed", "v5p-1: attempt 2 ended: exit 9", "2026-11-20T20:50:00Z")
    await tell(cluster, "UnitCrashed", "(combined from similar events) v5p-1: attempt 3 ended: exit 1; starts again")
    await tell(cluster, "UnitCrashed", "v5p-1: of an earlier job", uid="another")
    await tell(cluster, "UnitStarted", "v5p-1: attempt 3 starts on np-1", "2026-11-20T21:00:59Z")
    await tell(cluster, "UnitCrashed", "no-such-unit: x", "2026-11-20T21:00:59Z")
    lines = (await page(cluster)).splitlines()
    assert lines[0] == ("bytes-lm in namespace team is Degraded (LearnersFailed): 1 of 2 units contribute; unit v5p-1 does not train")
    assert lines[lines.index("UNIT v5p-1: BackingOff, Crashed, on np-1") :] == [
        "UNIT v5p-1: BackingOff, Crashed, on np-1",
        "  why             attempt 3 ended: exit 1; starts again",
        "  since           2026-11-20T21:00:00Z (1m00s ago)",
        "  next attempt    not before 2026-11-20T21:02:30Z, in 1m30s",
        "  restarts        2 so far",
        "  last failure    2026-11-20T21:00:00Z (1m00s ago), attempt 3: Crashed: exit 1",
        "  its log         kubectl diloco logs bytes-lm v5p-1 -n team",
        "",
        "hosts on which attempts failed",
        "  tpu-7           avoided until 2026-11-20T21:10:00Z: v5p-1 crashed",
    ]


@on_a_cluster
async def test_a_unit_that_starts_again_still_says_how_its_last_attempt_failed_and_its_log_is_the_previous_one(
    cluster: FakeCluster,
) -> None:
    await begin(cluster)
    again = unit(
        "v5p-1", "Joining", 4, reason="Joining", message="takes the current parameters", failures=["2026-11-20T20:59:00Z"],
        endedAttempt=3, failedAttempt=3, lastFailure="OutOfMemory: exit 137 (OOMKilled): it used too much memory",
    )  # fmt: skip
    refused = unit(
        "v5p-2", "Pending", 1, reason="Retried", message="retry 1: the unit starts again", endedAttempt=1, failedAttempt=1,
        lastFailure="RefusedLayout: exit 65: the parameters do not fit the job's",
    )  # fmt: skip
    await set_status(
        cluster, state="Training", conditions=conditions(Training="True"), learners=learners(1, 3), units=[unit(), again, refused]
    )
    told = await page(cluster)
    assert (
        "  last failure    2026-11-20T20:59:00Z (2m00s ago), attempt 3: OutOfMemory: exit 137 (OOMKilled): it used too much memory\n"
        "  its log         kubectl diloco logs bytes-lm v5p-1 -p -n team\n"
    ) in told
    assert (
        "  last failure    attempt 1: RefusedLayout: exit 65: the parameters do not fit the job's\n"
        "  its log         kubectl diloco logs bytes-lm v5p-2 -n team"
    ) in told


@on_a_cluster
async def test_where_status_had_no_room_for_the_cause_the_event_tells_it(cluster: FakeCluster) -> None:
    await begin(cluster)
    again = unit("v5p-1", "Starting", 4, failures=["2026-11-20T20:59:00Z"], endedAttempt=3, failedAttempt=3)
    await set_status(cluster, state="Training", conditions=conditions(Training="True"), learners=learners(1, 2), units=[unit(), again])
    await tell(cluster, "UnitCrashed", "v5p-1: attempt 2 ended: exit 9", "2026-11-20T20:50:00Z")
    await tell(cluster, "UnitCrashed", "(combined from similar events) v5p-1: attempt 3 ended: exit 1", "2026-11-20T20:59:01Z")
    await tell(cluster, "UnitCrashed", "v5p-1: of an earlier job", uid="another")
    told = await page(cluster)
    assert "  last failure    2026-11-20T20:59:01Z (1m59s ago), attempt 3: UnitCrashed: attempt 3 ended: exit 1\n" in told


@on_a_cluster
async def test_an_event_of_a_stranger_does_not_control_the_terminal(cluster: FakeCluster) -> None:
    await begin(cluster)
    lost = unit("v5p-1", "Pending", 1, reason="NodeLost", message="node tpu-1 is gone", endedAttempt=1)
    await set_status(cluster, state="Training", conditions=conditions(Training="True"), learners=learners(1, 2), units=[unit(), lost])
    await tell(cluster, "UnitLost", "v5p-1: gone \x1b[2J")
    told = await page(cluster)
    assert "UnitLost: gone \ufffd[2J" in told
    assert told.replace("\n", "").isprintable()


@on_a_cluster
async def test_a_unit_whose_node_was_lost_is_not_sent_to_a_log_that_went_with_it(cluster: FakeCluster) -> None:
    await begin(cluster)
    lost = unit("v5p-1", "Pending", 1, reason="NodeLost", message="node tpu-1 is gone", endedAttempt=1)
    await set_status(cluster, state="Training", conditions=conditions(Training="True"), learners=learners(1, 2), units=[unit(), lost])
    await tell(cluster, "UnitLost", "v5p-1: node tpu-1 is gone")
    told = await page(cluster)
    assert "  last failure    2026-11-20T21:00:00Z (1m00s ago): UnitLost: node tpu-1 is gone" in told
    assert "its log" not in told


@on_a_cluster
async def test_a_spec_that_the_operator_cannot_use_is_the_answer(cluster: FakeCluster) -> None:
    await begin(cluster)
    await set_status(cluster, state="Queued", reason="SpecInvalid", conditions=conditions(Accepted="False"))
    assert (await page(cluster)).splitlines() == [
        "bytes-lm in namespace team is Queued (AcceptedReason): about Accepted",
        "  next step       do what the message says",
    ]


@on_a_cluster
async def test_a_user_without_rights_on_nodes_and_events_gets_less_and_is_told_so(cluster: FakeCluster) -> None:
    await begin(cluster)
    failed = unit("v5p-1", "Failed", 3, reason="RestartsExhausted", message="gave up", failures=["2026-11-20T21:00:00Z"])
    await set_status(
        cluster, state="Queued", reason="WaitingForHardware", conditions=conditions(Training="False"), learners=learners(0, 2),
        units=[failed], pools=[a_pool(placed=0, reason="NoFreeSlice", message=SHORT, remedies=REMEDIES)],
    )  # fmt: skip
    told = await page(cluster, NODES, EVENTS)
    assert "  last failure    2026-11-20T21:00:00Z (1m00s ago): RestartsExhausted: gave up\n" in told
    assert "nodes now" not in told
    assert told.splitlines()[-2:] == [
        "Note: you may not list the events of the namespace, so that what they tell is not shown",
        "Note: you may not list the nodes of the cluster, so that what they tell is not shown",
    ]


@on_a_cluster
async def test_a_user_who_may_not_list_resource_slices_is_told_that_some_gpus_may_be_missing(cluster: FakeCluster) -> None:
    await begin(cluster)
    await set_status(
        cluster, state="Queued", reason="WaitingForHardware", conditions=conditions(Training="False"), learners=learners(0, 2),
        pools=[a_pool(placed=0, reason="NoFreeSlice", message=SHORT, remedies=REMEDIES)],
    )  # fmt: skip
    told = await page(cluster, RESOURCE_SLICES)
    assert "nodes now" in told
    assert told.splitlines()[-1] == "Note: you may not list resource slices: GPUs that only DRA offers are not seen"


@on_a_cluster
async def test_a_job_that_the_operator_has_not_seen_is_told_as_by_status(cluster: FakeCluster) -> None:
    await begin(cluster)
    await cluster.api.patch(DILOCO_JOBS, "team", "bytes-lm", {"status": None}, subresource="status")
    assert (await page(cluster)).startswith("The operator has not seen this job yet. ")


@on_a_cluster
async def test_a_job_that_is_over_or_suspended_says_that_and_how_it_ended(cluster: FakeCluster) -> None:
    await begin(cluster)
    await set_status(cluster, state="Complete", reason="", conditions=conditions(Complete="True"), units=[unit(state="Completed")])
    assert (await page(cluster)).splitlines() == [
        "bytes-lm in namespace team is Complete: about Complete",
        "  next step       kubectl diloco export bytes-lm -n team -o model.safetensors",
    ]


@on_a_cluster
async def test_pools_of_hosts_and_pools_that_the_spec_lost_are_described(cluster: FakeCluster) -> None:
    await begin(cluster)
    pools = [gpu_pool(hosts=2, capacity="Spot", learners={"min": 1, "max": 3}), tpu_pool()]
    await cluster.api.patch(DILOCO_JOBS, "team", "bytes-lm", {"spec": {"pools": pools, "learners": {"max": 4}}})
    await set_status(
        cluster, state="Training", conditions=conditions(Training="True"), learners=learners(1, 1),
        pools=[a_pool("h100"), a_pool("old", placed=0)],
    )  # fmt: skip
    told = await page(cluster)
    assert "POOL h100 (nvidia-h100-80gb, 2 hosts, Spot): 1 placed of at most 3 (at least 1), 1 contributing\n" in told
    assert "POOL old: 0 placed, no longer in the spec, 0 contributing\n" in told


@on_a_cluster
async def test_a_pool_in_another_cluster_is_not_described_by_the_nodes_and_the_queue_of_this_one(cluster: FakeCluster) -> None:
    await begin(cluster)
    pools = [tpu_pool("v5p", topology="2x2x1"), tpu_pool("far", topology="2x2x1", cluster="tokyo")]
    changed = {"pools": pools, "syncer": {"externalAddress": "syncer.example.com"}}
    await cluster.api.patch(DILOCO_JOBS, "team", "bytes-lm", {"spec": changed})
    await cluster.api.create(NODES, a_tpu_node("here"))
    waits = a_pool("far", cluster="tokyo", reason="NoFreeSlice", message="both slices are in use")
    await set_status(
        cluster, state="Training", conditions=conditions(Training="True"), learners=learners(1, 2), units=[unit()],
        pools=[a_pool(), waits],
    )  # fmt: skip
    text = await page(cluster)
    assert "POOL far (tpu-v5p 2x2x1, in cluster tokyo)" in text
    assert "NoFreeSlice: both slices are in use" in text
    assert "nodes now" not in text
    assert "in line" not in text


@on_a_cluster
async def test_a_pool_of_a_kind_from_the_operators_catalogue_file_says_why_its_nodes_are_not_shown(cluster: FakeCluster) -> None:
    await begin(cluster)
    custom = a_manifest("own", namespace="team", pools=[gpu_pool("npu", accelerator="acme-npu"), tpu_pool(topology="2x2x1")])
    await cluster.api.create(DILOCO_JOBS, custom)
    pools = [a_pool(name, placed=0, reason="NoFreeSlice", message=SHORT, remedies=REMEDIES) for name in ("npu", "v5p")]
    told = {"state": "Queued", "conditions": conditions(Training="False"), "learners": learners(0, 2), "pools": pools}
    await cluster.write_status(DILOCO_JOBS, "own", told, namespace="team")
    explanation = await explained(cluster.api, "team", "own", lambda: NOW)
    assert [pool.nodes for pool in explanation.pools] == ["", "none of tpu-v5p 2x2x1"]
    (note,) = explanation.notes
    assert note.startswith("what the nodes have for pool npu is not shown: acme-npu is not built in, and the operator's catalogue file")


@on_a_cluster
async def test_lines_are_as_wide_as_the_terminal_and_stay_indented(cluster: FakeCluster) -> None:
    await begin(cluster)
    await set_status(
        cluster, state="Queued", conditions=conditions(Training="False"), learners=learners(0, 2),
        pools=[a_pool(placed=0, reason="NoFreeSlice", message=SHORT, remedies=REMEDIES)],
    )  # fmt: skip
    told = (await page(cluster, width=72)).splitlines()
    assert max(len(line) for line in told if not line.startswith("  runbook")) <= 72  # an address stays whole
    at = next(index for index, line in enumerate(told) if line.startswith("  why not more    NoFreeSlice: pool v5p needs"))
    assert told[at + 1].startswith(" " * 18 + "2x2x1; the fleet has 1")


@on_a_cluster
async def test_a_list_whose_pages_expired_is_read_again_at_once(cluster: FakeCluster) -> None:
    await begin(cluster)
    await set_status(
        cluster, state="Queued", conditions=conditions(Training="False"), learners=learners(0, 2),
        pools=[a_pool(placed=0, reason="NoFreeSlice", message=SHORT, remedies=REMEDIES)],
    )  # fmt: skip
    for name in ("one", "two"):
        await cluster.api.create(NODES, a_tpu_node(name))
    limits: list[int] = []

    class Expiring(Limited):
        async def list(self, resource: Resource, namespace: str = "", *, limit: int = 0, **how: Any) -> ObjList:
            if resource is not NODES:
                return await super().list(resource, namespace, limit=limit, **how)
            limits.append(limit)
            if how.get("continue_token"):
                raise Gone(410, "Expired", "the provided continue parameter is too old")
            return await super().list(resource, namespace, limit=min(limit, 1), **how)

    client: Client = Expiring(cluster.api)
    (pool,) = (await explained(client, "team", "bytes-lm", lambda: NOW)).pools
    assert pool.nodes == "2 slices of tpu-v5p 2x2x1, all of them ready"
    assert limits == [500, 500, 0]


@on_a_cluster
async def test_the_same_can_be_had_as_json(cluster: FakeCluster) -> None:
    await begin(cluster)
    await set_status(
        cluster, state="Queued", conditions=conditions(Training="False"), learners=learners(0, 2),
        pools=[a_pool(placed=0, reason="NoFreeSlice", message=SHORT, remedies=REMEDIES)],
    )  # fmt: skip
    said = json.loads(json.dumps(dataclasses.asdict(await found_by(cluster))))
    assert said["state"] == "Queued"
    assert said["pools"][0]["help"] == ["wait until job team/other ends, or suspend it", "more nodes"]
