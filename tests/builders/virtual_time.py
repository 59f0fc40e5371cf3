"""Tests on virtual time wait for conditions, and never for time itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from diloco_local.preview.virtual_time import VirtualLoop, run_virtual

__all__ = ["VirtualLoop", "run_virtual", "until"]


async def until(condition: Callable[[], object], *, within: float = 60.0, step: float = 0.01) -> None:
    """Returns once `condition()` is true; fails when it is not after `within` seconds of the loop's clock."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    while not condition():
        assert loop.time() < end, f"the condition did not come true within {within} s"
        await asyncio.sleep(step)
