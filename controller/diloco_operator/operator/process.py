"""The operator as a process in a cluster: connections, election, endpoints and signals around `Operator`.

See docs/decisions/0086-reading-the-api.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import math
import os
import random
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from diloco_operator.kube.elector import Elector, LeaseLost
from diloco_operator.kube.fence import Fence
from diloco_operator.kube.lease import LeaderElectionConfig
from diloco_operator.kube.rest import ClientConfig, ConfigError, RestClient, ServerClock, load_config
from diloco_operator.kube.rest.transport import CONNECTIONS
from diloco_operator.operator.crd_check import CrdCheck
from diloco_operator.operator.endpoint_tls import self_signed
from diloco_operator.operator.endpoints import HEALTH, METRICS, Address, health_app, metrics_app, serving
from diloco_operator.operator.garbage import Garbage
from diloco_operator.operator.loop_watch import watched_loop
from diloco_operator.operator.metrics import Metrics
from diloco_operator.operator.metrics_access import MetricsAccess
from diloco_operator.operator.metrics_page import MetricsPage
from diloco_operator.operator.part_clusters import OtherClusters
from diloco_operator.operator.reconciler import DecisionOptions
from diloco_operator.operator.run import Operator, RunConfig
from diloco_operator.reconcile import OperatorConfig
from diloco_operator.telemetry.watcher import SyncerWatcher
from diloco_operator.timeouts import REQUESTS, check_together

log = logging.getLogger(__name__)

_SWITCH_SECONDS = 0.0005
"""Python's thread switch interval. While a thread makes a decision, the event loop waits this long after each of its system calls."""


OTHER_FILES = CONNECTIONS + 768
"""Files that are open beside the watches: connections for requests, and an estimate for streams of syncers, scrapes, probes and logs."""


class TooFewFiles(Exception):
    """The process may not open as many files as it needs."""


def allow_files(watches: int) -> None:
    """Let the process open as many files as its surroundings allow. Raises `TooFewFiles` if these are too few: with HTTP/1.1 each watch has
    a connection of its own."""
    log.info("%d watches, each over a connection of its own", watches)
    needed, (_, hard) = watches + OTHER_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise TooFewFiles(
            f"{watches} watches need {needed} open files, and this process may have {hard}: raise its limit (ulimit -Hn), watch fewer "
            "namespaces, or watch all of them, which takes one watch for each kind of object"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class ExitStatus(enum.IntEnum):
    STOPPED = 0
    """It was asked to stop, and the reconciles that ran have ended."""
    FAILED = 1
    """A defect; see the log."""
    REFUSED = 2
    """Its options or its surroundings are wrong; see the log."""
    LEASE_LOST = 3
    """Another replica may lead. A new process starts without outdated knowledge."""


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    cluster: ClientConfig
    operator: OperatorConfig
    run: RunConfig
    election: LeaderElectionConfig | None
    """None if this is the only replica, which needs no election."""
    metrics: Address | None
    metrics_auth: bool
    """Serve /metrics over TLS, and only to clients whose bearer token may read it."""
    health: Address | None
    version: str

    @property
    def user_agent(self) -> str:
        return f"diloco-operator/{self.version}"


class OperatorProcess:
    """One run of the process. `OperatorProcess(options).run()` returns its exit status.

    Raises `ConfigError` without credentials, `CannotListen` if it cannot listen at an address, ValueError for time-outs that do not fit.
    """

    def __init__(self, options: ProcessOptions) -> None:
        check_together(REQUESTS, expectation=options.run.expectation_expiry, stop=options.run.stop_grace)
        self._options = options
        self._metrics = Metrics()
        self._metrics.set_version(options.version)
        self._fence = Fence()
        self._clock = ServerClock()
        self._crd: CrdCheck
        self._operator: Operator | None = None
        self._garbage = Garbage()
        self._elector: Elector | None = None
        """None if there is no election."""
        self._ready_to_lead = asyncio.Event()
        self._leads = asyncio.Event()
        self._stop_requested = asyncio.Event()

    def run(self) -> ExitStatus:
        """Run until the process is told to stop, or fails."""
        sys.setswitchinterval(_SWITCH_SECONDS)
        return asyncio.run(self._run(), loop_factory=lambda: watched_loop(self._metrics.loop.turn_ended))

    async def _run(self) -> ExitStatus:
        options = self._options
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._signals())
            stack.enter_context(self._garbage.short_collections())
            client = await stack.enter_async_context(
                RestClient.connect(
                    options.cluster,
                    on_request=self._metrics.request_done,
                    around_write=self._fence.write,
                    delivery_timeout=self._delivery,
                    on_date=self._clock.note,
                    user_agent=options.user_agent,
                )
            )
            self._crd = CrdCheck(client)
            await self._serve_metrics(stack)
            await stack.enter_async_context(serving(health_app(self._problems, self._limits), options.health, HEALTH))
            log.info("the cluster is that of %s", options.cluster.source)
            if options.election is not None:
                self._elector = elector = await stack.enter_async_context(self._election(options.election))
                self._metrics.watch_leading(options.election.name, lambda: elector.leads)
            return await self._work(client)

    async def _serve_metrics(self, stack: contextlib.AsyncExitStack) -> None:
        """Serve metrics. Token reviews are writes and have a client without a fence, since a standby serves metrics too."""
        access, tls = None, None
        if self._options.metrics_auth and self._options.metrics is not None:
            client = await stack.enter_async_context(
                RestClient.connect(self._options.cluster, on_request=self._metrics.request_done, user_agent=self._options.user_agent)
            )
            access, tls = MetricsAccess(client, time.monotonic), self_signed()
        page = MetricsPage(self._metrics.registry, look=self._metrics.fleet.look, now=time.monotonic, offload=asyncio.to_thread)
        await stack.enter_async_context(serving(metrics_app(page, access), self._options.metrics, METRICS, tls=tls))

    async def _work(self, client: RestClient) -> ExitStatus:
        looking = asyncio.create_task(self._crd.run(), name="crd")
        stopping = asyncio.create_task(self._stop_requested.wait())
        working = asyncio.create_task(self._operate(client), name="operator")
        collecting = asyncio.create_task(self._garbage.collect_when_grown(self._rests), name="garbage")
        leading = asyncio.create_task(self._hold_lease(), name="lease")
        tasks: tuple[asyncio.Task[Any], ...] = (looking, stopping, working, collecting, leading)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return await self._exit_status(leading, working, looking, collecting)
        finally:
            self._fence.shut()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _hold_lease(self) -> None:
        """Lead once the operator is ready to, until cancelled. Raises `LeaseLost`."""
        await self._ready_to_lead.wait()
        if self._elector is None:
            self._fence.open_until(math.inf)
            self._leads.set()
            await asyncio.Event().wait()
        else:
            await self._elector.acquire()
            self._leads.set()
            await self._elector.hold()

    async def _operate(self, client: RestClient) -> None:
        await self._crd.wait_good()
        async with self._other_clusters() as others:
            rng = random.random
            self._operator = Operator(
                client,
                telemetry=SyncerWatcher(now=self._clock.now, rng=rng),
                now=self._clock.now,
                rng=rng,
                decisions=DecisionOptions(self._options.operator, offload=asyncio.to_thread),
                run=self._options.run,
                metrics=self._metrics,
                others=others,
            )
            allow_files(len(self._operator.caches.reflectors) + sum(len(config.namespaces) for config, _ in others.clients))
            self._operator.caches.on_failure_change(self._crd.check_soon)  # the CustomResourceDefinition may be gone
            await self._operator.run(lead=self._lead)
            raise RuntimeError("the operator ended without being asked to stop")

    @property
    def _delivery(self) -> float | None:
        """Seconds in which a write must arrive: one that was sent in time arrives before another replica can lead, or not at all."""
        return self._options.election.timeouts.delivery if self._options.election is not None else None

    @contextlib.asynccontextmanager
    async def _other_clusters(self) -> AsyncIterator[OtherClusters]:
        """Make a client for each other cluster. One whose kubeconfig cannot be read is left out, and jobs that name it say so."""
        clients, problems = [], {}
        async with contextlib.AsyncExitStack() as stack:
            for config in self._options.run.clusters:
                try:
                    there = RestClient.connect(
                        load_config(config.kubeconfig),
                        around_write=self._fence.write,
                        delivery_timeout=self._delivery,
                        user_agent=self._options.user_agent,
                    )
                    clients.append((config, await stack.enter_async_context(there)))
                except ConfigError as error:
                    log.error("cluster %s cannot be used: %s", config.name, error)
                    problems[config.name] = (
                        f"the operator cannot use cluster {config.name}: {error}. Mend it, and restart the operator, which reads it at its "
                        "start alone"
                    )
            yield OtherClusters(clients, problems)

    async def _lead(self) -> None:
        self._garbage.leave_out()  # the caches are full, and most of what they hold stays
        self._ready_to_lead.set()
        await self._leads.wait()

    def _rests(self) -> bool:
        """Whether nothing waits for this replica: it has decided on all that it knows, or it is a standby."""
        return self._operator is not None and (self._operator.idle or not self._leads.is_set())

    async def _exit_status(self, leading: asyncio.Task[None], working: asyncio.Task[None], *others: asyncio.Task[None]) -> ExitStatus:
        if leading.done():
            error = leading.exception()
            if isinstance(error, LeaseLost):
                log.error("this replica lost the lease and exits: %s", error)
                return ExitStatus.LEASE_LOST  # the fence is shut: every write has ended already
            log.error("the election failed", exc_info=error)
            return ExitStatus.FAILED
        for task in (*others, working):
            if task.done():
                failure = task.exception()
                if isinstance(failure, TooFewFiles):
                    log.error("%s", failure)
                    return ExitStatus.REFUSED  # the operator has not begun, so there is no lease to release
                log.error("the operator failed: this is a defect, please report it", exc_info=failure)
                await self._release(leading)
                return ExitStatus.FAILED
        log.info("stopping: running reconciles may end their writes, for %.0f s at most", self._options.run.stop_grace)
        working.cancel()
        await asyncio.wait([working, leading], return_when=asyncio.FIRST_COMPLETED)
        await self._release(leading)
        log.info("stopped")
        return ExitStatus.STOPPED

    async def _release(self, leading: asyncio.Task[None]) -> None:
        self._fence.shut()
        leading.cancel()  # it must not renew a released lease
        await asyncio.gather(leading, return_exceptions=True)
        if self._elector is not None:
            await self._elector.release()

    def _problems(self) -> list[str]:
        """Reasons why this replica is not ready, none if it is. A standby is ready: it may lead at any moment."""
        problems = [self._crd.problem] if self._crd.problem else []
        if self._operator is None:
            return problems or ["starting"]
        caches = self._operator.caches
        missing = {reflector.resource.plural for reflector in caches.reflectors if not reflector.synced and not reflector.forbidden}
        if missing:
            problems.append(f"not listed yet: {', '.join(sorted(missing))}")
        return [*problems, *caches.failures, *([] if caches.may_decide else caches.missing_rights)]

    def _limits(self) -> list[str]:
        """Reasons why this replica does nothing for the jobs of some namespaces. It stays ready: a tenant may have deleted its namespace,
        and the Role with it, while the operator works for all others."""
        return self._operator.caches.missing_rights if self._operator is not None else []

    @contextlib.asynccontextmanager
    async def _election(self, config: LeaderElectionConfig) -> AsyncIterator[Elector]:
        """Make an elector with connections of its own, so that no renewal waits behind a thousand writes."""
        async with RestClient.connect(
            self._options.cluster,
            on_request=self._metrics.request_done,
            on_date=self._clock.note,
            user_agent=self._options.user_agent,
        ) as client:
            yield Elector(client, self._fence, config, rng=random.random)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Inside the context the first SIGTERM or SIGINT stops the process gracefully, the second at once."""
        loop = asyncio.get_running_loop()

        def on_signal(number: signal.Signals) -> None:
            if self._stop_requested.is_set():
                os._exit(128 + number)
            self._stop_requested.set()

        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, on_signal, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
