"""The operator around the decision: what it reads before, what it writes after, and when it reconciles again. The decision is a fake."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from builders.jobs import a_manifest, tpu_pool
from builders.nodes import a_node, a_tpu_slice
from builders.operator_run import an_operator, running
from builders.virtual_time import run_virtual, until
from diloco_local.memory import MemoryApi
from diloco_operator.api import names
from diloco_operator.api.crd import build_crd
from diloco_operator.api.spec import Pool
from diloco_operator.certificates.issuing import Issuer
from diloco_operator.fleet.occupancy import Reservations
from diloco_operator.fleet.slice_kinds import shape_of
from diloco_operator.kube.client import ApiError, Obj, Resource, Unavailable
from diloco_operator.operator import RunConfig
from diloco_operator.operator.certificate_writes import certificate_writes
from diloco_operator.placement import HeldUnit, JobRequest, PoolRequest
from diloco_operator.placement.requirements import SliceRequirements
from diloco_operator.plan import Create, Delete, Event, IssueCertificates, Plan, ReplaceStatus
from diloco_operator.reconcile import ObservedState
from diloco_operator.report import PartState, Report, ReportFault
from diloco_operator.telemetry.endpoint import Endpoint

NS = "default"


class SilentTelemetry:
    """No syncer has sent a report. Records which syncers are followed."""

    def __init__(self) -> None:
        self.followed: dict[tuple[str, str], Endpoint | None] = {}
        self.notify: Callable[[tuple[str, str]], None] = lambda key: None
        self.told: dict[tuple[str, str], PartState] = {}
        self.closed = False

    def on_change(self, notify: Callable[[tuple[str, str]], None]) -> None:
        self.notify = notify

    def follow(self, key: tuple[str, str], endpoint: Endpoint | None) -> None:
        self.followed[key] = endpoint

    def tell(self, key: tuple[str, str], state: PartState) -> None:
        self.told[key] = state

    def forget(self, key: tuple[str, str]) -> None:
        self.followed.pop(key, None)

    def latest(self, key: tuple[str, str]) -> Report | None:
        return None

    def fault(self, key: tuple[str, str]) -> ReportFault | None:
        return None

    async def close(self) -> None:
        self.closed = True


class SmallCluster:
    """An API server with some nodes, and an operator that decides as `decide` says. `seen`: every observed state, with its time."""

    def __init__(self, decide: Callable[[ObservedState], Plan] = lambda observed: Plan()) -> None:
        self.api = MemoryApi(random=random.Random(1))
        self.decide = decide
        self.seen: list[tuple[float, ObservedState]] = []
        self.telemetry = SilentTelemetry()
        options: dict[str, Any] = {"run": RunConfig(workers=4), "rng": lambda: 0.0, "decide": self._decide}
        self.operator = an_operator(self.api, self.telemetry, now=lambda: asyncio.get_running_loop().time(), **options)

    def _decide(self, observed: ObservedState, now: datetime) -> Plan:
        assert now.tzinfo is UTC
        self.seen.append((asyncio.get_running_loop().time(), observed))
        return self.decide(observed)

    def operating(self) -> AbstractAsyncContextManager[asyncio.Task[None]]:
        return running(self.operator, defects=True)

    async def apply(self, name: str = "lm", namespace: str = NS, **spec: Any) -> Obj:
        manifest = a_manifest(name, namespace=namespace, pools=[tpu_pool("v6e", "tpu-v6e", "2x2", max=6)], spec=spec)
        return await self.api.create(names.DILOCO_JOBS, manifest)

    async def touch(self, name: str = "lm", value: str = "x") -> None:
        await self.api.patch(names.DILOCO_JOBS, NS, name, {"metadata": {"annotations": {"touched": value}}})

    def reconciles(self, name: str = "lm") -> list[ObservedState]:
        return [observed for _, observed in self.seen if observed.job.name == name]

    async def settle(self) -> None:
        """Wait until the operator has nothing left to do."""
        await asyncio.sleep(0.1)
        await until(lambda: self.operator.idle)


def play(
    scenario: Callable[[SmallCluster], Coroutine[Any, Any, None]], decide: Callable[[ObservedState], Plan] = lambda observed: Plan()
) -> SmallCluster:
    async def run() -> SmallCluster:
        cluster = SmallCluster(decide)
        await cluster.api.create(names.CUSTOM_RESOURCES, build_crd())
        for node in [a_node("cpu-0"), *a_tpu_slice("np-a", kind="tpu-v6e-slice", topology="2x2")]:
            await cluster.api.create(names.NODES, node)
            await cluster.api.patch(names.NODES, "", node["metadata"]["name"], {"status": node["status"]}, subresource="status")
        await scenario(cluster)
        return cluster

    return run_virtual(run())


def a_pod(observed: ObservedState, name: str, node: str = "np-a-0") -> Create:
    job = observed.job
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": job.name, "uid": job.uid, "controller": True}
    labels = {names.LABEL_JOB: job.name, names.LABEL_COMPONENT: names.COMPONENT_LEARNER, names.LABEL_UNIT: "v6e-0"}
    meta = {"namespace": NS, "name": name, "labels": labels, "ownerReferences": [owner], "annotations": {names.ANNOTATION_NODE: node}}
    resources = {"requests": {"google.com/tpu": "4"}, "limits": {"google.com/tpu": "4"}}
    spec = {"containers": [{"name": "learner", "image": "i", "resources": resources}]}
    return Create(names.PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})


def one_pod(observed: ObservedState) -> Plan:
    """A plan that wants one pod."""
    return Plan() if observed.pods else Plan(creates=(a_pod(observed, "lm-v6e-0-a1-0"),))


def test_nothing_is_decided_before_every_cache_is_synced() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        away = True

        def reject(verb: str, resource: Resource, namespace: str, name: str) -> None:
            if away and verb == "list" and resource == names.NODES:
                raise Unavailable(503, "ServiceUnavailable", "nodes cannot be listed")

        cluster.api.before = reject
        await cluster.apply()
        async with cluster.operating():
            await asyncio.sleep(100)
            assert cluster.seen == []
            away = False
            await until(lambda: cluster.seen)
            assert cluster.seen[0][1].fleet.node("np-a-0") is not None

    play(scenario)


def a_claim(observed: ObservedState) -> Plan:
    """Plan the syncer's claim. The API server fills in its default class, but not for job `second`, as if it had none then."""
    job = observed.job
    given = {"storageClassName": ""} if job.name == "second" else {}
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": job.name, "uid": job.uid, "controller": True}
    name = names.volume_claim_name(job.name)
    meta = {"namespace": job.namespace, "name": name, "labels": {names.LABEL_JOB: job.name}, "ownerReferences": [owner]}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **given}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}
    return Plan() if observed.children.volume_claim is not None else Plan(creates=(Create(names.VOLUME_CLAIMS, claim),))


def test_a_new_job_knows_whether_the_last_claim_of_another_got_a_class() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        async def known(job: str, namespace: str = NS) -> bool:
            """Return what its first reconcile knows."""
            await cluster.apply(job, namespace)
            await until(lambda: len(cluster.reconciles(job)) == 2)
            return cluster.reconciles(job)[0].default_class

        await cluster.api.create(names.NAMESPACES, {"metadata": {"name": "team-b"}})
        async with cluster.operating():
            assert not await known("first"), "there was no claim yet"
            assert not await known("elsewhere", "team-b"), "another tenant's claims show nothing"
            assert await known("second")
            assert not await known("third"), "the claim of the second has no class"

    play(scenario, a_claim)


def test_a_plan_is_carried_out_and_the_next_reconcile_sees_its_objects() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        async with cluster.operating():
            await cluster.apply()
            await until(lambda: len(cluster.seen) == 2)
            assert [pod.name for pod in cluster.reconciles()[1].pods] == ["lm-v6e-0-a1-0"]
            await cluster.settle()
            assert len(cluster.seen) == 2

    play(scenario, one_pod)


def test_a_job_is_not_reconciled_before_the_watch_shows_its_own_writes() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        async with cluster.operating():
            await until(lambda: cluster.operator.idle)
            cluster.api.before = lambda verb, resource, *_: blocked(verb, resource)
            cluster.api.interrupt_watches()
            await cluster.apply()
            await until(lambda: len(cluster.seen) == 1, within=200)
            await cluster.touch()
            await cluster.touch(value="y")
            await asyncio.sleep(200)  # the expectations expire, and the pods cannot be listed
            assert len(cluster.seen) == 1
            cluster.api.before = None
            await until(lambda: len(cluster.seen) == 2, within=200, step=0.5)
            assert [pod.name for pod in cluster.seen[1][1].pods] == ["lm-v6e-0-a1-0"]

    def blocked(verb: str, resource: Resource) -> None:
        if verb in ("watch", "list") and resource == names.PODS:
            raise Unavailable(503, "ServiceUnavailable", "pods cannot be watched")

    play(scenario, one_pod)


def test_a_job_of_another_manager_is_left_alone() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        async with cluster.operating():
            await cluster.apply(managedBy="example.com/other")
            await cluster.settle()
            assert cluster.seen == []

    play(scenario)


def test_a_rejected_write_is_reported_to_the_user_and_retried_with_back_off() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        def reject(verb: str, resource: Resource, namespace: str, name: str) -> None:
            if verb == "create" and resource == names.PODS:
                raise ApiError(403, "Forbidden", "exceeded quota: pods=0")

        cluster.api.before = reject
        async with cluster.operating():
            await cluster.apply()
            await until(lambda: len(cluster.seen) == 4)
            times = [at for at, _ in cluster.seen]
            gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
            assert [round(gap, 1) for gap in gaps] == [0.5, 1, 2]
            await asyncio.sleep(11)  # a repeated event is written every 10 s
            [event] = (await cluster.api.list(names.EVENTS, NS)).items
            assert event["reason"] == "WriteRefused"
            assert "exceeded quota: pods=0" in event["message"]
            assert event["count"] >= 3

    play(scenario, one_pod)


def test_a_defect_that_shows_in_one_job_is_told_there_and_does_not_stop_the_others() -> None:
    def decide(observed: ObservedState) -> Plan:
        if observed.job.name == "bad":
            raise ZeroDivisionError
        return Plan()

    async def scenario(cluster: SmallCluster) -> None:
        async with cluster.operating():
            await cluster.apply("bad")
            await cluster.apply("good")
            await until(lambda: cluster.reconciles("good"))
            await until(lambda: cluster.operator.counters.defects >= 2)
            await asyncio.sleep(11)
            [event] = (await cluster.api.list(names.EVENTS, NS)).items
            assert (event["involvedObject"]["name"], event["reason"], event["type"]) == ("bad", "OperatorDefect", "Warning")
            assert event["message"].startswith("the job cannot be reconciled (ZeroDivisionError) and is tried again")

    play(scenario, decide)


def test_the_syncer_of_a_part_is_told_its_state_and_that_of_another_job_is_not() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        async with cluster.operating():
            await cluster.apply("own")
            await cluster.apply("part", syncer={"at": {"address": "syncer.example.com:7077", "secretName": "home"}})
            for name in ("own", "part"):
                await cluster.api.patch(names.DILOCO_JOBS, NS, name, {"status": {"state": "Queued"}}, subresource="status")
            await until(lambda: cluster.telemetry.told.get((NS, "part")) == PartState("Queued"))
            await cluster.settle()
            assert list(cluster.telemetry.told) == [(NS, "part")]

    play(scenario)


@pytest.mark.slow
def test_a_job_is_reconciled_again_when_its_plan_says_so() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        async with cluster.operating():
            await cluster.apply()
            await until(lambda: len(cluster.seen) == 3, within=200)
            first, second, third = (at for at, _ in cluster.seen)
            assert (round(second - first), round(third - second)) == (60, 60)

    play(scenario, lambda observed: Plan(requeue_after=60))


def test_a_job_is_reconciled_when_a_reserved_node_changes() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        async with cluster.operating():
            await cluster.apply()
            await cluster.settle()
            assert len(cluster.seen) == 1
            await cluster.api.patch(names.NODES, "", "np-a-0", {"spec": {"unschedulable": True}})
            await until(lambda: len(cluster.seen) == 2)

    play(scenario, lambda observed: Plan(reservations=Reservations(frozenset({"np-a-0"}))))


def test_a_heartbeat_of_a_node_wakes_no_job() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        async with cluster.operating():
            await cluster.apply()
            await cluster.settle()
            beat = {"metadata": {"annotations": {"heartbeat": "1"}}}
            await cluster.api.patch(names.NODES, "", "np-a-0", beat)
            await cluster.settle()
            assert len(cluster.seen) == 1

    play(scenario, lambda observed: Plan(reservations=Reservations(frozenset({"np-a-0"}))))


def short_of_slices(observed: ObservedState) -> Plan:
    """Takes np-a-0 if it is free; otherwise says in status that a slice is missing."""
    pool = observed.job.spec.pools[0] if observed.job.spec else None
    assert pool is not None
    node = next((part.hosts[0].node for part in observed.fleet.free(shape_of(pool), pool.name)), None)
    mine = observed.job.status.get("pools", [{}])[0].get("placed") == 1
    units = (HeldUnit("v6e-0", ("np-a-0",)),) if mine or node is not None else ()
    wants = PoolRequest(pool.name, SliceRequirements(shape_of(pool), ""), 1, 1, units, wanted=1 - len(units))
    request = JobRequest(observed.job.key, created=observed.job.created, min=1, max=1, pools=(wants,))
    if units:
        return _status(observed, {"name": "v6e", "placed": 1}, frozenset({"np-a-0"}), request)
    return _status(observed, {"name": "v6e", "reason": "NoFreeSlice"}, frozenset(), request)


def _status(observed: ObservedState, pool: Obj, reservations: frozenset[str], request: JobRequest) -> Plan:
    job = observed.job
    status = ReplaceStatus(names.DILOCO_JOBS, NS, job.name, job.uid, {"pools": [pool]})
    return Plan(status=status if job.status.get("pools") != [pool] else None, reservations=Reservations(reservations), request=request)


def test_a_job_that_waits_for_a_slice_is_woken_when_one_becomes_free() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        async with cluster.operating():
            await cluster.apply("first")
            await cluster.settle()
            await cluster.apply("second")
            await cluster.settle()
            count = len(cluster.reconciles("second"))
            await cluster.settle()
            assert len(cluster.reconciles("second")) == count
            await cluster.api.delete(names.DILOCO_JOBS, NS, "first")
            await until(
                lambda: cluster.operator.inventory.reserved_by("np-a-0") == {f"{NS}/second/{cluster.reconciles('second')[0].job.uid}"}
            )

    play(scenario, short_of_slices)


@pytest.mark.slow
def test_two_jobs_that_are_reconciled_together_never_take_the_same_slice() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        for index in range(6):
            await cluster.apply(f"job-{index}")
        async with cluster.operating():
            await cluster.settle()
            assert len(cluster.operator.inventory.reserved_by("np-a-0")) == 1

    play(scenario, short_of_slices)


def free_slices(cluster: SmallCluster) -> list[str]:
    shape = shape_of(Pool.model_validate(tpu_pool("v6e", "tpu-v6e", "2x2")))
    return [slice_.name for slice_ in cluster.operator.inventory.free(shape)]


def test_nodes_of_a_deleted_jobs_pods_are_free_only_when_the_pods_are_gone() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        async with cluster.operating():
            await cluster.apply()
            await until(lambda: len(cluster.reconciles()) == 2)
            await cluster.api.bind(NS, "lm-v6e-0-a1-0", "np-a-0")
            await cluster.settle()
            await cluster.api.delete(names.DILOCO_JOBS, NS, "lm")
            await cluster.settle()
            assert free_slices(cluster) == []
            await cluster.api.delete(names.PODS, NS, "lm-v6e-0-a1-0", grace_seconds=0)
            await cluster.settle()
            assert free_slices(cluster) == ["np-a-0"]
            assert (NS, "lm") not in cluster.telemetry.followed

    def decide(observed: ObservedState) -> Plan:
        return Plan(creates=one_pod(observed).creates, reservations=Reservations(frozenset({"np-a-0"})))

    play(scenario, decide)


def test_a_starting_operator_restores_all_reservations_before_its_first_decision() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        first = await cluster.apply("first")
        pod = a_pod(_as_snapshot(first), "first-v6e-0-a1-0").obj
        await cluster.api.create(names.PODS, pod)
        await cluster.apply("second")
        async with cluster.operating():
            await until(lambda: cluster.reconciles("second"))
            assert cluster.operator.inventory.reserved_by("np-a-0") == {f"{NS}/first/{first['metadata']['uid']}"}

    play(
        scenario,
        lambda observed: Plan(reservations=Reservations(frozenset({"np-a-0"})) if observed.job.name == "first" else Reservations()),
    )


def _as_snapshot(obj: Obj) -> Any:
    return SimpleNamespace(job=SimpleNamespace(name=obj["metadata"]["name"], uid=obj["metadata"]["uid"]))


def _controller(job: Obj) -> Obj:
    return {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
    }


def test_the_syncer_is_followed_where_its_pod_runs() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        async with cluster.operating():
            made = await cluster.apply()
            pod = a_pod(_as_snapshot(made), "lm-syncer").obj
            pod["metadata"]["labels"][names.LABEL_COMPONENT] = names.COMPONENT_SYNCER
            await cluster.api.create(names.PODS, pod)
            status = {"status": {"phase": "Running", "podIP": "10.1.2.3"}}
            await cluster.api.patch(names.PODS, NS, "lm-syncer", status, subresource="status")
            await cluster.settle()
            assert cluster.telemetry.followed == {(NS, "lm"): None}
            uid = made["metadata"]["uid"]
            meta = {"namespace": NS, "name": "lm-ca", "labels": {names.LABEL_JOB: "lm"}, "ownerReferences": [_controller(made)]}
            [authority] = certificate_writes(Issuer(lambda: 0.0, 60.0), [IssueCertificates({"metadata": meta}, uid, create_authority=True)])
            assert isinstance(authority, Create)
            await cluster.api.create(names.SECRETS, authority.obj)
            await cluster.settle()
            endpoint = cluster.telemetry.followed[NS, "lm"]
            assert endpoint is not None
            assert (endpoint.address, endpoint.job_uid, endpoint.host_name) == ("10.1.2.3:7077", uid, f"lm-syncer.lm.{NS}.svc")
            assert "BEGIN CERTIFICATE" in endpoint.roots

    play(scenario)


def test_a_changed_report_leads_to_a_reconcile() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        async with cluster.operating():
            await cluster.apply()
            await cluster.settle()
            cluster.telemetry.notify((NS, "lm"))
            await until(lambda: len(cluster.seen) == 2)

    play(scenario)


@pytest.mark.slow
def test_when_it_stops_it_ends_its_running_writes() -> None:
    def decide(observed: ObservedState) -> Plan:
        creates = tuple(a_pod(observed, f"p{index}") for index in range(200))
        return Plan(creates=creates, events=(Event("Normal", "Made", "200 pods"),))

    async def scenario(cluster: SmallCluster) -> None:
        async with cluster.operating() as task:
            await cluster.apply()
            await until(lambda: cluster.seen, step=0)
            task.cancel()
            await asyncio.wait([task])
            assert len((await cluster.api.list(names.PODS, NS)).items) == 200
            assert cluster.telemetry.closed

    play(scenario, decide)


def test_a_deletion_carries_the_uid_so_that_a_successor_is_spared() -> None:
    def decide(observed: ObservedState) -> Plan:
        if not observed.pods:
            return one_pod(observed)
        return Plan(deletes=tuple(Delete(names.PODS, NS, pod.name, uid="another", grace_seconds=0) for pod in observed.pods))

    async def scenario(cluster: SmallCluster) -> None:
        async with cluster.operating():
            await cluster.apply()
            await until(lambda: len(cluster.seen) >= 2)
            await cluster.settle()
            assert len((await cluster.api.list(names.PODS, NS)).items) == 1

    play(scenario, decide)
