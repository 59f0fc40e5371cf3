"""[exchange-overhead] Median step of a learner whose step is 50 ms, with a million parameters exchanged in 24 fragments, over that of the
same loop without a session, side by side."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.exchange_rig import Rig, gaps, median_of
from benchmarks.report import emit

LIMIT = 1.03
RUNS = 5
WINDOW = 8.0
"""Seconds that are measured."""
WARM_UP_STEPS = 40


def measure(directory: Path) -> float:
    """The ratio of one run."""
    with Rig(directory) as rig:
        rig.syncer()
        rig.learner("with")
        rig.learner("without", alone=True)
        rig.wait_for_steps(["with", "without"], WARM_UP_STEPS)
        start = time.monotonic()
        time.sleep(WINDOW)
        end = time.monotonic()
        return median_of(gaps(rig.times("with"), start, end)) / median_of(gaps(rig.times("without"), start, end))


def main() -> bool:
    with tempfile.TemporaryDirectory() as directory:
        ratios = [measure(Path(directory) / str(run)) for run in range(RUNS)]
    value = median_of(ratios)
    return emit("exchange-overhead", value, "ratio", LIMIT, value <= LIMIT, RUNS, ratios=[round(ratio, 4) for ratio in ratios])


if __name__ == "__main__":
    main()
