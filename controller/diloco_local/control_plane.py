"""The embedded control plane: the operator as in a cluster, on an in-memory API server, with the other parts of a cluster that it needs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc.aio
from diloco.contract import SYNCER_PORT
from diloco_operator.api.crd import build_crd
from diloco_operator.api.names import COMPONENT_LEARNER, CUSTOM_RESOURCES, JobKey
from diloco_operator.kube.client import Client, Obj
from diloco_operator.operator import DecisionOptions, Operator
from diloco_operator.operator.part_clusters import ClusterConfig, OtherClusters
from diloco_operator.reconcile import OperatorConfig
from diloco_operator.report import Report
from diloco_operator.telemetry.endpoint import Endpoint, open_channel
from diloco_operator.telemetry.watcher import SyncerWatcher
from diloco_operator.timeouts import TelemetryTimeouts

from diloco_local.addresses import Addresses, Network
from diloco_local.claim_binder import ClaimBinder
from diloco_local.faults import Fault, FaultInjector, Fired
from diloco_local.kubelet import Kubelet
from diloco_local.kubelet_context import KubeletContext
from diloco_local.links import UNLIMITED, Link, Links, LinkShape
from diloco_local.memory import MemoryApi
from diloco_local.nodes import RegisteredNodes
from diloco_local.processes import Priority, Supervisor
from diloco_local.scheduler import Scheduler
from diloco_local.short_paths import ShortPaths
from diloco_local.state_dir import StateDir

log = logging.getLogger(__name__)

_LOOK_AGAIN = 0.05
"""Seconds."""


@dataclass(frozen=True, slots=True)
class LocalTiming:
    """Seconds. The defaults are a cluster's."""

    volume_sync: float = 10.0
    """Time between two updates of the ConfigMaps and Secrets that a pod mounts."""
    streams: TelemetryTimeouts = field(default_factory=lambda: TelemetryTimeouts(interval=1.0, notify_interval=1.0))


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """How the programs of pods run."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for all programs."""
    priority: Priority = Priority.LOW


@dataclass(frozen=True, slots=True)
class Listeners:
    """Functions that a control plane calls."""

    on_fault: Callable[[Fired], None] = lambda _: None
    """With each fault that was injected."""
    on_report: Callable[[JobKey, Report], None] | None = None
    """With every report of a syncer."""


@dataclass(frozen=True, slots=True)
class OtherFleet:
    """Another cluster of the same run, for `pools[].cluster`."""

    nodes: Sequence[Obj]
    namespaces: Sequence[str] = ("default",)
    """Namespaces of jobs that may have units there, in a namespace of the same name."""
    link: LinkShape = UNLIMITED
    """Between it and this cluster's syncers, for its learners and its operator together."""


class SimulatedCluster:
    """One cluster besides its operator: API server, scheduler, kubelet and nodes. Its folder is below the state directory of the run."""

    def __init__(self, folder: Path, nodes: Sequence[Obj], context: Callable[[Client, Path], KubeletContext]) -> None:
        self.client = MemoryApi()
        self._folder = folder
        shared = context(self.client, folder)
        self.kubelet = Kubelet(shared)
        self.nodes = RegisteredNodes(self.client, self.kubelet, shared, nodes)

    async def start(self, tasks: BackgroundTasks) -> None:
        """Raises BadNode."""
        # Before the tasks start: the operator watches the kind that this creates, and places jobs on these nodes.
        await self.client.create(CUSTOM_RESOURCES, build_crd())
        await self.nodes.register()
        tasks.run("scheduler", Scheduler(self.client).run)
        tasks.run("claims", ClaimBinder(self.client, self._folder).run)
        tasks.run("kubelet", self.kubelet.run)
        tasks.run("nodes", self.nodes.run)


class LocalControlPlane:
    """An async context manager. Leaving it kills every process; volumes and logs stay in the state directory.

    Create jobs through `client`. When a background task fails, `failed` gets its exception, and the caller must leave the control plane.
    `clusters`: other clusters, by name, each with a control plane and an operator of its own. Names of pods mean the same in all of them.
    `syncer_link`: what all links to other clusters share at this end.
    """

    def __init__(
        self,
        state_dir: Path,
        nodes: Sequence[Obj],
        *,
        operator_config: OperatorConfig | None = None,
        faults: Sequence[Fault] = (),
        programs: ProgramOptions | None = None,
        timing: LocalTiming | None = None,
        listeners: Listeners | None = None,
        clusters: Mapping[str, OtherFleet] | None = None,
        syncer_link: LinkShape = UNLIMITED,
    ) -> None:
        self.state_dir = StateDir(state_dir)
        self._node_manifests = nodes
        self._config = operator_config or OperatorConfig(progress_interval=1.0)
        self._faults = faults
        self._programs = programs or ProgramOptions()
        self._timing = timing or LocalTiming()
        self._listeners = listeners or Listeners()
        self._clusters = dict(clusters or {})
        self._syncer_link = syncer_link
        self._stack = contextlib.AsyncExitStack()
        self.client: Client
        self.kubelet: Kubelet
        self.nodes: RegisteredNodes
        self.injector: FaultInjector
        self.supervisor: Supervisor
        self._operators: list[Operator]
        """The one of this cluster first."""
        self.failed: asyncio.Future[None]
        self.links: Mapping[str, Link]
        """Name of another cluster -> its link to this one's syncers."""

    async def __aenter__(self) -> Self:
        """Raises StateDirBusy, StateDirUnusable, UnsupportedPlatform, NoAddressLeft, PortTaken, BadNode."""
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self.state_dir)
            network = Network.reserve(random.Random())  # noqa: S311 - not a secret
            stack.callback(network.close)
            short_paths = ShortPaths()
            stack.callback(short_paths.close)
            tasks = BackgroundTasks()
            self.failed = tasks.failed
            self.supervisor = await stack.enter_async_context(Supervisor(self._programs.priority))
            network.check_port(SYNCER_PORT, "the syncer of every job")
            addresses = Addresses(network.second)

            def context(client: Client, folder: Path, syncer: Callable[[str], str] = str) -> KubeletContext:
                return KubeletContext(
                    client,
                    self.supervisor,
                    addresses,
                    folder,
                    Path.cwd(),
                    chosen_environment=self._programs.environment,
                    short_paths=short_paths,
                    volume_sync=self._timing.volume_sync,
                    syncer=syncer,
                )

            home = SimulatedCluster(self.state_dir.path, self._node_manifests, context)
            self.client, self.kubelet, self.nodes = home.client, home.kubelet, home.nodes
            others, far = {}, self._far_syncers(stack, addresses)
            for name, fleet in self._clusters.items():
                folder = stack.enter_context(self.state_dir.cluster(name)).path
                others[name] = SimulatedCluster(folder, fleet.nodes, partial(context, syncer=far[name]))
            known = [
                (ClusterConfig(name, "", {each: each for each in self._clusters[name].namespaces}), other.client)
                for name, other in others.items()
            ]
            self._operators = [
                self._operator(home.client, addresses, self._listeners.on_report, OtherClusters(known)),
                *(self._operator(other.client, addresses, syncer=far[name]) for name, other in others.items()),
            ]
            self.injector = FaultInjector(home.client, home.kubelet, self._faults, self._listeners.on_fault)
            # Pushed last, so that it is called first: the tasks must end before the things that they use.
            stack.push_async_callback(tasks.stop)
            for cluster in (home, *others.values()):
                await cluster.start(tasks)
            for operator in self._operators:
                tasks.run("operator", operator.run)
            tasks.run("faults", self.injector.run, may_end=True)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stack.aclose()

    def programs(self, job: JobKey) -> int:
        """How many of the job's learner pods have running programs, as the operators see it."""
        pods = (pod for operator in self._operators for pod in operator.caches.pods(job))
        return sum(pod.uses is not None and pod.component == COMPONENT_LEARNER for pod in pods)

    async def programs_ended(self, jobs: Collection[JobKey]) -> None:
        """Wait until no program of these jobs runs any more and the operators have written their end. The programs of an ended job end by
        themselves, or the operator ends them."""
        while True:
            running = any(pod.uses is not None for job in jobs for operator in self._operators for pod in operator.caches.pods(job))
            if not running and all(operator.idle for operator in self._operators):
                return
            await asyncio.sleep(_LOOK_AGAIN)

    def _far_syncers(self, stack: contextlib.AsyncExitStack, addresses: Addresses) -> dict[str, Callable[[str], str]]:
        """Name of another cluster -> where it reaches a syncer, by the syncer's own address."""
        links = stack.enter_context(Links())
        shared = links.add(self._syncer_link)
        self.links = {name: links.add(fleet.link, shared) for name, fleet in self._clusters.items()}
        # Without limits a relay would only cost time: the syncer's own address will do.
        near = {name for name, fleet in self._clusters.items() if fleet.link == self._syncer_link == UNLIMITED}
        return {name: str if name in near else _FarSyncers(name, link, addresses) for name, link in self.links.items()}

    def _operator(
        self,
        client: Client,
        addresses: Addresses,
        on_report: Callable[[JobKey, Report], None] | None = None,
        others: OtherClusters | None = None,
        syncer: Callable[[str], str] = str,
    ) -> Operator:
        def channel(endpoint: Endpoint, now: float) -> grpc.aio.Channel:
            return open_channel(replace(endpoint, host=addresses.resolve(endpoint.host, syncer)), now)  # there is no DNS here

        rng = random.random
        telemetry = SyncerWatcher(now=time.time, rng=rng, timeouts=self._timing.streams, on_report=on_report, channel=channel)
        return Operator(client, telemetry=telemetry, now=time.time, rng=rng, decisions=DecisionOptions(self._config), others=others)


class _FarSyncers:
    """Where a cluster behind a link reaches syncers. The relay to each begins when it is first looked up."""

    def __init__(self, cluster: str, link: Link, addresses: Addresses) -> None:
        self._cluster = cluster
        self._link = link
        self._addresses = addresses
        self._near_ends: dict[str, str] = {}

    def __call__(self, address: str) -> str:
        if address not in self._near_ends:
            near = self._addresses.of_owner(f"link/{self._cluster}/{address}")
            self._link.relay(f"{address}:{SYNCER_PORT}", f"{near}:{SYNCER_PORT}")
            self._near_ends[address] = near
        return self._near_ends[address]


# --- Background tasks of one program that must all run on: if one ends, the program has failed ------------------------
class BackgroundTasks:
    """Needs a running event loop when it is made."""

    def __init__(self) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the exception of the first task that failed, or that ended without `may_end`. The program must stop then."""
        self._tasks: list[asyncio.Task[None]] = []

    def run(self, name: str, work: Callable[[], Awaitable[None]], *, may_end: bool = False) -> None:
        async def run_on() -> None:
            await work()
            if not may_end:
                raise RuntimeError(f"the {name} ended but must run on")

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()):
                log.error("the %s failed", name, exc_info=error)
                if not self.failed.done():
                    self.failed.set_exception(error)

        task = asyncio.create_task(run_on(), name=name)
        task.add_done_callback(ended)
        self._tasks.append(task)

    async def stop(self) -> None:
        """Cancel all tasks, the newest first, and wait until they have ended."""
        for task in reversed(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.failed.done() and not self.failed.cancelled():
            self.failed.exception()  # retrieve it, so that asyncio does not complain: an owner that needed it has awaited it already
        self.failed.cancel()
