"""Keeps a replica that lost the lease from writing, however late it learns of the loss.

`Fence` knows until when writing is allowed, on a clock that goes on while the process is stopped. `FencedClient` checks it before every
write, and cancels writes that are still running when the time is up. A request may wait inside the process, for a connection for example,
and the process may be stopped meanwhile. So the transport checks once more (`Fence.check`) when the request has its connection, and the
socket checks before each part of it.

The lease is renewed in another thread (`kube.lease_thread`), which goes on while the event loop of the writes stands still. So the fence
looks at that loop as well: one that stood still for longer than the lease decides from knowledge that may be outdated, and writes no more.

Two cases remain. A write that was sent in time may reach the API server late: it has the difference between lease duration and renew
deadline (see kube.lease) to arrive. And the process may be stopped in the microsecond between the socket's check and the kernel: only a
condition that the API server checks could close that gap.

See docs/decisions/0090-lease-and-clocks.md.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from diloco_operator.kube.client import Client, Obj, ObjList, PatchType, Resource, Unavailable, WatchEvent


def boot_clock() -> float:
    """Return seconds of a clock that never goes back, and that goes on while the process or the whole machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class NotLeading(Unavailable):
    """This replica does not lead, so the write was not sent. Or the lease ended during the write, and its effect is unknown."""


class Fence:
    """Says until when this replica may write. Shut until `open_until` is called. The writes are those of one event loop; `open_until`,
    `shut` and `look` may be called in any thread.

    `turn`: the seconds that the current turn of that loop has lasted so far; 0 while the loop waits. A turn of more than `longest_turn`
    while writing is allowed shuts the fence for good.
    """

    def __init__(
        self, clock: Callable[[], float] = boot_clock, *, turn: Callable[[], float] = lambda: 0.0, longest_turn: float = math.inf
    ) -> None:
        self._clock = clock
        self.turn = turn
        self._longest_turn = longest_turn
        self.stall = 0.0
        """Seconds of the turn for which the fence shut; 0: there was none."""
        self._lock = threading.Lock()
        self._until = -math.inf
        self._shut = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """That of the writes, once there was one."""
        self._under_way: set[asyncio.Timeout] = set()
        self.refused = 0
        """Number of writes that the fence stopped."""

    def open_until(self, until: float) -> None:
        """Allow writing until `until` on the fence's clock. This holds for running writes too. A fence that was shut stays shut."""
        with self._lock:
            if self._shut:
                return
            self._until = until
        self._reschedule()

    def shut(self) -> None:
        """Refuse writes from now on, for good; running ones are cancelled."""
        with self._lock:
            self._shut = True
            self._until = -math.inf
        self._reschedule()

    def look(self) -> None:
        """Shut the fence if the loop's turn lasts too long. To be called at the end of each long turn, and before the lease is renewed."""
        if self._until == -math.inf:  # a replica that does not lead may stand still
            return
        turn = self.turn()
        if turn > self._longest_turn:
            self.stall = turn
            self.shut()

    def check(self) -> None:
        """Raise `NotLeading` if no write may be sent now."""
        self.look()
        if self._clock() >= self._until:
            self.refused += 1
            raise NotLeading(503, "NotLeading", "this replica does not hold the leader's lease (any more), so it writes nothing")

    @asynccontextmanager
    async def write(self) -> AsyncIterator[None]:
        """Hold the fence around one write. Raises `NotLeading` if it may not begin, or if it still runs when the time is up."""
        self.check()
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(self._deadline()) as timeout:
                self._under_way.add(timeout)
                try:
                    yield
                finally:
                    self._under_way.discard(timeout)
        except TimeoutError as error:
            if not timeout.expired():
                raise  # an inner time-out
            raise NotLeading(503, "NotLeading", "the leader's lease ended during the write; the effect of the write is unknown") from error

    def _deadline(self) -> float:
        """Return the deadline on the event loop's clock."""
        left = self._until - self._clock()
        return asyncio.get_running_loop().time() + max(0.0, left)

    def _reschedule(self) -> None:
        """Move the end of the writes under way to the new deadline. Their time-outs belong to their loop: another thread asks it to do
        so."""
        if self._loop is _running_loop():
            self._reschedule_here()
        elif self._loop is not None:
            # What a thread asks for comes before the timers of the loop's next turn. So a write outlasts a loop that stood still past the
            # old deadline.
            self._loop.call_soon_threadsafe(self._reschedule_here)

    def _reschedule_here(self) -> None:
        for timeout in self._under_way:
            if not timeout.expired():  # an expired one is being cancelled already
                timeout.reschedule(self._deadline())


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """Return that of this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class FencedClient:
    """A `Client` with a fence around its writes. Reads are always allowed."""

    def __init__(self, client: Client, fence: Fence) -> None:
        self._client = client
        self._fence = fence

    async def get(self, resource: Resource, namespace: str, name: str, *, subresource: str = "") -> Obj:
        return await self._client.get(resource, namespace, name, subresource=subresource)

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
    ) -> ObjList:
        return await self._client.list(
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            limit=limit,
            continue_token=continue_token,
        )

    def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: float,
        allow_bookmarks: bool = True,
    ) -> AsyncIterator[WatchEvent]:
        return self._client.watch(
            resource,
            namespace,
            resource_version=resource_version,
            label_selector=label_selector,
            field_selector=field_selector,
            timeout_seconds=timeout_seconds,
            allow_bookmarks=allow_bookmarks,
        )

    async def create(
        self, resource: Resource, obj: Obj, *, field_manager: str = "", metadata_only: bool = False, dry_run: bool = False
    ) -> Obj:
        async with self._fence.write():
            return await self._client.create(resource, obj, field_manager=field_manager, metadata_only=metadata_only, dry_run=dry_run)

    async def update(self, resource: Resource, obj: Obj, *, subresource: str = "", field_manager: str = "") -> Obj:
        async with self._fence.write():
            return await self._client.update(resource, obj, subresource=subresource, field_manager=field_manager)

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Obj,
        *,
        type: PatchType,
        subresource: str = "",
        field_manager: str = "",
        force: bool = False,
        metadata_only: bool = False,
    ) -> Obj:
        async with self._fence.write():
            return await self._client.patch(
                resource,
                namespace,
                name,
                patch,
                type=type,
                subresource=subresource,
                field_manager=field_manager,
                force=force,
                metadata_only=metadata_only,
            )

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        grace_seconds: int | None = None,
        uid: str = "",
        resource_version: str = "",
        propagation: str = "Background",
    ) -> None:
        async with self._fence.write():
            await self._client.delete(
                resource,
                namespace,
                name,
                grace_seconds=grace_seconds,
                uid=uid,
                resource_version=resource_version,
                propagation=propagation,
            )

    async def bind(self, namespace: str, name: str, node: str) -> None:
        async with self._fence.write():
            await self._client.bind(namespace, name, node)

    async def evict(self, namespace: str, name: str, *, grace_seconds: int | None = None, uid: str = "") -> None:
        async with self._fence.write():
            await self._client.evict(namespace, name, grace_seconds=grace_seconds, uid=uid)
