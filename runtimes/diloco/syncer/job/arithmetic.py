"""Threads for arithmetic on large fragments, beside the event loop and apart from the threads that write files: fences, and with them the
learners that join, do not wait for eight decodes.

See docs/decisions/0148-driver-and-threads.md.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class Arithmetic:
    """Decodes as many contributions at a time as there are processors: more would only hold memory and slow the event loop down. A merge
    waits for none of them. Used in one event loop."""

    def __init__(self) -> None:
        self._decoding = ThreadPoolExecutor(os.cpu_count(), "decode")
        self._merging = ThreadPoolExecutor(1, "merge")

    async def decode[T](self, work: Callable[[], T]) -> T:
        """Run `work` when its turn comes."""
        return await asyncio.get_running_loop().run_in_executor(self._decoding, work)

    async def merge[T](self, work: Callable[[], T]) -> T:
        """Run `work` after the merges that were ordered before."""
        return await asyncio.get_running_loop().run_in_executor(self._merging, work)

    def close(self) -> None:
        """Begin nothing more. What runs ends by itself."""
        self._decoding.shutdown(wait=False, cancel_futures=True)
        self._merging.shutdown(wait=False, cancel_futures=True)
