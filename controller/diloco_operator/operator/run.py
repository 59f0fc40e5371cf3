"""The running operator: reflectors fill caches and enqueue keys, workers take keys and carry out passes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from diloco.protocol.backoff import ExponentialBackoff

from diloco_operator.certificates.issuing import Issuer
from diloco_operator.fleet import Inventory, NodeView
from diloco_operator.kube.client import Client, Resource
from diloco_operator.kube.expectations import Expectations
from diloco_operator.kube.reflector import Held
from diloco_operator.kube.workqueue import ShutDown, WorkQueue
from diloco_operator.operator.caches import Caches, JobKey
from diloco_operator.operator.capacity import CapacityQueue
from diloco_operator.operator.events import EventRecorder
from diloco_operator.operator.executor import DEFAULT_CONCURRENCY, JOB_CONCURRENCY, Executor
from diloco_operator.operator.logs import about_job
from diloco_operator.operator.reconciler import Decide, Offload, Reconciler, Result
from diloco_operator.reconcile import OperatorConfig, reconcile
from diloco_operator.telemetry import Telemetry
from diloco_operator.timeouts import RECONCILE, WatchTimeouts

if TYPE_CHECKING:  # `diloco up` has nobody to tell its metrics to, and need not load the library
    from diloco_operator.operator.metrics import Metrics

log = logging.getLogger(__name__)

_SETTLE_LEAST = 0.005
_SETTLE_MOST = 0.1
"""Seconds of quiet that are waited for; less than the least is not worth a timer."""
_SETTLE_AT_LAST = 10
"""A pass is not put off for longer than so many times the quiet that is waited for."""


@dataclass(frozen=True, slots=True)
class RunConfig:
    """How the operator runs, as opposed to what it decides (`OperatorConfig`). Seconds."""

    namespaces: tuple[str, ...] = ()
    """Only jobs of these namespaces; none: of all."""
    workers: int = 16
    """Reconciler under way at once. A pass decides in one go and then waits for its writes."""
    concurrency: int = DEFAULT_CONCURRENCY
    """Writes under way at once, over all passes."""
    job_concurrency: int = JOB_CONCURRENCY
    """Writes under way at once for one job, so that others always find a place. Of a job that wants more than 8, it is 1 while another job,
    which does not, has some too."""
    deciding_share: float = 0.25
    """A job whose decision takes long (it is big, and decided in one go) is decided on for this share of the time at most."""
    settle_per_pod: float = 0.0001
    """Seconds without a change, for each pod of a job, after which it is looked at: passes over a big job cost much, its status first of
    all, so that one should see all of what happens at a time. A job of few pods is looked at at once, none waits longer than a second."""
    stop_grace: float = RECONCILE.stop
    """When told to stop, passes under way may take this long to end their writes."""
    expectation_expiry: float = RECONCILE.expectation
    backoff: ExponentialBackoff = field(default_factory=lambda: ExponentialBackoff(initial=0.5, ceiling=60.0))
    """Between passes of a job whose writes fail."""
    watches: WatchTimeouts = field(default_factory=WatchTimeouts)

    def __post_init__(self) -> None:
        if self.workers < 1 or self.concurrency < 1 or self.job_concurrency < 1 or not 0 < self.deciding_share <= 1:
            raise ValueError(
                "an operator needs workers, concurrency and jobConcurrency of 1 or more and a decidingShare above 0 and at most 1, not "
                f"{self.workers}, {self.concurrency}, {self.job_concurrency} and {self.deciding_share}"
            )


@dataclass(slots=True)
class Counters:
    """What happened since the start."""

    reconciles: int = 0
    failed: int = 0
    """Reconciler of which a write failed."""
    defects: int = 0
    """Reconciler that ended in an unexpected exception."""


class Operator:
    """Keeps every DiLoCoJob of one API server as its spec says, until cancelled. Several in one process do not share anything.

    `now` is the wall clock in seconds since the epoch; `rng` draws jitter from [0, 1); `offload` has decisions over big jobs taken
    beside the event loop; `metrics` is where to count, one for each operator. Timers and time-outs are those of the event loop.
    """

    def __init__(
        self,
        client: Client,
        *,
        config: OperatorConfig,
        telemetry: Telemetry,
        now: Callable[[], float],
        rng: Callable[[], float],
        run: RunConfig | None = None,
        decide: Decide = reconcile,
        offload: Offload | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._run = run or RunConfig()
        self._telemetry = telemetry
        self._metrics = metrics
        self.counters = Counters()
        self.caches = Caches(client, rng=rng, namespaces=self._run.namespaces, timeouts=self._run.watches)
        self.inventory = Inventory(config.disruption_signals)
        self._queue: WorkQueue[JobKey] = WorkQueue(self._run.backoff, rng, observer=metrics.queue if metrics else None)
        self._capacity = CapacityQueue(self.inventory, self._queue.add)
        self._expectations: Expectations[JobKey] = Expectations(
            lambda: asyncio.get_running_loop().time(), expiry=self._run.expectation_expiry
        )
        self._events = events = EventRecorder(client, lambda: datetime.fromtimestamp(now(), tz=UTC))
        self._reconciler = Reconciler(
            self.caches,
            self.inventory,
            self._capacity,
            self._expectations,
            Executor(client, events, concurrency=self._run.concurrency, per_job=self._run.job_concurrency),
            events,
            telemetry,
            config,
            now=now,
            issuer=Issuer(now, config.certificate_lifetime),
            wake=self._queue.add,
            due=self._queue.waits,
            decide=decide,
            offload=offload,
            jobs=metrics.jobs if metrics else None,
        )
        self._now = now
        self._started = False
        self._stopping = False
        self.caches.on_object_change(self._on_object)
        self.caches.on_job_change(self._on_job)
        self.caches.on_node_change(self._on_node)
        telemetry.on_change(self._on_job)

    @property
    def idle(self) -> bool:
        """Every change that the operator has seen is dealt with. What it has not seen yet, and what comes later, does not count."""
        return self._started and self._queue.idle

    async def run(self, *, lead: Callable[[], Awaitable[None]] | None = None) -> None:
        """Work until cancelled; then end the passes under way, and return. Any other end is an error that the process should not
        survive: it starts again from what the API server has.

        `lead` returns when this operator may decide and write; until then it only keeps its caches, so that it can take over at once.
        """
        following = [
            asyncio.create_task(reflector.run(), name=f"reflector of {reflector.resource.plural}") for reflector in self.caches.reflectors
        ]
        following.append(asyncio.create_task(self._events.run(), name="events"))
        syncing = asyncio.create_task(self.caches.wait_synced())
        workers: list[asyncio.Task[None]] = []
        leading: list[asyncio.Future[None]] = []
        try:
            await _first_end([*following, syncing])
            log.info("caches are synced: %d jobs, %d nodes", len(self.caches.jobs), len(self.caches.nodes))
            if lead is not None:
                leading.append(asyncio.ensure_future(lead()))
                await _first_end([*following, *leading])
            self._reconciler.begin()
            self._started = True
            self._tell_metrics()
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
                        cool_down = await self._pass(key)
            finally:
                self._queue.done(key, cool_down=cool_down)

    async def _pass(self, key: JobKey) -> float:
        """Gives for how many seconds the job must not be looked at again, for the sake of the others."""
        loop = asyncio.get_running_loop()
        self.counters.reconciles += 1
        begun = loop.time()
        following = await self._look(key)
        if following.failed:
            self._queue.add_rate_limited(key)
        else:
            self._queue.forget(key)
            if following.requeue_after is not None:
                self._queue.add_after(key, following.requeue_after)
        if self._metrics is not None:
            later = following.requeue_after is not None
            self._metrics.reconcile_done(loop.time() - begun, failed=following.failed, defect=following.defect, later=later)
        return max(
            0.0, following.decision_seconds / self._run.deciding_share - (loop.time() - begun)
        )  # its writes left the others their time

    async def _look(self, key: JobKey) -> Result:
        try:
            following = await self._reconciler.run(key)
        except Exception:  # a defect that one job brings to light must not stop the others; it is told, and tried again
            self.counters.defects += 1
            log.exception("pass over job %s/%s: this is a defect of the operator, please report it", *key)
            return Result(failed=True, defect=True)
        if following.failed:
            self.counters.failed += 1
        return following

    def _tell_metrics(self) -> None:
        if self._metrics is None:
            return
        self._metrics.max_workers.set(self._run.workers)
        self._metrics.active_workers.set_function(lambda: len(self._queue.being_worked_on))
        self._metrics.queue.follow(lambda: self._queue.depth, lambda: self._queue.being_worked_on)
        self._metrics.jobs.follow(lambda: (held.value.whole() for held in self.caches.jobs), self._telemetry.latest, self._now)

    def _on_object(self, resource: Resource, old: Held[Any] | None, new: Held[Any] | None) -> None:
        self._expectations.observe(resource, old, new)

    def _on_job(self, key: JobKey) -> None:
        quiet = min(self._run.settle_per_pod * self.caches.pod_count(key), _SETTLE_MOST)
        self._queue.add_settled(key, quiet if quiet >= _SETTLE_LEAST else 0.0, _SETTLE_AT_LAST * quiet)

    def _on_node(self, node: NodeView | None, name: str) -> None:
        """Those on the node must look, and those who wait for one like it."""
        changed = self.inventory.update_node(node) if node is not None else self.inventory.remove_node(name)
        if not changed:
            return
        for holder in self.inventory.reserved_by(name):
            namespace, job, _uid = holder.split("/")
            self._queue.add((namespace, job))
        if self._started:
            self._capacity.freed()

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
        await self._telemetry.close()


async def _first_end(tasks: Sequence[asyncio.Future[None]]) -> None:
    """Returns when one of `tasks` ends; raises what it raised."""
    ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in ended:
        task.result()
