"""[uplink-overload-*] How much a learner still contributes if its uplink is too slow for its pushes.

One of four learners is behind a link on which one push takes 1.05, 1.2 or 2 outer steps. With a pull at every outer step the link can carry
1 / 1.05, 1 / 1.2 or 1 / 2 of the pushes. The value is the share of the merges in which the learner takes part: its contributions over those
of a learner without that link, in the same time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diloco_local.links import Links

from benchmarks.exchange_rig import Workload
from benchmarks.figure import Figure
from benchmarks.link_rig import LinkRig, unit_of

LIMITS = {1.05: 0.9, 1.2: 0.75, 2.0: 0.45}
"""Outer steps that one push takes -> least share of the merges."""
TRAINING = {"compression": "None", "sync_interval": 8, "fragments": 8}
"""A push has 16 MiB, several times what gRPC and the kernel buffer (decision 0150). An exchange lives for three outer steps. With an
interval of four, a learner would have only one step to adopt, train and report before the next pull of that fragment, and without a report
the syncer does not pull from it."""
SLOW, FREE = "u-slow", ("u-0", "u-1", "u-2")


@dataclass(frozen=True, slots=True)
class Size:
    workload: Workload
    warm_up: int
    steps: int
    """Outer steps in which contributions are counted, after `warm_up` outer steps."""


FULL = Size(Workload(mebibytes=128, step_seconds=1.0), warm_up=12, steps=60)
SMOKE = Size(Workload(mebibytes=1, step_seconds=0.05), warm_up=6, steps=12)


def measured(directory: Path, size: Size, push_steps: float) -> tuple[float, int, int]:
    """(share of the merges, largest number of queued pushes, tau)."""
    with LinkRig(directory, size.workload, TRAINING) as rig, Links() as links:
        link = links.add()
        far = link.relay(rig.address)
        rig.start_syncer()
        for unit in FREE:
            rig.start_link_learner(unit, rig.address)
        rig.start_link_learner(SLOW, far)
        reports = rig.reports()
        rig.report(reports, lambda report: all(unit_of(report, unit).contributions for unit in (SLOW, *FREE)), steps=30)
        link.up.bytes_per_second = rig.payload() / (push_steps * size.workload.step_seconds)
        began = next(reports).t
        before = rig.report(reports, lambda report: report.t >= began + size.warm_up, size.warm_up)
        after = rig.report(reports, lambda report: report.t >= before.t + size.steps, size.steps)
        queued = max(line.queued for line in rig.lines(SLOW))
        tau = rig.job.training.overlap_steps
    counts = {unit: unit_of(after, unit).contributions - unit_of(before, unit).contributions for unit in (SLOW, *FREE)}
    return counts[SLOW] / max(1, *(counts[unit] for unit in FREE)), queued, tau


def measure(*, smoke: bool) -> Iterator[Figure]:
    """Yield one figure for each duration of a push."""
    size = SMOKE if smoke else FULL
    for push_steps, limit in LIMITS.items():
        with tempfile.TemporaryDirectory() as directory:
            share, queued, tau = measured(Path(directory) / "job", size, push_steps)
        details = {"queued_pushes": queued, "most_queued_pushes": tau + 1}
        yield Figure(f"uplink-overload-{push_steps}", share, "share of merges", limit, share >= limit and queued <= tau + 1, 1, details)
