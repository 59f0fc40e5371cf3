"""Events about a job, as `kubectl describe` shows them: one object for each thing that happens, with a count of repetitions, and one object
for many similar things. The operator needs only the rights to create and to patch events.

See docs/decisions/0031-writes.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from diloco_operator.api import names
from diloco_operator.kube.client import AlreadyExists, ApiError, Client, NotFound, Obj
from diloco_operator.kube.fields import clip
from diloco_operator.plan import Event
from diloco_operator.timeouts import RECONCILE, REQUESTS

log = logging.getLogger(__name__)

BACKLOG = 20_000
"""Events that may wait to be written, about 1 KiB each. Beyond that new events are dropped, which the log reports."""
WRITERS = 4
"""Events written at once."""
MESSAGE_LIMIT = 1024
"""Longest message in characters, as the events API limits it."""
COOL_DOWN = RECONCILE.event_cool_down
_REMEMBERED = 4096
"""Events whose count is remembered, so that a repetition costs one request."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The job that a plan or an event is about."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(slots=True)
class _Pending:
    """An event that was emitted and is not written yet."""

    obj: Obj
    """The event as it was emitted last."""
    times: int = 1


class EventRecorder:
    """Writes events in the background, a few at a time: no reconcile waits for them.

    `now` is the wall clock, timezone-aware. Events are best effort: one that cannot be written is only logged.
    """

    def __init__(self, client: Client, now: Callable[[], datetime]) -> None:
        self._client = client
        self._now = now
        self._aggregator = EventAggregator()
        self._pending: dict[str, _Pending] = {}
        """By namespace and name. Each key is in the backlog or cools down."""
        self._backlog: asyncio.Queue[str] = asyncio.Queue()
        self._cooling_down: dict[str, asyncio.TimerHandle | None] = {}
        """Events that are being written (None), or that were written a moment ago (until the timer ends)."""
        self._counts: OrderedDict[str, int] = OrderedDict()
        """The count that the API server has for the events that were written last."""
        self._dropped = 0

    def emit(self, job: Subject, event: Event) -> None:
        """Have `event` about `job` written soon. Its name is derived from its content, so that the same event, emitted again by another
        reconcile or after a restart, only raises the count. If many events differ only in their message, the later ones become one."""
        obj = self._object(job, event)
        key = f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"
        if (waiting := self._pending.get(key)) is not None:
            waiting.obj = obj
            waiting.times += 1
            return
        if len(self._pending) >= BACKLOG:
            if not self._dropped:
                log.warning("%d events wait to be written: %s about %s and others are dropped", BACKLOG, event.reason, job)
            self._dropped += 1
            return
        self._pending[key] = _Pending(obj)
        if key not in self._cooling_down:
            self._backlog.put_nowait(key)

    async def run(self) -> None:
        """Write pending events until cancelled."""
        async with asyncio.TaskGroup() as writers:
            for _ in range(WRITERS):
                writers.create_task(self._keep_writing())

    async def drained(self) -> None:
        """Return when every pending event is written or has failed."""
        while True:
            for key, timer in list(self._cooling_down.items()):
                if timer is not None:
                    timer.cancel()
                    self._cooled_down(key)
            await self._backlog.join()
            if not self._pending:
                return

    async def _keep_writing(self) -> None:
        while True:
            key = await self._backlog.get()
            pending = self._pending.pop(key)
            self._cooling_down[key] = None
            try:
                async with asyncio.timeout(REQUESTS.event):
                    await self._write(key, pending)
            except (ApiError, TimeoutError) as error:
                about = pending.obj["involvedObject"]
                log.warning("event %s about %s/%s was not written: %s", pending.obj["reason"], about["namespace"], about["name"], error)
            finally:
                self._cooling_down[key] = asyncio.get_running_loop().call_later(COOL_DOWN, self._cooled_down, key)
                self._backlog.task_done()
            if self._dropped and self._backlog.empty():
                log.warning("%d events were dropped", self._dropped)
                self._dropped = 0

    def _cooled_down(self, key: str) -> None:
        del self._cooling_down[key]
        if key in self._pending:
            self._backlog.put_nowait(key)

    async def _write(self, key: str, pending: _Pending) -> None:
        known = self._counts.get(key)
        try:
            if known is None:
                await self._create(key, pending)
            else:
                await self._raise(key, pending, known)
        except AlreadyExists:  # an earlier process emitted it, and only the server knows its count
            stored = await self._patch(pending, {"lastTimestamp": pending.obj["lastTimestamp"]})
            await self._raise(key, pending, int(stored.get("count") or 1))
        except NotFound:
            if known is None:
                raise  # the namespace does not exist
            await self._create(key, pending)  # the API server has deleted the event, by default after an hour

    async def _create(self, key: str, pending: _Pending) -> None:
        await self._client.create(names.EVENTS, {**pending.obj, "count": pending.times}, field_manager=names.FIELD_MANAGER)
        self._remember(key, pending.times)

    async def _raise(self, key: str, pending: _Pending, count: int) -> None:
        new: Obj = {"count": count + pending.times, "lastTimestamp": pending.obj["lastTimestamp"], "message": pending.obj["message"]}
        if (annotations := pending.obj["metadata"].get("annotations")) is not None:  # of a combined event they change, like the message
            new["metadata"] = {"annotations": annotations}
        await self._patch(pending, new)
        self._remember(key, count + pending.times)

    async def _patch(self, pending: _Pending, change: Obj) -> Obj:
        meta = pending.obj["metadata"]
        return await self._client.patch(names.EVENTS, meta["namespace"], meta["name"], change, field_manager=names.FIELD_MANAGER)

    def _remember(self, key: str, count: int) -> None:
        self._counts[key] = count
        self._counts.move_to_end(key)
        if len(self._counts) > _REMEMBERED:
            self._counts.popitem(last=False)

    def _object(self, job: Subject, event: Event) -> Obj:
        moment = self._now().astimezone(UTC)
        message = clip(event.message, MESSAGE_LIMIT)
        kind = (job.uid, event.type, event.reason)
        if self._aggregator.count(kind, message, moment.timestamp()):
            content = "\0".join((*kind, "similar"))
            message = f"(combined from similar events) {message}"[:MESSAGE_LIMIT]
        else:
            content = "\0".join((*kind, message))
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        now = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{job.name}.{digest}", "namespace": job.namespace, **_about(event)},
            "involvedObject": {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "name": job.name,
                "namespace": job.namespace,
                "uid": job.uid,
            },
            "type": event.type,
            "reason": event.reason,
            "message": message,
            "source": {"component": names.FIELD_MANAGER},
            "reportingComponent": names.FIELD_MANAGER,
            "reportingInstance": "",
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def _about(event: Event) -> Obj:
    """Return metadata that programs read of an event about one unit (`kubectl diloco explain`)."""
    if not event.unit:
        return {}
    return {"annotations": {names.LABEL_UNIT: event.unit, names.ANNOTATION_SAID: clip(event.unit_message, MESSAGE_LIMIT)}}


# --- When similar events become one -----------------------------------------------------------------------------------
SINGLE_EVENTS = 10
"""Different events of one kind that are written one by one. Later ones join a combined event."""
AGGREGATION_WINDOW = 600.0
"""Seconds without an event of a kind, after which its events are written one by one again."""
_KINDS = 4096


@dataclass(slots=True)
class _Kind:
    last: float
    single: set[str] = field(default_factory=set)
    """Messages that were written one by one."""


class EventAggregator:
    """Counts different messages of one kind (the same job, type and reason). Keeps the last 4,096 kinds."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Hashable, _Kind] = OrderedDict()

    def count(self, kind: Hashable, message: str, now: float) -> bool:
        """Count a message. Return whether it must join the combined event, because `SINGLE_EVENTS` others of its kind were written."""
        known = self._kinds.get(kind)
        if known is None or now - known.last >= AGGREGATION_WINDOW:
            known = self._kinds[kind] = _Kind(now)
        known.last = now
        self._kinds.move_to_end(kind)
        if len(self._kinds) > _KINDS:
            self._kinds.popitem(last=False)
        if message in known.single:
            return False
        if len(known.single) >= SINGLE_EVENTS:
            return True
        known.single.add(message)
        return False
