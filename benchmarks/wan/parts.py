"""[parts-step] [parts-gap] The job of [wan-*] as a job over four clusters, each with an operator of its own.

`parts-step` is the median step with the links of the regions between the clusters, over the step without them, the worse of BFloat16 and
Int4. Then one cluster is cut off for a while. `parts-gap` is the longest step of another cluster's unit from the cut until the unit behind
it contributes again, over its longest step in an equally long time before. Links are relays with a rate and a delay
(`diloco_local.links`); control planes are embedded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, Self

from builders.jobs import JobBuilder, Obj, template, tpu_pool
from builders.local_jobs import a_fleet
from diloco_local.control_plane import Listeners, LocalControlPlane, OtherFleet, ProgramOptions
from diloco_local.links import UNLIMITED, LinkShape
from diloco_local.processes import Priority
from diloco_operator.api.names import DILOCO_JOBS, JobKey
from diloco_operator.report import Report

from benchmarks import ROOT
from benchmarks.exchange_rig import Workload
from benchmarks.figure import Figure
from benchmarks.process_rig import ProcessRig, durations, durations_before
from benchmarks.wan.regions import REGIONS, Links, scaled

STEP_LIMIT: Final = 1.05
GAP_LIMIT: Final = 1.2
_HOME, *_OTHERS = (region.name for region in REGIONS)
_LOOK: Final = 0.1
_LONGEST: Final = 600.0
"""Most seconds of a wait. Only a failure takes this long."""


@dataclass(frozen=True, slots=True)
class Size:
    workload: Workload
    settled: int
    """Merged contributions that each unit must have before a measurement."""
    seconds: float
    """Length of the window in which a job is measured, and of the cut."""
    compressions: tuple[str, ...]


FULL = Size(Workload(mebibytes=16, step_seconds=0.25), settled=48, seconds=30.0, compressions=("BFloat16", "Int4"))
SMOKE = Size(Workload(mebibytes=1, step_seconds=0.05), settled=2, seconds=2.0, compressions=("Int4",))


@dataclass(frozen=True, slots=True)
class Window:
    """Measurements of one window."""

    step_seconds: float
    """The median of all steps."""
    units_in_each_merge: float


class PartsRig:
    """A job with a unit in each region's cluster, whose syncer is in the first one. It runs in `running`."""

    def __init__(self, folder: Path, size: Size, compression: str, links: Links | None) -> None:
        """`links`: between the clusters. None: everything is as near as one machine is."""
        self._size = size
        self.steps = ProcessRig(folder / "times", size.workload.timeout)
        self._job = a_job(size.workload, compression, folder / "times")
        self._report: Report | None = None

        def shape(region: int) -> LinkShape:
            return LinkShape(links.rates[region], links.delay(region, 0)) if links is not None else UNLIMITED

        self._plane = LocalControlPlane(
            folder / "state",
            a_fleet(tpus=1, gpus=0),
            programs=ProgramOptions({"PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))}, Priority.NORMAL),
            listeners=Listeners(on_report=self._take),
            clusters={name: OtherFleet(a_fleet(tpus=1, gpus=0), link=shape(region)) for region, name in enumerate(_OTHERS, 1)},
            syncer_link=LinkShape(links.rates[0]) if links is not None else UNLIMITED,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        async with self._plane:
            await self._plane.client.create(DILOCO_JOBS, self._job, field_manager="benchmark")
            yield self

    @property
    def units(self) -> list[str]:
        return [f"{region.name}-0" for region in REGIONS]

    def _take(self, _job: JobKey, report: Report) -> None:
        self._report = report

    async def settle(self) -> Report:
        """Wait until each unit has had some more contributions merged."""
        before = self._contributions()
        return await self.until(
            lambda: all(self._merged(unit, before) >= self._size.settled for unit in self.units), "each unit contributes"
        )

    async def until(self, holds: Callable[[], bool], what: str) -> Report:
        deadline = time.monotonic() + _LONGEST
        while not holds():
            if self._plane.failed.done():
                self._plane.failed.result()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what}: not within {_LONGEST:.0f} s; the newest report: {self._report}")
            await asyncio.sleep(_LOOK)
        assert self._report is not None
        return self._report

    async def window(self) -> Window:
        """Measure for some seconds."""
        before, start = await self.settle(), time.monotonic()
        await asyncio.sleep(self._size.seconds)
        after, end = self._report, time.monotonic()
        assert after is not None
        lengths = [step for ends in await self.ends_until(end) for step in durations(ends, start, end)]
        merged = sum(after.units[unit].contributions - before.units[unit].contributions for unit in self.units)
        return Window(median(lengths), merged / max(1, after.t - before.t))

    async def cut_off(self) -> tuple[float, float]:
        """Cut the last cluster off for some seconds. Returns the gap of `parts-gap`, and seconds from the end of the cut until the unit
        behind it contributes again."""
        seconds, own = self._size.seconds, self.units[-1]
        await self.settle()
        await asyncio.sleep(seconds)
        link, cut = self._plane.links[_OTHERS[-1]], time.monotonic()
        link.cut()
        await asyncio.sleep(seconds)
        had, healed = self._contributions(), time.monotonic()
        link.heal()
        await self.until(lambda: self._merged(own, had) > 0, f"{own} contributes again")
        back = time.monotonic()
        others = (await self.ends_until(back))[:-1]
        gap = max(max(durations(ends, cut, back)) / max(durations_before(ends, cut - seconds, cut)) for ends in others)
        return gap, back - healed

    async def ends_until(self, end: float) -> list[list[float]]:
        return await asyncio.to_thread(self.steps.steps_until, self.units, end)

    def _contributions(self) -> Mapping[str, int]:
        return {name: unit.contributions for name, unit in self._report.units.items()} if self._report is not None else {}

    def _merged(self, unit: str, before: Mapping[str, int]) -> int:
        return self._contributions().get(unit, 0) - before.get(unit, 0)


def a_job(workload: Workload, compression: str, times: Path) -> Obj:
    """A pool of one unit in each region."""
    command = ["python", "-m", "benchmarks.wan.learner", f"{times}/$(DILOCO_UNIT).times"]
    command += ["--mebibytes", str(workload.mebibytes), "--step-seconds", str(workload.step_seconds)]
    learner = template(command=command, env={"OMP_NUM_THREADS": "1"})
    where: Sequence[dict[str, str]] = [{}, *({"cluster": name} for name in _OTHERS)]
    pools = [tpu_pool(name, topology="2x2x1", max=1, template=learner, **at) for name, at in zip((_HOME, *_OTHERS), where, strict=True)]
    checkpoint = {"everySteps": 100, "keep": 1}
    return (
        JobBuilder("wan")
        .with_metadata(namespace="default")
        .with_learners(len(pools), len(pools))
        .with_pools(*pools)
        .with_training(steps=1_000_000, compression=compression, checkpoint=checkpoint)
        .with_spec(syncer={"externalAddress": "wan-syncer.wan.default.svc"})
        .build()
    )


async def measured(
    folder: Path, size: Size, compression: str, links: Links | None, *, cut: bool
) -> tuple[Window, tuple[float, float] | None]:
    async with PartsRig(folder, size, compression, links).running() as rig:
        window = await rig.window()
        return window, await rig.cut_off() if cut else None


def measure(*, smoke: bool) -> Iterator[Figure]:
    """Yield both figures of one run."""
    size = SMOKE if smoke else FULL
    links = scaled(size.workload.mebibytes * (1 << 20) // 4, size.workload.step_seconds)
    ratios: dict[str, float] = {}
    details: dict[str, Any] = {"megabits": [round(rate / 1e6, 1) for rate in links.rates]}
    gap = back = 0.0
    with tempfile.TemporaryDirectory() as directory:
        for compression in size.compressions:
            folder = Path(directory) / compression
            together, _ = asyncio.run(measured(folder / "together", size, compression, None, cut=False))
            apart, cut = asyncio.run(measured(folder / "apart", size, compression, links, cut=compression == size.compressions[-1]))
            ratios[compression] = apart.step_seconds / together.step_seconds
            details[compression] = {
                "step_seconds": [round(together.step_seconds, 4), round(apart.step_seconds, 4)],
                "units_in_each_merge": [round(together.units_in_each_merge, 2), round(apart.units_in_each_merge, 2)],
            }
            if cut is not None:
                gap, back = cut
    worst = max(ratios.values())
    yield Figure("parts-step", worst, "ratio", STEP_LIMIT, worst <= STEP_LIMIT, 1, details)
    yield Figure("parts-gap", gap, "ratio", GAP_LIMIT, gap <= GAP_LIMIT, 1, {"cut_seconds": size.seconds, "back_seconds": round(back, 1)})
