"""Arms under a synthetic tape: real training on virtual time, while units differ in speed, are slow for a while, or fail.

What stands in the limits was predicted before any of them was trained. Arms of a group merge equal numbers of tokens: as many outer steps
are trained as the same tape needs for them, which a job without a model says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean
from typing import Any, Final, Self

import numpy as np
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.contract import Training
from diloco.learner.store import Float32Array
from diloco.trainers.inner_optimizer import InnerConfig
from numpy.typing import NDArray

from benchmarks.law.beyond import Line
from benchmarks.law.corpus import read_corpus
from benchmarks.law.losses import at_once
from benchmarks.law.runs import Outcome, Runs
from benchmarks.law.synthetic_tape import Fate, SyntheticTape, generate
from benchmarks.law.tape_torch import train
from benchmarks.law.tape_training import TrainedJob, TrainedModel
from benchmarks.law.train import FINAL, warmup_steps
from benchmarks.law.trials import SIZES, Arm, Rates, job

_SPREAD: Final = Fate(spread=0.35, slow_every=400, slow_factor=3.0, slow_seconds=40)
_FAILURES: Final = Fate(spread=0.05, fail_every=400, away_seconds=55)
"""Units are away for 12 % of the time, as eight are with 1.2 M chips (arXiv 2604.21428, Table 1)."""
_CALM: Final = replace(_FAILURES, fail_every=math.inf)
FATES: Final = {"spread": _SPREAD, "failures": _FAILURES, "calm": _CALM}


@dataclass(frozen=True, slots=True)
class TapeTrial:
    """One training under a tape."""

    size: str
    fate: str
    """A name of FATES."""
    units: int
    quorum: int
    grace: float
    """Most steps of a grace window."""
    interval: int
    rates: Rates
    seed: int
    warmup: int
    """Local steps. A unit that came back with the state of a peer does not warm up again."""

    @property
    def rows(self) -> int:
        """Return the samples of a unit's step."""
        return SIZES[self.size].rows // self.units

    @property
    def tape(self) -> SyntheticTape:
        """Return what happens to the units, for longer than the training takes."""
        return generate(self.units, 4.0 * SIZES[self.size].steps, FATES[self.fate], self.seed)

    def training(self, steps: int) -> Training:
        """Return a job of so many outer steps."""
        return job(steps, self.interval, self.rates, quorum=self.quorum, grace=self.grace)

    def as_json(self) -> dict[str, Any]:
        """Return it for a line."""
        return asdict(self)

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> Self:
        """Return the trial of a line. Raises KeyError or TypeError when it is none."""
        return cls(**{**line, "rates": Rates(**line["rates"])})

    def __str__(self) -> str:
        return f"{self.size}, {self.fate}: {self.units} units, quorum {self.quorum}, grace {self.grace:g}, seed {self.seed}"


class _NoModel:
    """Implements `TrainedModel` for a job that only counts."""

    def __init__(self) -> None:
        self._fragments: dict[int, Float32Array] = {}

    def step(self, numbers: NDArray[np.int64], progress: float) -> None:
        pass

    def read(self, fragment: int) -> Float32Array:
        return self._fragments.get(fragment, np.zeros(1, np.float32)).copy()

    def adopt(self, fragment: int, values: Float32Array) -> None:
        self._fragments[fragment] = values

    def restart(self, donor: TrainedModel | None) -> None:
        pass


def outer_steps(trial: TapeTrial) -> int:
    """Return the outer steps in which the size's tokens come into merges."""
    size = SIZES[trial.size]
    training = trial.training(100 * size.steps)
    layout = Layout(TensorSpec(f"t{number}", (1,)) for number in range(training.fragments))
    models = {name: _NoModel() for name in trial.tape.units}
    counted = TrainedJob(training, trial.tape, layout, models, trial.rows, trial.rows * size.context)
    counted.run(tokens=float(size.tokens))
    return counted.core.t


def trained_under(trial: TapeTrial) -> Outcome:
    """Return what came of the training, with `heldOutLoss` in nats per byte."""
    size, steps = SIZES[trial.size], outer_steps(trial)
    corpus = read_corpus(context=size.context, seed=trial.seed, tokens=2 * size.tokens, held_out=size.held_out)
    inner = InnerConfig(trial.rates.inner, trial.warmup, FINAL, weight_decay=1 / size.steps)
    return train(trial.tape, trial.training(steps), size.model, inner, trial.rows, trial.seed, corpus)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Arms by name, and the figure that they give: the loss of one arm ÷ that of another."""

    arms: Mapping[str, TapeTrial]
    of: str
    over: str
    limit: float


def _quorum(base: TapeTrial, rates: Mapping[int, Rates]) -> Comparison:
    """Compare K = 1 and grace with K = M, four units of unlike speeds."""
    four = replace(base, fate="spread", units=4, rates=rates[4])
    return Comparison({"K=4": replace(four, quorum=4), "K=1, no grace": replace(four, grace=0.0), "K=1": four}, "K=1", "K=4", 1.01)


def _failures(base: TapeTrial, rates: Mapping[int, Rates]) -> Comparison:
    """Compare eight units that are away for an eighth of the time with the same that never fail."""
    eight = replace(base, units=8, rates=rates[8])
    return Comparison({"failures": replace(eight, fate="failures"), "calm": replace(eight, fate="calm")}, "failures", "calm", 1.02)


TAPE_GROUPS: Final[Mapping[str, Callable[[TapeTrial, Mapping[int, Rates]], Comparison]]] = {
    "quorum": _quorum,
    "failures": _failures,
}
"""By the name that ARMS has."""


def under_tape(group: str, tuned: Mapping[Arm, Rates], size: str, seeds: Sequence[int], interval: int, runs: Runs[TapeTrial]) -> Line:
    """Return the figure of a group: the mean loss of one arm over the seeds ÷ that of another. `tuned`: rates of the law's arms.

    One seed says little: what a tape does early moves the loss of a training by several percent.
    """
    # The warm-up with which the rates were tuned: with another one chance decides (docs/results/quality.md).
    warmup = warmup_steps(SIZES[size].steps)
    base = TapeTrial(size, "calm", units=1, quorum=1, grace=1.0, interval=interval, rates=Rates(), seed=seeds[0], warmup=warmup)
    compared = TAPE_GROUPS[group](base, {arm.units: each for arm, each in tuned.items()})
    wanted = [replace(trial, seed=seed) for trial in compared.arms.values() for seed in seeds]
    known = dict(zip(wanted, at_once(runs.run, wanted), strict=True))
    found = {name: [known[replace(trial, seed=seed)] for seed in seeds] for name, trial in compared.arms.items()}
    losses = {name: [round(float(outcome["heldOutLoss"]), 4) for outcome in outcomes] for name, outcomes in found.items()}
    shown = {
        key: {name: [outcome[key] for outcome in outcomes] for name, outcomes in found.items()}
        for key in ("seconds", "outerSteps", "contributions", "staleness", "failures", "mergedTokens")
    }
    value = mean(losses[compared.of]) / mean(losses[compared.over])
    return Line(
        value,
        f"loss of {compared.of} / of {compared.over}",
        compared.limit,
        value <= compared.limit,
        {"losses": losses, **shown},
        len(seeds),
    )
