"""The operator as a process in a cluster: connections, election, endpoints and signals around `Operator`."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import random
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from diloco_operator.kube.elector import Elector, LeaseLost
from diloco_operator.kube.fence import Fence, FencedClient
from diloco_operator.kube.rest import ClientConfig, RestClient, ServerClock
from diloco_operator.operator.crd_check import CrdCheck
from diloco_operator.operator.endpoints import HEALTH, METRICS, Address, health_app, metrics_app, serving
from diloco_operator.operator.loop_watch import LoopWatch
from diloco_operator.operator.metrics import Metrics
from diloco_operator.operator.run import Operator, RunConfig
from diloco_operator.reconcile import OperatorConfig
from diloco_operator.telemetry import SyncerWatcher
from diloco_operator.timeouts import REQUESTS, LeaseTimeouts, check_together

log = logging.getLogger(__name__)

_SWITCH_SECONDS = 0.0005
"""Python's thread switch interval. The event loop waits so long for an offloaded decision after each of its system calls."""


class ExitStatus(enum.IntEnum):
    """Exit status of the process."""

    STOPPED = 0
    """It was asked to stop, and the reconciles that ran have ended."""
    FAILED = 1
    """A defect; see the log."""
    LEASE_LOST = 3
    """Another replica may lead. A new process starts without outdated knowledge."""


@dataclass(frozen=True, slots=True)
class ElectionOptions:
    """Which Lease this replica takes part in, and its identity."""

    namespace: str
    name: str
    identity: str
    """Unique for this process: no other one has it, not even an earlier process of the same pod."""
    timeouts: LeaseTimeouts = field(default_factory=LeaseTimeouts)


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    cluster: ClientConfig
    operator: OperatorConfig
    run: RunConfig
    election: ElectionOptions | None
    """None: this is the only replica, so there is no election."""
    metrics: Address | None
    health: Address | None
    user_agent: str


class OperatorProcess:
    """One run of the process. `OperatorProcess(options).run()` returns its exit status.

    Raises `ConfigError` without credentials, OSError if it cannot listen at an address, ValueError for time-outs that do not fit.
    """

    def __init__(self, options: ProcessOptions) -> None:
        check_together(REQUESTS, expectation=options.run.expectation_expiry, stop=options.run.stop_grace)
        self._options = options
        self._metrics = Metrics()
        self._watch = LoopWatch(on_turn=self._metrics.loop.turn_ended, on_hold=self._metrics.loop.held)
        self._fence = Fence()
        self._clock = ServerClock()
        self._crd: CrdCheck
        self._operator: Operator | None = None
        self._elector: Elector | None = None
        self._holding: asyncio.Future[None]
        """Fails when the lease is lost."""
        self._hold: asyncio.Task[None] | None = None
        self._told_to_stop = asyncio.Event()

    def run(self) -> ExitStatus:
        """Until the process is told to stop, or fails."""
        sys.setswitchinterval(_SWITCH_SECONDS)
        return asyncio.run(self._run(), loop_factory=self._watch.new_loop)

    async def _run(self) -> ExitStatus:
        options = self._options
        self._holding = asyncio.get_running_loop().create_future()
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._signals())
            stack.enter_context(self._watch.looking())
            await stack.enter_async_context(serving(metrics_app(self._metrics.registry), options.metrics, METRICS))
            lease = options.election.timeouts if options.election is not None else None
            client = await stack.enter_async_context(
                RestClient.connect(
                    options.cluster,
                    on_request=self._metrics.request_done,
                    before_send=self._before_send,
                    # A write that was sent in time arrives before another replica can lead, or not at all.
                    delivery_timeout=lease.delivery if lease is not None else None,
                    on_date=self._clock.note,
                    user_agent=options.user_agent,
                )
            )
            # Separate connections, so that no renewal waits behind a thousand writes.
            lease_client = await stack.enter_async_context(
                RestClient.connect(
                    options.cluster, on_request=self._metrics.request_done, on_date=self._clock.note, user_agent=options.user_agent
                )
            )
            self._crd = CrdCheck(client)
            await stack.enter_async_context(serving(health_app(self._problems), options.health, HEALTH))
            log.info("the cluster is that of %s", options.cluster.source)
            if options.election is not None:
                self._elector = self._make_elector(lease_client, options.election)
                self._metrics.watch_leading(options.election.name, lambda: self._elector is not None and self._elector.leads)
            return await self._work(client)

    async def _work(self, client: RestClient) -> ExitStatus:
        looking = asyncio.create_task(self._crd.run(), name="crd")
        stopping = asyncio.create_task(self._told_to_stop.wait())
        working = asyncio.create_task(self._operate(client), name="operator")
        try:
            anything: list[asyncio.Future[Any]] = [looking, stopping, working, self._holding]
            await asyncio.wait(anything, return_when=asyncio.FIRST_COMPLETED)
            return await self._exit_status(looking, working)
        finally:
            self._fence.shut()
            self._holding.cancel()
            tasks = [task for task in (looking, stopping, working, self._hold) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _operate(self, client: RestClient) -> None:
        await self._crd.wait_good()
        rng = random.random
        self._operator = Operator(
            FencedClient(client, self._fence),
            config=self._options.operator,
            telemetry=SyncerWatcher(now=self._clock.now, rng=rng),
            now=self._clock.now,
            rng=rng,
            run=self._options.run,
            offload=asyncio.to_thread,
            metrics=self._metrics,
        )
        await self._operator.run(lead=self._lead)
        raise RuntimeError("the operator ended without being asked to stop")

    async def _lead(self) -> None:
        if self._elector is None:
            self._fence.open_until(float("inf"))
            return
        await self._elector.acquire()
        self._hold = asyncio.create_task(self._elector.hold(), name="lease")
        self._hold.add_done_callback(self._on_lease_end)

    def _on_lease_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and not self._holding.done() and (error := task.exception()) is not None:
            self._holding.set_exception(error)

    async def _exit_status(self, looking: asyncio.Task[None], working: asyncio.Task[None]) -> ExitStatus:
        if self._holding.done():
            error = self._holding.exception()
            if isinstance(error, LeaseLost):
                log.error("this replica lost the lease and exits: %s", error)
                return ExitStatus.LEASE_LOST  # the fence is shut: every write has ended already
            log.error("the election failed", exc_info=error)
            return ExitStatus.FAILED
        for task in (looking, working):
            if task.done():
                log.error("the operator failed: this is a defect, please report it", exc_info=task.exception())
                await self._release()
                return ExitStatus.FAILED
        log.info("stopping: running reconciles may end their writes, for %.0f s at most", self._options.run.stop_grace)
        working.cancel()
        await asyncio.wait([working, self._holding], return_when=asyncio.FIRST_COMPLETED)
        await self._release()
        log.info("stopped")
        return ExitStatus.STOPPED

    async def _release(self) -> None:
        self._fence.shut()
        if self._elector is None or self._hold is None:
            return
        self._hold.cancel()  # it must not renew a released lease
        await asyncio.gather(self._hold, return_exceptions=True)
        await self._elector.release()

    def _before_send(self, method: str) -> None:
        if method != "GET":
            self._fence.check()

    def _problems(self) -> list[str]:
        """Why this replica is not ready. A standby is ready: it may lead at any moment."""
        problems = [self._crd.problem] if self._crd.problem else []
        if self._operator is None:
            return problems or ["starting"]
        caches = self._operator.caches
        missing = {reflector.resource.plural for reflector in caches.reflectors if not reflector.synced and not reflector.forbidden}
        if missing:
            problems.append(f"not listed yet: {', '.join(sorted(missing))}")
        return [*problems, *caches.missing_rights]

    def _make_elector(self, client: RestClient, options: ElectionOptions) -> Elector:
        return Elector(
            client,
            self._fence,
            namespace=options.namespace,
            name=options.name,
            identity=options.identity,
            timeouts=options.timeouts,
            rng=random.random,
        )

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """The first SIGTERM or SIGINT stops the process gracefully, the second at once."""
        loop = asyncio.get_running_loop()

        def on_signal(number: signal.Signals) -> None:
            if self._told_to_stop.is_set():
                os._exit(128 + number)
            self._told_to_stop.set()

        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, on_signal, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
