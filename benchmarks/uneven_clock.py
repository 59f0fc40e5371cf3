"""[uneven-clock] How well the syncer's clock keeps pace with the mean local step when steps have uneven lengths.

Eight equal units have steps like those of real programs: an evaluation or a checkpoint every few steps, batches of uneven size, or one
unusually long step. They run on virtual time with the real coordinator; H = P = 24, tau = 2, K = 1.

`uneven-clock` is the number of outer steps per mean local step over 20 intervals, for the pattern in which it is furthest from 1.

`uneven-windows` is the share of the windows of H outer steps in which that ratio is within 1 +- 0.1, for the run in which it is least.

`uneven-merges` is the share of the possible contributions that came into merges. A contribution is possible if the unit's step ends between
the pull and the moment when the mean learner has taken tau + 1 steps.

`grace-window` shows the effect of `grace.maxSteps`. The steps of one unit take 20 times as long as those of three others, so it misses
pulls of fragments that it has not trained since it adopted them, and its answers come late. The value is how much 4 steps instead of 0
raise the share of the merges that the unit is in: the lower end of the 95 % interval of the mean over seeds (Student's t). It runs in an
engine on virtual time, in which learners stage fragments ahead. The limit is a third of what four more steps can add: the unit ends a step
in 4 / 20 more of the exchanges, and in half of these it has trained the fragment.
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
"""Number of values -> the 97.5 % quantile of Student's t, with one degree of freedom less."""


def measure(*, smoke: bool) -> Iterator[Figure]:
    seeds = 1 if smoke else SEEDS
    by_pattern = {name: [measure_pace(name, cycles=4 if smoke else 20, seed=seed) for seed in range(seeds)] for name in PATTERNS}
    ratios = {name: max((run.ratio for run in runs), key=lambda ratio: abs(ratio - 1)) for name, runs in by_pattern.items()}
    worst = max(ratios.values(), key=lambda ratio: abs(ratio - 1))
    runs = seeds * len(PATTERNS)
    yield Figure("uneven-clock", worst, "outer steps per mean step", 1.1, 0.9 <= worst <= 1.1, runs, {"ratios": ratios})
    merged = {name: min(run.merged for run in runs) for name, runs in by_pattern.items()}
    units = {name: sum(run.units for run in runs) / len(runs) for name, runs in by_pattern.items()}
    least = min(merged.values())
    windows = {name: min(run.within for run in runs) for name, runs in by_pattern.items()}
    yield Figure("uneven-windows", min(windows.values()), "share", 0.9, min(windows.values()) >= 0.9, runs, {"shares": windows})
    yield Figure("uneven-merges", least, "share", 0.9, least >= 0.9, runs, {"shares": merged, "units": units})
    yield _grace_window(smoke=smoke)


def _grace_window(*, smoke: bool) -> Figure:
    steps, seeds = (120, 2) if smoke else (600, SEEDS)
    shares = {grace: [_with_grace(grace, steps, seed) for seed in range(seeds)] for grace in (0.0, 4.0)}
    gains = [with_window - without for without, with_window in zip(shares[0.0], shares[4.0], strict=True)]
    least = mean(gains) - STUDENT_T[seeds] * stdev(gains) / math.sqrt(seeds)
    details = {"gain": mean(gains), "shares": {str(grace): mean(run_shares) for grace, run_shares in shares.items()}}
    return Figure("grace-window", least, "share of merges", LEAST_GAIN, least >= LEAST_GAIN, seeds, details)


def _with_grace(grace: float, steps: int, seed: int) -> float:
    with tempfile.TemporaryDirectory() as directory:
        return share_of_one_slow_unit(Path(directory), 20.0, grace, steps=steps, seed=seed)
