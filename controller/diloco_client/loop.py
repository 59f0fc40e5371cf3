"""An event loop in a thread of its own. Callers without a loop can wait for its work, and so can a notebook, whose loop already runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator


class LoopThread:
    """Runs coroutines for other threads."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run[T](self, work: Coroutine[object, object, T]) -> T:
        """Return what `work` returns, or raise what it raises. If the caller is interrupted, `work` is cancelled."""
        if not self._thread.is_alive():
            work.close()
            raise RuntimeError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def each[T](self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yield the items as the caller asks for them. If the caller stops early, their source is closed."""

        async def next_one() -> tuple[T] | None:
            async for item in items:
                return (item,)
            return None

        async def close() -> None:
            if (end := getattr(items, "aclose", None)) is not None:
                await end()

        try:
            while (item := self.run(next_one())) is not None:
                yield item[0]
        finally:
            self.run(close())

    def close(self) -> None:
        """End the thread. May be repeated."""
        if not self._thread.is_alive():
            return
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
