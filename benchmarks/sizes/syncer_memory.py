"""[syncer-memory*] Peak of the syncer's memory while snapshots are written and 8 or 64 learners take part, over what it must hold.

It must hold value and momentum of each fragment, with int4 also the residual; for each of 8 learners two fragments, or for each of 64
learners two contributions as they come on the wire. The learners hold no model (`light_learners`).
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diloco.algorithm.codec import Coding, coding_for, payload_bytes
from diloco.algorithm.fragments import make_fragments
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.contract import Training
from diloco.snapshots.store import generation_of

from benchmarks.exchange_rig import ExchangeRig, Workload
from benchmarks.figure import Figure, rounded
from benchmarks.fixed_step_learner import shapes
from benchmarks.process_rig import memory_bytes
from benchmarks.sizes.light_learners import light_learners
from benchmarks.sizes.own_process import in_own_process

LIMIT = 1.2
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Size:
    workload: Workload
    learners: int
    every_steps: int
    snapshots: int
    """How many snapshots to wait for, not counting the one of the seed."""
    compressions: tuple[str, ...] = ("BFloat16", "Int4")
    as_on_wire: bool = False
    """Whether the syncer must hold a contribution as it came on the wire, or else as a fragment."""


EIGHT = Size(Workload(mebibytes=1024, step_seconds=1.5), learners=8, every_steps=16, snapshots=2)
MANY = Size(Workload(mebibytes=256, step_seconds=3.0), learners=64, every_steps=8, snapshots=2, compressions=("Int4",), as_on_wire=True)
SMOKE = Size(Workload(mebibytes=1, step_seconds=0.05), learners=2, every_steps=5, snapshots=1)


def must_hold(size: Size, training: Training) -> int:
    """Bytes that the syncer must hold."""
    layout = Layout(TensorSpec(name, shape) for name, shape in shapes(size.workload.mebibytes).items())
    fragments = make_fragments(layout, training.fragments)
    copies = 3 if training.compression == "Int4" else 2
    coding = coding_for(training.compression) if size.as_on_wire else Coding.FLOAT32
    return 4 * copies * layout.size + 2 * size.learners * payload_bytes(coding, max(fragment.size for fragment in fragments))


async def peak_while_training(rig: ExchangeRig, size: Size) -> tuple[int, int]:
    """(peak when all learners have joined, peak when the snapshots are written), in bytes."""
    syncer = rig.start_syncer()
    async with light_learners(rig, size.learners):
        joined = memory_bytes(syncer.pid, "VmHWM")
        deadline = time.monotonic() + size.workload.timeout(10 * size.every_steps * (size.snapshots + 1))
        while max((generation_of(path.name) or 0 for path in rig.snapshots()), default=0) <= size.snapshots:
            if time.monotonic() > deadline or syncer.poll() is not None:
                raise RuntimeError(f"no {size.snapshots} snapshots came after that of the seed\n{rig.logs()}")
            await asyncio.sleep(0.5)
        return joined, memory_bytes(syncer.pid, "VmHWM")


def peaks(size: Size, compression: str) -> tuple[int, int, int]:
    """(peak when all learners have joined, peak when the snapshots are written, what the syncer must hold), in bytes."""
    training = {"compression": compression, "checkpoint": {"every_steps": size.every_steps, "keep": 1}}
    with tempfile.TemporaryDirectory() as directory, ExchangeRig(Path(directory) / "job", size.workload, training) as rig:
        joined, trained = asyncio.run(peak_while_training(rig, size))
        return joined, trained, must_hold(size, rig.job.training)


def figure(name: str, size: Size) -> Figure:
    """The largest ratio of the codings."""
    ratios, details = [], {}
    for compression in size.compressions:
        joined, trained, bound = in_own_process(peaks, size, compression)
        ratios.append(trained / bound)
        details[compression] = {"joined_mib": joined // MIB, "peak_mib": trained // MIB, "must_hold_mib": bound // MIB}
    value = max(ratios)
    return Figure(name, value, "ratio", LIMIT, value <= LIMIT, len(ratios), {"ratios": rounded(ratios, 3), **details})


def measure(*, smoke: bool) -> Iterator[Figure]:
    """Yield a figure for each number of learners."""
    yield figure("syncer-memory", SMOKE if smoke else EIGHT)
    yield figure("syncer-memory-64", SMOKE if smoke else MANY)
