"""Arms beyond the law, each of one seed beside an arm of the law with the same seed. Pure but for the trainings.

What stands in the limits was predicted before any of them was trained.

See docs/decisions/0273-default-outer-optimizer.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from benchmarks.law.losses import Losses
from benchmarks.law.trials import SIZES, TRAINED, Arm, Rates, Trial

_REGISTERED: Final = "0.7/0.6"
"""The API's default when the prediction was made. Most arms are tuned to that of today, so a comparison with it would say nothing."""
_CANDIDATES: Final = ((7, 9), (7, 6), (6, 3))
"""Outer rates and momenta, in tenths: of the first publication, and the API's defaults then and today."""


@dataclass(frozen=True, slots=True)
class Line:
    """One figure."""

    value: float
    unit: str
    limit: float
    within: bool
    details: Mapping[str, object] = field(default_factory=dict)
    runs: int = 1
    """Seeds of each arm."""


@dataclass(frozen=True, slots=True)
class _Base:
    tuned: Mapping[Arm, Rates]
    size: str
    seed: int
    interval: int

    def arm(self, units: int) -> Arm:
        """Return the arm of the law with this number of units."""
        return Arm(units, interval=self.interval) if units else Arm(0)

    def trial(self, arm: Arm, rates: Rates | None = None) -> Trial:
        """Return the trial of an arm with these rates; None: those that were tuned for its number of units."""
        return Trial(self.size, arm, rates or self.tuned[self.arm(arm.units)], self.seed)


def _interval(base: _Base, trained: Losses) -> Line:
    """Return how much worse H = 1 is than H = 10 with four units, and each H against the law's."""
    intervals = [each for each in (1, 10, base.interval, 100) if each <= SIZES[base.size].steps]
    trials = {f"H={each}": base.trial(replace(base.arm(4), interval=each)) for each in intervals}
    losses = _losses(trained, trials)
    value = losses["H=1"] / losses["H=10"]
    return Line(value, "loss at H = 1 / at H = 10", 1.0, value >= 1.0, {"losses": losses})


def _coding(base: _Base, trained: Losses) -> Line:
    """Return the loss with Int4 ÷ without a coding, four units."""
    trials = {each: base.trial(replace(base.arm(4), compression=each)) for each in ("None", "BFloat16", "Int4")}
    losses = _losses(trained, trials)
    value = losses["Int4"] / losses["None"]
    return Line(value, "loss with Int4 / with None", 1.01, value <= 1.01, {"losses": losses})


def _merge(base: _Base, trained: Losses) -> Line:
    """Return the loss of RDA ÷ of the average, eight units: at most as much."""
    losses = _losses(trained, {each: base.trial(replace(base.arm(8), method=each)) for each in ("RDA", "Average")})
    value = losses["RDA"] / losses["Average"]
    return Line(value, "loss of RDA / of Average", 1.0, value <= 1.0, {"losses": losses})


def _outer(base: _Base, trained: Losses) -> Line:
    """Return the worst of the losses with the outer optimizer that was the default ÷ with the tuned one, over numbers of units."""
    tuned = {units: base.tuned[base.arm(units)] for units in (1, 2, 4, 8)}
    trials = {f"m{units} tuned": base.trial(base.arm(units)) for units in tuned}
    for tenths, momentum in _CANDIDATES:
        of_all = {units: replace(rates, tenths=tenths, momentum_tenths=momentum) for units, rates in tuned.items()}
        trials |= {f"m{units} 0.{tenths}/0.{momentum}": base.trial(base.arm(units), rates) for units, rates in of_all.items()}
    losses = _losses(trained, trials)
    value = max(losses[f"m{units} {_REGISTERED}"] / losses[f"m{units} tuned"] for units in tuned)
    return Line(value, "loss of the default / of the tuned one, worst", 1.02, value <= 1.02, {"losses": losses})


def _momentum(base: _Base, trained: Losses) -> Line:
    """Return the loss of four units with the momentum 0.9 ÷ with the best of three, where each fragment is merged most often."""
    arm, rates = base.arm(4), base.tuned[base.arm(4)]
    settings = [
        replace(base.trial(each, replace(rates, momentum_tenths=momentum)), halves=halves)
        for each, halves in ((arm, 1), (arm, 2), (replace(arm, interval=10), 2))
        for momentum in (3, 6, 9)
        if each.interval <= SIZES[base.size].steps
    ]
    losses = _losses(trained, {f"{trial.rounds} rounds, {trial.rates.momentum}": trial for trial in settings})
    most = max(trial.rounds for trial in settings)
    of_most = {momentum: losses[f"{most} rounds, {momentum}"] for momentum in (0.3, 0.6, 0.9)}
    value = of_most[0.9] / min(of_most.values())
    return Line(value, f"loss with the momentum 0.9 / the best, {most} rounds", 1.02, value <= 1.02, {"losses": losses})


def _batch(base: _Base, trained: Losses) -> Line:
    """Return what a batch of twice the size in half of the steps costs data parallel ÷ what it costs one unit: more than 1."""
    trials = {
        f"{name} x{times}": base.trial(replace(base.arm(units), batches=times))
        for name, units in (("dp", 0), ("m1", 1))
        for times in (1, 2)
    }
    losses = _losses(trained, trials)
    value = (losses["dp x2"] / losses["dp x1"]) / (losses["m1 x2"] / losses["m1 x1"])
    return Line(value, "cost for data parallel / for M = 1", 1.0, value >= 1.0, {"losses": losses})


def _two_bits(base: _Base, trained: Losses) -> Line:
    """Return the loss of pushes in two bits ÷ without a coding, four units: they break it."""
    plain = replace(base.arm(4), compression="None")
    losses = _losses(trained, {"None": base.trial(plain), "2 bit": base.trial(replace(plain, pushes="2 bit"))})
    value = losses["2 bit"] / losses["None"]
    return Line(value, "loss with 2 bit / with None", 1.05, value >= 1.05, {"losses": losses})


def _late(base: _Base, trained: Losses) -> Line:
    """Return the loss of updates that are applied one round late ÷ of those in time, four units; published: 3.01 ÷ 2.67."""
    losses = _losses(trained, {each: base.trial(replace(base.arm(4), pushes=each)) for each in (TRAINED, "a round late")})
    value = losses["a round late"] / losses[TRAINED]
    return Line(value, "loss of late updates / of those in time", 1.02, value >= 1.02, {"losses": losses})


def _parameters(base: _Base, trained: Losses) -> Line:
    """Return the loss of units that keep their parameters in bfloat16, without masters, ÷ in float32, four units."""
    losses = _losses(trained, {each: base.trial(replace(base.arm(4), parameters=each)) for each in ("float32", "bfloat16")})
    value = losses["bfloat16"] / losses["float32"]
    return Line(value, "loss with bfloat16 parameters / with float32", 1.02, value <= 1.02, {"losses": losses})


def _losses(trained: Losses, trials: Mapping[str, Trial]) -> dict[str, float]:
    found = trained.all(trials.values())
    return {name: round(found[trial], 4) for name, trial in trials.items()}


GROUPS: Final[Mapping[str, Callable[[_Base, Losses], Line]]] = {
    "interval": _interval,
    "coding": _coding,
    "merge": _merge,
    "outer": _outer,
    "momentum": _momentum,
    "batch": _batch,
    "bits": _two_bits,
    "late": _late,
    "parameters": _parameters,
}
"""By the name that ARMS has."""


def beyond(group: str, tuned: Mapping[Arm, Rates], size: str, seed: int, interval: int, trained: Losses) -> Line:
    """Return the figure of a group."""
    return GROUPS[group](_Base(tuned, size, seed, interval), trained)
