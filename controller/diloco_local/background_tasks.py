"""Background tasks of one program that must all run on: if one ends, the program has failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


class BackgroundTasks:
    """Make it inside a running event loop."""

    def __init__(self) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Becomes the exception of the first task that failed, or that ended without `may_end`. The program must stop then."""
        self._tasks: list[asyncio.Task[None]] = []

    def run(self, name: str, work: Callable[[], Awaitable[None]], *, may_end: bool = False) -> None:
        """Start one more task."""

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
        """Cancel all tasks, the newest first, and return when they ended."""
        for task in reversed(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.failed.done() and not self.failed.cancelled():
            self.failed.exception()  # mark it as retrieved: the owner has awaited it already if it needed it
        self.failed.cancel()
