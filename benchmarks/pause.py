"""[pause-*] What a program costs that takes no step for 10 H outer steps: memory while it pauses, writes when it continues.

Broadcasts continue at each outer step. `pause-memory` is the learner's peak resident memory during the pause minus its memory before, over
the size of the model. `pause-writes` is how often fragments are overwritten in the H steps after it, minus one new broadcast a step.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.exchange_rig import Workload
from benchmarks.figure import Figure
from benchmarks.fixed_step_learner import paused
from benchmarks.link_rig import LinkRig, unit_of
from benchmarks.process_rig import memory_bytes

PAUSED, OTHERS = "u-0", ("u-1", "u-2")


@dataclass(frozen=True, slots=True)
class Size:
    workload: Workload
    rounds: int
    """Length of the pause, in units of H outer steps."""


FULL = Size(Workload(mebibytes=24, step_seconds=0.05), rounds=10)
SMOKE = Size(Workload(mebibytes=1, step_seconds=0.02), rounds=1)


def measured(directory: Path, size: Size) -> tuple[float, int, int]:
    """(extra memory over the size of the model, writes, number of fragments)."""
    with LinkRig(directory, size.workload, {"compression": "None"}) as rig:
        interval = rig.job.training.sync_interval
        rig.start_syncer()
        process = rig.start_link_learner(PAUSED, rig.address)
        for unit in OTHERS:
            rig.start_link_learner(unit, rig.address)
        reports = rig.reports()
        rig.report(reports, lambda report: report.t > 2 * interval and all(unit_of(report, u).contributions for u in OTHERS), 3 * interval)
        rig.pause_file(PAUSED).touch()
        rig.report(reports, lambda _: paused(rig.pause_file(PAUSED)).exists(), 2)
        began = next(reports).t
        rig.report(reports, lambda report: report.t >= began + 2, 2)
        steps = len(rig.lines(PAUSED))
        Path(f"/proc/{process.pid}/clear_refs").write_text("5", encoding="ascii")  # resets VmHWM, see proc(5)
        before = memory_bytes(process.pid, "VmRSS")
        rig.report(reports, lambda report: report.t >= began + size.rounds * interval, size.rounds * interval)
        extra = memory_bytes(process.pid, "VmHWM") - before
        assert len(rig.lines(PAUSED)) == steps, "the program has not paused"
        rig.pause_file(PAUSED).unlink()
        rig.report(reports, lambda report: len(rig.lines(PAUSED)) >= steps + interval, interval)
        writes = sum(line.written for line in rig.lines(PAUSED)[steps : steps + interval]) - interval
        return extra / (size.workload.mebibytes << 20), writes, rig.job.training.fragments


def measure(*, smoke: bool) -> Iterator[Figure]:
    """Yield both figures of one run."""
    size = SMOKE if smoke else FULL
    with tempfile.TemporaryDirectory() as directory:
        extra, writes, fragments = measured(Path(directory) / "job", size)
    yield Figure("pause-memory", extra, "x the model", 1.0, extra <= 1.0, 1)
    yield Figure("pause-writes", writes, "fragments", fragments, writes <= fragments, 1)
