"""The running operator: reflectors fill caches and enqueue keys, workers take keys and carry out passes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from diloco_operator.fleet import Inventory, NodeView
from diloco_operator.fleet.health import DisruptionSigns
from diloco_operator.kube.backoff import Backoff
from diloco_operator.kube.client import Client, Resource
from diloco_operator.kube.events import EventRecorder
from diloco_operator.kube.executor import DEFAULT_CONCURRENCY, Executor
from diloco_operator.kube.expectations import EXPIRY_SECONDS, Expectations
from diloco_operator.kube.reflector import Held, Timing
from diloco_operator.kube.workqueue import ShutDown, WorkQueue
from diloco_operator.operator.caches import Caches, JobKey
from diloco_operator.operator.capacity import CapacityQueue
from diloco_operator.operator.passes import Decide, Passes
from diloco_operator.reconcile import OperatorConfig, reconcile
from diloco_operator.telemetry import Telemetry

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunConfig:
    """How the operator runs, as opposed to what it decides (`OperatorConfig`). Seconds."""

    namespace: str = ""
    """Only jobs of this namespace; "": all."""
    workers: int = 16
    """Passes under way at once. A pass decides in one go and then waits for its writes."""
    concurrency: int = DEFAULT_CONCURRENCY
    """Writes under way at once, over all passes."""
    stop_grace: float = 10.0
    """When told to stop, passes under way may take this long to end their writes."""
    expectation_expiry: float = EXPIRY_SECONDS
    backoff: Backoff = field(default_factory=lambda: Backoff(initial=0.5, ceiling=60.0))
    """Between passes of a job whose writes fail."""
    reflectors: Timing = field(default_factory=Timing)


@dataclass(slots=True)
class Counters:
    """What happened since the start."""

    passes: int = 0
    failed: int = 0
    """Passes of which a write failed."""
    defects: int = 0
    """Passes that ended in an unexpected exception."""


class Operator:
    """Keeps every DiLoCoJob of one API server as its spec says, until cancelled. Several in one process do not share anything.

    `now` is the wall clock in seconds since the epoch; `chance` draws jitter from [0, 1); `token` makes a job's secret. Timers and
    time-outs are those of the event loop.
    """

    def __init__(
        self,
        client: Client,
        *,
        config: OperatorConfig,
        telemetry: Telemetry,
        now: Callable[[], float],
        chance: Callable[[], float],
        token: Callable[[], str],
        run: RunConfig | None = None,
        decide: Decide = reconcile,
    ) -> None:
        self._run = run or RunConfig()
        self._telemetry = telemetry
        self.counters = Counters()
        self.caches = Caches(client, chance=chance, namespace=self._run.namespace, timing=self._run.reflectors)
        self.inventory = Inventory(
            DisruptionSigns(
                taints=config.disruption_taints,
                labels=config.disruption_labels,
                dead_taints=config.dead_taints,
                not_ready_tolerance=config.not_ready_tolerance,
            )
        )
        self._queue: WorkQueue[JobKey] = WorkQueue(self._run.backoff, chance)
        self._capacity = CapacityQueue(self.inventory, self._queue.add)
        self._expectations: Expectations[JobKey] = Expectations(
            lambda: asyncio.get_running_loop().time(), expiry=self._run.expectation_expiry
        )
        self._events = events = EventRecorder(client, lambda: datetime.fromtimestamp(now(), tz=UTC))
        self._passes = Passes(
            self.caches,
            self.inventory,
            self._capacity,
            self._expectations,
            Executor(client, events, concurrency=self._run.concurrency),
            events,
            telemetry,
            config,
            now=now,
            token=token,
            decide=decide,
        )
        self._started = False
        self._stopping = False
        self.caches.on_object_change(self._on_object)
        self.caches.on_job_change(self._queue.add)
        self.caches.on_node_change(self._on_node)
        telemetry.on_change(self._queue.add)

    @property
    def idle(self) -> bool:
        """Every change that the operator has seen is dealt with. What it has not seen yet, and what comes later, does not count."""
        return self._started and self._queue.idle

    async def run(self) -> None:
        """Work until cancelled; then end the passes under way, and return. Any other end is an error that the process should not
        survive: it starts again from what the API server has."""
        following = [
            asyncio.create_task(reflector.run(), name=f"reflector of {reflector.resource.plural}") for reflector in self.caches.reflectors
        ]
        following.append(asyncio.create_task(self._events.run(), name="events"))
        syncing = asyncio.create_task(self.caches.wait_synced())
        workers: list[asyncio.Task[None]] = []
        try:
            await _first_end([*following, syncing])
            self._passes.begin()
            self._started = True
            log.info("caches are synced: %d jobs, %d nodes", len(self.caches.jobs), len(self.caches.nodes))
            workers = [asyncio.create_task(self._work(), name=f"worker {index}") for index in range(self._run.workers)]
            await _first_end([*following, *workers])
        finally:
            await self._stop(workers, [syncing, *following])

    async def _work(self) -> None:
        while True:
            try:
                key = await self._queue.get()
            except ShutDown:
                return
            try:
                if not self._stopping:
                    await self._pass(key)
            finally:
                self._queue.done(key)

    async def _pass(self, key: JobKey) -> None:
        self.counters.passes += 1
        try:
            following = await self._passes.run(key)
        except Exception:  # a defect that one job brings to light must not stop the others; it is told, and tried again
            self.counters.defects += 1
            log.exception("pass over job %s/%s: this is a defect of the operator, please report it", *key)
            self._queue.add_rate_limited(key)
            return
        if following.failed:
            self.counters.failed += 1
            self._queue.add_rate_limited(key)
            return
        self._queue.forget(key)
        if following.after is not None:
            self._queue.add_after(key, following.after)

    def _on_object(self, resource: Resource, old: Held[Any] | None, new: Held[Any] | None) -> None:
        self._expectations.observe(resource, old, new)

    def _on_node(self, node: NodeView | None, name: str) -> None:
        """Those on the node must look, and those who wait for one like it."""
        changed = self.inventory.update_node(node) if node is not None else self.inventory.remove_node(name)
        if not changed:
            return
        for holder in self.inventory.holders(name):
            namespace, job, _uid = holder.split("/")
            self._queue.add((namespace, job))
        if self._started:
            self._capacity.freed()

    async def _stop(self, workers: list[asyncio.Task[None]], others: list[asyncio.Task[None]]) -> None:
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


async def _first_end(tasks: list[asyncio.Task[None]]) -> None:
    """Returns when one of `tasks` ends; raises what it raised."""
    ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in ended:
        task.result()
