"""[peer-gradientmail] GradientMail 0.0.2 beside ours: one of two learners is killed and comes back; speed, bytes, held-out loss."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.peers.comparison import FULL, SMOKE, compared
from benchmarks.peers.environment import python_of
from benchmarks.peers.loopback import Loopback
from benchmarks.peers.systems import GradientMail


def measure(*, smoke: bool) -> Iterator[Figure]:
    python = python_of("gradientmail")

    def make(folder: Path, loopback: Loopback, learners: int, steps: int) -> GradientMail:
        return GradientMail(folder, loopback, learners, python, steps)

    yield from compared(SMOKE if smoke else FULL, {"peer-gradientmail": make}, "0.0.2")
