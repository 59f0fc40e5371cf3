"""[exchange-overhead] What the exchange costs a training step.

The median step of a learner, 50 ms long, with a million parameters exchanged in 24 fragments, over the median step of the same loop without
a session. Both run side by side, so that a busy machine slows both.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.exchange_rig import ExchangeRig, durations
from benchmarks.figure import Figure, rounded

LIMIT = 1.03


@dataclass(frozen=True, slots=True)
class Size:
    runs: int
    warm_up_steps: int
    window: float
    """Seconds that are measured."""


FULL = Size(runs=5, warm_up_steps=40, window=8.0)
SMOKE = Size(runs=1, warm_up_steps=5, window=1.0)


def ratio(directory: Path, size: Size) -> float:
    """Of one run."""
    with ExchangeRig(directory) as rig:
        rig.start_syncer()
        rig.start_learner("with")
        rig.start_learner("without", alone=True)
        rig.wait_for_steps(["with", "without"], size.warm_up_steps)
        start = time.monotonic()
        time.sleep(size.window)
        end = time.monotonic()
        return median(durations(rig.step_ends("with"), start, end)) / median(durations(rig.step_ends("without"), start, end))


def measure(*, smoke: bool) -> Iterator[Figure]:
    """The median of the runs."""
    size = SMOKE if smoke else FULL
    with tempfile.TemporaryDirectory() as directory:
        ratios = [ratio(Path(directory) / str(run), size) for run in range(size.runs)]
    value = median(ratios)
    yield Figure("exchange-overhead", value, "ratio", LIMIT, value <= LIMIT, size.runs, {"ratios": rounded(ratios, 4)})
