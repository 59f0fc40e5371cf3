"""[rank-death] How fast a unit of four ranks ends when one is killed or frozen, and [rank-death-gap] what that costs other units.

While all ranks are in collectives, one of them gets SIGKILL, each rank in a run of its own; in a further run one gets SIGSTOP. The value is
the time until the last of the other ranks has ended, in the worst run. Two units of one process train beside them: the gap is their longest
step afterwards over their longest step in an equally long time before.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.exchange_rig import ExchangeRig, Workload
from benchmarks.figure import Figure, rounded
from benchmarks.process_rig import longest_after

LIMIT, GAP_LIMIT = 5.0, 1.2
SURVIVORS = ("u-1", "u-2")
GIVE_UP = 240.0


@dataclass(frozen=True, slots=True)
class Size:
    workload: Workload
    ranks: int
    faults: tuple[tuple[int, int], ...]
    """(rank, signal) for each run."""
    warm_up_steps: int
    window: float
    """Seconds before and after the fault."""


_WORKLOAD = Workload(mebibytes=1, step_seconds=0.1)
FULL = Size(_WORKLOAD, 4, (*((rank, signal.SIGKILL) for rank in range(4)), (2, signal.SIGSTOP)), warm_up_steps=30, window=6.0)
SMOKE = Size(_WORKLOAD, 2, ((1, signal.SIGKILL),), warm_up_steps=5, window=1.0)


def seconds_and_gap(directory: Path, size: Size, rank: int, number: int) -> tuple[float, float]:
    """(seconds until the other ranks ended, gap of the survivors) of one run. `number`: the signal that `rank` gets."""
    with ExchangeRig(directory, size.workload) as rig:
        rig.start_syncer()
        ranks = rig.start_ranks("u-0", size.ranks)
        for unit in SURVIVORS:
            rig.start_learner(unit)
        rig.wait_for_steps(["u-0", *SURVIVORS], size.warm_up_steps)
        time.sleep(size.window)
        began = time.monotonic()
        ranks[rank].send_signal(number)
        for other, process in enumerate(ranks):
            if other != rank:
                process.wait(GIVE_UP)
        ended = time.monotonic()
        time.sleep(max(0.0, began + size.window - ended))
        end = time.monotonic()
        steps = rig.steps_until(SURVIVORS, end)
    gap = max(longest_after(ends, began - size.window, began, end) for ends in steps)
    return ended - began, gap


def measure(*, smoke: bool) -> Iterator[Figure]:
    """Yield the slowest end of all runs, and the median of the gaps."""
    size = SMOKE if smoke else FULL
    with tempfile.TemporaryDirectory() as directory:
        runs = [seconds_and_gap(Path(directory) / str(run), size, *fault) for run, fault in enumerate(size.faults)]
    seconds, gaps = [run_[0] for run_ in runs], [run_[1] for run_ in runs]
    yield Figure("rank-death", max(seconds), "s", LIMIT, max(seconds) <= LIMIT, len(runs), {"seconds": rounded(seconds, 2)})
    gap = median(gaps)
    yield Figure("rank-death-gap", gap, "ratio", GAP_LIMIT, gap <= GAP_LIMIT, len(runs), {"ratios": rounded(gaps, 4)})
