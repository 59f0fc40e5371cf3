"""What `kubectl diloco` does, against the in-memory API on virtual time; tests/cluster runs the program against a real one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import pytest
from builders.jobs import a_job
from builders.pods import a_learner_pod
from builders.virtual_time import run_virtual
from click.testing import CliRunner
from diloco_operator.api.crd import build_crd
from diloco_operator.api.job import UnitStatus
from diloco_operator.api.names import CUSTOM_RESOURCES, DILOCO_JOBS, NAMESPACES, NODES, PODS
from diloco_operator.cli import kubectl
from diloco_operator.cli.cluster import CommandError
from diloco_operator.cli.curve import Paper
from diloco_operator.cli.drain import drain
from diloco_operator.cli.jobs import find_job, list_jobs, wait_until
from diloco_operator.cli.logs import Source, show_logs, syncer_source, unit_logs
from diloco_operator.cli.retry import Retry, retry_job, wait_retried
from diloco_operator.cli.status_text import as_json, status_text, units_lines
from diloco_operator.cli.suspension import set_suspend, wait_suspended, wait_training
from diloco_operator.cli.unit_pods import UnitPod, unit_pods
from diloco_operator.cli.view_model import JobView
from diloco_operator.kube.client import ApiError, BadRequest, NotFound, Obj, PatchType, Unavailable
from diloco_operator.kube.memory import MemoryApi

SINCE = "2026-11-20T21:00:00Z"
NOW = 1_795_208_460.0  # 2026-11-20T21:01:00Z, a minute later


def conditions(**status: str) -> list[Obj]:
    return [
        {
            "type": each,
            "status": value,
            "reason": f"{each}Reason",
            "message": f"about {each}",
            "lastTransitionTime": SINCE,
            "observedGeneration": 1,
        }
        for each, value in status.items()
    ]


def unit(name: str = "v5p-0", state: str = "Training", attempt: int = 1, **fields: Any) -> Obj:
    return {"name": name, "pool": name.rpartition("-")[0], "state": state, "attempt": attempt, "since": SINCE, **fields}


class Cluster:
    """The in-memory API with one job in namespace `team`, and what the command printed."""

    def __init__(self) -> None:
        self.api = MemoryApi()
        self.said: list[str] = []

    async def begin(self, *units: Obj, pods: list[Obj] | None = None, **status: str) -> None:
        await self.api.create(CUSTOM_RESOURCES, build_crd())
        await self.api.create(NAMESPACES, {"metadata": {"name": "team"}})
        await self.api.create(NODES, {"metadata": {"name": "tpu-0"}})
        await self.api.create(DILOCO_JOBS, {**a_job().with_pool().build()})
        await self.set_status(*units, **status)
        for made in pods or []:
            await self.add_pod(made)

    async def set_status(self, *units: Obj, **status: str) -> None:
        body = {"status": {"conditions": conditions(**status), "units": list(units)}}
        await self.api.patch(DILOCO_JOBS, "team", "bytes-lm", body, type=PatchType.MERGE, subresource="status")

    async def add_pod(self, pod: Obj, phase: str = "Running") -> None:
        meta = {key: value for key, value in pod["metadata"].items() if key in ("name", "namespace", "labels", "annotations")}
        node = pod["metadata"]["annotations"]["diloco.dev/node"]
        spec = {"containers": [{"name": "learner", "image": "trainer:1"}], "nodeName": node, "terminationGracePeriodSeconds": 0}
        await self.api.create(PODS, {"metadata": meta, "spec": spec})
        await self.api.patch(PODS, "team", meta["name"], {"status": {"phase": phase}}, type=PatchType.MERGE, subresource="status")

    async def pods(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in (await self.api.list(PODS, "team")).items]

    async def drain(self, name: str = "v5p-0", *, cordon: bool = False, wait: bool = True, seconds: float = 600.0) -> None:
        await drain(self.api, "team", "bytes-lm", name, self.said.append, cordon=cordon, wait=wait, seconds=seconds)


def on_a_cluster(test: Callable[[Cluster], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run on virtual time: no wait costs any."""

    def run() -> None:
        run_virtual(test(Cluster()))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


# --- finding ----------------------------------------------------------------------------------------------------------
@on_a_cluster
async def test_an_unknown_job_is_told_with_those_that_there_are(cluster: Cluster) -> None:
    await cluster.begin()
    with pytest.raises(CommandError, match='no DiLoCoJob "bites-lm" in namespace "team"; there are: bytes-lm'):
        await find_job(cluster.api, "team", "bites-lm")
    with pytest.raises(CommandError, match='in namespace "elsewhere"; there are none in it; choose another namespace with -n'):
        await find_job(cluster.api, "elsewhere", "bytes-lm")


@on_a_cluster
async def test_a_cluster_without_the_crd_is_told_to_install_the_operator(cluster: Cluster) -> None:
    with pytest.raises(CommandError, match=r"has no dilocojobs\.diloco\.dev: install the operator first"):
        await list_jobs(cluster.api, "team")


@on_a_cluster
async def test_waiting_goes_on_through_a_lost_api_server_and_forgotten_history(cluster: Cluster) -> None:
    await cluster.begin(unit(state="Starting"))
    broken = Flaky(cluster.api)
    waiting = asyncio.create_task(wait_until(broken, "team", "bytes-lm", lambda view: view.complete, seconds=600))  # type: ignore[arg-type]
    await asyncio.sleep(1)
    await cluster.set_status(Complete="True")
    cluster.api.compact()
    view = await waiting
    assert view is not None
    assert broken.refused == 2  # one watch, and the read after it


@on_a_cluster
async def test_waiting_ends_with_the_job(cluster: Cluster) -> None:
    await cluster.begin()
    waiting = asyncio.create_task(wait_until(cluster.api, "team", "bytes-lm", lambda view: view.complete, seconds=600))
    await asyncio.sleep(1)
    await cluster.api.delete(DILOCO_JOBS, "team", "bytes-lm")
    with pytest.raises(CommandError, match='job "bytes-lm" was deleted'):
        await waiting


class Flaky:
    """The first watch and the read that follows it meet no API server."""

    def __init__(self, api: MemoryApi) -> None:
        self._api = api
        self.refused = 0
        self._down = False

    async def get(self, *args: Any, **kwargs: Any) -> Obj:
        if self._down:
            self._down = False
            self._refuse()
        return await self._api.get(*args, **kwargs)

    async def watch(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        if not self.refused:
            self._down = True
            self._refuse()
        async for event in self._api.watch(*args, **kwargs):
            yield event

    def _refuse(self) -> None:
        self.refused += 1
        raise Unavailable(503, "ServiceUnavailable", "connection refused")


# --- status -----------------------------------------------------------------------------------------------------------
def a_view(
    *units: Obj,
    suspend: bool = False,
    progress: Obj | None = None,
    pools: list[Obj] | None = None,
    hosts: Sequence[Obj] = (),
    model: Obj | None = None,
    **status: str,
) -> JobView:
    learners = {"contributing": 1, "placed": 2, "desired": 3, "min": 2, "max": 6}
    body = {
        "conditions": conditions(**status),
        "units": list(units),
        "progress": progress or {},
        "learners": learners,
        "pools": pools or [],
        "hosts": list(hosts),
        **({"model": model} if model else {}),
    }
    return JobView.of({"metadata": {"name": "bytes-lm", "namespace": "team"}, "spec": {"suspend": suspend}, "status": body})


def test_status_tells_how_far_who_and_why_not_more() -> None:
    waits = unit("h100-0", "Pending", 0, reason="NoCapacity", message="both slices are in use")
    trains = unit("v5p-0", "Training", 2, slice="np-v5p-1", restarts=1, tokensPerSecond=14100.0, weight=0.31, staleness=3)
    progress = {
        "step": 600,
        "steps": 2400,
        "tokens": 41574400,
        "loss": 2.31,
        "tokensPerSecond": 51200.0,
        "estimatedCompletion": "2026-11-20T21:11:00Z",
    }
    pools = [{"name": "h100", "placed": 0, "contributing": 0, "reason": "NoFreeSlice", "message": "2 of 2 slices are in use"}]
    shown = status_text(a_view(trains, waits, progress=progress, pools=pools, Training="True", Degraded="True"), NOW)
    assert shown == (
        "bytes-lm in namespace team\n"
        "  Degraded: about Degraded\n"
        "  step 600 of 2400 (25%), loss 2.310, 41.6M tokens, 51.2k tokens/s, about 10m00s left\n"
        "  1 learner contributes, 2 placed, 3 desired (min 2, max 6)\n"
        "\n"
        "CONDITION   STATUS   REASON           SINCE   MESSAGE\n"
        "Training    True     TrainingReason   1m00s   about Training\n"
        "Degraded    True     DegradedReason   1m00s   about Degraded\n"
        "\n"
        "UNIT     STATE      SINCE   SLICE      ATTEMPT   RESTARTS   TOKENS/S   WEIGHT   STALE   WHY\n"
        "v5p-0    Training   1m00s   np-v5p-1   2         1          14.1k      31%      3\n"
        "h100-0   Pending    1m00s   -          0         0          -          -        -       NoCapacity: both slices are in use\n"
        "\n"
        "POOL   CONTRIBUTE   PLACED   WHY NOT MORE\n"
        "h100   0            0        NoFreeSlice: 2 of 2 slices are in use"
    )


MODEL = {"step": 40, "claim": "lm-syncer", "path": "snapshots/snapshot-00000003-t40", "format": "safetensors", "retain": "Keep"}


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (MODEL, "in claim lm-syncer, snapshots/snapshot-00000003-t40 (safetensors); the claim is kept when the job is deleted"),
        (
            {**MODEL, "uri": "s3://b/s-3", "retain": "Delete"},
            "in claim lm-syncer, snapshots/snapshot-00000003-t40 (safetensors), copied to s3://b/s-3; the claim is deleted with the job",
        ),
        (
            {"step": 40, "claim": "lm-syncer", "format": "safetensors"},
            "in claim lm-syncer (safetensors); the claim is deleted with the job",
        ),
    ],
)
def test_status_says_where_the_newest_snapshot_is(model: Obj, line: str) -> None:
    view = a_view(unit(), model=model, Training="True")
    assert f"\n  newest snapshot: outer step 40, {line}\n" in status_text(view, NOW)
    assert as_json(view)["model"]["claim"] == "lm-syncer"


@pytest.mark.parametrize(("end", "what"), [("Complete", "the model"), ("Failed", "the parameters of the last snapshot")])
def test_status_of_a_job_that_is_over_leaves_the_place_to_its_message_and_says_how_to_get_the_model(end: str, what: str) -> None:
    over: dict[str, Any] = {end: "True"}
    shown = status_text(a_view(unit(), model=MODEL, **over), NOW)
    assert f"\n  {what} as one file: kubectl diloco export bytes-lm -n team -o model.safetensors\n" in shown
    assert "newest snapshot" not in shown
    assert "diloco export" not in status_text(a_view(unit(), **over), NOW)


HISTORY = [{"step": step, "loss": 1 + 4 / step} for step in range(1, 21)]


@pytest.mark.parametrize("state", ["Training", "Complete", "Failed", "Suspended"])
def test_status_draws_the_loss_in_every_state_that_a_job_can_be_in(state: str) -> None:
    progress = {"step": 20, "steps": 40, "lossHistory": HISTORY, "heldOutLossHistory": [{"step": 20, "loss": 1.5}]}
    over: dict[str, Any] = {state: "True"}
    view = a_view(unit(), progress=progress, **over)
    curve = status_text(view, NOW, Paper(80, unicode=False)).split("\n\n")[1].splitlines()
    assert curve[0] == "  loss by outer step: 1.2 at step 20; o held-out loss 1.5 at step 20"
    assert curve[1].startswith("  5.00 +")
    assert curve[-1].split() == ["1", "10", "20"]
    assert max(map(len, curve)) == 80
    assert as_json(view)["progress"]["lossHistory"] == HISTORY


def test_status_draws_nothing_before_there_are_three_points() -> None:
    view = a_view(unit(), progress={"step": 2, "steps": 40, "lossHistory": HISTORY[:2]}, Training="True")
    assert status_text(view, NOW, Paper(80, unicode=False)) == status_text(view, NOW)


def test_status_names_the_hosts_on_which_attempts_failed_and_those_that_are_avoided() -> None:
    def a_host(node: str, *at: str, message: str, **fields: Any) -> Obj:
        failures = [{"unit": "v5p-0", "attempt": number, "at": each, "reason": "Crashed"} for number, each in enumerate(at, start=1)]
        return {"node": node, "failures": failures, "message": message, **fields}

    bad = a_host("tpu-3", SINCE, "2026-11-20T21:00:30Z", message="v5p-0, attempt 2: exit 1", avoidedUntil="2026-11-20T21:11:00Z")
    was_bad = a_host("tpu-4", SINCE, message="v5p-1, attempt 1: exit 1", avoidedUntil="2026-11-20T21:00:59Z")
    view = a_view(hosts=[bad, was_bad, a_host("tpu-5", SINCE, message="v5p-2, attempt 1: exit 1")], Training="True")
    assert status_text(view, NOW).split("\n\n")[-1] == (
        "HOST    FAILURES   LAST    AVOIDED FOR   LAST FAILURE\n"
        "tpu-3   2          30s     10m00s        v5p-0, attempt 2: exit 1\n"
        "tpu-4   1          1m00s   -             v5p-1, attempt 1: exit 1\n"
        "tpu-5   1          1m00s   -             v5p-2, attempt 1: exit 1"
    )
    assert [host["node"] for host in as_json(view)["hosts"]] == ["tpu-3", "tpu-4", "tpu-5"]


def test_job_without_status_may_be_in_a_namespace_that_no_operator_watches() -> None:
    assert "watches namespace team: watchNamespaces of its Helm release" in status_text(a_view(), NOW)


@pytest.mark.parametrize(
    ("view", "headline"),
    [
        (a_view(), "The operator has not seen this job yet."),
        (a_view(Failed="True", Complete="False"), "Failed: about Failed"),
        (a_view(Complete="True", Training="False"), "Complete: about Complete"),
        (a_view(suspend=True, Suspended="True"), "Suspended: about Suspended"),
        (a_view(suspend=True, Suspended="False", Training="True"), "Training, to be suspended: the operator has not seen spec.suspend yet"),
        (a_view(Accepted="True", Placed="False", Training="False"), "Starting: Placed=False PlacedReason: about Placed"),
    ],
)
def test_the_headline_is_what_matters_most(view: JobView, headline: str) -> None:
    assert status_text(view, NOW).splitlines()[1].strip().startswith(headline)


def test_status_for_programs_has_the_names_of_the_api() -> None:
    shown = as_json(a_view(unit(tokensPerSecond=1.5), pools=[{"name": "v5p", "placed": 2}], Training="True"))
    assert json.loads(json.dumps(shown)) == shown
    assert (shown["name"], shown["namespace"], shown["suspend"]) == ("bytes-lm", "team", False)
    assert shown["learners"]["contributing"] == 1
    assert shown["units"][0]["tokensPerSecond"] == 1.5
    assert shown["pools"][0]["placed"] == 2
    assert shown["conditions"][0]["lastTransitionTime"] == SINCE


def test_wide_units_tell_what_they_have_done() -> None:
    status = a_view(unit(tokens=1000, steps=40, stepsPerSync=24, recoverSeconds=3.25, refused={"Stale": 2, "Late": 0})).status
    header, row = units_lines(status.units, NOW, wide=True)
    assert header.split()[9:14] == ["TOKENS", "STEPS", "STEPS/SYNC", "REFUSED", "RECOVERED"]
    assert row.split()[9:] == ["1000", "40", "24", "Stale=2", "3.2s"]


# --- drain ------------------------------------------------------------------------------------------------------------
TWO_HOSTS = [a_learner_pod(host=0), a_learner_pod(host=1)]


@on_a_cluster
async def test_drain_evicts_every_host_of_the_newest_attempt_and_no_other_unit(cluster: Cluster) -> None:
    await cluster.begin(unit(), unit("v5p-1"), pods=[*TWO_HOSTS, a_learner_pod("v5p-1")])
    await cluster.drain(wait=False)
    assert await cluster.pods() == ["bytes-lm-v5p-1-a1-0"]
    assert sorted(cluster.said) == ["pod/bytes-lm-v5p-0-a1-0 evicted", "pod/bytes-lm-v5p-0-a1-1 evicted"]


@on_a_cluster
async def test_drain_waits_until_a_later_attempt_contributes(cluster: Cluster) -> None:
    await cluster.begin(unit(), pods=TWO_HOSTS)
    draining = asyncio.create_task(cluster.drain())
    await asyncio.sleep(1)
    assert not draining.done()  # it still reads Training, of the attempt that was evicted
    await cluster.set_status(unit(state="Starting", attempt=2))
    await asyncio.sleep(1)
    assert not draining.done()
    await cluster.set_status(unit(attempt=2, slice="np-2", recoverSeconds=7.5))
    await draining
    assert cluster.said[-3:] == [
        "unit v5p-0: attempt 2, Starting",
        "unit v5p-0: attempt 2, Training",
        "unit v5p-0 contributes again after 7.5 s, on np-2; failures on its restart budget: 0",
    ]


@on_a_cluster
async def test_drain_closes_the_nodes_first_if_asked(cluster: Cluster) -> None:
    await cluster.begin(unit(), pods=TWO_HOSTS)
    await cluster.drain(cordon=True, wait=False)
    assert cluster.said[0] == "node/tpu-0 cordoned; undo it with `kubectl uncordon tpu-0`"
    assert (await cluster.api.get(NODES, "", "tpu-0"))["spec"]["unschedulable"] is True


@on_a_cluster
async def test_drain_of_a_unit_that_does_not_run_says_what_it_does(cluster: Cluster) -> None:
    await cluster.begin(unit(state="BackingOff", reason="Crashed", message="exit status 1"))
    await cluster.add_pod(a_learner_pod(), phase="Failed")
    with pytest.raises(CommandError, match=r"unit v5p-0 has no running pods to drain: BackingOff \(Crashed: exit status 1\)"):
        await cluster.drain()
    assert await cluster.pods() == ["bytes-lm-v5p-0-a1-0"]


@on_a_cluster
async def test_drain_of_an_unknown_unit_names_those_that_there_are(cluster: Cluster) -> None:
    await cluster.begin(unit(), unit("h100-3"))
    with pytest.raises(CommandError, match='job "bytes-lm" has no unit "v5p-9"; its units are: v5p-0, h100-3'):
        await cluster.drain("v5p-9")


@pytest.mark.parametrize(
    ("units", "status", "words"),
    [
        ([unit(state="Failed", attempt=1, reason="RestartsExhausted")], {}, r"does not come back: Failed \(RestartsExhausted\)"),
        ([], {}, "no longer desired"),
        ([unit()], {"Failed": "True"}, 'job "bytes-lm" failed'),
    ],
)
def test_drain_does_not_wait_for_what_will_not_come(units: list[Obj], status: dict[str, str], words: str) -> None:
    async def scene() -> None:
        cluster = Cluster()
        await cluster.begin(unit(), pods=TWO_HOSTS)
        draining = asyncio.create_task(cluster.drain())
        await asyncio.sleep(1)
        await cluster.set_status(*units, **status)
        with pytest.raises(CommandError, match=words):
            await draining

    run_virtual(scene())


@on_a_cluster
async def test_drain_gives_up_after_its_time_and_says_what_it_saw_last(cluster: Cluster) -> None:
    await cluster.begin(unit(), pods=TWO_HOSTS)
    draining = asyncio.create_task(cluster.drain(seconds=30))
    await asyncio.sleep(1)
    await cluster.set_status(unit(state="Pending", reason="NoCapacity"))
    with pytest.raises(CommandError, match=r"after 30s; last seen: unit v5p-0: attempt 1, Pending \(NoCapacity\)"):
        await draining


@pytest.mark.parametrize(("refusals", "seconds"), [(2, 600.0), (1000, 600.0)])
def test_drain_tries_again_where_a_disruption_budget_refuses_as_long_as_it_has_time(refusals: int, seconds: float) -> None:
    class Budgeted(MemoryApi):
        left = refusals

        async def evict(self, namespace: str, name: str, *, grace_seconds: int | None = None, uid: str = "") -> None:
            if self.left:
                self.left -= 1
                raise ApiError(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")
            await super().evict(namespace, name, grace_seconds=grace_seconds, uid=uid)

    async def scene() -> None:
        cluster = Cluster()
        cluster.api = Budgeted()
        await cluster.begin(unit(), pods=[a_learner_pod()])
        if refusals < seconds / 5:
            await cluster.drain(wait=False, seconds=seconds)
            assert cluster.said[-1] == "pod/bytes-lm-v5p-0-a1-0 evicted"
        else:
            with pytest.raises(CommandError, match="could not be evicted within 10m: a PodDisruptionBudget does not allow it"):
                await cluster.drain(wait=False, seconds=seconds)
        assert len([text for text in cluster.said if "Trying again every 5s" in text]) == 1  # said once, not every 5 s

    run_virtual(scene())


# --- suspend and resume -----------------------------------------------------------------------------------------------
@on_a_cluster
async def test_suspend_and_resume_set_the_field_once(cluster: Cluster) -> None:
    await cluster.begin()
    for want in (True, True, False, False):
        await set_suspend(cluster.api, "team", "bytes-lm", cluster.said.append, suspend=want)
        assert (await cluster.api.get(DILOCO_JOBS, "team", "bytes-lm"))["spec"]["suspend"] is want
    assert [text.removeprefix("dilocojob.diloco.dev/bytes-lm ") for text in cluster.said] == [
        "suspended", "is suspended already", "resumed", "is not suspended",
    ]  # fmt: skip


@on_a_cluster
async def test_a_job_that_is_over_cannot_be_suspended(cluster: Cluster) -> None:
    await cluster.begin(Complete="True")
    with pytest.raises(CommandError, match='job "bytes-lm" is complete already and cannot be suspended'):
        await set_suspend(cluster.api, "team", "bytes-lm", cluster.said.append, suspend=True)


@on_a_cluster
async def test_suspending_is_waited_for(cluster: Cluster) -> None:
    await cluster.begin(Suspended="False", Training="True")
    await set_suspend(cluster.api, "team", "bytes-lm", cluster.said.append, suspend=True)
    waiting = asyncio.create_task(wait_suspended(cluster.api, "team", "bytes-lm", cluster.said.append, seconds=600))
    await asyncio.sleep(1)
    assert not waiting.done()
    await cluster.set_status(Suspended="True")
    await waiting
    assert cluster.said[-1].endswith("no pod runs any more, the state is saved")


@on_a_cluster
async def test_resuming_is_not_taken_for_done_while_the_status_is_of_before(cluster: Cluster) -> None:
    await cluster.begin(Suspended="True", Training="False", Accepted="True", Placed="False")
    await set_suspend(cluster.api, "team", "bytes-lm", cluster.said.append, suspend=False)
    with pytest.raises(CommandError, match=r"is not training after 30s: Placed=False PlacedReason: about Placed\. It may still become so"):
        await wait_training(cluster.api, "team", "bytes-lm", cluster.said.append, seconds=30)
    waiting = asyncio.create_task(wait_training(cluster.api, "team", "bytes-lm", cluster.said.append, seconds=600))
    await asyncio.sleep(1)
    await cluster.set_status(Suspended="False", Training="True")
    await waiting
    assert "trains" in cluster.said[-1]


@on_a_cluster
async def test_a_job_that_fails_is_not_waited_for(cluster: Cluster) -> None:
    await cluster.begin(Failed="True")
    with pytest.raises(CommandError, match='job "bytes-lm" failed: FailedReason: about Failed'):
        await wait_training(cluster.api, "team", "bytes-lm", cluster.said.append, seconds=600)


# --- retry ------------------------------------------------------------------------------------------------------------
async def retry(cluster: Cluster) -> Retry:
    return await retry_job(cluster.api, "team", "bytes-lm", cluster.said.append)


async def acted(cluster: Cluster, number: int, *units: Obj, **status: str) -> None:
    """The operator has acted on a retry."""
    body = {"status": {"retry": number, "conditions": conditions(**status), "units": list(units)}}
    await cluster.api.patch(DILOCO_JOBS, "team", "bytes-lm", body, type=PatchType.MERGE, subresource="status")


@on_a_cluster
async def test_retry_of_a_failed_job_is_asked_for_once(cluster: Cluster) -> None:
    await cluster.begin(Failed="True")
    assert [await retry(cluster) for _ in range(2)] == [Retry(1, ())] * 2
    assert (await cluster.api.get(DILOCO_JOBS, "team", "bytes-lm"))["spec"]["retry"] == 1
    assert cluster.said == [
        "dilocojob.diloco.dev/bytes-lm: retry 1: the job starts again from the beginning",
        "dilocojob.diloco.dev/bytes-lm: retry 1 is asked for already: the job starts again from the beginning",
    ]
    await acted(cluster, 1, Failed="True")
    assert await retry(cluster) == Retry(2, ())


@on_a_cluster
async def test_retry_counts_from_what_the_operator_acted_on_if_a_manifest_lowered_it(cluster: Cluster) -> None:
    await cluster.begin(Failed="True")
    await acted(cluster, 4, Failed="True")
    assert await retry(cluster) == Retry(5, ())


@on_a_cluster
async def test_of_two_retries_at_the_same_time_one_finds_the_other(cluster: Cluster) -> None:
    await cluster.begin(Failed="True")
    assert tuple(await asyncio.gather(retry(cluster), retry(cluster))) == (Retry(1, ()), Retry(1, ()))
    assert (await cluster.api.get(DILOCO_JOBS, "team", "bytes-lm"))["spec"]["retry"] == 1


@on_a_cluster
async def test_a_job_of_which_nothing_failed_is_not_retried(cluster: Cluster) -> None:
    await cluster.begin(unit(), Training="True")
    with pytest.raises(CommandError, match="has not failed, and none of its units was given up: there is nothing to retry"):
        await retry(cluster)
    await cluster.set_status(unit(state="Completed"), Complete="True")
    with pytest.raises(CommandError, match=r'"bytes-lm" is complete; to train on, raise spec\.training\.steps above 0'):
        await retry(cluster)
    assert "retry" not in (await cluster.api.get(DILOCO_JOBS, "team", "bytes-lm"))["spec"]


@on_a_cluster
async def test_a_retried_job_is_waited_for_until_it_trains(cluster: Cluster) -> None:
    await cluster.begin(Failed="True")
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
async def test_retried_units_are_waited_for_although_the_others_train(cluster: Cluster) -> None:
    await cluster.begin(unit(), unit("v5p-1", "Failed"), Training="True")
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


# --- logs -------------------------------------------------------------------------------------------------------------
class Logs:
    """What pods have written, in pieces that end anywhere."""

    def __init__(self, **written: list[bytes] | ApiError) -> None:
        self._written = {name.replace("_", "-"): pieces for name, pieces in written.items()}
        self.asked: list[tuple[str, str, bool, bool, int | None]] = []

    async def pod_logs(
        self,
        namespace: str,
        name: str,
        *,
        container: str = "",
        follow: bool = False,
        previous: bool = False,
        tail_lines: int | None = None,
    ) -> AsyncIterator[bytes]:
        self.asked.append((name, container, follow, previous, tail_lines))
        pieces = self._written.get(name) or NotFound(404, "NotFound", f'pods "{name}" not found')
        if isinstance(pieces, ApiError):
            raise pieces
        for piece in pieces:
            await asyncio.sleep(0)
            yield piece


async def printed(logs: Logs, *sources: Source, follow: bool = False, tail: int | None = None) -> bytes:
    out: list[bytes] = []
    await show_logs(logs, "team", sources, out.append, follow=follow, tail=tail)
    return b"".join(out)


@on_a_cluster
async def test_logs_are_of_the_newest_attempt_and_every_host_is_told_apart(cluster: Cluster) -> None:
    await cluster.begin(unit(), pods=[a_learner_pod(attempt=1), a_learner_pod(attempt=2, host=1), a_learner_pod(attempt=2, host=0)])
    pods = await unit_pods(cluster.api, "team", "bytes-lm", "v5p-0")
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
    assert logs.asked == [("one", "learner", follow, False, 5), ("two", "learner", follow, False, 5)]


async def test_one_log_comes_through_byte_by_byte() -> None:
    assert await printed(Logs(bytes_lm_syncer=[b"a\r\n\n\xff", b"b"]), syncer_source("bytes-lm", "")) == b"a\r\n\n\xffb"


async def test_syncer_before_its_last_restart_has_a_log_of_its_own() -> None:
    logs = Logs(bytes_lm_syncer=[b"step 1"])
    assert await printed(logs, syncer_source("bytes-lm", "", previous=True)) == b"step 1"
    assert logs.asked == [("bytes-lm-syncer", "syncer", False, True, None)]


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


# --- the program ------------------------------------------------------------------------------------------------------
def test_help_names_every_command() -> None:
    shown = CliRunner().invoke(kubectl.main, ["--help"])
    assert shown.exit_code == 0
    for command in ("status", "units", "logs", "drain", "suspend", "resume", "retry", "validate", "crd"):
        assert f"\n  {command} " in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["status", "x", "-A"], "give a JOB or --all-namespaces, not both"),
        (["logs", "x", "syncer", "--host", "0"], "the syncer has no hosts"),
        (["drain", "x"], "Missing argument 'UNIT'"),
        (["suspend", "x", "--timeout", "soon"], "--timeout"),
    ],
)
def test_what_makes_no_sense_is_bad_input(arguments: list[str], words: str) -> None:
    shown = CliRunner().invoke(kubectl.main, arguments)
    assert shown.exit_code == 2
    assert words in shown.stderr


def test_a_cluster_that_is_not_configured_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    shown = CliRunner().invoke(kubectl.main, ["status"])
    assert shown.exit_code == 1
    assert "Error: no Kubernetes cluster is configured" in shown.stderr
    shown = CliRunner().invoke(kubectl.main, ["--kubeconfig", str(tmp_path / "none"), "status"])
    assert shown.exit_code == 1
    assert str(tmp_path / "none") in shown.stderr
