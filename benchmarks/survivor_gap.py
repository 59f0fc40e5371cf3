"""[survivor-gap-*] What the loss of one learner costs the others, by the size of the model.

One of four learners gets SIGKILL. Steps have a fixed length. The value is the longest step of a survivor afterwards over its longest step
in an equally long time before, for the survivor that is delayed most. The time after the kill covers the loss, the end of the reconnect
window and what follows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.exchange_rig import ExchangeRig, RunSize, Workload, each_run
from benchmarks.figure import Figure, ratio_figure
from benchmarks.process_rig import longest_after

LIMIT = 1.2
VICTIM = "u-0"
SURVIVORS = ("u-1", "u-2", "u-3")


FULL = RunSize(Workload(mebibytes=1, step_seconds=0.05), runs=5, warm_up_steps=60, window=8.0)
SMOKE = RunSize(Workload(mebibytes=1, step_seconds=0.05), runs=1, warm_up_steps=5, window=1.0)


def worst_ratio(directory: Path, size: RunSize) -> float:
    """The ratio of the survivor that was delayed most, in one run."""
    with ExchangeRig(directory, size.workload) as rig:
        rig.start_syncer()
        victim = rig.start_learner(VICTIM)
        for unit in SURVIVORS:
            rig.start_learner(unit)
        rig.wait_for_steps([VICTIM, *SURVIVORS], size.warm_up_steps)
        time.sleep(size.window)
        killed = time.monotonic()
        victim.kill()
        victim.wait()
        time.sleep(size.window)
        end = time.monotonic()
        steps = rig.steps_until(SURVIVORS, end)
    return max(longest_after(ends, killed - size.window, killed, end) for ends in steps)


def figure(name: str, size: RunSize) -> Figure:
    """The median of the runs."""
    ratios = each_run(size.runs, lambda folder: worst_ratio(folder, size))
    return ratio_figure(name, ratios, LIMIT)


def measure(*, smoke: bool) -> Iterator[Figure]:
    yield figure("survivor-gap-1MiB", SMOKE if smoke else FULL)
