"""The running operator: reflectors fill caches and enqueue keys, workers take keys and reconcile jobs.

See docs/decisions/0030-controller-loop.md. See docs/decisions/0091-fairness-on-one-loop.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from diloco.protocol.backoff import ExponentialBackoff

from diloco_operator.api.names import JobKey
from diloco_operator.fleet import Inventory, NodeView
from diloco_operator.kube.cache import CachedObject
from diloco_operator.kube.client import Client, Resource
from diloco_operator.kube.expectations import Expectations
from diloco_operator.kube.workqueue import ShutDown, WorkQueue
from diloco_operator.operator.caches import Caches
from diloco_operator.operator.dynamic_resources import DynamicResources
from diloco_operator.operator.events import EventRecorder
from diloco_operator.operator.executor import DEFAULT_CONCURRENCY, JOB_CONCURRENCY, Executor, RequestLimits
from diloco_operator.operator.grantor_events import GrantorEvents
from diloco_operator.operator.logs import about_job
from diloco_operator.operator.malformed_object_events import MalformedObjectEvents
from diloco_operator.operator.other_pods import OtherPods
from diloco_operator.operator.part_clusters import ClusterConfig, OtherClusters, PartCluster, PartClusters
from diloco_operator.operator.reconciler import ClusterState, DecisionOptions, Reconciler, ReconcileResult
from diloco_operator.telemetry.watcher import Telemetry
from diloco_operator.timeouts import RECONCILE, WatchTimeouts

if TYPE_CHECKING:  # `diloco up` has no metrics, and need not load the library
    from diloco_operator.operator.metrics import Metrics

log = logging.getLogger(__name__)

_SHORTEST_DEBOUNCE = 0.005
"""Seconds. Less is not worth a timer."""
_LONGEST_DEBOUNCE = 0.1
"""Seconds."""
_DEBOUNCE_LIMIT = 10
"""The longest time for which a reconcile is put off, in debounce intervals."""


@dataclass(frozen=True, slots=True)
class RunConfig:
    """How the operator runs. What it decides is in `OperatorConfig`. Times are in seconds."""

    namespaces: tuple[str, ...] = ()
    """The namespaces whose jobs it runs; empty for all namespaces."""
    watch_other_pods: bool = True
    """Watch the pods of all namespaces, so that no unit is placed where other pods use the hardware. Needs list and watch of pods in all
    namespaces. With `false`, a unit may get a slice that is not free, and waits there for its nodes."""
    workers: int = 20
    """Reconciles at once. A reconcile decides without a pause and then waits for its writes. Jobs of one namespace have four fifths of them
    at most, and the fewer the more namespaces have some."""
    concurrency: int = DEFAULT_CONCURRENCY
    """Writes at once, over all jobs."""
    job_concurrency: int = JOB_CONCURRENCY
    """Writes at once for one job, so that other jobs always get a slot. A job that wants more than 8 at once gets only 1 while a job with
    fewer writes too."""
    decision_share: float = 0.25
    """Share of the time that may go into decisions for one job. It limits big jobs, whose decisions take long."""
    debounce_per_pod: float = 0.0001
    """A job's debounce interval, divided by its pods: the job is reconciled once nothing has changed for that time. Reconciles of a big job
    are expensive, above all its status, so one should cover all changes of a moment. A small job is reconciled at once. No job waits longer
    than a second."""
    stop_grace: float = RECONCILE.stop
    """The time that running reconciles have to end their writes when the operator stops."""
    expectation_expiry: float = RECONCILE.expectation
    backoff: ExponentialBackoff = field(default_factory=lambda: ExponentialBackoff(initial=0.5, ceiling=60.0))
    """Between reconciles of a job whose writes fail."""
    clusters: tuple[ClusterConfig, ...] = ()
    """Other clusters in which it may run units, for `pools[].cluster`."""
    watches: WatchTimeouts = field(default_factory=WatchTimeouts)

    def __post_init__(self) -> None:
        if self.workers < 1 or self.concurrency < 1 or self.job_concurrency < 1:
            raise ValueError(
                "workers, concurrency and jobConcurrency must be 1 or more, not "
                f"{self.workers}, {self.concurrency} and {self.job_concurrency}"
            )
        # No configuration file sets it.
        if not 0 < self.decision_share <= 1:
            raise ValueError(f"decision_share must be above 0 and at most 1, not {self.decision_share}")


@dataclass(slots=True)
class Counters:
    """What happened since the start."""

    reconciles: int = 0
    failed: int = 0
    """Reconciles with a failed write."""
    defects: int = 0
    """Reconciles that ended in an unexpected exception."""


class Operator:
    """Keeps every DiLoCoJob of one API server as its spec says, until cancelled. Several operators in one process share nothing.

    `now` is the wall clock in seconds since the epoch. `rng` draws jitter from [0, 1). `metrics` belongs to this operator alone. All timers
    and time-outs run on the event loop's clock.
    """

    def __init__(
        self,
        client: Client,
        *,
        telemetry: Telemetry,
        now: Callable[[], float],
        rng: Callable[[], float],
        decisions: DecisionOptions | None = None,
        run: RunConfig | None = None,
        metrics: Metrics | None = None,
        others: OtherClusters | None = None,
    ) -> None:
        self._run = run or RunConfig()
        others = others or OtherClusters()
        decisions = decisions or DecisionOptions()
        self._telemetry = telemetry
        self._metrics = metrics
        self.counters = Counters()
        self.caches = Caches(
            client,
            rng=rng,
            namespaces=self._run.namespaces,
            other_pods=self._run.watch_other_pods,
            timeouts=self._run.watches,
            end_annotations=decisions.config.end_annotations,
        )
        self.inventory = Inventory(decisions.config.disruption_signals)
        self._queue: WorkQueue[JobKey] = WorkQueue(
            self._run.backoff, rng, observer=metrics.queue if metrics else None, lane=lambda key: key[0], workers=self._run.workers
        )
        self._expectations: Expectations[JobKey] = Expectations(
            lambda: asyncio.get_running_loop().time(), expiry=self._run.expectation_expiry
        )
        self._events = events = EventRecorder(client, lambda: datetime.fromtimestamp(now(), tz=UTC))
        self._grantor_events = GrantorEvents(client, self._queue.add)
        self._parts = PartClusters(
            {
                config.name: PartCluster(client, there, config, self._queue.add, now=now, rng=rng, timeouts=self._run.watches)
                for config, there in others.clients
            },
            others.problems,
        )
        executor = Executor(
            client,
            events,
            RequestLimits(self._run.concurrency, self._run.job_concurrency),
            crowds_others=lambda job: self._queue.crowds_others((job.namespace, job.name)),
            give_way=lambda job: self._queue.give_way((job.namespace, job.name)),
        )
        self._reconciler = Reconciler(
            ClusterState(self.caches, self.inventory, self._expectations, telemetry, self._grantor_events, self._parts),
            executor,
            events,
            decisions,
            now=now,
            queue=self._queue,
            jobs=metrics.jobs if metrics else None,
        )
        if metrics is not None:
            metrics.watch_malformed(self.caches.malformed, [reflector.resource for reflector in self.caches.reflectors])
        self._now = now
        self._started = False
        self._stopping = False
        self._malformed_events = MalformedObjectEvents(self.caches, self._events)
        self.caches.on_object_change(self._on_object)
        self.caches.on_job_change(self._on_job)
        self.caches.on_rights_change(self._on_job)
        self.caches.on_node_change(self._on_node)
        telemetry.on_change(self._on_job)
        OtherPods(self.caches, self.inventory, self._on_room, self._on_other_learner)
        self._dynamic = DynamicResources(self.caches, self.inventory, self._on_node, self._on_room)

    @property
    def idle(self) -> bool:
        """Whether every change that the operator has seen so far is handled."""
        return self._started and self._queue.idle and self._reconciler.idle

    def spares(self, key: JobKey) -> dict[str, list[str]]:
        """Names of the slices that are kept free for the job, by pool."""
        return self._reconciler.spares(key)

    async def run(self, *, lead: Callable[[], Awaitable[None]] | None = None) -> None:
        """Work until cancelled; running reconciles may then still end their writes. If it ends in another way, that is an error and the
        process should exit: a new one starts from what the API server has.

        `lead` returns when this operator may decide and write. Before that it only keeps its caches, so that it can take over at once.
        """
        following = [asyncio.create_task(reflector.run(), name=reflector.what) for reflector in self.caches.reflectors]
        following.append(asyncio.create_task(self._events.run(), name="events"))
        following.append(asyncio.create_task(self._grantor_events.run(), name="grantor events"))
        following += [asyncio.create_task(cluster.run(), name=cluster.what) for cluster in self._parts.running]
        syncing = asyncio.create_task(self.caches.wait_synced())
        workers: list[asyncio.Task[None]] = []
        leading: list[asyncio.Future[None]] = []
        try:
            await _first_end([*following, syncing])
            log.info("caches are synced: %d jobs, %d nodes", len(self.caches.jobs), len(self.caches.nodes))
            if lead is not None:
                leading.append(asyncio.ensure_future(lead()))
                await _first_end([*following, *leading])
            await self._reconciler.restore()
            self._started = True
            self._malformed_events.start()
            self._connect_metrics()
            workers = [asyncio.create_task(self._work(), name=f"worker {index}") for index in range(self._run.workers)]
            await _first_end([*following, *workers])
        finally:
            await self._stop(workers, [syncing, *following, *leading])

    async def _work(self) -> None:
        while True:
            try:
                key = await self._queue.get()
            except ShutDown:
                return
            cool_down = 0.0
            try:
                if not self._stopping:
                    with about_job(*key):
                        cool_down = await self._reconcile(key)
            finally:
                self._queue.done(key, cool_down=cool_down)
            await asyncio.sleep(0)  # a reconcile that writes nothing never waits: without this, thousands of them are one turn of the loop

    async def _reconcile(self, key: JobKey) -> float:
        """Reconcile one job. Return its cool-down: how many seconds it waits before its next reconcile, so that other jobs and the API
        server get their share."""
        loop = asyncio.get_running_loop()
        self.counters.reconciles += 1
        await self._queue.give_way(key)
        begun = loop.time()
        result = await self._result(key)
        if result.failed:
            self._queue.add_rate_limited(key)
        else:
            self._queue.forget(key)
            if result.requeue_after is not None:
                self._queue.add_after(key, result.requeue_after)
        took = loop.time() - begun
        if self._metrics is not None:
            self._metrics.reconcile_done(took, failed=result.failed, defect=result.defect, later=result.requeue_after is not None)
        # A decision may take `decision_share` of the time. The job's cool-down has begun already while it waited for its own writes, since
        # others could decide then.
        return max(0.0, result.decision_seconds / self._run.decision_share - took, result.pause)

    async def _result(self, key: JobKey) -> ReconcileResult:
        try:
            result = await self._reconciler.reconcile(key)
        except Exception as error:  # a defect that shows in one job must not stop the others; the job is tried again
            self.counters.defects += 1
            log.exception("reconcile of job %s/%s failed: this is a defect of the operator, please report it", *key)
            self._reconciler.tell_of_defect(key, "the job cannot be reconciled", error)
            return ReconcileResult(failed=True, defect=True)
        if result.failed:
            self.counters.failed += 1
        return result

    def _connect_metrics(self) -> None:
        if self._metrics is None:
            return
        self._metrics.max_workers.set(self._run.workers)
        self._metrics.active_workers.set_function(lambda: len(self._queue.running))
        self._metrics.queue.follow(lambda: self._queue.depth, lambda: self._queue.running)
        self._metrics.jobs.follow(lambda: (held.value for held in self.caches.jobs), self._telemetry.latest, self._now)
        self._metrics.fleet.follow(self.inventory.counting.states, lambda: self.caches.sees_other_pods)

    def _on_object(self, resource: Resource, old: CachedObject[Any] | None, new: CachedObject[Any] | None) -> None:
        self._expectations.observe(resource, old, new)

    def _on_job(self, key: JobKey) -> None:
        quiet = min(self._run.debounce_per_pod * self.caches.pod_count(key), _LONGEST_DEBOUNCE)
        self._queue.add_debounced(key, quiet if quiet >= _SHORTEST_DEBOUNCE else 0.0, _DEBOUNCE_LIMIT * quiet)

    def _on_node(self, node: NodeView | None, name: str) -> None:
        """Reconcile the jobs that use the node, and the jobs that get it."""
        changed = self.inventory.update_node(self._dynamic.offered(node)) if node is not None else self.inventory.remove_node(name)
        if not changed:
            return
        for key in self._reconciler.jobs_on(name):
            self._queue.add(key)
        if self._started:
            self._reconciler.fleet_changed()

    def _on_room(self) -> None:
        """Another pod made room on a slice: reconcile the job that gets it."""
        if self._started:
            self._reconciler.fleet_changed()

    def _on_other_learner(self, node: str) -> None:
        """A learner of another operator came to the node: reconcile the jobs that use it, since one of the two must leave."""
        for key in self._reconciler.jobs_on(node):
            self._queue.add(key)

    async def _stop(self, workers: list[asyncio.Task[None]], others: Sequence[asyncio.Future[None]]) -> None:
        self._stopping = True
        self._queue.shut_down()
        if workers:
            ending = [*workers, asyncio.create_task(self._events.drained())]
            await asyncio.wait(ending, timeout=self._run.stop_grace)
            ending[-1].cancel()
        for task in [*workers, *others]:
            task.cancel()
        await asyncio.gather(*workers, *others, return_exceptions=True)
        await self._reconciler.close()
        await self._telemetry.close()


async def _first_end(tasks: Sequence[asyncio.Future[None]]) -> None:
    """Return when one of `tasks` ends, or raise what it raised."""
    ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in ended:
        task.result()
