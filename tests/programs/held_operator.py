"""`diloco-operator`, whose event loop computes on SIGUSR1 for as long as the file `HELD_WHILE` exists."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from diloco_operator.program.main import main


def compute() -> None:
    while Path(os.environ["HELD_WHILE"]).exists():
        sum(range(100_000))


if __name__ == "__main__":
    # As a callback of the loop: the signal itself may come while the loop waits.
    signal.signal(signal.SIGUSR1, lambda *_: asyncio.get_running_loop().call_soon_threadsafe(compute))
    main()
