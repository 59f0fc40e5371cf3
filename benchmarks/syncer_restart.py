"""[syncer-restart] [syncer-restart-lost] What the death of the syncer costs its learners.

The syncer of three learners gets SIGKILL in mid-training and is started again. Steps have a fixed length. The first value is the longest
step of a learner from the kill until all contribute again, over its longest step in an equally long time before. The second counts lost
merges: those on the tape at the kill that are missing later, and later ones that do not continue from the version before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diloco.tape.segments import FOLDER, heads

from benchmarks.exchange_rig import ExchangeRig, RunSize, Workload, each_run
from benchmarks.figure import Figure, ratio_figure
from benchmarks.process_rig import longest_after

LIMIT = 1.2
UNITS = ("u-0", "u-1", "u-2")


@dataclass(frozen=True, slots=True)
class Size(RunSize):
    away: float
    """Seconds without a syncer."""


FULL = Size(Workload(mebibytes=1, step_seconds=0.05), runs=5, warm_up_steps=60, window=8.0, away=1.0)
SMOKE = Size(Workload(mebibytes=1, step_seconds=0.05), runs=1, warm_up_steps=5, window=2.0, away=0.1)


def merges(state: Path) -> list[tuple[int, int, int]]:
    """(fragment, version before, version) of each merge on the tape."""
    return [(head["fragment"], head["base"], head["t"]) for head in heads(state / FOLDER) if head["type"] == "merge"]


def lost(before: list[tuple[int, int, int]], after: list[tuple[int, int, int]]) -> int:
    """The number of lost merges. `before` is the tape at the kill, `after` the tape at the end of the run."""
    versions: dict[int, int] = {}
    wrong = sum(merge not in after for merge in before)
    for fragment, base, t in after:
        if base != versions.get(fragment, 0):
            wrong += 1
        versions[fragment] = t
    return wrong


def one_run(directory: Path, size: Size) -> tuple[float, int, int]:
    """(ratio of the learner that was delayed most, lost merges, merges at the kill)."""
    with ExchangeRig(directory, size.workload, {"checkpoint": {"every_steps": 100_000, "keep": 1}}) as rig:
        syncer = rig.start_syncer()
        for unit in UNITS:
            rig.start_learner(unit)
        rig.wait_for_steps(list(UNITS), size.warm_up_steps)
        time.sleep(size.window)
        killed = time.monotonic()
        syncer.kill()
        syncer.wait()
        before = merges(directory / "state")
        rig.forget(syncer)
        time.sleep(size.away)
        rig.start_syncer()
        deadline = time.monotonic() + size.workload.timeout(size.warm_up_steps)
        while len(merges(directory / "state")) < len(before) + 10 * len(UNITS):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the syncer that came back merges nothing\n{rig.logs()}")
            time.sleep(0.2)
        end = max(time.monotonic(), killed + size.window)
        time.sleep(max(0.0, end - time.monotonic()))
        steps = rig.steps_until(UNITS, end)
        after = merges(directory / "state")
    ratio = max(longest_after(ends, killed - size.window, killed, end) for ends in steps)
    return ratio, lost(before, after), len(before)


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    runs = each_run(size.runs, lambda folder: one_run(folder, size))
    ratios = [ratio for ratio, _, _ in runs]
    yield ratio_figure("syncer-restart", ratios, LIMIT)
    total = float(sum(wrong for _, wrong, _ in runs))
    yield Figure(
        "syncer-restart-lost", total, "merges", 0.0, total <= 0.0, size.runs, {"merges_at_the_kill": [count for _, _, count in runs]}
    )
