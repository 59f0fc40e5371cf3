"""A syncer whose event loop is watched: `python -m benchmarks.sizes.watched_syncer LAGS`, in the environment of a syncer.

LAGS gets one line for each tick of 5 ms: when the tick was due, in seconds of CLOCK_MONOTONIC; how late it came; and how long the loop's
thread has waited for a core since it last slept. A loop that is held up for long is late for several ticks.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from diloco.syncer.config import Timeouts, read_config
from diloco.syncer.main import serve

TICK = 0.005


def waited() -> float:
    """Seconds in which this thread could have run but had no core. 0 if the kernel does not say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1]) / 1e9
    except FileNotFoundError:
        return 0.0


async def watch(path: Path) -> None:
    """Write the lag of each tick until cancelled."""
    due = time.monotonic()
    with path.open("w", encoding="ascii", buffering=1) as lags:
        before = waited()
        while True:
            due += TICK
            if (left := due - time.monotonic()) > 0:
                before = waited()
                await asyncio.sleep(left)
            lags.write(f"{due:.6f} {time.monotonic() - due:.6f} {waited() - before:.6f}\n")


async def run(lags: Path) -> int:
    watching = asyncio.create_task(watch(lags))
    try:
        return await serve(read_config(os.environ, Timeouts()))
    finally:
        watching.cancel()


if __name__ == "__main__":
    sys.exit(asyncio.run(run(Path(sys.argv[1]))))
