"""Events about a job, as `kubectl describe` shows them: one object for each thing that happens, with a count when it repeats, and one for
all that are alike when they are many. Needs the rights to create and to patch events, and no other."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from diloco_operator.api import names
from diloco_operator.kube.client import AlreadyExists, ApiError, Client, NotFound, Obj, PatchType
from diloco_operator.operator.event_aggregator import Similar
from diloco_operator.plan import Event

log = logging.getLogger(__name__)

BACKLOG = 20_000
"""Events that wait to be written, about 1 KiB each; beyond it new ones are dropped, with a word in the log."""
WRITERS = 4
"""Events that are being written at once."""
TIMEOUT = 10.0
"""Seconds that an event may take. Best effort: nothing waits for long to tell a story."""
MESSAGE_LIMIT = 1024
"""Characters of a message, the limit of the events API."""
REST = 10.0
"""Seconds between two writes of one event; what is told meanwhile goes into its count."""
_REMEMBERED = 4096
"""Events of which the count is known without asking."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The job that something is about."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(slots=True)
class _Told:
    """An event that was told and is not written yet."""

    obj: Obj
    """As it was told last."""
    times: int = 1


class EventRecorder:
    """Writes events, a few at a time and beside everything else: no pass waits for a story to be told.

    `now` is the wall clock, timezone-aware. Best effort: an event that cannot be written is logged, and that is all.
    """

    def __init__(self, client: Client, now: Callable[[], datetime]) -> None:
        self._client = client
        self._now = now
        self._similar = Similar()
        self._told: dict[str, _Told] = {}
        """By namespace and name; every one of them is in the backlog, or rests."""
        self._backlog: asyncio.Queue[str] = asyncio.Queue()
        self._resting: dict[str, asyncio.TimerHandle | None] = {}
        """Events that are being written (None), or were a moment ago."""
        self._counts: OrderedDict[str, int] = OrderedDict()
        """What the API server has as the count of the events written last."""
        self._dropped = 0

    def tell(self, job: Subject, event: Event) -> None:
        """Have `event` about `job` written soon. Its name is derived from what it says, so that the same event, told again by another
        pass or after a restart, raises a count. Of many that differ in their message alone the later ones are told as one."""
        obj = self._object(job, event)
        key = _key(obj)
        if (waiting := self._told.get(key)) is not None:
            waiting.obj, waiting.times = obj, waiting.times + 1
            return
        if len(self._told) >= BACKLOG:
            if not self._dropped:
                log.warning("%d events wait to be written: %s about %s and others are dropped", BACKLOG, event.reason, job)
            self._dropped += 1
            return
        self._told[key] = _Told(obj)
        if key not in self._resting:
            self._backlog.put_nowait(key)

    async def run(self) -> None:
        """Write what is told until cancelled."""
        async with asyncio.TaskGroup() as writers:
            for _ in range(WRITERS):
                writers.create_task(self._keep_writing())

    async def drained(self) -> None:
        """Returns when everything that was told is written or given up."""
        while True:
            for key, timer in list(self._resting.items()):
                if timer is not None:
                    timer.cancel()
                    self._rested(key)
            await self._backlog.join()
            if not self._told:
                return

    async def _keep_writing(self) -> None:
        while True:
            key = await self._backlog.get()
            told = self._told.pop(key)
            self._resting[key] = None
            try:
                async with asyncio.timeout(TIMEOUT):
                    await self._write(key, told)
            except (ApiError, TimeoutError) as error:
                about = told.obj["involvedObject"]
                log.warning("event %s about %s/%s was not written: %s", told.obj["reason"], about["namespace"], about["name"], error)
            finally:
                self._resting[key] = asyncio.get_running_loop().call_later(REST, self._rested, key)
                self._backlog.task_done()
            if self._dropped and self._backlog.empty():
                log.warning("%d events were dropped", self._dropped)
                self._dropped = 0

    def _rested(self, key: str) -> None:
        del self._resting[key]
        if key in self._told:
            self._backlog.put_nowait(key)

    async def _write(self, key: str, told: _Told) -> None:
        known = self._counts.get(key)
        try:
            if known is None:
                await self._create(key, told)
            else:
                await self._raise(key, told, known)
        except AlreadyExists:  # an earlier process told it, and only the server knows how often
            there = await self._patch(told, {"lastTimestamp": told.obj["lastTimestamp"]})
            await self._raise(key, told, int(there.get("count") or 1))
        except NotFound:
            if known is None:
                raise  # there is no such namespace
            await self._create(key, told)  # it has expired

    async def _create(self, key: str, told: _Told) -> None:
        await self._client.create(names.EVENTS, {**told.obj, "count": told.times}, field_manager=names.FIELD_MANAGER)
        self._remember(key, told.times)

    async def _raise(self, key: str, told: _Told, count: int) -> None:
        new = {"count": count + told.times, "lastTimestamp": told.obj["lastTimestamp"], "message": told.obj["message"]}
        await self._patch(told, new)
        self._remember(key, count + told.times)

    async def _patch(self, told: _Told, change: Obj) -> Obj:
        meta = told.obj["metadata"]
        return await self._client.patch(
            names.EVENTS, meta["namespace"], meta["name"], change, type=PatchType.MERGE, field_manager=names.FIELD_MANAGER
        )

    def _remember(self, key: str, count: int) -> None:
        self._counts[key] = count
        self._counts.move_to_end(key)
        if len(self._counts) > _REMEMBERED:
            self._counts.popitem(last=False)

    def _object(self, job: Subject, event: Event) -> Obj:
        moment = self._now().astimezone(UTC)
        message = event.message[:MESSAGE_LIMIT]
        kind = (job.uid, event.type, event.reason)
        if self._similar.too_many(kind, message, moment.timestamp()):
            told = "\0".join((*kind, "similar"))
            message = f"(combined from similar events) {message}"[:MESSAGE_LIMIT]
        else:
            told = "\0".join((*kind, message))
        digest = hashlib.sha256(told.encode()).hexdigest()[:16]
        now = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{job.name}.{digest}", "namespace": job.namespace},
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


def _key(obj: Obj) -> str:
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}"
