"""Events about a job, as `kubectl describe` shows them: one object for each thing that happens, with a count when it repeats."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from diloco_operator.api import names
from diloco_operator.kube.client import AlreadyExists, ApiError, Client, NotFound, Obj, PatchType
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


@dataclass(frozen=True, slots=True)
class Subject:
    """The job that something is about."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class EventRecorder:
    """Writes events, a few at a time and beside everything else: no pass waits for a story to be told.

    `now` is the wall clock, timezone-aware. Best effort: an event that cannot be written is logged, and that is all.
    """

    def __init__(self, client: Client, now: Callable[[], datetime]) -> None:
        self._client = client
        self._now = now
        self._backlog: asyncio.Queue[Obj] = asyncio.Queue(BACKLOG)
        self._dropped = 0

    def tell(self, job: Subject, event: Event) -> None:
        """Have `event` about `job` written soon. Its name is derived from what it says, so that the same event, told again by another
        pass or after a restart, raises a count."""
        try:
            self._backlog.put_nowait(self._object(job, event))
        except asyncio.QueueFull:
            if not self._dropped:
                log.warning("%d events wait to be written: %s about %s and others are dropped", BACKLOG, event.reason, job)
            self._dropped += 1

    async def run(self) -> None:
        """Write what is told until cancelled."""
        async with asyncio.TaskGroup() as writers:
            for _ in range(WRITERS):
                writers.create_task(self._keep_writing())

    async def _keep_writing(self) -> None:
        while True:
            obj = await self._backlog.get()
            try:
                async with asyncio.timeout(TIMEOUT):
                    await self._write(obj)
            except (ApiError, TimeoutError) as error:
                about = obj["involvedObject"]
                log.warning("event %s about %s/%s was not written: %s", obj["reason"], about["namespace"], about["name"], error)
            finally:
                self._backlog.task_done()
            if self._dropped and self._backlog.empty():
                log.warning("%d events were dropped", self._dropped)
                self._dropped = 0

    async def drained(self) -> None:
        """Returns when everything that was told is written or given up."""
        await self._backlog.join()

    async def _write(self, obj: Obj) -> None:
        try:
            await self._client.create(names.EVENTS, obj, field_manager=names.FIELD_MANAGER)
        except AlreadyExists:
            meta = obj["metadata"]
            try:
                there = await self._client.get(names.EVENTS, meta["namespace"], meta["name"])
            except NotFound:  # expired just now; the next time makes it anew
                return
            again = {"count": int(there.get("count", 1)) + 1, "lastTimestamp": obj["lastTimestamp"]}
            await self._client.patch(
                names.EVENTS, meta["namespace"], meta["name"], again, type=PatchType.MERGE, field_manager=names.FIELD_MANAGER
            )

    def _object(self, job: Subject, event: Event) -> Obj:
        message = event.message[:MESSAGE_LIMIT]
        told = "\0".join((job.uid, event.type, event.reason, message))
        digest = hashlib.sha256(told.encode()).hexdigest()[:16]
        now = self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
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
