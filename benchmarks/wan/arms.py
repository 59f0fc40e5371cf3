"""Measurements across regions: a job of ours in one region and in four, data parallel, packet loss, and a region that is cut off."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.exchange_rig import Workload
from benchmarks.process_rig import durations
from benchmarks.wan.learner import TOKENS
from benchmarks.wan.network import WideNetwork
from benchmarks.wan.rig import WideRig

LIMIT_SECONDS: Final = 600.0
"""Most seconds of a wait. Only a failure takes this long."""
_HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Size:
    """What is measured, and how long."""

    workload: Workload
    regions: int
    """How many of `regions.REGIONS` have a learner. The last one, with the longest paths, is the one that is cut off."""
    settled: int
    """Merged contributions that each unit must have before a measurement."""
    seconds: float
    """Length of the window in which a job is measured."""
    group_steps: int
    """Steps of data parallel in each window."""
    cut_seconds: float
    losses: tuple[float, ...]
    compressions: tuple[str, ...]

    @property
    def parameters(self) -> int:
        """The number of parameters of the model."""
        return self.workload.mebibytes * (1 << 20) // 4


@dataclass(frozen=True, slots=True)
class Window:
    """Measurements of one window."""

    loss: float
    """Share of packets that are lost between regions."""
    step_seconds: float
    """The median of all steps of all learners."""
    tokens_per_hour: float
    """Trained tokens. With data parallel all of them are in the model, in a job of ours only the merged ones."""
    megabytes_per_step: float
    """Megabytes that all regions together sent to other regions, in one step of all learners."""
    merged_tokens_per_hour: float = 0.0
    units_in_each_merge: float = 0.0

    def as_details(self) -> dict[str, Any]:
        """The fields for a figure's line, rounded."""
        return {name: round(value, 4) if abs(value) < 1e3 else round(value) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Cut:
    """What it costs that a region is cut off and comes back."""

    seconds: float
    """Length of the cut."""
    others_longest_over_median: float
    """The longest step of the other units from the cut until the unit is back, over their median step before."""
    own_longest_over_median: float
    """The same for the unit that is cut off."""
    merges: int
    """Merges of the others during the cut."""
    back_seconds: float
    """Time from the end of the cut until a contribution of the unit is merged again."""


def job_window(rig: WideRig, network: WideNetwork, seconds: float, loss: float) -> Window:
    """Measure a running job for `seconds`."""
    before, sent_before, start = rig.reported(), network.sent(), time.monotonic()
    time.sleep(seconds)
    after, sent_after, end = rig.reported(), network.sent(), time.monotonic()
    assert before is not None, "it has been waited for"
    assert after is not None
    steps = sum(len(durations(ends, start, end)) for ends in rig.steps_until(rig.units, end)) / len(rig.units)
    outer = max(1, after.t - before.t)
    merged = sum(after.contributions.values()) - sum(before.contributions.values())
    return Window(
        loss,
        rig.median_step(start, end),
        steps * len(rig.units) * TOKENS * _HOUR / (end - start),
        (sum(sent_after.bytes) - sum(sent_before.bytes)) / 1e6 / steps,
        (after.tokens - before.tokens) * _HOUR / (after.at - before.at),
        merged / outer,
    )


def together(folder: Path, size: Size, network: WideNetwork, compression: str) -> Window:
    """Measure a job whose units are all in the syncer's region."""
    with WideRig(folder, size.workload, network, [0] * size.regions, {"compression": compression}) as rig:
        rig.start_job()
        rig.wait_for_all(size.settled, LIMIT_SECONDS)
        return job_window(rig, network, size.seconds, 0.0)


def apart(folder: Path, size: Size, network: WideNetwork, compression: str, *, cut: bool) -> tuple[list[Window], Cut | None]:
    """Measure a job with a unit in each region, under each loss. Then, with `cut`, cut one region off."""
    with WideRig(folder, size.workload, network, range(size.regions), {"compression": compression}) as rig:
        rig.start_job()
        windows = []
        for loss in size.losses:
            network.set_loss(loss)
            rig.wait_for_all(size.settled, LIMIT_SECONDS)
            windows.append(job_window(rig, network, size.seconds, loss))
        network.set_loss(0.0)
        return windows, cut_off(rig, size, network) if cut else None


def cut_off(rig: WideRig, size: Size, network: WideNetwork) -> Cut:
    """Cut a region off for a while, and wait until its unit contributes again."""
    before = rig.wait_for_all(size.settled, LIMIT_SECONDS)
    *others, own = rig.units
    start = time.monotonic()
    usual = {unit: median(durations(ends, start - size.seconds, start)) for unit, ends in _steps(rig, rig.units, start)}
    network.cut([size.regions - 1])
    time.sleep(size.cut_seconds)
    during = rig.reported()
    assert during is not None
    had = during.contributions.get(own, 0)
    healed = time.monotonic()
    network.cut([])
    back = rig.wait_until(lambda found: found.contributions.get(own, 0) > had, LIMIT_SECONDS, f"{own} contributes again")
    longest = {unit: max(durations(ends, start, back.at)) / usual[unit] for unit, ends in _steps(rig, rig.units, back.at)}
    return Cut(size.cut_seconds, max(longest[unit] for unit in others), longest[own], during.t - before.t, back.at - healed)


def _steps(rig: WideRig, units: Sequence[str], end: float) -> list[tuple[str, list[float]]]:
    return list(zip(units, rig.steps_until(units, end), strict=True))


def data_parallel(folder: Path, size: Size, network: WideNetwork) -> list[Window]:
    """Measure torch's DDP with a rank in each region, under each loss."""
    windows = []
    with WideRig(folder, size.workload, network, range(size.regions)) as rig:
        rig.start_group()
        done = 1  # the first step sets up the connections, so it does not count
        for loss in size.losses:
            network.set_loss(loss)
            done += 1  # nor does the first step under the new loss
            rig.wait_for_steps(rig.units, done, LIMIT_SECONDS)
            before, start = network.sent(), max(ends[done - 1] for ends in map(rig.step_ends, rig.units))
            done += size.group_steps
            rig.wait_for_steps(rig.units, done, LIMIT_SECONDS)
            after = network.sent()
            end = max(ends[done - 1] for ends in map(rig.step_ends, rig.units))
            step = (end - start) / size.group_steps
            tokens = len(rig.units) * TOKENS * _HOUR / step
            windows.append(
                Window(loss, step, tokens, (sum(after.bytes) - sum(before.bytes)) / 1e6 / size.group_steps, tokens, len(rig.units))
            )
        network.set_loss(0.0)
    return windows
