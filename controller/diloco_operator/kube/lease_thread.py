"""The election in a thread, with an event loop and connections of its own: no work of another event loop delays a renewal.

A decision, a list of many objects or a scrape may hold the operator's event loop for seconds. The thread goes on: Python hands it the
interpreter within a switch interval. Whether the operator's loop still runs is the fence's to know (`Fence.look`), and the elector asks it
before each renewal. So a loop that stands still for longer than the lease loses it all the same.

See docs/decisions/0090-lease-and-clocks.md.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from diloco_operator.kube.elector import Elector

type Connect = Callable[[], AbstractAsyncContextManager[Elector]]
"""Makes the elector and its client. Called in the thread, since a client lives in one event loop."""


class LeaseThread:
    """One replica's part in the election. Made by `started`; its methods are for the event loop that started it."""

    def __init__(self) -> None:
        self._home = asyncio.get_running_loop()
        self._loop = asyncio.new_event_loop()
        """The thread's own."""
        self._connected: asyncio.Future[Elector] = self._home.create_future()
        self._elector: Elector
        self._end = asyncio.Event()
        """Belongs to the thread's loop."""
        self._hold: asyncio.Task[None] | None = None
        """The renewals, in the thread's loop."""
        self.lost: asyncio.Future[None] = self._home.create_future()
        """Fails with `LeaseLost` when the lease is lost, and with whatever else ends the renewals. Never succeeds."""

    @classmethod
    @asynccontextmanager
    async def started(cls, connect: Connect) -> AsyncIterator[LeaseThread]:
        """Yield a thread that takes part in the election once `acquire` is called. It ends with the context. Raises what `connect`
        raises."""
        lease = cls()
        thread = threading.Thread(target=lease._main, args=(connect,), name="lease", daemon=True)
        thread.start()
        try:
            lease._elector = await lease._connected
            yield lease
        finally:
            lease.lost.cancel()
            lease._loop.call_soon_threadsafe(lease._end.set)
            await asyncio.to_thread(thread.join)

    @property
    def leads(self) -> bool:
        """Whether this replica may write now."""
        return self._elector.leads

    async def acquire(self) -> None:
        """Return when this replica leads. The thread renews the lease from then on, until `release`."""
        await self._call(self._acquire())

    async def release(self) -> None:
        """End the renewals and release the lease, if this replica leads. Best effort."""
        await self._call(self._release())

    async def _call(self, work: Coroutine[Any, Any, None]) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    # --- in the thread ------------------------------------------------------------------------------------------------
    def _main(self, connect: Connect) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._run(connect))

    async def _run(self, connect: Connect) -> None:
        async with AsyncExitStack() as stack:
            try:
                elector = await stack.enter_async_context(connect())
            except Exception as error:  # noqa: BLE001 - `started` raises it
                self._fail(self._connected, error)
            else:
                self._home.call_soon_threadsafe(_set_result, self._connected, elector)
            await self._end.wait()
            await self._end_renewals()

    async def _acquire(self) -> None:
        await self._elector.acquire()
        self._hold = asyncio.create_task(self._elector.hold(), name="lease")
        self._hold.add_done_callback(self._on_end)

    async def _release(self) -> None:
        if self._hold is not None:
            await self._end_renewals()  # it must not renew a released lease
            await self._elector.release()

    async def _end_renewals(self) -> None:
        if self._hold is not None:
            self._hold.cancel()
            await asyncio.gather(self._hold, return_exceptions=True)

    def _on_end(self, hold: asyncio.Task[None]) -> None:
        if not hold.cancelled() and (error := hold.exception()) is not None:
            self._fail(self.lost, error)

    def _fail(self, waiting: asyncio.Future[Any], error: BaseException) -> None:
        self._home.call_soon_threadsafe(_set_exception, waiting, error)


def _set_result[T](waiting: asyncio.Future[T], result: T) -> None:
    if not waiting.done():
        waiting.set_result(result)


def _set_exception(waiting: asyncio.Future[Any], error: BaseException) -> None:
    if not waiting.done():
        waiting.set_exception(error)
