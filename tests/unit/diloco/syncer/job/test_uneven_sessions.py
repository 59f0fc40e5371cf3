"""Real sessions whose steps are of uneven length, as those of each program that evaluates now and then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from builders.exchange import LocalLearner, LocalSyncer, Place, job_file, training, until

H = 24
FRAGMENTS = 4
UNITS = 6
USUAL, LONG, EVERY = 0.02, 0.42, 21
"""Seconds of a step, and of every 21st one."""
MEAN = (USUAL * (EVERY - 1) + LONG) / EVERY
"""Seconds of a step: 39 ms."""


class State(NamedTuple):
    """How far the job is."""

    t: int
    local: float
    """Steps of a unit, in the mean."""
    contributions: int
    """Contributions of all units."""


def from_step(first: int) -> Callable[[int], float]:
    """Each unit evaluates at another time."""
    return lambda step: LONG if (step + first) % EVERY == 0 else USUAL


@pytest.mark.slow
def test_units_with_a_long_step_now_and_then_keep_the_clock_and_are_in_the_merges(tmp_path: Path) -> None:
    place = Place(tmp_path, job_file(training(100_000, sync_interval=H, fragments=FRAGMENTS, overlap_steps=2)))
    with LocalSyncer(place) as syncer:
        starts = [index * EVERY // UNITS for index in range(UNITS)]
        units = [
            LocalLearner(place, syncer.address, f"u-{index}", step_seconds=from_step(start)).start() for index, start in enumerate(starts)
        ]

        def state() -> State:
            report = syncer.call(syncer.syncer.engine.report)
            return State(report.t, sum(unit.steps for unit in units) / UNITS, sum(unit.contributions for unit in report.units))

        until(lambda: syncer.report().t >= H and all(unit.steps > EVERY for unit in units), "a first interval of all units")
        before = state()
        until(lambda: syncer.report().t >= before.t + 5 * H, "five intervals")
        after = state()
        for unit in units:
            unit.drain()
        for unit in units:
            unit.wait()
    outer = after.t - before.t
    assert outer / (after.local - before.local) == pytest.approx(1.0, abs=0.1)
    # A fragment is merged every H / FRAGMENTS outer steps. A unit in its long step cannot answer, but for the mean steps of the overlap:
    # (LONG - 2 x 39 ms) of the 820 ms in which it takes EVERY steps. So 0.58 of the contributions are possible at least; more, as a
    # session keeps answers ready. With the clock of the fastest steps 0.3 of them came.
    possible = 1 - (LONG - 2 * MEAN) / (EVERY * MEAN)
    assert (after.contributions - before.contributions) / (outer * FRAGMENTS / H * UNITS) >= 0.9 * possible
