"""Follows jobs, Events and nodes with the user's rights, and keeps what the dashboard has seen of them so far.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from diloco_local.record.lines import FaultFired, Figures, Line, Merged
from diloco_local.record.live import WINDOW, LiveHistory, before
from diloco_local.record.recorder import Recorder
from diloco_operator.api.names import (
    CLUSTER_QUEUES,
    DILOCO_JOBS,
    EVENTS,
    GPU_SLICES,
    KIND,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    QUOTAS,
    RESOURCE_SLICES,
    JobKey,
)
from diloco_operator.fleet import Inventory, NodeView, PodUse, project_node
from diloco_operator.fleet.device_pools import DevicePools, DeviceSlice, project_slice, with_claimable
from diloco_operator.kube.cache import CachedObject, as_it_is
from diloco_operator.kube.client import Client, Obj
from diloco_operator.kube.pods import USING
from diloco_operator.kube.reflector import Reflector, WatchedResource
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.operator.projections import project_use
from diloco_operator.reconcile import OperatorConfig
from diloco_operator.timeouts import WatchTimeouts

from diloco_cli.dashboard.facts import FleetFacts, JobFacts, Samples, sample_of, slices_of
from diloco_cli.dashboard.quotas import Allowance, in_order, of_queue, of_quota
from diloco_cli.dashboard.unit_pods import UnitPods
from diloco_cli.dashboard.unit_reader import OpenPage, UnitReader
from diloco_cli.pod_logs import PodLogs
from diloco_cli.view_model import JobView
from diloco_cli.waiting_line import Place, all_places

_BY_JOB = "job"
_BOOKMARK_DUE = WatchTimeouts().read
"""Seconds within which a watch that was resumed has had something to deliver, also if nothing changes."""
_CHART_SECONDS = 5.0
"""Charts advance in steps of this length, so that a page without new data stays the same in between."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A job's API object, and the view of it."""

    obj: Obj
    view: JobView


def _read(obj: Obj, _previous: _Read | None) -> _Read:
    return _Read(obj, JobView.of(obj))


def _event(obj: Obj, _previous: Obj | None) -> Obj:
    """Keep only what explanations read of an Event."""
    kept: Obj = {key: obj[key] for key in ("reason", "type", "message", "lastTimestamp", "eventTime", "firstTimestamp") if key in obj}
    annotations = obj["metadata"].get("annotations") or {}
    return {**kept, "metadata": {"annotations": annotations}, "about": (obj.get("involvedObject") or {}).get("uid", "")}


def _quota(obj: Obj, _previous: tuple[Allowance, ...] | None) -> tuple[Allowance, ...]:
    return of_quota(obj)


def _queue(obj: Obj, _previous: tuple[Allowance, ...] | None) -> tuple[Allowance, ...]:
    return of_queue(obj)


def _about(held: CachedObject[Obj]) -> Iterator[Hashable]:
    yield held.value["about"]


def _node(obj: Obj, _previous: NodeView | None) -> NodeView:
    return project_node(obj)


def _sentences(missing: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{what}: {why}" for why, what in missing if why]


@dataclass(slots=True)
class _Watched:
    """What the dashboard has seen of a job since it began."""

    uid: str
    live: LiveHistory
    recorder: Recorder
    samples: Samples = field(default_factory=Samples)


class Source:
    """Follows the jobs of a namespace ("" for all) and their cluster. `wall` and `monotonic` are clocks, in seconds."""

    def __init__(self, client: Client, logs: PodLogs, namespace: str, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._changed: Callable[[], None] = lambda: None
        self._watched: dict[JobKey, _Watched] = {}
        self._inventory = Inventory(OperatorConfig().disruption_signals)
        about = f"involvedObject.kind={KIND}"
        self._jobs = Reflector(client, WatchedResource(DILOCO_JOBS, _read, namespace=namespace), rng=random.random)
        self._events = Reflector(
            client,
            WatchedResource(EVENTS, _event, namespace=namespace, field_selector=about, without="the pages do not show how attempts ended"),
            rng=random.random,
            indexers={_BY_JOB: _about},
        )
        self._nodes = Reflector(client, WatchedResource(NODES, _node, without="the pages do not show the hardware"), rng=random.random)
        self._pools = DevicePools()
        self._slices = Reflector(
            client,
            WatchedResource(
                RESOURCE_SLICES,
                lambda obj, _: project_slice(obj),
                field_selector=GPU_SLICES,
                without="GPUs that only DRA offers are not shown",
            ),
            rng=random.random,
        )
        self._priorities = Reflector(
            client, WatchedResource(PRIORITY_CLASSES, as_it_is, without="no place in line is known"), rng=random.random
        )
        self._uses: Reflector[PodUse] = Reflector(
            client,
            WatchedResource(PODS, project_use, field_selector=USING, without="slices in other use are not told from free ones"),
            rng=random.random,
        )
        self._quotas = Reflector(
            client, WatchedResource(QUOTAS, _quota, namespace=namespace, without="the pages show no ResourceQuota"), rng=random.random
        )
        self._queues = Reflector(
            client, WatchedResource(CLUSTER_QUEUES, _queue, without="the pages show no quota of Kueue"), rng=random.random
        )
        self._units = UnitReader(client, logs, monotonic, lambda: self._changed())
        self._jobs.on_change(self._on_job)
        self._nodes.on_change(self._on_node)
        self._slices.on_change(self._on_slice)
        self._events.on_change(lambda _old, _new: self._changed())
        for followed in (self._uses, self._quotas, self._queues):
            followed.on_change(lambda _old, _new: self._changed())
        self._all = (self._jobs, self._events, self._nodes, self._slices, self._priorities, self._uses, self._quotas, self._queues)
        for reflector in self._all:
            reflector.on_rights_change(lambda: self._changed())

    def on_change(self, handler: Callable[[], None]) -> None:
        """Call `handler` at every change from now on."""
        self._changed = handler

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow while the context lasts. It begins once everything that the user may read has been read."""
        tasks = [asyncio.create_task(reflector.run()) for reflector in self._all]
        try:
            await asyncio.gather(
                *(reflector.wait_answered() if reflector is self._jobs else reflector.wait_synced() for reflector in self._all)
            )
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, self._units.close(), return_exceptions=True)

    def add(self, *lines: Line) -> None:
        """Take lines of the record of `diloco up`. They tell more of a job than its status."""
        for line in lines:
            if not isinstance(line, (Merged, Figures, FaultFired)):
                continue  # the job's own recorder takes it from status
            namespace, _, name = line.job.partition("/")
            watched = self._watched.get((namespace, name))
            if watched is not None:
                watched.live.add(line)
                self._changed()

    # --- what pages ask for -------------------------------------------------------------------------------------------
    def fleet(self) -> FleetFacts:
        now = self._wall()
        held = sorted(self._jobs.cache, key=lambda cached: cached.key)
        views = [cached.value.view for cached in held]
        self._inventory.advance(now)
        uses = (cached.value for cached in self._uses.cache)
        slices = None if self._nodes.missing else slices_of(self._inventory, views, uses, now)
        places: dict[JobKey, Mapping[str, Place]] = {}
        if not self._jobs.namespace and not self._priorities.missing:
            job_places = all_places((cached.value.obj for cached in held), (cached.value for cached in self._priorities.cache))
            places = {cached.key: job_places[cached.uid] for cached in held if cached.uid in job_places}
        quotas = in_order(cached for reflector in (self._quotas, self._queues) for held in reflector.cache for cached in held.value)
        unseen = [
            (self._uses.missing, "Slices in other use are not told from free ones"),
            (self._quotas.missing, "ResourceQuotas are not shown"),
        ]
        return FleetFacts(views, slices, self._notes(), places, not self._uses.missing, quotas, _sentences(unseen), now)

    def jobs(self) -> Sequence[JobFacts]:
        keys = sorted(held.key for held in self._jobs.cache)
        return [facts for key in keys if (facts := self.job(*key)) is not None]

    def job(self, namespace: str, name: str) -> JobFacts | None:
        held, watched = self._jobs.cache.get(namespace, name), self._watched.get((namespace, name))
        if held is None or watched is None:
            return None
        now = self._wall()
        now -= now % _CHART_SECONDS
        events = [event.value for event in self._events.cache.by_index(_BY_JOB, held.uid)]
        samples, history = watched.samples.since(now - WINDOW), watched.live.history(now)
        return JobFacts(held.value.view, held.value.obj["spec"], events, samples, history, now)

    def pods(self, namespace: str, name: str, unit: str, host: int | None) -> UnitPods | None:
        """See `app.Facts`. While the unit's page asks, the pods are read again from time to time."""
        held = self._jobs.cache.get(namespace, name)
        return self._units.look(OpenPage(namespace, name, unit, held.uid, host)) if held is not None else None

    def stale(self) -> Sequence[str]:
        """See `app.Facts`."""
        since = self._jobs.unanswered_since
        silence = asyncio.get_running_loop().time() - since if since is not None else 0.0
        if silence < _BOOKMARK_DUE:
            return ()
        return [f"The API server has not answered since {format_timestamp(round(self._wall() - silence))}: this is from before."]

    def _notes(self) -> list[str]:
        missing = [(self._jobs.forbidden, "The jobs are those of before"), (self._events.missing, "How attempts ended is not shown")]
        missing.append((self._nodes.missing, "The hardware is not shown"))
        return _sentences(missing)

    # --- what the cluster says ----------------------------------------------------------------------------------------
    def _on_job(self, old: CachedObject[_Read] | None, new: CachedObject[_Read] | None) -> None:
        self._changed()
        if new is None:
            if old is not None:
                self._watched.pop(old.key, None)
            return
        watched = self._watched.get(new.key)
        view = new.value.view
        if watched is None or watched.uid != new.uid:
            name = "/".join(new.key)
            live = LiveHistory(name)
            watched = self._watched[new.key] = _Watched(new.uid, live, Recorder(live.add, self._wall, self._monotonic))
            live.add(*before(name, view.status))
        watched.recorder.status(new.key, view.state.value if view.state is not None else "", view.status)
        watched.samples.add(sample_of(view, self._wall()))

    def _on_node(self, old: CachedObject[NodeView] | None, new: CachedObject[NodeView] | None) -> None:
        if new is not None:
            self._inventory.update_node(with_claimable(new.value, self._pools.products(new.name)))
        elif old is not None:
            self._inventory.remove_node(old.name)
        self._changed()

    def _on_slice(self, old: CachedObject[DeviceSlice] | None, new: CachedObject[DeviceSlice] | None) -> None:
        held = new or old
        assert held is not None
        nodes, _ = self._pools.replace(held.name, old.value if old else None, new.value if new else None)
        for node in nodes:
            if (known := self._nodes.cache.get("", node)) is not None:
                self._on_node(known, known)
