"""[link-heal-*] How long a learner behind a narrow link stays behind after it has joined, and after an outage of 2 H outer steps.

The job codes in int4, and the link to the learner has 1.5 times the bandwidth that its broadcasts need. Whole values take 7.8 times as
much. The value is the time until the learner's staleness stays normal, in rounds of all fragments (H outer steps). Normal is at most one
more than the staleness of the learners without that link.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diloco.protocol.diloco_pb2 import Report
from diloco_local.links import Links

from benchmarks.exchange_rig import Workload
from benchmarks.figure import Figure
from benchmarks.link_rig import LinkRig, unit_of

LIMIT = 10.0
NEED = 1.5
SLOW, FREE = "u-slow", ("u-0", "u-1", "u-2")
OUTAGE = 2
"""Length of the outage, in rounds."""


@dataclass(frozen=True, slots=True)
class Size:
    workload: Workload
    rounds: int
    """How long to watch, in rounds."""


FULL = Size(Workload(mebibytes=24, step_seconds=0.1), rounds=13)
SMOKE = Size(Workload(mebibytes=1, step_seconds=0.02), rounds=1)


def rounds_behind(rig: LinkRig, reports: Iterator[Report], rounds: int) -> float:
    """The rounds from now until the staleness stays normal. Infinity if it does not within `rounds`."""
    interval = rig.job.training.sync_interval
    began = next(reports).t
    seen: list[tuple[int, int, int]] = []

    def over(report: Report) -> bool:
        free = max(unit_of(report, unit).staleness for unit in FREE)
        seen.append((report.t, unit_of(report, SLOW).staleness if unit_of(report, SLOW).contributions else interval, free))
        return report.t >= began + rounds * interval

    rig.report(reports, over, rounds * interval)
    normal = max(free for _, _, free in seen) + 1
    behind = [t for t, staleness, _ in seen if staleness > normal]
    if behind and behind[-1] == seen[-1][0]:
        return math.inf
    return (max(behind, default=began) - began) / interval


def measured(directory: Path, size: Size) -> tuple[float, float]:
    """Rounds until the staleness is normal: (after joining, after the outage)."""
    with LinkRig(directory, size.workload, {"compression": "Int4"}) as rig, Links() as links:
        link = links.add()
        far = link.relay(rig.address)
        rig.start_syncer()
        for unit in FREE:
            rig.start_link_learner(unit, rig.address)
        reports = rig.reports()
        rig.report(reports, lambda report: all(unit_of(report, unit).contributions > 1 for unit in FREE), steps=30)
        link.down.bytes_per_second = NEED * rig.payload() / size.workload.step_seconds
        rig.start_link_learner(SLOW, far)
        rig.report(reports, lambda report: any(unit.unit == SLOW for unit in report.units), steps=30)
        joined = rounds_behind(rig, reports, size.rounds)
        link.cut()
        began = next(reports).t
        rig.report(reports, lambda report: report.t >= began + OUTAGE * rig.job.training.sync_interval, steps=60)
        link.heal()
        return joined, rounds_behind(rig, reports, size.rounds)


def measure(*, smoke: bool) -> Iterator[Figure]:
    """Yield both figures of one run."""
    size = SMOKE if smoke else FULL
    with tempfile.TemporaryDirectory() as directory:
        joined, outage = measured(Path(directory) / "job", size)
    yield Figure("link-heal-join", joined, "rounds", LIMIT, joined <= LIMIT, 1)
    yield Figure("link-heal-outage", outage, "rounds", LIMIT, outage <= LIMIT, 1)
