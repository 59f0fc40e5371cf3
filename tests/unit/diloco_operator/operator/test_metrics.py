"""What GET /metrics reports while a job trains, crashes, has no hardware, and is deleted. On virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import Response
from builders.fake_cluster import FakeCluster, FakeTelemetry, wall_clock
from builders.job_cases import AT_HOME
from builders.jobs import a_job, a_manifest, tpu_pool
from builders.nodes import a_node, a_tpu_slice
from builders.operator_process import series
from builders.operator_run import an_api, an_operator, running
from builders.virtual_time import run_virtual
from diloco.goodput import Use
from diloco_local.memory import MemoryApi
from diloco_operator.api import names
from diloco_operator.api.goodput import key_of
from diloco_operator.api.names import JobKey
from diloco_operator.api.state import JobState
from diloco_operator.kube.client import ApiError, Obj, Resource
from diloco_operator.operator import RunConfig
from diloco_operator.operator import metrics as metrics_module
from diloco_operator.operator.endpoints import metrics_app
from diloco_operator.operator.metrics import Metrics, capacity_waits, placement_failures, recoveries
from diloco_operator.operator.metrics_page import MetricsPage
from diloco_operator.operator.projections import CachedJob
from diloco_operator.reconcile import parse_job
from diloco_operator.report import Report
from prometheus_client.exposition import generate_latest

KEY = ("default", "lm")


class Cluster(FakeCluster):
    """Its syncers also report speed, loss and refused contributions."""

    def report(self, job: JobKey) -> Report:
        report = super().report(job)
        units = {name: replace(unit, refused={"Stale": 2, "NonFinite": 1}) for name, unit in report.units.items()}
        snapshot = "snapshots/snapshot-00000003-t720"
        return replace(
            report, t=812, snapshot_t=720, snapshot=snapshot, tokens=41_574_400, tokens_per_second=51_200.0, loss=2.31, units=units
        )


class World:
    def __init__(self, api: MemoryApi, cluster: Cluster) -> None:
        self.api = api
        self.cluster = cluster
        self.metrics = Metrics()
        run = RunConfig(workers=4, stop_grace=0)
        self.operator = an_operator(api, FakeTelemetry(cluster), now=wall_clock, metrics=self.metrics, run=run)

    async def apply(self, name: str = "lm", *, max: int = 3) -> None:
        pools = [tpu_pool("v5p", min=1, max=1), tpu_pool("v6e", "tpu-v6e", "2x2", max=3)]
        manifest = a_manifest(name, namespace="default", min=2, max=max, pools=pools, spec={"syncer": {}})
        await self.api.create(names.DILOCO_JOBS, manifest)

    async def until(self, what: str, condition: Callable[[Obj], object]) -> None:
        for _ in range(1000):
            status = (await self.api.get(names.DILOCO_JOBS, *KEY)).get("status", {})
            if condition(status):
                return
            await asyncio.sleep(0.5)
        raise AssertionError(f"the job never came to: {what}; status: {status}")

    async def trains(self, units: int) -> None:
        await self.until(f"{units} units train", lambda status: [u["state"] for u in status.get("units", ())].count("Training") == units)

    async def scrape(self) -> Scrape:
        app = metrics_app(MetricsPage(self.metrics.registry, look=self.metrics.fleet.look, now=lambda: 0.0, offload=at_once))
        app.freeze()
        answer = await app._handle(make_mocked_request("GET", "/metrics", app=app))
        assert isinstance(answer, Response)
        assert answer.status == 200
        assert isinstance(answer.body, bytes)
        return Scrape(answer.body.decode())


async def at_once(encode: Callable[[], bytes]) -> bytes:
    return encode()


class Scrape:
    def __init__(self, text: str) -> None:
        self.series = series(text)

    def __call__(self, series_name: str, /, **labels: str) -> float | None:
        """The value of a series of the controller (no job label given) or of the job."""
        return self.series.get((series_name, frozenset(labels.items())))

    def of_job(self, series_name: str, /, **labels: str) -> float | None:
        return self(f"diloco_job_{series_name}", namespace=KEY[0], dilocojob=KEY[1], **labels)

    @property
    def jobs(self) -> set[str]:
        return {value for _, labels in self.series for key, value in labels if key == "dilocojob"}


def play(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        api = await an_api(wall_clock)
        async with Cluster(api, wall_clock) as cluster:
            await cluster.add(
                [
                    a_node("cpu-0"),
                    *a_tpu_slice("np-v5p", 2, topology="2x2x2"),
                    *a_tpu_slice("np-a", kind="tpu-v6e-slice", topology="2x2"),
                    *a_tpu_slice("np-b", kind="tpu-v6e-slice", topology="2x2"),
                ]
            )
            world = World(api, cluster)
            async with running(world.operator, defects=True):
                await scenario(world)

    run_virtual(run())


@pytest.mark.slow
def test_a_job_that_trains() -> None:
    async def scenario(world: World) -> None:
        await world.apply()
        await world.trains(3)
        await asyncio.sleep(30)
        seen = await world.scrape()
        assert seen.of_job("units", state="Training") == 3
        assert seen.of_job("units", state="Pending") == 0
        assert seen.of_job("learners_desired") == 3
        assert seen.of_job("learners_placed") == 3
        assert seen.of_job("learners_contributing") == 3
        assert seen.of_job("learners_min") == 2
        assert seen.of_job("outer_step") == 812
        assert seen.of_job("outer_steps") == 2400
        assert (seen.of_job("snapshot_step"), seen.of_job("snapshot_interval_steps")) == (720, 240)
        assert seen.of_job("tokens_per_second") == 51_200
        assert seen.of_job("tokens_total") == 41_574_400
        assert seen.of_job("loss") == 2.31
        assert seen.of_job("condition", condition="Training", status="True") == 1
        assert seen.of_job("condition", condition="Training", status="False") is None
        assert {state.value: seen.of_job("state", state=state.value) for state in JobState} == {
            **dict.fromkeys(map(str, JobState), 0),
            "Training": 1,
        }
        assert seen.of_job("refused_contributions_total", reason="Stale") == 6  # three units, two each
        assert seen.of_job("refused_contributions_total", reason="NonFinite") == 3
        assert seen.of_job("report_age_seconds") == 0

    play(scenario)


@pytest.mark.slow
def test_a_unit_that_crashes_and_comes_back() -> None:
    async def scenario(world: World) -> None:
        await world.apply()
        await world.trains(3)
        assert (await world.scrape()).of_job("recovery_seconds_count") is None
        await world.cluster.crash("lm-v6e-0-a1-0")
        await world.until("it is down", lambda status: any(u["state"] == "Starting" for u in status["units"]))
        assert (await world.scrape()).of_job("units", state="Starting") == 1
        await world.trains(3)
        seen = await world.scrape()
        assert seen.of_job("restarts_total", reason="Crashed") == 1
        assert seen.of_job("host_failures", node="np-a-0") == 1
        assert seen.of_job("avoided_hosts") == 0  # one failure is no reason to avoid a host
        assert seen.of_job("recovery_seconds_count") == 1
        # Pods start and the syncer is heard; well below a minute.
        assert seen.of_job("recovery_seconds_bucket", le="60.0") == 1
        assert seen.of_job("interruptions_total") == 1
        status = (await world.api.get(names.DILOCO_JOBS, *KEY))["status"]
        used = {use: seen.of_job("unit_seconds", use=use.value) for use in Use}
        assert used == {use: status["goodput"]["unitSeconds"][key_of(use)] for use in Use}
        assert 0.0 < (used[Use.RECOVERY] or 0.0) <= 60.0
        for accelerator, hours in status["goodput"]["acceleratorHours"].items():
            assert seen.of_job("accelerator_seconds_total", cluster="", accelerator=accelerator) == pytest.approx(3600 * hours)
        assert status["goodput"]["acceleratorHours"].keys() == {"tpu-v5p", "tpu-v6e"}

    play(scenario)


@pytest.mark.slow
def test_a_unit_that_starts_again_at_once_is_counted_with_the_reason_for_its_end() -> None:
    """Its status says Starting before a status that says it was lost could be read."""

    async def scenario(world: World) -> None:
        await world.apply()
        await world.trains(3)
        await world.api.evict("default", "lm-v6e-0-a1-0")
        await world.until("it is back", lambda status: {u["name"]: u["attempt"] for u in status["units"]}["v6e-0"] == 2)
        await world.trains(3)
        seen = await world.scrape()
        assert seen.of_job("restarts_total", reason="Disrupted") == 1
        assert seen.of_job("recovery_seconds_count") == 1

    play(scenario)


@pytest.mark.slow
def test_a_pool_without_free_hardware() -> None:
    async def scenario(world: World) -> None:
        await world.apply(max=4)
        await world.trains(3)
        seen = await world.scrape()
        assert seen.of_job("placement_failures_total", pool="v6e", reason="NoFreeSlice") == 1
        await world.api.patch(names.DILOCO_JOBS, *KEY, {"metadata": {"annotations": {"touched": "1"}}})
        await asyncio.sleep(100)
        again = await world.scrape()
        assert again.of_job("placement_failures_total", pool="v6e", reason="NoFreeSlice") == 1  # it is one failure, however long it lasts

    play(scenario)


async def a_slice_more(world: World) -> None:
    await world.cluster.add(a_tpu_slice("np-c", kind="tpu-v6e-slice", topology="2x2"))


@pytest.mark.slow
def test_units_that_find_a_free_slice_have_not_waited() -> None:
    async def scenario(world: World) -> None:
        await world.apply()
        await world.trains(3)
        await world.cluster.crash("lm-v6e-0-a1-0")  # it comes back on the slice that it has
        await asyncio.sleep(60)
        await world.trains(3)
        seen = await world.scrape()
        assert seen.of_job("capacity_wait_seconds_count", pool="v5p") == 1
        assert seen.of_job("capacity_wait_seconds_count", pool="v6e") == 2
        assert seen.of_job("capacity_wait_seconds_bucket", pool="v6e", le="1.0") == 2

    play(scenario)


@pytest.mark.slow
def test_the_time_that_a_surplus_unit_waits_for_a_slice() -> None:
    async def scenario(world: World) -> None:
        await world.apply(max=4)
        await world.trains(3)
        [pool] = [each for each in (await world.api.get(names.DILOCO_JOBS, *KEY))["status"]["pools"] if each["name"] == "v6e"]
        assert "waitingSince" in pool
        await asyncio.sleep(5000)
        await a_slice_more(world)
        await world.trains(4)
        seen = await world.scrape()
        assert seen.of_job("capacity_wait_seconds_bucket", pool="v6e", le="3600.0") == 2
        assert seen.of_job("capacity_wait_seconds_bucket", pool="v6e", le="7200.0") == 3
        [pool] = [each for each in (await world.api.get(names.DILOCO_JOBS, *KEY))["status"]["pools"] if each["name"] == "v6e"]
        assert "waitingSince" not in pool

    play(scenario)


@pytest.mark.slow
def test_a_wait_is_counted_once_however_often_the_operator_is_replaced() -> None:
    async def run() -> None:
        api = await an_api(wall_clock)
        async with Cluster(api, wall_clock) as cluster:
            await cluster.add([a_node("cpu-0"), *a_tpu_slice("np-a", kind="tpu-v6e-slice", topology="2x2")])
            counted: list[tuple[float | None, float | None]] = []
            for turn in range(4):
                world = World(api, cluster)
                async with running(world.operator):
                    if turn == 0:
                        pools = [tpu_pool("v6e", "tpu-v6e", "2x2", max=2)]
                        await api.create(names.DILOCO_JOBS, a_manifest("lm", namespace="default", min=1, max=2, pools=pools))
                    elif turn == 2:
                        await a_slice_more(world)
                    await asyncio.sleep(2500)
                    seen = await world.scrape()
                    name = "capacity_wait_seconds"
                    counted.append((seen.of_job(f"{name}_count", pool="v6e"), seen.of_job(f"{name}_bucket", pool="v6e", le="3600.0")))
            # at once; nothing; after 5,000 s; nothing
            assert counted == [(1, 1), (None, None), (1, 0), (None, None)]

    run_virtual(run())


def test_a_unit_waits_from_when_it_was_wanted_again() -> None:
    def status(slice: str, since: str, attempt: int = 1, **pool: str) -> Obj:
        unit = {"name": "v5p-0", "pool": "v5p", "slice": slice, "since": since, "attempt": attempt}
        return {"units": [unit], "pools": [{"name": "v5p", **pool}]}

    now, noon = 1_763_640_060.0, "2025-11-20T12:00:00Z"  # a minute after noon
    placed = status("np-a", "2025-11-20T12:01:00Z", 2)
    assert list(capacity_waits(status("", noon, waitingSince=noon), placed, now)) == [("v5p", 60.0)]
    # it has been Pending for an hour, because the job was suspended, and its pool has been short for a minute
    assert list(capacity_waits(status("", "2025-11-20T11:00:00Z", waitingSince=noon), placed, now)) == [("v5p", 60.0)]
    # its pool has been short for an hour, and it lost its slice a minute ago
    assert list(capacity_waits(status("np-b", noon, waitingSince="2025-11-20T11:00:00Z"), placed, now)) == [("v5p", 60.0)]
    assert list(capacity_waits(status("", noon), placed, now)) == [("v5p", 0.0)]
    assert list(capacity_waits({}, placed, now)) == [("v5p", 0.0)]
    assert list(capacity_waits(placed, placed, now)) == []
    shortened = status("np-…", "2025-11-20T12:01:00Z", 2)
    assert list(capacity_waits(placed, shortened, now)) == []


@pytest.mark.slow
def test_no_metric_uses_a_label_that_prometheus_gives() -> None:
    async def scenario(world: World) -> None:
        await world.apply(max=4)
        await world.trains(3)
        labels = {key for _, found in (await world.scrape()).series for key, _ in found}
        assert labels & {"job", "instance"} == set()

    play(scenario)


@pytest.mark.slow
def test_series_end_with_their_job() -> None:
    async def scenario(world: World) -> None:
        await world.apply(max=4)
        await world.trains(3)
        await world.cluster.crash("lm-v6e-0-a1-0")
        await asyncio.sleep(60)
        await world.trains(3)
        assert (await world.scrape()).jobs == {"lm"}
        await world.api.delete(names.DILOCO_JOBS, *KEY)
        await asyncio.sleep(60)
        assert (await world.scrape()).jobs == set()

    play(scenario)


@pytest.mark.slow
def test_a_page_reads_only_statuses_that_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []

    def reported(status: bytes) -> bytes:
        read.append(status)
        return original(status)

    original = metrics_module._reported
    monkeypatch.setattr(metrics_module, "_reported", reported)
    metrics = Metrics()
    jobs = [CachedJob(parse_job(a_manifest(name)), status(1)) for name in ("a", "b")]
    metrics.jobs.follow(lambda: jobs, lambda _: None, lambda: 0.0)

    def steps() -> dict[str, float]:
        text = generate_latest(metrics.registry).decode()
        return {dict(labels)["dilocojob"]: value for (name, labels), value in series(text).items() if name == "diloco_job_outer_step"}

    assert (steps(), steps(), len(read)) == ({"a": 1, "b": 1}, {"a": 1, "b": 1}, 2)
    jobs[1] = replace(jobs[1], status=status(2))
    assert (steps(), read[2:]) == ({"a": 1, "b": 2}, [status(2)])
    del jobs[0]
    assert (steps(), len(read), len(metrics.jobs._known)) == ({"b": 2}, 3, 1)


def test_accelerator_seconds_are_by_cluster() -> None:
    parts = [{"name": "tokyo", "acceleratorHours": {"tpu-v6e": 2.0}}, {"name": "osaka"}]
    said = {"goodput": {"acceleratorHours": {"tpu-v5p": 0.5}}, "parts": parts}
    metrics = Metrics()
    metrics.jobs.follow(
        lambda: [CachedJob(parse_job(a_manifest("lm", namespace="default")), json.dumps(said).encode())], lambda _: None, lambda: 0.0
    )
    seen = Scrape(generate_latest(metrics.registry).decode())
    assert seen.of_job("accelerator_seconds_total", cluster="", accelerator="tpu-v5p") == 1800.0
    assert seen.of_job("accelerator_seconds_total", cluster="tokyo", accelerator="tpu-v6e") == 7200.0


def test_the_link_of_each_part_is_measured_and_what_is_not_known_has_no_series() -> None:
    figures = {
        "mergeShare": 0.97, "roundTripSeconds": 0.08, "receivedBytesPerSecond": 41, "sentBytesPerSecond": 42, "receivedBytes": 43,
        "sentBytes": 44,
    }  # fmt: skip
    parts = [{"name": "tokyo", "contributing": 1, **figures}, {"name": "osaka"}]
    metrics = Metrics()
    job = CachedJob(parse_job(a_manifest("lm", namespace="default")), json.dumps({"parts": parts}).encode())
    metrics.jobs.follow(lambda: [job], lambda _: None, lambda: 0.0)
    scrape = Scrape(generate_latest(metrics.registry).decode())
    expected = {
        "merge_share": 0.97, "round_trip_seconds": 0.08, "received_bytes_per_second": 41, "sent_bytes_per_second": 42,
        "received_bytes_total": 43, "sent_bytes_total": 44,
    }  # fmt: skip
    assert {name: scrape.of_job(f"part_{name}", part="tokyo") for name in expected} == expected
    assert {scrape.of_job(f"part_{name}", part="osaka") for name in expected} == {None}


def test_a_part_has_no_interval_of_snapshots_since_it_writes_none() -> None:
    part = a_job("lm").in_namespace("default").with_pool(max=1).with_spec(syncer={"at": AT_HOME}).build()
    metrics = Metrics()
    metrics.jobs.follow(lambda: [CachedJob(parse_job(part), status(720))], lambda _: None, lambda: 0.0)
    seen = Scrape(generate_latest(metrics.registry).decode())
    assert (seen.of_job("outer_step"), seen.of_job("snapshot_step"), seen.of_job("snapshot_interval_steps")) == (720, None, None)


@pytest.mark.parametrize(
    ("state", "step", "age"),
    [
        pytest.param("Training", 700, 300.0, id="its syncer was heard by the operator before"),
        pytest.param("Degraded", 700, 300.0, id="and so it was"),
        pytest.param("Degraded", 0, None, id="it may never have run"),
        pytest.param("Queued", 700, None, id="it was resumed, and waits for hardware"),
        pytest.param("Suspended", 700, None, id="it has none"),
    ],
)
def test_a_syncer_that_stays_away_from_a_new_operator_has_an_age(state: str, step: int, age: float | None) -> None:
    now = 1_000.0
    job = CachedJob(parse_job(a_manifest("lm", namespace="default")), json.dumps({"state": state, "progress": {"step": step}}).encode())
    reports: list[Report] = []
    metrics = Metrics()
    metrics.jobs.follow(lambda: [job], lambda _: next(iter(reports), None), lambda: now)
    now += 300
    assert Scrape(generate_latest(metrics.registry).decode()).of_job("report_age_seconds") == age
    reports.append(Report(received_at=1_298.0, t=701, steps=2400))
    assert Scrape(generate_latest(metrics.registry).decode()).of_job("report_age_seconds") == 2.0


def status(step: int) -> bytes:
    return json.dumps({"progress": {"step": step}}).encode()


def test_a_standby_reports_no_jobs() -> None:
    async def scenario(world: World) -> None:
        await world.apply()
        await world.trains(3)
        standby = Metrics()
        operator = an_operator(world.api, FakeTelemetry(world.cluster), now=wall_clock, metrics=standby)
        task = asyncio.create_task(operator.run(lead=asyncio.Event().wait))  # type: ignore[arg-type]
        await asyncio.sleep(10)
        assert operator.caches.synced
        world.metrics = standby
        assert (await world.scrape()).jobs == set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    play(scenario)


@pytest.mark.slow
def test_reconciles_and_their_queue() -> None:
    async def scenario(world: World) -> None:
        rejected = 3

        def reject(verb: str, resource: Resource, namespace: str, name: str) -> None:
            nonlocal rejected
            if verb == "create" and (resource, name) == (names.CONFIG_MAPS, "lm-job") and rejected:
                rejected -= 1
                raise ApiError(403, "Forbidden", "exceeded quota")

        world.api.before = reject
        await world.apply()
        await world.trains(3)
        seen = await world.scrape()
        queue = {"name": "dilocojob", "controller": "dilocojob"}
        assert seen("controller_runtime_reconcile_total", controller="dilocojob", result="error") == 3
        assert seen("controller_runtime_reconcile_errors_total", controller="dilocojob") == 3
        assert seen("controller_runtime_reconcile_panics_total", controller="dilocojob") == 0
        later = seen("controller_runtime_reconcile_total", controller="dilocojob", result="requeue_after")
        done = seen("controller_runtime_reconcile_total", controller="dilocojob", result="success")
        assert later is not None
        assert done is not None
        assert later + done > 3
        assert seen("controller_runtime_reconcile_time_seconds_count", controller="dilocojob") == later + done + 3
        assert seen("controller_runtime_max_concurrent_reconciles", controller="dilocojob") == 4
        assert seen("workqueue_retries_total", **queue) == 3
        adds = seen("workqueue_adds_total", **queue)
        assert adds is not None
        assert adds >= later + done + 3
        assert seen("workqueue_queue_duration_seconds_count", **queue) == later + done + 3
        assert seen("workqueue_work_duration_seconds_count", **queue) == later + done + 3

    play(scenario)


@pytest.mark.slow
def test_a_long_reconcile_shows_while_it_runs() -> None:
    async def scenario(world: World) -> None:
        original = world.api.create

        async def slow(resource: Resource, *args: Any, **kwargs: Any) -> Obj:
            if resource == names.CONFIG_MAPS:
                await asyncio.sleep(20)
            return await original(resource, *args, **kwargs)

        for number in range(5):  # each job makes its ConfigMap with its first slice
            await world.cluster.add(a_tpu_slice(f"np-{number}-v5p", 2, topology="2x2x2"))
            await world.cluster.add(a_tpu_slice(f"np-{number}-v6e", kind="tpu-v6e-slice", topology="2x2"))
        world.api.create = slow  # type: ignore[method-assign]
        for name in ("lm", "second", "third", "fourth", "fifth"):
            await world.apply(name)
        await asyncio.sleep(10)
        seen = await world.scrape()
        queue = {"name": "dilocojob", "controller": "dilocojob"}
        assert seen("controller_runtime_active_workers", controller="dilocojob") == 4
        assert seen("workqueue_depth", **queue) == 1  # four workers, five jobs
        longest = seen("workqueue_longest_running_processor_seconds", **queue)
        assert longest is not None
        assert 9 < longest < 11
        together = seen("workqueue_unfinished_work_seconds", **queue)
        assert together is not None
        assert 36 < together < 44

    play(scenario)


def test_a_defect_is_counted_as_one() -> None:
    async def scenario(world: World) -> None:
        def broken(*_: Any) -> None:
            raise RuntimeError("a defect")

        world.operator._reconciler._judge = broken  # type: ignore[assignment]
        await world.apply()
        await asyncio.sleep(1)
        panics = (await world.scrape())("controller_runtime_reconcile_panics_total", controller="dilocojob")
        assert panics is not None
        assert panics >= 1

    play(scenario)


def test_the_process_itself_and_its_requests() -> None:
    async def scenario(world: World) -> None:
        world.metrics.request_done("GET", "200", "kubernetes.default.svc")
        world.metrics.request_done("POST", "<error>", "kubernetes.default.svc")
        leads = True
        world.metrics.watch_leading("diloco-operator", lambda: leads)
        seen = await world.scrape()
        assert seen("rest_client_requests_total", code="200", method="GET", host="kubernetes.default.svc") == 1
        assert seen("rest_client_requests_total", code="<error>", method="POST", host="kubernetes.default.svc") == 1
        assert seen("leader_election_master_status", name="diloco-operator") == 1
        leads = False
        assert (await world.scrape())("leader_election_master_status", name="diloco-operator") == 0
        resident = seen("process_resident_memory_bytes")
        assert resident is not None
        assert resident > 10 << 20

    play(scenario)


def test_two_metrics_in_one_process_share_nothing() -> None:
    one, other = Metrics(), Metrics()
    one.request_done("GET", "200", "a")
    wanted = {"code": "200", "method": "GET", "host": "a"}
    assert one.registry.get_sample_value("rest_client_requests_total", wanted) == 1
    assert other.registry.get_sample_value("rest_client_requests_total", wanted) is None


def test_a_recovery_is_counted_when_the_unit_contributes_again_and_only_then() -> None:
    def unit(**fields: Any) -> Obj:
        return {"name": "v5p-0", "state": "Training", "recoverSeconds": 7.5, **fields}

    lost = {"units": [unit(endedAt="t")]}
    assert list(recoveries(lost, {"units": [unit()]})) == [7.5]
    assert list(recoveries({"units": [unit()]}, {"units": [unit()]})) == []
    assert list(recoveries(lost, lost)) == []
    assert list(recoveries({}, {"units": [unit()]})) == []


def test_a_pool_that_is_as_big_as_it_may_be_is_no_failure() -> None:
    full = {"pools": [{"name": "v5p", "reason": "AtMaximum"}]}
    short = {"pools": [{"name": "v5p", "reason": "NoFreeSlice"}]}
    assert list(placement_failures({}, full)) == []
    assert list(placement_failures(full, short)) == [("v5p", "NoFreeSlice")]
    assert list(placement_failures(short, short)) == []
