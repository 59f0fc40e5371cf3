"""[bytes-per-step-*] Bytes on the wire between one learner and the syncer in one outer step, over parameters x bits / 8 / H x 2.

Counted at the socket, in both directions, with TLS, framing and all control messages. Each fragment leaves and comes back once in H outer
steps, hence the formula; int4 has 4.125 bits, as every block has a scale. `of_data_parallel`: the same over what one step of data parallel
training in bfloat16 moves, a gradient of 16 bits there and back.
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

TOLERANCE = 0.05
BITS = {"None": 32, "BFloat16": 16, "Int4": 4}
UNITS = ("u-0", "u-1")


@dataclass(frozen=True, slots=True)
class Size:
    workload: Workload
    rounds: int
    """How long bytes are counted, in units of H outer steps."""


FULL = Size(Workload(mebibytes=12, step_seconds=0.1), rounds=4)
SMOKE = Size(Workload(mebibytes=1, step_seconds=0.02), rounds=1)


def measured(directory: Path, size: Size, compression: str) -> tuple[float, float]:
    """(bytes up, bytes down) of one learner in one outer step."""
    with LinkRig(directory, size.workload, {"compression": compression}) as rig, Links() as links:
        link = links.add()
        far = link.relay(rig.address)
        interval = rig.job.training.sync_interval
        rig.start_syncer()
        for unit in UNITS:
            rig.start_link_learner(unit, far if unit == UNITS[0] else rig.address)
        reports = rig.reports()
        began = rig.report(reports, lambda report: all(unit_of(report, unit).contributions > 1 for unit in UNITS), steps=30).t
        first = rig.report(reports, lambda report: report.t > began + interval, interval)
        up, down = link.up.bytes, link.down.bytes
        last = rig.report(reports, lambda report: report.t >= first.t + size.rounds * interval, size.rounds * interval)
        steps = last.t - first.t
        return (link.up.bytes - up) / steps, (link.down.bytes - down) / steps


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    parameters = (size.workload.mebibytes << 20) // 4
    for compression, bits in BITS.items():
        with tempfile.TemporaryDirectory() as directory:
            up, down = measured(Path(directory) / "job", size, compression)
        ratio = (up + down) / (parameters * bits / 8 / 24 * 2)
        details = {"up": round(up), "down": round(down), "of_data_parallel": (up + down) / (parameters * 2 * 2)}
        yield Figure(f"bytes-per-step-{compression}", ratio, "ratio", 1 + TOLERANCE, abs(ratio - 1) <= TOLERANCE, 1, details)
