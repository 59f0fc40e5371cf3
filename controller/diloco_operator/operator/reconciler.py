"""One reconcile of one job: caches → observed state → plan → writes.

First the job is judged: what happened, and what it has and wants. The allotment answers with the free slices that only this job may take,
and with the units that must leave theirs. Then follows the plan.

A plan must reserve its nodes before another job's plan is decided. For most jobs the whole decision is made between two awaits. The
decision for a big job takes a tenth of a second and more and would block everything else. So a thread makes it, on a copy of the fleet,
and it counts only if no other job reserved one of its nodes meanwhile.

See docs/decisions/0091-fairness-on-one-loop.md.
See docs/decisions/0030-controller-loop.md.
See docs/decisions/0271-judge-ask-plan.md.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from diloco.contract import syncer_host_name
from diloco.wording import and_more

from diloco_operator.allotment import Allotment
from diloco_operator.api import names
from diloco_operator.api.addresses import parse_address
from diloco_operator.api.names import JobKey
from diloco_operator.api.reasons import EventReason
from diloco_operator.api.spec import Spec, SyncerAt
from diloco_operator.certificates.issuing import Issuer
from diloco_operator.fleet import Inventory
from diloco_operator.fleet.health import is_unreachable
from diloco_operator.fleet.occupancy import Reservations
from diloco_operator.kube.cache import CachedObject
from diloco_operator.kube.client import ApiError
from diloco_operator.kube.expectations import Expectations
from diloco_operator.kube.workqueue import WorkQueue
from diloco_operator.operator import decision_log
from diloco_operator.operator.allotment_refresh import AllotmentRefresh
from diloco_operator.operator.caches import Caches
from diloco_operator.operator.certificate_writes import certificate_writes
from diloco_operator.operator.events import EventRecorder, Subject
from diloco_operator.operator.executor import ExecutionResult, Executor
from diloco_operator.operator.grantor_events import GrantorEvents
from diloco_operator.operator.job_context import JobContext, JobContexts
from diloco_operator.operator.part_clusters import PartClusters
from diloco_operator.operator.pod_answers import dry_run_admissions
from diloco_operator.operator.projections import CachedJob
from diloco_operator.operator.rejected_writes import rejected_write_events
from diloco_operator.placement import JobRequest
from diloco_operator.plan import Create, Event, IssueCertificates, Patch, Plan
from diloco_operator.reconcile import Job, Judged, ObservedState, OperatorConfig, first_request, judge, reservations
from diloco_operator.reconcile.children.volume import lacks_class, names_class
from diloco_operator.reconcile.grantors.registry import holds, orphan_patches
from diloco_operator.reconcile.observe.part_view import part_state
from diloco_operator.telemetry.endpoint import MOST_UNITS, Endpoint, most_units_of
from diloco_operator.telemetry.watcher import Telemetry
from diloco_operator.timeouts import RECONCILE

if TYPE_CHECKING:
    from diloco_operator.operator.metrics import JobMetrics

log = logging.getLogger(__name__)

_MANY_PODS = 50
"""Pods from which a job is big: one write of its status costs the API server as much as dozens of pods, and a decision takes 10 ms."""
_MANY_CERTIFICATES = 8
"""Certificates of one Secret from which they are made in a thread: they take 1 ms or more."""


type Judge = Callable[[ObservedState, datetime], Judged]
"""What decides: `judge`, or something simpler in a test of the operator alone."""


class Offload(Protocol):
    """Runs `work` while the event loop goes on, for example in a thread."""

    async def __call__[T](self, work: Callable[[], T], /) -> T: ...


@dataclass(frozen=True, slots=True)
class DecisionOptions:
    """How the operator decides."""

    config: OperatorConfig = field(default_factory=OperatorConfig)
    judge: Judge = judge
    offload: Offload | None = None
    """Runs long work, such as the decision for a big job, beside the event loop. None: everything runs on the loop."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What the operator knows of the cluster, beside what each job's context has."""

    caches: Caches
    inventory: Inventory
    expectations: Expectations[JobKey]
    telemetry: Telemetry
    grantor_events: GrantorEvents
    parts: PartClusters = field(default_factory=PartClusters)


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """When a job must be reconciled again."""

    failed: bool = False
    """The job is due again soon, after a delay that grows with each failure in a row."""
    defect: bool = False
    """The reconcile failed because of a defect of the operator."""
    requeue_after: float | None = None
    """Seconds after which the job is due although nothing changed. None if it need not be."""
    decision_seconds: float = 0.0
    """How long the decision kept the process busy."""
    pause: float = 0.0
    """Seconds for which the job must not be reconciled again."""


class Reconciler:
    """Reconciles jobs. The caller makes sure that the caches are synced and that no job has two reconciles at once.

    Args:
        events: reports what happens to jobs.
        now: the wall clock in seconds since the epoch.
        queue: the jobs that are due.
    """

    def __init__(
        self,
        cluster: ClusterState,
        executor: Executor,
        events: EventRecorder,
        decisions: DecisionOptions,
        *,
        now: Callable[[], float],
        queue: WorkQueue[JobKey],
        jobs: JobMetrics | None = None,
    ) -> None:
        self._caches = cluster.caches
        self._inventory = cluster.inventory
        self._allotment = Allotment(cluster.inventory)
        self._refresh = AllotmentRefresh(self._allotment, queue.add, self._allotment_failed, decisions.offload)
        self._expectations = cluster.expectations
        self._executor = executor
        self._events = events
        self._telemetry = cluster.telemetry
        self._config = decisions.config
        self._now = now
        self._issuer = Issuer(now, decisions.config.certificate_lifetime)
        self._judge = decisions.judge
        self._offload = decisions.offload
        self._decision_lock = asyncio.Lock()
        """One offloaded decision at a time: several at once take as long, and more memory."""
        self._next_offload = 0.0
        """When the next decision may begin, on the loop's clock. An offloaded decision slows down the writes of earlier ones, so a pause of
        the same length follows it."""
        self._jobs = jobs
        self._grantor_events = cluster.grantor_events
        self._parts = cluster.parts
        self._queue = queue
        self._restoring = False
        self._default_class: set[str] = set()
        """Namespaces in which a claim without a class got the default one (`ObservedState.default_class`). A new job there need not wait
        until its own claim shows it."""
        forgets: list[Callable[[JobKey], None]] = [
            self._expectations.forget,
            self._telemetry.forget,
            self._grantor_events.forget,
            self._parts.forget,
        ]
        if jobs is not None:
            forgets.append(jobs.forget)
        self._contexts = JobContexts(self._caches, self._release, forgets)

    async def restore(self) -> None:
        """Reserve what every job has already, and register what it wants, before the first reconcile. Otherwise the first job could get the
        slices of the next."""
        self._restoring = True
        contexts = [self._context(cached) for cached in self._caches.jobs if cached.value.bare.managed_by == names.MANAGER]
        for context in contexts:
            try:
                self._restore_reservations(context)
            except Exception:  # a defect that shows in one job must not stop the others; its reconciles report it too
                log.exception("the reservations of job %s/%s cannot be restored: this is a defect, please report it", *context.key)
            await asyncio.sleep(0)  # thousands of jobs must not hold the loop
        for key in sorted(context.key for context in contexts):
            if (cached := self._caches.jobs.get(*key)) is not None:
                try:
                    self._restore_request(self._context(cached), cached.value.whole())
                except Exception:  # as above
                    log.exception("job %s/%s cannot be registered for slices: this is a defect, please report it", *key)
                await asyncio.sleep(0)  # each new requirement is tested against every slice
        await self._refresh.in_steps()
        self._restoring = False

    def _context(self, cached: CachedObject[CachedJob]) -> JobContext:
        return self._contexts.of(cached.key, cached.value.bare.key)

    def _restore_reservations(self, context: JobContext) -> None:
        job = self._caches.job(context.key)
        if job is not None and job.key == context.id:
            self._set_reservations(context, reservations(job, self._caches.pods(context.key), self._inventory))

    def _restore_request(self, context: JobContext, job: Job) -> None:
        """Register what a job has and wants. What it has counts as held since the epoch: a new operator cannot know since when."""
        observed, now = self._observe(context, job)
        request = first_request(observed, now)
        if request is not None:
            context.slices_since.note(request, frozenset(), 0.0)
        self._allotment.update(request or _occupying(context.id, reservations(job, observed.pods, self._inventory)))

    def jobs_on(self, node: str) -> list[JobKey]:
        """Return the jobs that have reserved this node."""
        return [context.key for holder in self._inventory.reserved_by(node) if (context := self._contexts.by_id(holder)) is not None]

    async def reconcile(self, key: JobKey) -> ReconcileResult:
        """Bring the job `key` closer to its spec."""
        cached = self._caches.jobs.get(*key)
        if cached is None or cached.value.bare.managed_by != names.MANAGER:
            self._contexts.drop(key)
            return await self._release_orphans(key) if cached is None else ReconcileResult()
        context = self._context(cached)
        self._telemetry.follow(key, self._endpoint(key, cached.value.bare))
        self._grantor_events.follow(key, self._caches.pods(key))
        if context.listening_since is None:
            context.listening_since = self._now()
        if (wait := self._expectations.expires_in(key)) is not None:
            return ReconcileResult(requeue_after=wait) if wait > 0 else await self._after_expiry(key)
        job, plan, decision_seconds = await self._decide(context, cached.value)
        self._expect(key, plan)
        if job.spec is not None and job.spec.syncer.at is not None:
            self._telemetry.tell(key, part_state(job.status))
        if plan.parts is not None:
            self._parts.want(key, job.uid, plan.parts)
        subject = Subject(job.namespace, job.name, job.uid)
        self._log(plan)
        context.ignored.note(plan.ignored)
        async with aclosing(self._certificates(plan)) as certificates:
            executed = await self._executor.execute(
                subject,
                plan,
                version=cached.version,
                unsent=lambda *what: self._expectations.cancel(key, *what),
                postpone=lambda: self._postpone(context),
                certificates=certificates,
            )
        result = self._conclude(context, job, plan, executed)
        return replace(result, decision_seconds=decision_seconds, pause=self._pause(context, subject, executed))

    async def _after_expiry(self, key: JobKey) -> ReconcileResult:
        """The watches have not shown in time what was written. If the watch of pods is behind, the cache lacks pods that run, so nothing
        is decided. If it is not, it will never show what is missing, and the job is reconciled."""
        missing = self._expectations.waiting_for(key)
        try:
            current = await self._caches.sync_pods_of(key)
        except (ApiError, OSError) as error:
            log.warning("job %s/%s: its pods cannot be listed, so nothing is decided on it: %s", *key, error)
            return ReconcileResult(failed=True)
        if current:  # for example, the watch has compressed a creation and a deletion into nothing
            self._expectations.forget(key)
            return await self.reconcile(key)  # the caches may have changed meanwhile
        log.warning(
            "job %s/%s: the watch of pods is behind the API server, so all pods are listed again; not seen yet: %s",
            *key,
            and_more(missing[:1], len(missing)),
        )
        return ReconcileResult(requeue_after=self._expectations.renew(key))

    async def _release_orphans(self, key: JobKey) -> ReconcileResult:
        """Release the pods of a job that is gone. Garbage collection deletes them, but their grantor may hold them until it learns that no
        other pods will follow."""
        pods, now = self._caches.pods(key), self._now()
        self._inventory.advance(now)
        fleet, signals = self._inventory, self._config.disruption_signals
        patches = orphan_patches(pods, lambda node: bool(node) and is_unreachable(fleet.node(node), signals, now, fleet.not_ready))
        if not patches:  # look again while any is held: a node that is lost later starts no reconcile of this key
            return ReconcileResult(requeue_after=RECONCILE.stuck_deletion if any(map(holds, pods)) else None)
        executed = await self._executor.execute(Subject(*key, ""), Plan(patches=tuple(patches)))
        for failure in executed.failures:
            log.warning("job %s/%s is gone: %s", *key, failure)
        return ReconcileResult(failed=not executed.ok)

    def _is_big(self, key: JobKey) -> bool:
        return self._caches.pod_count(key) >= _MANY_PODS

    def _takes_long(self, key: JobKey, job: Job) -> bool:
        """Return whether the decision takes long: the job has many pods, or may get many now."""
        return self._is_big(key) or (job.spec is not None and job.spec.learners.max >= _MANY_PODS)

    async def _decide(self, context: JobContext, cached: CachedJob) -> tuple[Job, Plan, float]:
        """Return the job, its plan, and the seconds that the decision took. On return the plan's nodes are reserved."""
        loop = asyncio.get_running_loop()
        offload = self._offload if self._takes_long(context.key, cached.bare) else None
        async with self._decision_lock if offload is not None else nullcontext():  # the state is read only once it is this job's turn
            if offload is not None:
                await asyncio.sleep(self._next_offload - loop.time())
            begun = loop.time()
            job, plan = (
                await self._decide_beside(context, cached, offload) if offload is not None else self._decide_at_once(context, cached)
            )
            if offload is not None:
                self._next_offload = 2 * loop.time() - begun
        self._set_reservations(context, plan.reservations)
        if plan.request is not None:
            context.slices_since.note(plan.request, plan.reservations.nodes, self._now())
        return job, plan, loop.time() - begun

    def _decide_at_once(self, context: JobContext, cached: CachedJob) -> tuple[Job, Plan]:
        observed, now = self._observe(context, cached.whole())
        judged = self._judge(observed, now)
        self._ask(context, judged.request)
        plan = judged.plan(replace(observed, allotted=self._allotment.of(context.id), fleet=self._allotment.view(context.id)))
        self._register(context, plan)
        return observed.job, plan

    async def _decide_beside(self, context: JobContext, cached: CachedJob, offload: Offload) -> tuple[Job, Plan]:
        """Decide in another thread, on copies of the fleet, while the loop goes on."""
        bare, now = self._observe(context, cached.bare)
        fleet = self._allotment.view(context.id).copy()

        def judge() -> tuple[ObservedState, Judged]:
            observed = replace(bare, job=cached.whole(), fleet=fleet)
            return observed, self._judge(observed, now)

        observed, judged = await offload(judge)
        self._ask(context, judged.request)
        allotted = self._allotment.of(context.id)
        # A new copy only if the answer changed: it takes the loop 13 ms where there are 5,000 slices.
        fleet = fleet if allotted == observed.allotted else self._allotment.view(context.id).copy()
        plan = await offload(functools.partial(judged.plan, replace(observed, allotted=allotted, fleet=fleet)))
        if any(self._inventory.reserved_by(node) - {context.id} - fleet.reserved_by(node) for node in plan.reservations.nodes):
            return self._decide_at_once(context, cached)  # another job has reserved one of its nodes meanwhile
        self._register(context, plan)
        return observed.job, plan

    def _ask(self, context: JobContext, request: JobRequest | None) -> None:
        """Tell the allotment what the job has and wants, and refresh it."""
        if request is not None:
            self._allotment.update(request)
        self._refresh.now(context.id)

    def _allotment_failed(self, jobs: Iterable[JobKey], error: Exception) -> None:
        for key in jobs:
            self.tell_of_defect(key, "hardware cannot be allotted", error)

    def tell_of_defect(self, key: JobKey, what: str, error: Exception) -> None:
        """Write an event about the job. `what`: what the operator cannot do because of the defect, and tries again."""
        if (job := self._caches.jobs.get(*key)) is not None:
            told = f"{what} ({type(error).__name__}) and is tried again; report it with the operator's log"
            self._events.emit(Subject(job.namespace, job.name, job.uid), Event.of(EventReason.OPERATOR_DEFECT, told))

    def _register(self, context: JobContext, plan: Plan) -> None:
        """Register what the job has and wants after this plan."""
        planned_for = self._allotment.of(context.id)
        self._ask(context, plan.request or _occupying(context.id, plan.reservations))
        if self._allotment.of(context.id).adds_to(planned_for):
            self._queue.add(context.key)

    def fleet_changed(self) -> None:
        """Slices came, went, or became free: wake the jobs that get or give some, in a moment."""
        if not self._restoring:  # during the start all jobs are due
            self._refresh.soon()

    def spares(self, key: JobKey) -> dict[str, list[str]]:
        """Names of the slices that are kept free for the job, by pool."""
        context = self._contexts.get(key)
        return self._allotment.spares(context.id) if context is not None else {}

    @property
    def idle(self) -> bool:
        """Whether no allotment is being made."""
        return self._refresh.idle

    async def close(self) -> None:
        """End the allotment that is made beside the reconciles."""
        await self._refresh.close()

    def _observe(self, context: JobContext, job: Job) -> tuple[ObservedState, datetime]:
        """Return what the decision is made from, and the time."""
        key, now = context.key, self._now()
        self._inventory.advance(now)  # nodes change with time: a job whose units must leave one now was queued for this moment
        if context.unsure:  # the last plan was not carried out in full: reserve what the job's status and pods show instead
            self._restore_reservations(context)
        observed = ObservedState(
            job=job,
            fleet=self._allotment.view(context.id),
            config=self._config,
            pods=self._caches.pods(key),
            children=self._caches.children(key),
            default_class=key[0] in self._default_class,
            rejected_writes=context.rejected_writes.by_object,
            pod_answers=context.pod_answers.by_pool,
            admissions=context.admissions,
            allotted=self._allotment.of(context.id),
            slices_since=context.slices_since.by_unit(),
            missing_rights=tuple(self._caches.missing_rights_in(key[0])),
            unreadable=self._caches.unreadable(key[0]),
            priority=self._caches.priority(job.spec.priority_class_name) if job.spec is not None else 0,
            non_preempting=self._caches.non_preempting,
            listening_since=context.listening_since if context.listening_since is not None else self._now(),
            report=self._telemetry.latest(key),
            report_fault=self._telemetry.fault(key),
            grantor_events=self._grantor_events.of(key),
            parts=self._parts.views(key, job.uid, (pool.cluster for pool in job.away), everywhere=names.FINALIZER_PARTS in job.finalizers),
        )
        if log.isEnabledFor(logging.DEBUG):
            log.debug("found %s", decision_log.observed_line(observed))
        self._note_default_class(observed)
        return observed, datetime.fromtimestamp(now, tz=UTC)

    def _note_default_class(self, observed: ObservedState) -> None:
        """Note whether the job's claim shows that claims without a class get the default one."""
        spec, claim = observed.job.spec, observed.children.volume_claim
        if spec is not None and claim is not None and not names_class(spec, observed.config):
            change = self._default_class.discard if lacks_class(claim) else self._default_class.add
            change(observed.job.namespace)

    async def _certificates(self, plan: Plan) -> AsyncGenerator[Create | Patch]:
        """Make the plan's certificates while other jobs go on: a thousand certificates take a fifth of a second. The next Secret's
        certificates are made while the last ones are written."""
        writes = certificate_writes(self._issuer, plan.certificates)

        async def make(wanted: IssueCertificates) -> Create | Patch:
            if self._offload is not None and len(wanted.leaves) >= _MANY_CERTIFICATES:
                return await self._offload(lambda: next(writes))
            await asyncio.sleep(0)
            return next(writes)

        remaining = iter(plan.certificates)
        wanted = next(remaining, None)
        if wanted is None:
            return
        # A few are made at once: to let others go first would take longer than that, and a unit's next attempt waits for them.
        write = next(writes) if len(wanted.leaves) < _MANY_CERTIFICATES else await make(wanted)
        making: list[asyncio.Task[Create | Patch]] = []
        try:
            while True:
                making = [asyncio.create_task(make(wanted)) for wanted in islice(remaining, 1)]
                yield write
                if not making:
                    return
                write = await making.pop()
        finally:
            for task in making:
                task.cancel()
            await asyncio.gather(*making, return_exceptions=True)

    def _expect(self, key: JobKey, plan: Plan) -> None:
        for create in plan.creates:
            if create.resource == names.CLAIM_TEMPLATES:
                continue  # nothing watches them: each plan with pods that claim devices creates them, and one that exists is success
            meta = create.obj["metadata"]
            self._expectations.expect_create(key, create.resource, meta.get("namespace", ""), meta["name"])
        for wanted in plan.certificates:
            if not wanted.uid:
                meta = wanted.obj["metadata"]
                self._expectations.expect_create(key, names.SECRETS, meta["namespace"], meta["name"])
        for delete in plan.deletes:
            if delete.resource == names.PODS and self._caches.pod(delete.namespace, delete.name) is None:
                continue  # it vanished during the decision: no watch event about it will follow
            self._expectations.expect_delete(key, delete.resource, delete.namespace, delete.name, delete.uid)

    def _log(self, plan: Plan) -> None:
        if log.isEnabledFor(logging.DEBUG):
            log.debug("decided: %s", decision_log.decided_line(plan))
        for event in plan.events:
            log.info("%s: %s", event.reason, event.message, extra={"unit": event.unit} if event.unit else None)

    def _postpone(self, context: JobContext) -> bool:
        """Leave the status to the next reconcile, which writes it once with all that has happened by then. False if it must not wait."""
        key, now = context.key, asyncio.get_running_loop().time()
        return self._is_big(key) and self._queue.is_queued(key) and context.postponement.postpone(now)

    def _conclude(self, context: JobContext, job: Job, plan: Plan, executed: ExecutionResult) -> ReconcileResult:
        key, subject = context.key, Subject(job.namespace, job.name, job.uid)
        if executed.written is not None:
            if self._jobs is not None:
                self._jobs.on_record(key, job.status, plan)
            self._expectations.expect_version(key, names.DILOCO_JOBS, self._caches.jobs.get(*key), executed.written)
        for resource, written in executed.patched:
            shown = self._caches.cached_object(resource, written["metadata"]["namespace"], written["metadata"]["name"])
            self._expectations.expect_version(key, resource, shown, written)
        context.rejected_writes.note(job.generation, plan, executed, self._now())
        context.admissions = {**plan.admissions, **dry_run_admissions(executed, self._now())}
        if context.pod_answers.note(job.generation, plan, executed, self._now()):
            self._queue.add(key)
        context.unsure = executed.postponed or not executed.ok
        if executed.postponed:
            return ReconcileResult(requeue_after=plan.requeue_after)
        context.postponement.reset()
        if executed.ok:
            return ReconcileResult(requeue_after=plan.requeue_after)
        for failure in executed.failures:
            log.warning("job %s: %s", subject, failure)
        for event in rejected_write_events(executed):
            self._events.emit(subject, event)
        return ReconcileResult(failed=True)

    def _pause(self, context: JobContext, subject: Subject, executed: ExecutionResult) -> float:
        if not executed.wrote:
            return 0.0
        pause = context.write_limit.wrote(asyncio.get_running_loop().time())
        if context.write_limit.just_became_endless:
            log.warning(
                "job %s: for half a minute its status or its objects were written as often as the operator allows. If not many of its "
                "units start or fail now, something else, for example an admission webhook or another controller, deletes them or "
                "changes them back; find out who does",
                subject,
            )
        return pause

    def _endpoint(self, key: JobKey, job: Job) -> Endpoint | None:
        """Return where the job's syncer listens now. None while it does not run, or while the job has no authority to sign a certificate
        for the operator."""
        if job.spec is not None and job.spec.syncer.at is not None:
            return self._endpoint_at_home(key, job.spec, job.spec.syncer.at)
        pod = self._caches.pod(job.namespace, names.syncer_pod_name(job.name))
        authority = self._caches.authority(key, job.uid)
        if pod is None or pod.owner != job.uid or pod.phase != "Running" or not pod.ip or authority is None:
            return None
        host_name = syncer_host_name(job.name, job.namespace)
        return Endpoint(
            pod_uid=pod.uid,
            host=pod.ip,
            job_uid=job.uid,
            host_name=host_name,
            identity=authority,
            roots=self._caches.roots(key) or authority.root.pem,
            most_units=most_units_of(job.spec),
        )

    def _endpoint_at_home(self, key: JobKey, spec: Spec, at: SyncerAt) -> Endpoint | None:
        """Return where a part finds the syncer. None without a Secret that can be used."""
        secret = self._caches.part_secret(key)
        if secret is None or secret.home is None:
            return None
        home, address = secret.home, parse_address(at.address)
        return Endpoint(
            pod_uid="",
            host=address.host,
            port=address.port,
            job_uid=home.job.uid,
            host_name=home.host_name,
            identity=home.identity,
            roots=home.roots,
            most_units=MOST_UNITS,  # the report is of the whole job, whose size is not known here
        )

    def _release(self, context: JobContext) -> None:
        """Release all that the job holds: it was deleted, or another operator runs it. Hardware that its pods use does not become free, as
        they count as other pods now (`operator.other_pods`). A pod that is not bound to a node uses nothing, whatever owner it names."""
        if self._allotment.knows(context.id):
            self._allotment.remove(context.id)
            self.fleet_changed()
        self._set_reservations(context, Reservations())

    def _set_reservations(self, context: JobContext, reserved: Reservations) -> None:
        if self._inventory.set_reservations(context.id, *reserved):
            self.fleet_changed()


def _occupying(job: str, reserved: Reservations) -> JobRequest:
    """Return the request of a job that keeps what it has and wants nothing."""
    return JobRequest(job, occupied=reserved.nodes, shared=reserved.shared)
