"""[uneven-clock] How the syncer's clock keeps the mean local step when steps are of uneven length.

Eight equal units have steps as those of real programs (an evaluation or a checkpoint every few steps, batches of uneven size, one step that
is out of the ordinary), on virtual time with the real coordinator; H = P = 24, tau = 2, K = 1.

`uneven-clock` is the outer steps per mean local step over 20 intervals, of the pattern in which it is furthest from 1.

`uneven-windows` is the share of the windows of H outer steps in which that ratio is within 1 +- 0.1, of the run in which it is least.

`uneven-merges` is the share of the contributions that came into merges, of those that were possible: a unit whose step ends between a pull
and the moment at which the mean learner has taken tau + 1 steps can answer it.

`grace-window` shows what `grace.maxSteps` changes: a unit with steps of 20 times those of three others misses pulls of fragments that it
has adopted and not trained since, and its answers come late. The value is by how much 4 steps in the place of 0 raise the share of the
merges that it is in: the lower end of the 95 % interval of the mean over seeds (Student's t). In an engine on virtual time, with what a
learner stages ahead. The limit is a third of what four more steps can add: the unit ends a step in 4 / 20 of the exchanges more, and half
of these find the fragment trained.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev

from builders.engine_simulation import share_of_one_slow_unit
from builders.uneven_steps import PATTERNS
from builders.uneven_steps import measure as measure_pace

from benchmarks.figure import Figure

SEEDS = 5
LEAST_GAIN = 0.03
STUDENT_T = {2: 12.706, 5: 2.776}
"""By number of values: the 97.5 % quantile of Student's t with one degree of freedom less."""


def measure(*, smoke: bool) -> Iterator[Figure]:
    seeds = 1 if smoke else SEEDS
    found = {name: [measure_pace(name, cycles=4 if smoke else 20, seed=seed) for seed in range(seeds)] for name in PATTERNS}
    ratios = {name: max((one.ratio for one in runs), key=lambda ratio: abs(ratio - 1)) for name, runs in found.items()}
    worst = max(ratios.values(), key=lambda ratio: abs(ratio - 1))
    runs = seeds * len(PATTERNS)
    yield Figure("uneven-clock", worst, "outer steps per mean step", 1.1, 0.9 <= worst <= 1.1, runs, {"ratios": ratios})
    merged = {name: min(one.merged for one in runs) for name, runs in found.items()}
    units = {name: sum(one.units for one in runs) / len(runs) for name, runs in found.items()}
    least = min(merged.values())
    windows = {name: min(one.within for one in runs) for name, runs in found.items()}
    yield Figure("uneven-windows", min(windows.values()), "share", 0.9, min(windows.values()) >= 0.9, runs, {"shares": windows})
    yield Figure("uneven-merges", least, "share", 0.9, least >= 0.9, runs, {"shares": merged, "units": units})
    yield _grace_window(smoke=smoke)


def _grace_window(*, smoke: bool) -> Figure:
    steps, seeds = (120, 2) if smoke else (600, SEEDS)
    shares = {grace: [_with_grace(grace, steps, seed) for seed in range(seeds)] for grace in (0.0, 4.0)}
    gains = [with_window - without for without, with_window in zip(shares[0.0], shares[4.0], strict=True)]
    least = mean(gains) - STUDENT_T[seeds] * stdev(gains) / math.sqrt(seeds)
    details = {"gain": mean(gains), "shares": {str(grace): mean(found) for grace, found in shares.items()}}
    return Figure("grace-window", least, "share of merges", LEAST_GAIN, least >= LEAST_GAIN, seeds, details)


def _with_grace(grace: float, steps: int, seed: int) -> float:
    with tempfile.TemporaryDirectory() as directory:
        return share_of_one_slow_unit(Path(directory), 20.0, grace, steps=steps, seed=seed)
