"""[step-tax-gpu] What a job costs a step on a GPU, and what it costs a unit to give its state to another one.

Two equal models train on the card in turns, one in a job and one by itself, in blocks of steps. Within 24 steps each of 24 fragments is
read once and adopted once.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

import diloco.torch
import torch
from diloco.protocol.diloco_pb2 import UnitReport
from torch.profiler import ProfilerActivity, profile

from benchmarks.device.decoders import Decoder
from benchmarks.device.part import PartOptions, log, print_result, run
from benchmarks.exchange_rig import ExchangeRig, Workload
from benchmarks.figure import percentile
from benchmarks.rejoin import TAKER, first_contribution

LIMITS: Final = {"median": 1.02, "p99": 1.1}
H: Final = 24
STEP_SECONDS: Final = 0.1
"""The length of a step for which the batch is chosen."""
PAUSE: Final = 0.3
"""Seconds between two blocks, so that messages under way arrive."""
PROFILED: Final = 8
"""Steps under the profiler."""
LARGE_SECONDS: Final = 40.0
"""If less time is left, the model of 1 B parameters is left out."""
LARGE_ROWS: Final = 8


@dataclass
class Times:
    """Seconds, where nothing else is said."""

    with_job: list[float] = field(default_factory=list)
    """Steps of the model in the job."""
    without: list[float] = field(default_factory=list)
    """Steps of the other model."""
    adoptions: list[float] = field(default_factory=list)
    """Step boundaries that adopt."""
    boundaries: list[float] = field(default_factory=list)
    """All other step boundaries."""
    wire: float = 0.0
    """Bytes over loopback while the model in the job trained."""
    copies: float = 0.0
    """The share of the time in which the device copies from and to the host."""


class Pair:
    """Two equal models: one joins the job, one trains apart."""

    def __init__(self, shape: str, given: PartOptions, rows: int) -> None:
        self.shape, self.device, self.rows = shape, given.device, rows
        self.joined, self.apart = Decoder(shape, given.device, rows), Decoder(shape, given.device, rows)

    def measure(self, member: InJob, blocks: int, steps: int) -> Times:
        """Train both models in turns, in blocks of `steps` steps. The first two steps of a block do not count."""
        for _ in range(H):
            member.step()
        times = Times()
        for _ in range(blocks):
            with member.session.paused("the same without the job", at_most=600):
                time.sleep(PAUSE)
                times.without += [_timed(self.apart.update) for _ in range(steps)][2:]
            before = _loopback_bytes()
            times.with_job += [_timed(member.step) for _ in range(steps)][2:]
            times.wire += _loopback_bytes() - before
        times.adoptions, times.boundaries = member.adoptions, member.boundaries
        if self.device == "cuda":
            times.copies = _copies(member)
        return times


class InJob:
    """A decoder in a job."""

    def __init__(self, rig: ExchangeRig, decoder: Decoder, rows: int) -> None:
        self._decoder = decoder
        self._adopted: list[str] = []
        self.session = diloco.torch.join(
            decoder.model, optimizer=decoder.optimizer, on_adopt=self._adopted.extend, environment=rig.learner_environment("donor")
        )
        self._batches = self.session.batches(lambda numbers: numbers, rows)
        self.adoptions: list[float] = []
        self.boundaries: list[float] = []

    def step(self) -> None:
        next(self._batches)
        loss = self._decoder.update()
        self._adopted.clear()
        seconds = _timed(lambda: self.session.step(tokens=self._decoder.tokens, loss=loss))
        (self.adoptions if self._adopted else self.boundaries).append(seconds)


def _timed(do: Callable[[], object]) -> float:
    """Seconds that `do` takes."""
    began = time.monotonic()
    do()
    return time.monotonic() - began


def _loopback_bytes() -> int:
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:"))


def _copies(member: InJob) -> float:
    """The share of the time in which the device copies from and to the host."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        began = time.monotonic()
        for _ in range(PROFILED):
            member.step()
        seconds = time.monotonic() - began
    copying: float = sum(row.device_time_total for row in profiler.key_averages() if "Memcpy HtoD" in row.key or "Memcpy DtoH" in row.key)
    return copying / 1e6 / seconds


def rows_for(given: PartOptions, shape: str) -> int:
    """The number of rows with which a step takes about STEP_SECONDS."""
    if given.small:
        return 2
    rows = 16
    decoder = Decoder(shape, given.device, rows)
    for _ in range(3):
        decoder.update()
    seconds = median(_timed(decoder.update) for _ in range(5))
    return max(4, min(64, round(rows * STEP_SECONDS / seconds)))


def tell(shape: str, compression: str, pair: Pair, times: Times) -> None:
    with_job, without = ({"median": median(seconds), "p99": percentile(seconds, 0.99)} for seconds in (times.with_job, times.without))
    print_result(
        f"step-tax {shape} {compression}",
        with_job["median"] / without["median"],
        "median step with the job ÷ without",
        p99=round(with_job["p99"] / without["p99"], 4),
        limits=LIMITS,
        step_ms={name: round(1000 * seconds, 2) for name, seconds in without.items()},
        adoption_ms=round(1000 * median(times.adoptions), 3) if times.adoptions else None,
        boundary_ms=round(1000 * median(times.boundaries), 3),
        adoptions=len(times.adoptions),
        wire_mb_per_second=round(times.wire / sum(times.with_job) / 1e6, 1),
        copies_share=round(times.copies, 4),
        parameters=pair.joined.parameters,
        rows=pair.rows,
        steps=len(times.with_job),
    )


def taken_state(rig: ExchangeRig, member: InJob, pair: Pair) -> None:
    """Let another unit take the state of this one, which trains on meanwhile, and print what that costs both."""
    reports: list[UnitReport] = []
    waiting = threading.Thread(target=lambda: reports.append(first_contribution(rig)[1]), daemon=True)
    before = [_timed(member.step) for _ in range(H)]
    arguments = ("--shape", pair.shape, "--device", pair.device, "--rows", str(pair.rows))
    rig.start_program(TAKER, "benchmarks.device.decoder_learner", *arguments)
    began = time.monotonic()
    waiting.start()
    during = []
    while waiting.is_alive():
        during.append(_timed(member.step))
    if not reports:
        raise RuntimeError(f"the unit that came has contributed nothing\n{rig.logs()}")
    recovery = reports[0].recovery
    phases = {
        phase: round(getattr(recovery, f"{phase}_seconds"), 2) for phase in ("start", "parameters", "donor", "wait", "copy", "first_step")
    }
    print_result(
        f"rejoin {pair.shape}",
        time.monotonic() - began,
        "s to the first contribution",
        state_bytes=recovery.bytes,
        why=recovery.why,
        **phases,
    )
    longest = max(during) / max(before)
    print_result(
        f"donor-tax {pair.shape}",
        longest,
        "longest step of the donor ÷ its longest before",
        median=round(median(during) / median(before), 4),
    )


def train(given: PartOptions, shape: str, compression: str, pair: Pair, *, blocks: int, steps: int, rejoin: bool) -> None:
    training = {"fragments": H, "sync_interval": H, "overlap_steps": 2, "compression": compression}
    with tempfile.TemporaryDirectory() as folder, ExchangeRig(Path(folder) / "job", Workload(0, 0.0), training) as rig:
        rig.start_syncer()
        member = InJob(rig, pair.joined, pair.rows)
        tell(shape, compression, pair, pair.measure(member, blocks, steps))
        if rejoin:
            del pair.apart  # frees memory for the unit that joins
            torch.cuda.empty_cache()
            taken_state(rig, member, pair)
        member.session._member.abandon(None)  # the syncer is killed next, so Bye is not waited for


def main(given: PartOptions) -> None:
    torch.set_num_threads(1)
    shape = "small" if given.small else "124M"
    pair = Pair(shape, given, rows_for(given, shape))
    for compression in ("None", "BFloat16", "Int4"):
        log(f"{shape} {compression}, {given.left:.0f} s are left")
        last = given.small and compression == "Int4"
        train(given, shape, compression, pair, blocks=1 if given.small else 2, steps=6 if given.small else 2 * H, rejoin=last)
    if given.small:
        return
    del pair
    torch.cuda.empty_cache()
    if given.left < LARGE_SECONDS:
        log(f"{given.left:.0f} s are left: not enough for 1 B parameters")
        return
    train(given, "1B", "Int4", Pair("1B", given, LARGE_ROWS), blocks=1, steps=H, rejoin=True)


if __name__ == "__main__":
    run(main)
