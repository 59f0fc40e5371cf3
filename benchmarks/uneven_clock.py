"""[uneven-clock] How the syncer's clock keeps the mean local step when steps are of uneven length.

Eight equal units have steps as those of real programs (an evaluation or a checkpoint every few steps, batches of uneven size, one step that
is out of the ordinary), on virtual time with the real coordinator; H = P = 24, tau = 2, K = 1.

`uneven-clock` is the outer steps per mean local step over 20 intervals, of the pattern in which it is furthest from 1.

`uneven-merges` is the share of the contributions that came into merges, of those that were possible: a unit whose step ends between a pull
and tau + 1 mean steps later can answer it.

`grace-window` shows what the grace window changes: a unit with steps of 20 times those of three others misses pulls of
fragments that it has adopted and not trained since. The value is the share of the merges that it is in with a window of two mean steps, the
limit is that share without one; in an engine on virtual time, with what a learner stages ahead.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from builders.engine_simulation import share_of_one_slow_unit
from builders.uneven_steps import PATTERNS
from builders.uneven_steps import measure as measure_pace

from benchmarks.figure import Figure

SEEDS = 5


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
    yield Figure("uneven-merges", least, "share", 0.9, least >= 0.9, runs, {"shares": merged, "units": units})
    shares = {grace: _with_grace(grace, steps=120 if smoke else 600) for grace in (0.0, 1.0, 2.0)}
    wins = shares[0.0] < shares[2.0]
    yield Figure(
        "grace-window", shares[2.0], "share of merges", shares[0.0], wins, 1, {"shares": {str(key): one for key, one in shares.items()}}
    )


def _with_grace(grace: float, steps: int) -> float:
    with tempfile.TemporaryDirectory() as directory:
        return share_of_one_slow_unit(Path(directory), 20.0, grace, steps=steps)
