"""While all threads for decoding are busy, merges are computed and fences are written."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from builders.exchange import WAIT_TIMEOUT
from diloco.syncer.fences import FenceWriter, load_fences
from diloco.syncer.job.exchange import Arithmetic

MANY = (os.cpu_count() or 1) + 64
"""More than the threads of asyncio's own pool."""


@asynccontextmanager
async def busy(arithmetic: Arithmetic) -> AsyncIterator[list[int]]:
    """Decodes wait in all threads, and more for a thread. Yields how many run."""
    started, released, running = threading.Event(), threading.Event(), [0]
    lock = threading.Lock()

    def held() -> None:
        with lock:
            running[0] += 1
        started.set()
        assert released.wait(2 * WAIT_TIMEOUT)

    decodes = [asyncio.create_task(arithmetic.decode(held)) for _ in range(MANY)]
    assert await asyncio.to_thread(started.wait, WAIT_TIMEOUT)
    try:
        yield running
    finally:
        released.set()
        await asyncio.gather(*decodes)


async def test_a_merge_and_a_fence_wait_for_no_decode(tmp_path: Path) -> None:
    arithmetic = Arithmetic()
    async with busy(arithmetic) as running:
        assert await asyncio.wait_for(arithmetic.merge(lambda: 5), WAIT_TIMEOUT) == 5
        fences = FenceWriter(tmp_path, "job", {}, lambda: None)
        fences.write({"u-0": 3})
        await asyncio.wait_for(fences.idle(), WAIT_TIMEOUT)
        assert load_fences(tmp_path, "job") == {"u-0": 3}
        assert running[0] <= (os.cpu_count() or 1)
    assert running[0] == MANY
    arithmetic.close()


async def test_merges_of_different_fragments_are_computed_beside_each_other() -> None:
    arithmetic = Arithmetic()
    both = threading.Barrier(2, timeout=WAIT_TIMEOUT)
    await asyncio.gather(*(arithmetic.merge(both.wait) for _ in range(2)))
    arithmetic.close()
