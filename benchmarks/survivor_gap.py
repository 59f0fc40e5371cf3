"""[survivor-gap] SIGKILL one of four learners whose step is 50 ms: the largest gap between two steps of any survivor afterwards, over its
largest gap in as long a time before. The time after the kill covers the loss, the end of the reconnect window and what follows."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.exchange_rig import Rig, gaps, median_of
from benchmarks.report import emit

LIMIT = 1.2
RUNS = 5
WINDOW = 8.0
"""Seconds before and after the kill; longer than keepalive or the reconnect window."""
WARM_UP_STEPS = 60
SURVIVORS = ["u-1", "u-2", "u-3"]


def measure(directory: Path) -> float:
    """The worst survivor's ratio of one run."""
    with Rig(directory) as rig:
        rig.syncer()
        victim = rig.learner("u-0")
        for unit in SURVIVORS:
            rig.learner(unit)
        rig.wait_for_steps(["u-0", *SURVIVORS], WARM_UP_STEPS)
        time.sleep(WINDOW)
        killed = time.monotonic()
        victim.kill()
        victim.wait()
        time.sleep(WINDOW)
        end = time.monotonic()
        before = {unit: max(gaps(rig.times(unit), killed - WINDOW, killed)) for unit in SURVIVORS}
        after = {unit: max(gaps(rig.times(unit), killed, end)) for unit in SURVIVORS}
        return max(after[unit] / before[unit] for unit in SURVIVORS)


def main() -> bool:
    with tempfile.TemporaryDirectory() as directory:
        ratios = [measure(Path(directory) / str(run)) for run in range(RUNS)]
    value = median_of(ratios)
    return emit("survivor-gap", value, "ratio", LIMIT, value <= LIMIT, RUNS, ratios=[round(ratio, 4) for ratio in ratios])


if __name__ == "__main__":
    main()
