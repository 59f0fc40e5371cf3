"""Jobs whose pods the API server refuses: units of other jobs do not leave for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from builders.cluster_scenes import operated
from builders.fake_cluster import FakeCluster, wall_clock
from builders.jobs import a_manifest, gpu_pool, with_field
from builders.nodes import a_gpu_node
from diloco_operator.api import names
from diloco_operator.kube.client import InternalError, Obj, Unavailable
from diloco_operator.kube.timestamps import parse_timestamp

QUOTA = 'pods "x" is forbidden: exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0'
NODES = [f"np-{index}-0" for index in range(4)]
SLICES = [f"np-{index}" for index in range(4)]


def refused_in_team_b(component: str = "") -> Callable[[Obj], str]:
    """What refuses all pods of team-b, or those of one component, as an admission webhook does, dry run or not."""

    def says(obj: Obj) -> str:
        meta = obj["metadata"]
        found = (meta.get("labels") or {}).get(names.LABEL_COMPONENT, "")
        is_pod = meta.get("namespace") == "team-b" and "containers" in obj.get("spec", {})
        return QUOTA if is_pod and component in ("", found) else ""

    return says


async def victim(cluster: FakeCluster) -> None:
    """The job `lm` of team-a trains on all slices, and needs one."""
    await cluster.apply("lm", max=4, namespace="team-a")
    await cluster.trains_on("lm", *NODES, namespace="team-a")


async def attempts(cluster: FakeCluster) -> list[int]:
    """Return the attempt of each unit of `lm`."""
    return [unit["attempt"] for unit in (await cluster.status("lm", "team-a"))["units"]]


def refused(status: Obj) -> bool:
    return [unit["reason"] for unit in status.get("units", ())] == ["PodsRefused"]


scene = operated(slices=SLICES, namespaces=["team-a", "team-b"])


@pytest.mark.parametrize("component", ["", names.COMPONENT_LEARNER, names.COMPONENT_SYNCER], ids=["every pod", "learners", "syncers"])
def test_jobs_whose_pods_are_always_refused_restart_no_unit_of_another_tenant(component: str) -> None:
    @scene
    async def play(cluster: FakeCluster) -> None:
        await victim(cluster)
        cluster.client.rejects = refused_in_team_b(component)
        for index in range(2):
            await cluster.apply(f"evil-{index}", namespace="team-b")
        await asyncio.sleep(300)
        await cluster.trains_on("lm", *NODES, namespace="team-a")
        assert await attempts(cluster) == [1, 1, 1, 1]

    play()


@scene
async def test_a_job_whose_pods_a_dry_run_refuses_says_what_refused_them(cluster: FakeCluster) -> None:
    await victim(cluster)
    cluster.client.rejects = refused_in_team_b(names.COMPONENT_LEARNER)
    await cluster.apply("evil", namespace="team-b")
    status = await cluster.when("evil", refused, "team-b")
    assert not await cluster.names_of(names.VOLUME_CLAIMS, "team-b"), "no syncer waits for what it does not get"
    [unit] = status["units"]
    assert (unit["state"], unit["slice"]) == ("Pending", "")
    assert "no unit of another job leaves for it: the API server rejected it: " + QUOTA in unit["message"]
    assert "raise the namespace's quota or limit range" in unit["message"]
    [placed] = [each for each in status["conditions"] if each["type"] == "Placed"]
    assert (placed["status"], placed["reason"]) == ("False", "PodsRefused")
    assert QUOTA in placed["message"]


@scene
async def test_dry_runs_that_are_refused_come_after_growing_pauses(cluster: FakeCluster) -> None:
    """5 s, doubled each time up to 300 s: after 0, 5, 15, 35, 75, 155 and 315 s, and then 1 more by second 650."""
    await victim(cluster)
    cluster.client.rejects = refused_in_team_b(names.COMPONENT_LEARNER)
    await cluster.apply("evil", namespace="team-b")
    await cluster.when("evil", refused, "team-b")
    await asyncio.sleep(650)
    assert len(cluster.client.dry_runs) == 7 + 1
    assert set(cluster.client.dry_runs) == {"evil-v6e-0-a1-0"}


@scene
async def test_dry_runs_that_the_api_server_does_not_answer_are_no_refusals(cluster: FakeCluster) -> None:
    """A server that is away is asked every 5 s: 13 times from second 60, when units of `lm` may first leave, to second 120."""
    await victim(cluster)
    cluster.client.rejects = refused_in_team_b(names.COMPONENT_LEARNER)
    cluster.client.refusal = lambda message: Unavailable(503, "ServiceUnavailable", message)
    await cluster.apply("young", namespace="team-b")
    await asyncio.sleep(120)
    assert not refused(await cluster.status("young", "team-b"))
    assert len(cluster.client.dry_runs) == 13


@scene
async def test_a_job_gets_its_minimum_once_its_pods_are_admitted(cluster: FakeCluster) -> None:
    await victim(cluster)
    cluster.client.rejects = refused_in_team_b(names.COMPONENT_LEARNER)
    await cluster.apply("evil", namespace="team-b")
    await cluster.when("evil", refused, "team-b")
    cluster.client.rejects = lambda _: ""
    await cluster.trains("evil", namespace="team-b")
    await cluster.trains("lm", 3, namespace="team-a")


@scene
async def test_a_changed_spec_is_asked_for_at_once(cluster: FakeCluster) -> None:
    await victim(cluster)
    cluster.client.rejects = refused_in_team_b(names.COMPONENT_LEARNER)
    await cluster.apply("evil", namespace="team-b")
    await asyncio.sleep(400)  # the pause is 300 s now
    asked = len(cluster.client.dry_runs)
    cluster.client.rejects = lambda _: ""
    await cluster.edit("evil", namespace="team-b", learners={"stallTimeout": "11m"})
    await cluster.settle()
    assert len(cluster.client.dry_runs) == asked + 2, "and once more as its syncer comes"


@scene
async def test_pods_that_are_refused_although_a_dry_run_admitted_them_take_slices_seldom(cluster: FakeCluster) -> None:
    """A quota for some of a unit's pods admits each alone. The pauses are 60, 120, 240 and 480 s: a slice is taken after 0, 60, 180
    and 420 s, each time some seconds later than that."""
    await victim(cluster)
    cluster.client.rejects_in_earnest = refused_in_team_b(names.COMPONENT_LEARNER)
    await cluster.apply("evil", namespace="team-b")
    await asyncio.sleep(500)
    assert sum(await attempts(cluster)) == 4 + 4


@scene
async def test_no_unit_leaves_for_a_job_whose_syncer_takes_what_its_quota_has_left(cluster: FakeCluster) -> None:
    """A quota of one pod admits a dry run of the unit's, until the syncer's is there."""
    made: list[str] = []

    def one_pod(obj: Obj) -> str:
        if obj["metadata"]["name"] == "evil-syncer" and "containers" in obj.get("spec", {}):
            made.append("evil-syncer")
        return refused_in_team_b(names.COMPONENT_LEARNER)(obj) if made else ""

    await victim(cluster)
    cluster.client.rejects = one_pod
    await cluster.apply("evil", namespace="team-b")
    await cluster.when("evil", refused, "team-b")
    await asyncio.sleep(300)
    await cluster.trains_on("lm", *NODES, namespace="team-a")
    assert await attempts(cluster) == [1, 1, 1, 1]
    assert made == ["evil-syncer"]


@scene
async def test_what_is_free_needs_no_dry_run(cluster: FakeCluster) -> None:
    await cluster.apply("lm", max=4, namespace="team-a")
    await cluster.trains_on("lm", *NODES, namespace="team-a")
    await cluster.apply("waits", min=1, namespace="team-a")
    await cluster.trains("waits", namespace="team-a")
    assert cluster.client.dry_runs == ["waits-v6e-0-a1-0"] * 2, "before its syncer is made for that, and once it is there"


@scene
async def test_no_unit_leaves_a_slice_on_which_the_pods_that_would_be_stored_do_not_fit(cluster: FakeCluster) -> None:
    def selects_hosts_of_team_b(obj: Obj) -> Obj:
        if obj["metadata"].get("namespace") != "team-b" or "containers" not in obj.get("spec", {}):
            return obj
        return {**obj, "spec": {**obj["spec"], "nodeSelector": {**obj["spec"].get("nodeSelector", {}), "team": "b"}}}

    await victim(cluster)
    cluster.client.admits = selects_hosts_of_team_b
    await cluster.apply("picky", namespace="team-b")
    await asyncio.sleep(300)
    await cluster.trains_on("lm", *NODES, namespace="team-a")
    assert await attempts(cluster) == [1, 1, 1, 1]
    assert cluster.client.dry_runs == ["picky-v6e-0-a1-0"]


# --- slices that are free -----------------------------------------------------------------------------------------------
ONE_ZONE = [a_gpu_node(f"gpu-{index}", labels={"topology.kubernetes.io/zone": "z1"}) for index in range(4)]


@operated(*ONE_ZONE, namespaces=["team-b"])
async def test_pods_that_are_refused_on_free_hosts_lack_no_host_and_say_when_they_are_tried_again(cluster: FakeCluster) -> None:
    cluster.client.rejects = refused_in_team_b(names.COMPONENT_LEARNER)
    pool = gpu_pool(hosts=4, max=1, locality="Zone")
    await cluster.api.create(names.DILOCO_JOBS, a_manifest("evil", namespace="team-b", min=1, max=1, pools=[pool]))
    status = await cluster.when("evil", refused, "team-b")
    tried = len(cluster.client.created)
    [unit], [pool] = status["units"], status["pools"]
    assert "leaves for it" not in unit["message"], "no other job has anything that it waits for"
    assert (pool["reason"], "remedies" in pool) == ("PodsRefused", False)
    assert pool["message"].endswith("the API server refuses pods of h100-0, see the message of the unit")
    again = parse_timestamp(unit["message"].rpartition("tried again at ")[2])
    await asyncio.sleep(again - wall_clock() - 1)
    assert len(cluster.client.created) == tried
    await asyncio.sleep(2)
    assert len(cluster.client.created) == tried + 4, "the pods of four hosts"


# --- slices that units have just got ------------------------------------------------------------------------------------
@scene
async def test_no_unit_leaves_a_slice_that_it_has_just_got(cluster: FakeCluster) -> None:
    """The victim has its slices from before second 10 on, and `minimumHold` is 60 s."""
    begun = asyncio.get_running_loop().time()
    await victim(cluster)
    await cluster.apply("young", namespace="team-b")
    await asyncio.sleep(begun + 55 - asyncio.get_running_loop().time())
    assert await attempts(cluster) == [1, 1, 1, 1]
    await cluster.trains_on("lm", *NODES, namespace="team-a")
    await cluster.trains("young", namespace="team-b")
    assert asyncio.get_running_loop().time() < begun + 90


@scene
async def test_a_unit_whose_pods_are_deleted_again_and_again_leaves_its_slice_all_the_same(cluster: FakeCluster) -> None:
    await victim(cluster)
    await cluster.apply("young", namespace="team-b")
    for _ in range(8):
        for pod in await cluster.pod_phases("lm", "team-a"):
            if "syncer" not in pod:
                await cluster.api.delete(names.PODS, "team-a", pod)
        await asyncio.sleep(10)
    await cluster.trains("young", namespace="team-b")


WEBHOOK = 'Internal error occurred: failed calling webhook "pods.example.com": Post "https://hook": connect: connection refused'


def with_a_webhook_that_is_down(cluster: FakeCluster) -> None:
    """Every create of a pod fails, dry run or not, as with `failurePolicy: Fail`."""
    cluster.client.rejects = lambda obj: WEBHOOK if "containers" in obj.get("spec", {}) else ""
    cluster.client.refusal = lambda message: InternalError(500, "InternalError", message)


@operated(slices=SLICES)
async def test_a_new_job_says_that_a_webhook_is_down_and_trains_once_it_answers(cluster: FakeCluster) -> None:
    with_a_webhook_that_is_down(cluster)
    await cluster.apply("lm")
    begun = asyncio.get_running_loop().time()
    status = await cluster.when("lm", lambda status: WEBHOOK in str(status.get("conditions")))
    # Three creates in a row fail, at 0, 0.5 and 1.5 s with jitter; then the job is decided without it.
    assert asyncio.get_running_loop().time() - begun < 5
    [trains] = [each for each in status["conditions"] if each["type"] == "Training"]
    assert trains["reason"] == "WriteRefused"
    assert "ask the owner of this admission webhook" in trains["message"]
    cluster.client.rejects = lambda _: ""
    await cluster.trains("lm")


@operated(slices=SLICES)
async def test_the_status_of_a_running_job_goes_on_while_no_pod_can_be_made(cluster: FakeCluster) -> None:
    await cluster.apply("lm", min=1, max=2)
    await cluster.trains("lm", 2)
    with_a_webhook_that_is_down(cluster)
    await cluster.crash("lm-v6e-1-a1-0")
    status = await cluster.when("lm", lambda status: WEBHOOK in str(status.get("units")))
    assert {unit["name"]: unit["state"] for unit in status["units"]} == {"v6e-0": "Training", "v6e-1": "Pending"}
    cluster.t = 48
    await cluster.when("lm", lambda status: status["progress"]["step"] == 48)
    cluster.client.rejects = lambda _: ""
    await cluster.trains("lm", 2)


def test_an_operator_that_starts_counts_all_slices_as_old() -> None:
    @operated(slices=SLICES, namespaces=["team-a", "team-b"], runs=False)
    async def play(cluster: FakeCluster) -> None:
        await cluster.start()
        await victim(cluster)
        await cluster.restart()
        begun = asyncio.get_running_loop().time()
        await cluster.apply("young", namespace="team-b")
        await cluster.trains("young", namespace="team-b")
        assert asyncio.get_running_loop().time() < begun + 20
        await cluster.stop()

    play()


@scene
async def test_a_template_that_is_refused_takes_no_unit_and_one_that_is_admitted_takes_them_one_by_one(cluster: FakeCluster) -> None:
    await victim(cluster)
    [pool] = (await cluster.api.get(names.DILOCO_JOBS, "team-a", "lm"))["spec"]["pools"]
    cluster.client.rejects = lambda obj: QUOTA if "containers" in obj.get("spec", {}) else ""
    await cluster.edit(namespace="team-a", learners={"min": 4}, pools=[with_field(pool, "template.metadata.labels", {"version": "2"})])

    def stopped(status: Obj) -> bool:
        return any(each["reason"] == "RollOutStopped" and QUOTA in each["message"] for each in status["conditions"])

    await cluster.when("lm", stopped, "team-a")
    await asyncio.sleep(300)
    assert await attempts(cluster) == [1, 1, 1, 1]
    cluster.client.rejects = lambda _: ""
    await cluster.when("lm", lambda status: [unit["attempt"] for unit in status["units"]] == [2, 2, 2, 2], "team-a")
    await cluster.trains_on("lm", *NODES, namespace="team-a")
