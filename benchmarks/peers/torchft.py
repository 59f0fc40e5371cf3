"""[peer-torchft, peer-torchft-tuned] torchft 0.2.0 beside ours: a replica of two is killed and comes back; speed, bytes, held-out loss.

`-tuned`: the lighthouse takes a replica as lost after half a second without a heartbeat, instead of five.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.peers.comparison import FULL, SMOKE, compared
from benchmarks.peers.loopback import Loopback
from benchmarks.peers.systems import TorchFT


def measure(*, smoke: bool) -> Iterator[Figure]:
    def tuned(folder: Path, loopback: Loopback, learners: int, steps: int) -> TorchFT:
        return TorchFT(folder, loopback, learners, steps, ("--heartbeat_timeout_ms", "500"))

    yield from compared(SMOKE if smoke else FULL, {"peer-torchft": TorchFT, "peer-torchft-tuned": tuned}, "0.2.0")
