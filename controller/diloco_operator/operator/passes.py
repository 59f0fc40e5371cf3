"""One pass over one job: caches → snapshot → plan → writes. Everything up to the plan happens between two awaits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from diloco_operator.api import names
from diloco_operator.api.conditions import POOL_NO_FREE_SLICE, POOL_NO_MATCHING_NODES, REASON_NAME_TAKEN, REASON_WRITE_REFUSED
from diloco_operator.fleet import Inventory, Shape
from diloco_operator.fleet.kinds import shape_of
from diloco_operator.kube.client import AlreadyExists
from diloco_operator.kube.events import EventRecorder, Subject
from diloco_operator.kube.executor import Executor, Outcome
from diloco_operator.kube.expectations import Expectations
from diloco_operator.operator.caches import Caches, JobKey
from diloco_operator.operator.capacity import CapacityQueue
from diloco_operator.plan import Event, Plan
from diloco_operator.reconcile import Job, OperatorConfig, PodView, Snapshot, holds, reconcile
from diloco_operator.telemetry import Endpoint, Telemetry

log = logging.getLogger(__name__)


type Decide = Callable[[Snapshot, datetime], Plan]
"""What decides: `reconcile`, or in a test of the operator alone something simpler."""


@dataclass(frozen=True, slots=True)
class Next:
    """When a job must be looked at again."""

    failed: bool = False
    """Soon, with a delay that grows with each failure in a row."""
    after: float | None = None
    """Seconds; None: when something changes."""


class Passes:
    """Carries passes out. The caller sees to it that no job has two at once, and that the caches are synced.

    `now` is the wall clock in seconds since the epoch, `token` makes a new random secret.
    """

    def __init__(
        self,
        caches: Caches,
        inventory: Inventory,
        capacity: CapacityQueue,
        expectations: Expectations[JobKey],
        executor: Executor,
        events: EventRecorder,
        telemetry: Telemetry,
        config: OperatorConfig,
        *,
        now: Callable[[], float],
        token: Callable[[], str],
        decide: Decide = reconcile,
    ) -> None:
        self._caches = caches
        self._inventory = inventory
        self._capacity = capacity
        self._expectations = expectations
        self._executor = executor
        self._events = events
        self._telemetry = telemetry
        self._config = config
        self._now = now
        self._token = token
        self._reconcile = decide
        self._holding: dict[JobKey, set[str]] = {}
        """Under which keys of the inventory the jobs of this name hold nodes: more than one while an earlier one still has pods."""

    def begin(self) -> None:
        """Note what every job holds, before the first pass: a job must not be given what belongs to one that has not had its turn."""
        keys = {held.key for held in self._caches.jobs} | self._caches.jobs_with_pods()
        for key in keys:
            job = self._caches.job(key)
            pods = self._caches.pods(key)
            self._release_strangers(key, job, pods)
            if job is not None:
                self._set_holds(key, job.key, holds(job, pods, self._inventory))

    async def run(self, key: JobKey) -> Next:
        """Look at the job `key` and do what is to be done about it."""
        job = self._caches.job(key)
        pods = self._caches.pods(key)
        self._release_strangers(key, job, pods)
        if job is None:
            self._forget(key)
            return Next()
        if job.managed_by != names.MANAGER:
            self._forget(key)
            self._set_holds(key, job.key, _nodes_of(pods, job.uid))
            return Next()
        self._telemetry.follow(key, self._endpoint(key, job))
        if (wait := self._expectations.expires_in(key)) is not None:
            return Next(after=wait)
        plan = self._decide(key, job, pods)
        self._expect(key, plan)
        subject = Subject(job.namespace, job.name, job.uid)
        outcome = await self._executor.execute(subject, plan, unsent=lambda *what: self._expectations.cancel(key, *what))
        return self._conclude(key, subject, plan, outcome)

    def _decide(self, key: JobKey, job: Job, pods: tuple[PodView, ...]) -> Plan:
        """No await in here: what the plan takes is taken before any other job is looked at."""
        snapshot = Snapshot(
            job=job,
            fleet=self._inventory,
            config=self._config,
            secret_token=self._token(),
            pods=pods,
            children=self._caches.children(key),
            report=self._telemetry.latest(key),
        )
        plan = self._reconcile(snapshot, datetime.fromtimestamp(self._now(), tz=UTC))
        self._set_holds(key, job.key, plan.holds)
        status = plan.status.status if plan.status is not None else job.status
        self._capacity.set_wants(key, job.created, lacking(job, status))
        self._capacity.looked_at(key)
        return plan

    def _expect(self, key: JobKey, plan: Plan) -> None:
        for create in plan.creates:
            meta = create.obj["metadata"]
            self._expectations.expect_create(key, create.resource, meta.get("namespace", ""), meta["name"])
        for delete in plan.deletes:
            self._expectations.expect_delete(key, delete.resource, delete.namespace, delete.name, delete.uid)

    def _conclude(self, key: JobKey, subject: Subject, plan: Plan, outcome: Outcome) -> Next:
        if outcome.written is not None:
            self._expectations.expect_version(key, names.DILOCO_JOBS, self._caches.jobs.get(*key), outcome.written)
        if outcome.ok:
            return Next(after=plan.requeue_after)
        for failure in outcome.failures:
            log.warning("job %s: %s", subject, failure)
            if not failure.transient:
                taken = isinstance(failure.error, AlreadyExists)
                reason = REASON_NAME_TAKEN if taken else REASON_WRITE_REFUSED
                self._events.tell(subject, Event("Warning", reason, str(failure)))
        return Next(failed=True)

    def _endpoint(self, key: JobKey, job: Job) -> Endpoint | None:
        """Where the job's syncer listens now; None while it does not run, or has no secret yet to ask it with."""
        pod = self._caches.pod(job.namespace, names.syncer_pod_name(job.name))
        token = self._caches.token(key)
        if pod is None or pod.owner != job.uid or pod.phase != "Running" or not pod.ip or not token:
            return None
        return Endpoint(pod_uid=pod.uid, host=pod.ip, token=token)

    def _forget(self, key: JobKey) -> None:
        self._telemetry.forget(key)
        self._expectations.forget(key)
        self._capacity.set_wants(key, 0.0, ())
        self._capacity.looked_at(key)

    def _release_strangers(self, key: JobKey, job: Job | None, pods: tuple[PodView, ...]) -> None:
        """Jobs of this name that are gone hold what their last pods stand on, and nothing more."""
        alive = job.uid if job is not None else None
        gone = {f"{key[0]}/{key[1]}/{pod.owner}": pod.owner for pod in pods if pod.owner != alive}
        for holder in self._holding.get(key, set()) - gone.keys():
            if job is None or holder != job.key:
                self._set_holds(key, holder, frozenset())
        for holder, uid in gone.items():
            self._set_holds(key, holder, _nodes_of(pods, uid))

    def _set_holds(self, key: JobKey, holder: str, nodes: frozenset[str]) -> None:
        holding = self._holding.setdefault(key, set())
        if nodes:
            holding.add(holder)
        else:
            holding.discard(holder)
            if not holding:
                del self._holding[key]
        if self._inventory.set_holds(holder, nodes):
            self._capacity.freed()


def lacking(job: Job, status: Mapping[str, Any]) -> frozenset[Shape]:
    """The shapes of which the job would take more if there were any, by what its status says of its pools."""
    if job.spec is None:
        return frozenset()
    short = {pool["name"] for pool in status.get("pools", ()) if pool.get("reason") in (POOL_NO_FREE_SLICE, POOL_NO_MATCHING_NODES)}
    return frozenset(shape_of(pool) for pool in job.spec.pools if pool.name in short)


def _nodes_of(pods: tuple[PodView, ...], owner: str) -> frozenset[str]:
    return frozenset(pod.node for pod in pods if pod.owner == owner and pod.node and not pod.ended)
