"""Every plan is carried out: what a cluster holds and says after an operator has acted on it, through the API.

What the plans are is in tests/unit/diloco_operator/reconcile, under the same subjects. Here are the writes, watches, caches, deadlines and
Events between two plans. In each scene an operator runs on a cluster in memory, from `operated`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from builders.cluster_scenes import operated
from builders.fake_cluster import EPOCH, NS, FakeCluster, wall_clock
from builders.jobs import Obj, gpu_pool, template, tpu_pool
from builders.kube_objects import eventually
from builders.nodes import TPU, a_gpu_node, a_tpu_node, a_tpu_slice
from builders.workloads import FINALIZER, GATE, NO_QUOTA, a_workload, workloads_crd
from diloco_cli.kubectl.explain import explained
from diloco_cli.kubectl.explanation_text import explanation_text
from diloco_cli.status_text import status_text
from diloco_cli.view_model import JobView
from diloco_operator.api import names
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.operator import RunConfig
from diloco_operator.report import FaultKind, ReportFault

AUTOSCALER = {"mode": "Autoscaler", "timeout": "10m"}


def reasons(*wanted: str) -> Callable[[Obj], bool]:
    """Return whether the units have these reasons, in their order."""
    return lambda status: [unit["reason"] for unit in status.get("units", ())] == list(wanted)


def says(words: str) -> Callable[[Obj], bool]:
    """A unit's message."""
    return lambda status: any(words in unit["message"] for unit in status.get("units", ()))


async def holds(cluster: FakeCluster, resource: Any, *wanted: str, within: float = 60) -> None:
    """Waits until the namespace has these objects of a kind, and no others."""

    async def there() -> bool:
        return await cluster.names_of(resource, NS) == sorted(wanted)

    await eventually(there, f"{resource.plural} {wanted}", seconds=within)


async def learners(cluster: FakeCluster) -> list[str]:
    found = await cluster.api.list(names.PODS, NS, label_selector=f"{names.LABEL_COMPONENT}={names.COMPONENT_LEARNER}")
    return sorted(pod["metadata"]["name"] for pod in found.items)


# --- hosts on which every program crashes -----------------------------------------------------------------------------
def hosts(count: int) -> list[Obj]:
    return [a_tpu_node(f"tpu-{index}") for index in range(count)]


async def apply_on_hosts(cluster: FakeCluster, units: int, **learners: Any) -> None:
    await cluster.apply("lm", tpu_pool(topology="2x2x1", max=units), max=units, learners=learners)


def all_train_without(host: str, units: int) -> Callable[[Obj], bool]:
    def true(status: Obj) -> bool:
        avoided = [each["node"] for each in status.get("hosts", ()) if "avoidedUntil" in each]
        return [unit["state"] for unit in status.get("units", ())].count("Training") == units and host in avoided

    return true


@pytest.mark.slow
@pytest.mark.parametrize("pause", ["0s", "30s"])
@operated(*hosts(10))
async def test_one_bad_host_of_ten_costs_at_most_two_failures(cluster: FakeCluster, pause: str) -> None:
    """Also without a pause between attempts, in which the unit could be granted another slice."""
    cluster.bad_nodes.add("tpu-3")
    await apply_on_hosts(cluster, 9, restart={"limit": 5, "window": "1h", "backoff": {"initial": pause, "max": "5m"}})
    status = await cluster.when("lm", all_train_without("tpu-3", 9))
    assert sum(len(unit["failures"]) for unit in status["units"]) == 2
    assert "tpu-3" not in {unit["slice"] for unit in status["units"]}
    [host] = status["hosts"]
    assert (host["node"], len(host["failures"]), host["avoidances"]) == ("tpu-3", 2, 1)
    assert "uncorrectable ECC error" in host["message"]
    await asyncio.sleep(60)
    [note] = await cluster.event_messages("HostAvoided")
    assert note.startswith(f"node tpu-3: 2 attempts failed there; no unit starts there until {host['avoidedUntil']}")
    job = {"namespace": NS, "dilocojob": "lm"}
    assert cluster.metric("diloco_job_avoided_hosts", **job) == 1
    assert cluster.metric("diloco_job_host_failures", **job, node="tpu-3") == 2
    await asyncio.sleep(7200)
    await cluster.trains("lm", 9)
    assert "hosts" not in await cluster.status(), "a host without failures for long is as good as any other"
    assert cluster.metric("diloco_job_avoided_hosts", **job) == 0


@pytest.mark.slow
@operated(*hosts(3))
async def test_unit_that_used_up_its_budget_on_one_host_returns_on_the_first_other_one(cluster: FakeCluster) -> None:
    """No other host is free at first: the unit tries again on its own until the budget is used up, then it waits, and nothing is lost."""
    cluster.bad_nodes.add("tpu-1")
    await apply_on_hosts(cluster, 3, restart={"limit": 2, "window": "1h", "backoff": {"initial": "1s", "max": "5s"}})
    status = await cluster.when("lm", lambda status: any(pool["reason"] == "NoFreeSlice" for pool in status.get("pools", ())))
    assert status["learners"] == {"desired": 3, "placed": 2, "contributing": 2, "min": 1, "max": 3}
    assert "1 free, but avoided because attempts failed there: tpu-1 until" in status["pools"][0]["message"]
    [unit] = [unit for unit in status["units"] if unit["state"] != "Training"]
    assert unit["state"] in ("BackingOff", "Pending")
    assert "which is avoided until" in unit["message"]
    assert len(unit["failures"]) == 3
    await cluster.add([a_tpu_node("tpu-9")])
    assert sorted(await cluster.trains("lm", 3)) == ["tpu-0", "tpu-2", "tpu-9"]


@pytest.mark.slow
@operated(*hosts(4), runs=False)
async def test_restarted_operator_still_avoids_the_host(cluster: FakeCluster) -> None:
    cluster.bad_nodes.add("tpu-0")
    async with cluster.operating():
        await apply_on_hosts(cluster, 2)
        before = await cluster.when("lm", all_train_without("tpu-0", 2))
    async with cluster.operating(seed=8):
        await cluster.edit(learners={"max": 3}, pools=[tpu_pool(topology="2x2x1", max=3)])
        assert sorted(await cluster.trains("lm", 3)) == ["tpu-1", "tpu-2", "tpu-3"]
        assert (await cluster.status())["hosts"] == before["hosts"]


# --- pods that ended by themselves ------------------------------------------------------------------------------------
async def trains_attempt(cluster: FakeCluster, attempt: int) -> None:
    await cluster.when("lm", lambda status: (status["units"][0]["state"], status["units"][0]["attempt"]) == ("Training", attempt))


@pytest.mark.slow
@operated(slices=["np-a"], runs=False)
async def test_a_job_fails_recovers_completes_and_leaves_its_logs_and_its_slice(cluster: FakeCluster) -> None:
    async with cluster.operating():
        await cluster.apply("lm", spec={"ttlSecondsAfterFinished": 3600})
        await cluster.trains("lm")
        for attempt in (1, 2):
            await cluster.crash(f"lm-v6e-0-a{attempt}-0")
            await trains_attempt(cluster, attempt + 1)
            assert await cluster.pod_phases("lm") == {
                "lm-syncer": "Running",
                f"lm-v6e-0-a{attempt}-0": "Failed",
                f"lm-v6e-0-a{attempt + 1}-0": "Running",
            }
        await cluster.complete((NS, "lm"))
        await cluster.when("lm", lambda status: status["units"][0]["state"] == "Completed")
        await asyncio.sleep(600)
    ended = {"lm-syncer": "Succeeded", "lm-v6e-0-a2-0": "Failed", "lm-v6e-0-a3-0": "Succeeded"}
    assert await cluster.pod_phases("lm") == ended
    async with cluster.operating():  # a new one decides from the objects alone
        await cluster.apply("next")
        await cluster.trains("next")
        assert await cluster.pod_phases("lm") == ended
        await asyncio.sleep(3600)
        assert await cluster.pod_phases("lm") == {}, "the time to live has passed"
        for resource in (names.CONFIG_MAPS, names.SECRETS, names.SERVICES, names.VOLUME_CLAIMS):
            assert [name for name in await cluster.names_of(resource, NS) if not name.startswith("next")] == []


@pytest.mark.slow
@operated(slices=["np-a"])
async def test_an_ended_pod_that_others_delete_costs_no_write_and_no_event(cluster: FakeCluster) -> None:
    """As `kubectl drain` does it, and kube-controller-manager where there are too many."""
    await cluster.apply("lm")
    await cluster.trains("lm")
    await cluster.crash("lm-v6e-0-a1-0")
    await trains_attempt(cluster, 2)
    await asyncio.sleep(120)
    before, events = await cluster.status(), (await cluster.api.list(names.EVENTS, NS)).items
    await cluster.api.delete(names.PODS, NS, "lm-v6e-0-a1-0")
    await asyncio.sleep(120)
    after = await cluster.status()
    assert (after["units"], after["conditions"]) == (before["units"], before["conditions"])
    assert (await cluster.api.list(names.EVENTS, NS)).items == events
    assert await cluster.pod_phases("lm") == {"lm-syncer": "Running", "lm-v6e-0-a2-0": "Running"}


# --- nodes that end ---------------------------------------------------------------------------------------------------
ENDS, RUNS = "node.gke.io/machine-termination-datetime", "cloud.google.com/gke-max-run-duration-seconds"


@pytest.mark.slow
@operated(slices=["np-0", "np-1"], runs=False)
async def test_unit_starts_on_the_node_that_lasts(cluster: FakeCluster) -> None:
    ends = {"metadata": {"annotations": {ENDS: format_timestamp(EPOCH + 100)}}}
    await cluster.api.patch(names.NODES, "", "np-0-0", ends)
    await cluster.apply("first")
    await cluster.apply("second")
    async with cluster.operating():
        assert await cluster.trains("first") == ["np-1-0"]

        def told(status: Obj) -> bool:
            placed = [each["message"] for each in status.get("conditions", ()) if each["type"] == "Placed"]
            return any("node np-0-0 ends at" in message for message in placed)

        await cluster.when("second", told)
    pods = (await cluster.api.list(names.PODS, NS, label_selector=f"{names.LABEL_COMPONENT}={names.COMPONENT_LEARNER}")).items
    assert [pod["metadata"]["annotations"][names.ANNOTATION_NODE] for pod in pods] == ["np-1-0"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "node",
    [
        pytest.param(
            a_gpu_node("ends", labels={"cloud.google.com/gke-spot": "true"}, annotations={ENDS: format_timestamp(EPOCH + 1000)}),
            id="spot, as announced",
        ),
        pytest.param(
            a_gpu_node("ends", labels={"cloud.google.com/gke-flex-start": "true", RUNS: "1000"}), id="flex-start, by its run time"
        ),
    ],
)
@operated(scheduler=True)
async def test_unit_leaves_a_node_ahead_of_its_end_and_has_not_failed(cluster: FakeCluster, node: Obj) -> None:
    await cluster.add([node])
    await cluster.apply("lm", gpu_pool(max=1, provisioning=AUTOSCALER))
    assert await cluster.trains("lm") == ["ends"]
    await cluster.add([a_gpu_node("lasts")])
    await asyncio.sleep(EPOCH + 690 - wall_clock())
    assert await cluster.units("lm") == {"h100-0": ("ends", "Training")}
    await trains_attempt(cluster, 2)
    assert 700 <= wall_clock() - EPOCH < 730  # 300 s ahead of the end, which is after 1000
    [unit] = (await cluster.status())["units"]
    assert (unit["slice"], unit["failures"]) == ("lasts", [])


# --- writes that are rejected -----------------------------------------------------------------------------------------
def small_fleet() -> list[Obj]:
    return [*a_tpu_slice("np-v5p-a", 2, topology="2x2x2"), *a_tpu_slice("np-v6e-a", kind="tpu-v6e-slice", topology="2x2")]


async def apply_on_two_pools(cluster: FakeCluster, **fields: Any) -> None:
    await cluster.apply("lm", tpu_pool("v5p", max=1), tpu_pool("v6e", "tpu-v6e", "2x2", max=1), max=2, **fields)


async def is_refused_beside_one_that_trains(cluster: FakeCluster) -> dict[str, Obj]:
    """Waits until the unit of v5p is refused and that of v6e trains. Returns both by name."""

    def true(status: Obj) -> bool:
        units = {unit["name"]: unit for unit in status.get("units", ())}
        return bool(units.get("v6e-0", {}).get("state") == "Training" and units.get("v5p-0", {}).get("reason") == "PodsRefused")

    return {unit["name"]: unit for unit in (await cluster.when("lm", true))["units"]}


@pytest.mark.slow
@operated(*small_fleet())
async def test_pool_with_rejected_pods_does_not_delay_the_other_and_starts_when_it_may(cluster: FakeCluster) -> None:
    def second_host(obj: Obj) -> str:  # so that half of a gang is created again and again
        name = obj["metadata"]["name"]
        return "exceeded quota: pods" if name.startswith("lm-v5p") and name.endswith("-1") else ""

    cluster.client.rejects = second_host
    await apply_on_two_pools(cluster)
    await is_refused_beside_one_that_trains(cluster)
    begun = len(cluster.client.created)
    await asyncio.sleep(1200)
    # Two pods and their list for each try, with pauses of 5, 10, … 160 s, 315 s together, and then 300 s: at most 6 + 3 tries in 20 min.
    assert 3 * 3 <= len(cluster.client.created) - begun <= 3 * 9
    found = {unit["name"]: unit for unit in (await cluster.status())["units"]}
    assert (found["v6e-0"]["state"], found["v6e-0"]["attempt"]) == ("Training", 1)
    assert found["v5p-0"]["restarts"] == 0
    cluster.client.rejects = lambda _: ""
    await cluster.trains("lm", 2)


@pytest.mark.slow
@operated(*small_fleet())
async def test_unit_whose_list_of_hosts_is_rejected_does_not_delay_the_other_and_starts_when_it_may(cluster: FakeCluster) -> None:
    cluster.client.rejects = lambda obj: "exceeded quota: configmaps" if "-hosts-" in obj["metadata"]["name"] else ""
    await apply_on_two_pools(cluster)
    found = await is_refused_beside_one_that_trains(cluster)
    assert "exceeded quota: configmaps" in found["v5p-0"]["message"]
    cluster.client.rejects = lambda _: ""
    await cluster.trains("lm", 2)
    assert await cluster.names_of(names.CONFIG_MAPS, NS) == ["lm-job", "lm-v5p-0-a1-hosts-2"]


@pytest.mark.slow
@operated(*small_fleet())
async def test_namespace_that_is_being_deleted_is_left_alone(cluster: FakeCluster) -> None:
    await apply_on_two_pools(cluster)
    await cluster.trains("lm", 2)
    # As a namespace is deleted: nothing new may be created in it, and its pods are deleted before the job.
    ends = "unable to create new content in namespace default because it is being terminated"
    cluster.client.rejects = lambda obj: ends if obj["kind"] != "Node" else ""
    for name in await cluster.pod_phases():
        await cluster.api.delete(names.PODS, NS, name, grace_seconds=0)
    begun, emitted = len(cluster.client.created), len(cluster.client.emitted)
    await asyncio.sleep(600)
    # Tries of the syncer, without which no learner is created: 5, 15, 35, 75, 155, 315 s after the first one, 600 s at the latest.
    assert 1 <= len(cluster.client.created) - begun <= 12
    assert cluster.client.emitted[emitted:].count("WriteRefused") == 1  # for the changed condition, not for every try
    await cluster.api.delete(names.DILOCO_JOBS, NS, "lm")
    begun = len(cluster.client.created)
    await asyncio.sleep(600)
    assert len(cluster.client.created) == begun


@pytest.mark.slow
@operated(*small_fleet(), namespaces=["team"])
async def test_namespace_that_goes_under_a_running_job_costs_a_bounded_number_of_requests(cluster: FakeCluster) -> None:
    """Deleted as by kubectl, with an API server that rejects new objects. A finalizer keeps the job, and so the namespace."""
    await apply_on_two_pools(cluster, namespace="team", metadata={"finalizers": ["example.com/audit"]})
    await cluster.trains("lm", 2, namespace="team")
    writes = cluster.api.writes
    await cluster.api.delete(names.NAMESPACES, "", "team")
    await asyncio.sleep(60)
    quiet = cluster.api.writes
    # The namespace, 4 pods that end (syncer, two hosts, one) and 7 other objects. The rest is room for events of the job.
    assert quiet - writes <= 2 * 12
    tried = len(cluster.client.created)
    await asyncio.sleep(3600)
    assert (cluster.api.writes, len(cluster.client.created)) == (quiet, tried)


# --- pools that are not used ------------------------------------------------------------------------------------------
THEIRS = [{"key": "team", "value": "vision", "effect": "NoSchedule"}]
MORE = ["more nodes", "an autoscaler, which provisioning.mode of the pool asks"]


@pytest.mark.parametrize(
    ("pool", "reason", "why", "help"),
    [
        pytest.param(
            tpu_pool(),
            "NoMatchingNodes",
            "pool v5p needs 1 more slice of tpu-v5p 2x2x2; the fleet has no such nodes; 3 free tpu-v5p slices are 2x2x1, "
            "0 of 1 free 2x2x4, a unit needs 2x2x2",
            ["a pool with topology 2x2x1", *MORE],
            id="a unit larger than any slice that is free",
        ),
        pytest.param(
            tpu_pool(topology="4x4x4", provisioning=AUTOSCALER),
            "WaitingForNodes",
            "pool v5p needs 1 more slice of tpu-v5p 4x4x4; the fleet has no such nodes; 3 free tpu-v5p slices are 2x2x1, "
            "0 of 1 free 2x2x4, a unit needs 4x4x4; nodes for it were asked of the autoscaler",
            ["a pool with topology 2x2x1"],
            id="the same while an autoscaler is asked",
        ),
        pytest.param(
            gpu_pool(),
            "NoFreeSlice",
            "pool h100 needs 1 more slice of nvidia-h100-80gb, 1 host with 8 accelerators; the fleet has 1: 1 free, but tainted, and the "
            "pool's template does not tolerate it: team=vision:NoSchedule on theirs",
            ["tolerate team=vision:NoSchedule in the pool's template", *MORE],
            id="a taint",
        ),
        pytest.param(
            tpu_pool(topology="2x2x1", template=template(nodeSelector={"disk": "fast"})),
            "NoFreeSlice",
            "pool v5p needs 1 more slice of tpu-v5p 2x2x1; the fleet has 3: 3 free, but not fitting: the pool asks for label disk=fast "
            "(small-0 has no label disk); 1 tpu-v5p slice is 2x2x4, none of them free, a unit needs 2x2x1",
            ["leave out label disk=fast", "a pool with topology 2x2x4", *MORE],
            id="a label",
        ),
        pytest.param(
            tpu_pool(topology="2x2x4"),
            "NoFreeSlice",
            "pool v5p needs 1 more slice of tpu-v5p 2x2x4; the fleet has 1: 1 used by other pods: default/notebook-0 (1 of 4 hosts of "
            "shared is used: shared-1 by default/notebook-0); 3 free tpu-v5p slices are 2x2x1, a unit needs 2x2x4",
            ["end these pods, or wait until they have ended", "a pool with topology 2x2x1", *MORE],
            id="a host that another pod uses",
        ),
    ],
)
@operated(
    *(a_tpu_node(f"small-{index}") for index in range(3)),
    *a_tpu_slice("shared", 4, topology="2x2x4"),
    a_gpu_node("theirs", taints=THEIRS),
    scheduler=True,
    runs=False,
)
async def test_pool_that_is_not_used_says_why_and_what_would_help(
    cluster: FakeCluster, pool: Obj, reason: str, why: str, help: list[str]
) -> None:
    """In status, in Events and by `kubectl diloco explain`."""
    container = {"name": "main", "image": "image:1", "resources": {"limits": {TPU: "4"}, "requests": {TPU: "4"}}}
    notebook = {"metadata": {"name": "notebook-0", "namespace": NS}, "spec": {"containers": [container], "nodeName": "shared-1"}}
    await cluster.api.create(names.PODS, notebook)
    async with cluster.operating():
        await cluster.apply("lm", {**pool, "learners": {"min": 0, "max": 1}})
        status = await cluster.when("lm", lambda status: bool(status.get("pools")) and status["pools"][0]["reason"] == reason)
        assert (status["pools"][0]["message"], status["pools"][0]["remedies"]) == (why, help)

        async def told() -> bool:
            return f"{reason}: {why}. What would help: {'; '.join(help)}" in await cluster.event_messages("PoolChanged")

        await eventually(told, "the Event of the pool")
    page = explanation_text(await explained(cluster.api, NS, "lm", wall_clock), wall_clock()).splitlines()
    at = next(index for index, line in enumerate(page) if line.startswith("  why not more    "))
    assert page[at].startswith(f"  why not more    {reason} since ")
    assert page[at].endswith(f": {why}")
    assert [line[20:] for line in page[at + 1 : at + 1 + len(help)]] == help


@pytest.mark.slow
@operated(scheduler=True)
async def test_pool_that_is_not_used_because_another_one_has_all_units_says_so_and_what_would_help(cluster: FakeCluster) -> None:
    await cluster.apply("lm", tpu_pool(topology="2x2x1", max=1), gpu_pool(max=1, provisioning=AUTOSCALER))
    await cluster.add([a_tpu_node("tpu-0")])
    await cluster.trains("lm")
    status = await cluster.when("lm", lambda status: status["pools"][1]["reason"] == "JobAtMaximum")
    assert status["pools"][1]["remedies"] == ["raise learners.max, or learners.min of the pool, which comes before other pools"]
    await cluster.edit(pools=[tpu_pool(topology="2x2x1", max=1), gpu_pool(min=1, max=1, provisioning=AUTOSCALER)])
    await cluster.when("lm", lambda status: status["pools"][1]["reason"] == "WaitingForNodes")
    assert await cluster.trains("lm") == ["tpu-0"]
    await cluster.add([a_gpu_node("gpu-0")])
    await cluster.when("lm", lambda status: ("gpu-0", "Training") in [(unit["slice"], unit["state"]) for unit in status["units"]])
    assert await cluster.trains("lm") == ["gpu-0"]


# --- quota of Kueue, which the test is --------------------------------------------------------------------------------
BY_HAND: Obj = {"kubelets": False, "slices": ["np-0", "np-1"]}
POD = "lm-v6e-0-a1-0"


async def placed(cluster: FakeCluster, reason: str) -> str:
    """Waits for the reason of the job's condition Placed. Returns its message."""

    def find(status: Obj) -> list[str]:
        return [each["message"] for each in status.get("conditions", ()) if (each["type"], each["reason"]) == ("Placed", reason)]

    return find(await cluster.when("lm", lambda status: bool(find(status))))[0]


async def apply_queued(cluster: FakeCluster) -> None:
    """The job, in the queue `gpus`: a user may say so while it is suspended."""
    made = await cluster.apply("lm")
    assert made["spec"]["queueName"] == ""
    await cluster.edit(suspend=True, queueName="gpus")
    await cluster.edit(suspend=False)


async def queued_pod(cluster: FakeCluster) -> Obj:
    """The learner's pod, once it is there."""

    async def there() -> bool:
        return POD in await learners(cluster)

    await eventually(there, POD, seconds=600)
    return await cluster.api.get(names.PODS, NS, POD)


async def job_goes_with_its_pods(cluster: FakeCluster) -> None:
    await cluster.api.delete(names.DILOCO_JOBS, NS, "lm")
    if POD in await learners(cluster):
        await cluster.api.delete(names.PODS, NS, POD)  # as the garbage collector does


@pytest.mark.slow
@operated(**BY_HAND)
async def test_job_with_a_queue_begins_once_kueue_is_installed_and_repeats_its_words(cluster: FakeCluster) -> None:
    await apply_queued(cluster)
    assert "the API server has no workloads in kueue.x-k8s.io/v1beta2. Install Kueue" in await placed(cluster, "KueueMissing")
    assert await learners(cluster) == []
    await cluster.api.create(names.CUSTOM_RESOURCES, workloads_crd())
    pod = await queued_pod(cluster)
    assert pod["spec"]["schedulingGates"] == [GATE]
    await cluster.when("lm", says("Kueue has not taken it up yet"))
    group = pod["metadata"]["labels"][names.KUEUE_GROUP]
    await cluster.api.create(names.WORKLOADS, {"metadata": {"name": group, "namespace": NS}, "spec": {}})
    await cluster.when("lm", says("Kueue has said nothing of it"))
    begun = wall_clock()
    await cluster.write_status(names.WORKLOADS, group, a_workload(group, says=NO_QUOTA)["status"])
    await cluster.when("lm", says(f"Kueue says: {NO_QUOTA}"))
    assert wall_clock() - begun <= 5  # no later reconcile has to find it out


@operated(**BY_HAND, runs=False)
async def test_right_on_workloads_that_is_missing_is_named_in_status(cluster: FakeCluster) -> None:
    await cluster.api.create(names.CUSTOM_RESOURCES, workloads_crd())
    cluster.client.forbidden.add(("list", "workloads", NS))
    await apply_queued(cluster)
    async with cluster.operating(RunConfig(namespaces=(NS,), stop_grace=0)):
        missing = await placed(cluster, "KueueMissing")
        assert 'cannot list resource "workloads"' in missing
        assert "the rights that docs/install.md lists" in missing
        cluster.client.forbidden.clear()
        await queued_pod(cluster)


@pytest.mark.slow
@operated(**BY_HAND)
async def test_groups_of_a_job_that_is_deleted_are_released_after_it_is_gone(cluster: FakeCluster) -> None:
    await cluster.api.create(names.CUSTOM_RESOURCES, workloads_crd())
    await apply_queued(cluster)
    await queued_pod(cluster)
    held = {"metadata": {"finalizers": [FINALIZER]}}  # as Kueue's webhook does
    await cluster.api.patch(names.PODS, NS, POD, held)
    await job_goes_with_its_pods(cluster)

    async def released() -> bool:
        pod = await cluster.api.get(names.PODS, NS, POD)
        return bool(pod["metadata"].get("annotations", {}).get(names.KUEUE_RETRIABLE) == "false")

    await eventually(released, "the group's release", seconds=600)


@pytest.mark.slow
@operated(**BY_HAND)
async def test_pod_of_a_job_that_is_gone_ends_although_its_node_does_not_answer(cluster: FakeCluster) -> None:
    await cluster.api.create(names.CUSTOM_RESOURCES, workloads_crd())
    await apply_queued(cluster)
    await queued_pod(cluster)
    admitted: Obj = {"metadata": {"finalizers": [FINALIZER]}, "spec": {"schedulingGates": None}}
    await cluster.api.patch(names.PODS, NS, POD, admitted)
    await cluster.api.bind(NS, POD, "a-node-that-is-gone")
    await job_goes_with_its_pods(cluster)

    async def ended() -> bool:
        status = (await cluster.api.get(names.PODS, NS, POD))["status"]
        return (status.get("phase"), status.get("reason")) == ("Failed", "NodeLost")

    await eventually(ended, "the end of the pod", seconds=600)


# --- what a user reads when something is wrong ------------------------------------------------------------------------
async def page(cluster: FakeCluster) -> str:
    """What `kubectl diloco explain` prints of lm, for another program."""
    return explanation_text(await explained(cluster.api, NS, "lm", wall_clock), wall_clock())


async def report(cluster: FakeCluster) -> str:
    """What `kubectl diloco status` prints of lm."""
    return status_text(JobView.of(await cluster.api.get(names.DILOCO_JOBS, NS, "lm")), wall_clock())


def message(status: Obj, condition: str) -> str:
    found: str = next(each["message"] for each in status["conditions"] if each["type"] == condition)
    return found


@operated(slices=["np-a", "np-b"])
async def test_a_learner_that_is_lost_for_good_is_named_with_its_cause_and_what_starts_it_again(cluster: FakeCluster) -> None:
    await cluster.apply("lm", min=2, learners={"restart": {"limit": 0, "window": "1h"}})
    await cluster.trains("lm", 2)
    await cluster.crash("lm-v6e-1-a1-0")
    status = await cluster.when("lm", lambda status: status["reason"] == "LearnersLost")
    advice = "fix the cause, then kubectl diloco retry starts it again"
    why = f"given up: 1 failure within 1h, learners.restart.limit is 0; the last, attempt 1: exit 1; {advice}"
    assert message(status, "Degraded") == f"1 of 1 learner contributes, learners.min is 2; v6e-1 has failed ({why})"
    placed = message(status, "Placed")
    assert placed.endswith("; 1 given up, which kubectl diloco retry starts again; Degraded says why"), "more nodes would not help"
    assert (await report(cluster)).count(f"RestartsExhausted: {why}") == 1
    shown = await page(cluster)
    assert shown.startswith("lm in namespace default is Degraded (LearnersLost): 1 of 2 units contribute; unit v6e-1 does not train")
    assert "  its log         kubectl diloco logs lm v6e-1 -n default" in shown
    assert await cluster.event_messages("UnitFailed") == [f"v6e-1: {why}"]
    await cluster.edit(retry=1)
    await cluster.trains("lm", 2)


@operated(slices=["np-a", "np-b"])
async def test_a_learner_whose_pod_does_not_end_is_named_with_its_node_and_what_to_look_at(cluster: FakeCluster) -> None:
    await cluster.apply("lm", min=2)
    await cluster.trains("lm", 2)
    cluster.stuck.add("lm-v6e-1-a1-0")
    await cluster.edit(suspend=True)

    def stuck(status: Obj) -> bool:
        return any("lm-v6e-1-a1-0 was to end by" in unit["message"] for unit in status["units"])

    status = await cluster.when("lm", stuck)
    told = next(unit["message"] for unit in status["units"] if unit["name"] == "v6e-1")
    assert told.startswith("the job is suspended; its pod lm-v6e-1-a1-0 was to end by ")
    assert "node np-b-0 answers but has not ended it: a process that waits for a device" in told
    assert "the job is suspended and asks for no hardware" in await page(cluster)
    await asyncio.sleep(600)
    assert (await cluster.status())["units"] == status["units"], "it is said once"
    await cluster.edit(suspend=False)
    again = "the job was suspended and is resumed; the unit starts again when its pods have ended"
    await cluster.when("lm", says(told.replace("the job is suspended", again)))
    assert again in await report(cluster)
    await cluster.api.delete(names.PODS, NS, "lm-v6e-1-a1-0", grace_seconds=0)  # its node was restarted
    await cluster.trains("lm", 2)
    assert [unit["message"] for unit in (await cluster.status())["units"]] == ["", ""]


@operated(slices=["np-a", "np-b"])
async def test_a_syncer_that_answers_nonsense_is_said_to_and_nothing_is_claimed_of_what_it_does(cluster: FakeCluster) -> None:
    await cluster.apply("lm", min=2)
    await cluster.trains("lm", 2)
    cluster.answer_nonsense((NS, "lm"), ReportFault(FaultKind.MALFORMED, "a report of the syncer cannot be read: units[0].tokens is -1"))
    status = await cluster.when("lm", lambda status: status["reason"] == "ReportsRefused")
    assert message(status, "Degraded") == "2 contributed by the last report that could be read, learners.min is 2"
    why = "lm in namespace default is Degraded (ReportsRefused): a report of the syncer cannot be read: units[0].tokens is -1. The operator"
    assert (await page(cluster)).startswith(why)
    [note] = await cluster.event_messages("ReportsRefused")
    assert note == f"Training=Unknown: {message(status, 'Training')}"
    pods = await cluster.pod_phases("lm")
    await asyncio.sleep(1200)
    assert await cluster.pod_phases("lm") == pods, "its learners are left alone"
    assert (await report(cluster)).count("units[0].tokens is -1") == 2, "in its headline and among its conditions"
    cluster.answer_again((NS, "lm"))
    status = await cluster.when("lm", lambda status: status["state"] == "Training")
    assert message(status, "Degraded") == "2 contribute, learners.min is 2"


@operated(slices=["np-a"])
async def test_explanation_of_a_job_that_is_over_says_how_it_ended_where_its_model_is_and_that_it_wants_nothing(
    cluster: FakeCluster,
) -> None:
    await cluster.apply("lm")
    await cluster.trains("lm")
    await cluster.complete((NS, "lm"))
    status = await cluster.when("lm", lambda status: status["state"] == "Complete")
    shown = await page(cluster)
    assert shown.startswith(f"lm in namespace default is Complete (StepsReached): {message(status, 'Complete')}\n")
    assert "the claim is deleted with the job" in shown
    assert "  why not more    the job is over and needs no hardware" in shown
