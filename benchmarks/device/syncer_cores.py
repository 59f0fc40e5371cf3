"""[syncer-cores] What a syncer does with many cores: its path without a network; with many learners, its merges and the lag of its loop.

The learners hold no model (`light_learners`). A process has at most GROUP of them, so that their own loop is not what is measured.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from builders.child_processes import die_with_parent
from builders.wire import watch
from diloco.contract import Training
from diloco.protocol.diloco_pb2 import Report, WatchRequest

from benchmarks.device.part import PartOptions, log, print_result, run
from benchmarks.exchange_rig import ExchangeRig, Workload
from benchmarks.figure import percentile
from benchmarks.sizes import engine
from benchmarks.sizes.light_learners import light_learners
from benchmarks.sizes.own_process import in_own_process

GROUP = 16
"""Most learners in one process."""
COMPRESSION = "Int4"
MEASURED = 5.0
"""Seconds in which merges are counted, once all learners train."""


@dataclass(frozen=True, slots=True)
class Load:
    mebibytes: int
    learners: int
    step_seconds: float


FULL = (Load(64, 8, 0.02), Load(64, 64, 0.02), Load(1024, 8, 0.1), Load(1024, 64, 0.1))
"""Steps are shorter than their merges, so that the syncer is the bottleneck."""
SMALL = (Load(1, 2, 0.05),)


def path_alone(given: PartOptions) -> None:
    """Measure [engine] on two threads, as that benchmark does, and on all cores."""
    side, exchanges, runs = (64, 2, 1) if given.small else (2048, 6, 3)
    path = engine.Path(side, Training(steps=100, fragments=engine.FRAGMENTS, compression=COMPRESSION))
    for threads in dict.fromkeys((engine.CORES, os.cpu_count() or engine.CORES)):
        rates = [path.rate(exchanges, threads) for _ in range(runs)]
        print_result("engine", median(rates), "GiB of float32 a second", threads=threads, compression=COMPRESSION, runs=runs)


async def _learn(rig: ExchangeRig, first: int, count: int, folder: Path) -> None:
    async with light_learners(rig, count, first):
        _ready(folder, first).touch()
        while not _stop(folder).exists():  # noqa: ASYNC110 -- another process makes the file
            await asyncio.sleep(0.05)


def learn(rig: ExchangeRig, first: int, count: int, folder: Path) -> None:
    """Train with `count` learners, numbered from `first`, until the file `stop` exists. Runs in a process that is forked for them."""
    die_with_parent()
    asyncio.run(_learn(rig, first, count, folder))


def _ready(folder: Path, first: int) -> Path:
    return folder / f"{first}.ready"


def _stop(folder: Path) -> Path:
    return folder / "stop"


@dataclass(frozen=True, slots=True)
class LoadResult:
    join_seconds: float
    merges: float
    """Merges per second, each with the contributions of all learners."""
    lags: list[float]
    """Lag at each tick of the loop, milliseconds."""
    waits: list[float]
    """The part of each lag in which the loop's thread could have run but had no core, milliseconds."""


def under_load(folder: Path, load: Load) -> LoadResult:
    """Train with the learners of this load, and measure their syncer. This forks, so it must run in a process that has not used gRPC."""
    training = {"compression": COMPRESSION, "quorum": load.learners}
    with ExchangeRig(folder / "job", Workload(load.mebibytes, load.step_seconds), training) as rig:
        lags = folder / "lags"
        rig.start_syncer("-m", "benchmarks.sizes.watched_syncer", str(lags))
        began = time.monotonic()
        forking = multiprocessing.get_context("fork")
        starts = range(0, load.learners, GROUP)
        processes = [forking.Process(target=learn, args=(rig, first, min(GROUP, load.learners - first), folder)) for first in starts]
        for process in processes:
            process.start()
        while not all(_ready(folder, first).exists() for first in starts):
            if not all(process.is_alive() for process in processes):
                raise RuntimeError(f"learners ended before all of them trained\n{rig.logs()}")
            time.sleep(0.05)
        joined = time.monotonic()
        reports = _reports(rig)
        first_report = next(reports)
        last = next(report for report in reports if report.clock - first_report.clock >= MEASURED)
        ended = time.monotonic()
        _stop(folder).touch()
        for process in processes:
            process.join()
        ticks = [[float(field) for field in line.split()] for line in lags.read_text(encoding="ascii").splitlines()[:-1]]
    ticks_of_training = [(1000 * lag, 1000 * waited) for due, lag, waited in ticks if joined <= due <= ended]
    seconds = last.clock - first_report.clock
    return LoadResult(
        joined - began,
        (last.contributions - first_report.contributions) / load.learners / seconds,
        [lag for lag, _ in ticks_of_training],
        [waited for _, waited in ticks_of_training],
    )


def _reports(rig: ExchangeRig) -> Iterator[Report]:
    with rig.certificates.channel(rig.address, rig.certificates.operator()) as channel:
        yield from watch(channel)(WatchRequest(interval_seconds=0.2))


def main(given: PartOptions) -> None:
    path_alone(given)
    loads = SMALL if given.small else FULL
    for load in loads:
        log(f"{load}, {given.left:.0f} s are left")
        with tempfile.TemporaryDirectory() as folder:
            result = in_own_process(under_load, Path(folder), load)
        details = {"mebibytes": load.mebibytes, "learners": load.learners, "compression": COMPRESSION, "cores": os.cpu_count()}
        print_result("merges", result.merges, "fragments a second, each from all learners", **details)
        own = [max(0.0, lag - waited) for lag, waited in zip(result.lags, result.waits, strict=True)]
        more = {"p50": percentile(result.lags, 0.5), "longest": max(result.lags), "without_waiting": percentile(own, 0.99)}
        print_result(
            "loop-lag",
            percentile(result.lags, 0.99),
            "ms, p99",
            ticks=len(own),
            **{name: round(ms, 2) for name, ms in more.items()},
            **details,
        )
        print_result("joins", result.join_seconds, "s until all learners hold the model", **details)


if __name__ == "__main__":
    run(main)
