"""[learning-law] What a job of M units loses against data parallel, at equal parameters, tokens and order of the data.

The protocol is that of arXiv 2503.09799, Table 4, for a small machine: warm-up over 9 % of the steps, cosine to 5 %, weight decay
1 / steps, clip 1; equal numbers of tuning trials for each arm, at half of the steps and with a seed that is not counted, until the best
rates lie inside of those that were tried; three further seeds. The outer momentum is tuned too (docs/results/quality.md says why). The
value is the number of registered predictions that did not come true.

    ARMS=interval,coding,merge,outer,momentum,batch,bits,late,parameters,quorum,failures python -m benchmarks learning-law

also trains the arms beyond, with the tuned rates of theirs. `.law/` has every trial that has ended, and none is trained twice: delete it to
begin anew.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import ROOT
from benchmarks.figure import Figure
from benchmarks.law.beyond import GROUPS, beyond
from benchmarks.law.chart import plot_law
from benchmarks.law.losses import Losses, at_once, trainers
from benchmarks.law.registered import Found, Gap, outcome
from benchmarks.law.runs import Runs
from benchmarks.law.tapes import TAPE_GROUPS, TapeTrial, trained_under, under_tape
from benchmarks.law.train import trained
from benchmarks.law.trials import Arm, Rates, Trial
from benchmarks.law.tuning import LEAST_TRIALS, best, is_inside, next_rates
from benchmarks.plots import plot

LIMIT: Final = 0
FOLDER: Final = ROOT / ".law"
DATA_PARALLEL: Final = Arm(0)
TUNING_SEED: Final = 0
_ENVIRONMENT: Final = "ARMS"


@dataclass(frozen=True, slots=True)
class Scale:
    """What the law trains: a smoke run less than the whole."""

    size: str
    larger: str
    units: Sequence[int]
    seeds: Sequence[int]
    least_trials: int
    inside: bool
    """An arm is tuned until its best rates lie inside of what was tried."""
    interval: int


FULL: Final = Scale("98k", "332k", (1, 2, 4, 8), (11, 12, 13), LEAST_TRIALS, True, 30)
SMOKE: Final = Scale("smoke", "smoke", (1, 2, 4, 8), (11, 12), 1, False, 5)


def measure(*, smoke: bool) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder, trainers() as pool:
        scale, kept = (SMOKE, Path(folder)) if smoke else (FULL, FOLDER)
        asked = [*GROUPS, *TAPE_GROUPS] if smoke else [each for each in os.environ.get(_ENVIRONMENT, "").split(",") if each]
        if unknown := [each for each in asked if each not in GROUPS and each not in TAPE_GROUPS]:
            raise ValueError(f"{_ENVIRONMENT}: there are no arms {', '.join(unknown)}; choose from {', '.join((*GROUPS, *TAPE_GROUPS))}")
        losses = Losses(kept / "runs.jsonl", pool, trained)
        tapes = Runs(kept / "tapes.jsonl", lambda trial: pool.submit(trained_under, trial).result(), TapeTrial.as_json)
        tapes.read(TapeTrial.from_json)
        law = Law(scale, losses)
        found = law.found()
        plot("learning-law", partial(plot_law, found), smoke=smoke)
        results = outcome(found)
        failed = [name for name, true in results.items() if not true]
        yield Figure("learning-law", len(failed), "predictions failed", LIMIT, len(failed) <= LIMIT, len(scale.seeds), law.details(failed))
        for group in asked:
            if group in GROUPS:
                line = beyond(group, law.tuned, scale.size, scale.seeds[0], scale.interval, losses)
            else:
                line = under_tape(group, law.tuned, scale.size, scale.seeds, scale.interval, tapes)
            yield Figure(f"learning-{group}", line.value, line.unit, line.limit, line.within, line.runs, line.details)


class Law:
    """The arms with their tuned rates."""

    def __init__(self, scale: Scale, losses: Losses) -> None:
        """Tune every arm."""
        self._scale, self._losses = scale, losses
        self._arms = {units: Arm(units, interval=scale.interval) for units in scale.units}
        arms = [DATA_PARALLEL, *self._arms.values()]
        trials = max(at_once(partial(self._tune, least=scale.least_trials), arms))
        at_once(partial(self._tune, least=trials), arms)
        self.trials = trials
        self.tuned = {arm: best(self._tried(arm)) for arm in arms}

    def found(self) -> Found:
        """Return what the counted seeds and the larger size say."""
        scale, arms = self._scale, [DATA_PARALLEL, *self._arms.values()]
        counted = [self._trial(arm, seed) for seed in scale.seeds for arm in arms]
        larger = [replace(self._trial(arm, scale.seeds[0]), size=scale.larger) for arm in arms if arm.units != 1]
        self._losses.all([*counted, *larger])
        gaps = {units: Gap([self._gap(units, seed, scale.size) for seed in scale.seeds]) for units in scale.units}
        return Found(
            gaps,
            {units: self.tuned[arm].outer for units, arm in self._arms.items()},
            {units: self._gap(units, scale.seeds[0], scale.larger) for units in scale.units if units != 1},
            {units: self._gap(units, scale.seeds[0], scale.size) for units in scale.units},
        )

    def details(self, failed: Sequence[str]) -> Mapping[str, object]:
        """Return the fields of the line."""
        found, scale, known = self.found(), self._scale, self._losses.known
        losses = {
            f"{arm.name} {size}": [
                round(known[trial], 4) for seed in scale.seeds if (trial := replace(self._trial(arm, seed), size=size)) in known
            ]
            for size in dict.fromkeys((scale.size, scale.larger))
            for arm in self.tuned
        }
        return {
            "failed": list(failed),
            "gap_percent": {f"m{units}": [round(100 * gap.mean, 2), round(100 * gap.error, 2)] for units, gap in found.gaps.items()},
            "gap_percent_larger": {f"m{units}": round(100 * gap, 2) for units, gap in found.larger.items()},
            "gap_percent_same_seed": {f"m{units}": round(100 * gap, 2) for units, gap in found.same_seed.items()},
            "losses": {name: values for name, values in losses.items() if values},
            "rates": {
                arm.name: [round(rates.inner, 6), *([rates.outer, rates.momentum] if arm.units else [])]
                for arm, rates in self.tuned.items()
            },
            "trials_per_arm": self.trials,
            "rounds": {
                size: Trial(size, self._arms[scale.units[-1]], Rates(), 0).rounds for size in dict.fromkeys((scale.size, scale.larger))
            },
            "commits": self._losses.commits,
        }

    def _gap(self, units: int, seed: int, size: str) -> float:
        losses = self._losses.known
        of_job, alone = (replace(self._trial(arm, seed), size=size) for arm in (self._arms[units], DATA_PARALLEL))
        return losses[of_job] / losses[alone] - 1

    def _trial(self, arm: Arm, seed: int) -> Trial:
        return Trial(self._scale.size, arm, self.tuned[arm], seed)

    def _tried(self, arm: Arm) -> dict[Rates, float]:
        known = self._losses.known.items()
        return {
            trial.rates: loss
            for trial, loss in known
            if (trial.size, trial.arm, trial.seed, trial.halves) == (self._scale.size, arm, TUNING_SEED, 1)
        }

    def _tune(self, arm: Arm, *, least: int) -> int:
        """Try rates until there are `least`, and the best are inside; return how many there are."""
        while True:
            tried = self._tried(arm)
            enough = not self._scale.inside or is_inside(tried, outer=bool(arm.units))
            if len(tried) >= least and enough:
                return len(tried)
            self._losses.loss(Trial(self._scale.size, arm, next_rates(tried, outer=bool(arm.units)), TUNING_SEED, halves=1))
