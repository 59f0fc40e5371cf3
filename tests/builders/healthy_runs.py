"""Jobs whose units are all well, and whose gradients and batches are as uneven as those of real training."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from builders.core import a_job
from builders.regression import BATCH, LockStep, Parameters, Regression, Trainee
from diloco.algorithm.guards import ARMED_AFTER
from diloco.contract import Training
from numpy.typing import NDArray

FRAGMENTS, INTERVAL, UNITS = 4, 8, 8
CYCLES = 16
"""Cycles of a run: each fragment is merged as often."""

type Rule = tuple[str, str]
"""The method of merging, and the compression."""

RULES: list[Rule] = [(method, compression) for compression in ("BFloat16", "Int4") for method in ("RDA", "Average")]
"""Each pattern has all of them in turn."""


class Uneven(Regression):
    """A `Regression` of which single batches or the learning rate are out of the ordinary."""

    def __init__(self, replica: int, seed: int, samples: int = BATCH) -> None:
        super().__init__(UNITS * seed + replica, samples=samples)  # batches of its own in each run
        self._random = np.random.default_rng([seed, replica])
        self._usual_rate = self.rate

    def scale(self) -> float:
        """By which the targets of the next batch are multiplied; its loss grows with the square."""
        return 1.0

    def warmed_up(self) -> float:
        """The learning rate of the next step, in parts of the usual one."""
        return 1.0

    def silence(self, gradients: Parameters) -> None:
        """Set to zero what has no gradient yet."""

    def train(self, theta: Parameters) -> Parameters:
        self.rate = np.float32(self._usual_rate * self.warmed_up())
        return super().train(theta)

    def batch_of(self, step: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        x, y = super().batch_of(step)
        return x, y * np.float32(self.scale())

    def gradients_of(self, theta: Parameters, step: int) -> tuple[float, Parameters]:
        loss, gradients = super().gradients_of(theta, step)
        self.silence(gradients)
        return loss, gradients


class Outliers(Uneven):
    """One batch in a hundred has a loss a hundred times as high."""

    def scale(self) -> float:
        return 10.0 if self._random.random() < 0.01 else 1.0


class Lognormal(Uneven):
    """The losses of batches are spread by many times."""

    def scale(self) -> float:
        return float(np.exp(1.2 * self._random.standard_normal() / 2))


class LateGradient(Uneven):
    """The second layer has no gradient at first, up to a step of its own in each unit. By the first of these steps the levels of the first
    layer are known, and once half of the units have begun so are those of the second. After the last of them five cycles follow."""

    def __init__(self, replica: int, seed: int, samples: int = BATCH) -> None:
        super().__init__(replica, seed, samples)
        self._begins = int(self._random.integers(ARMED_AFTER * INTERVAL, (CYCLES - 5) * INTERVAL))

    def silence(self, gradients: Parameters) -> None:
        if self.step < self._begins:
            for name in ("w2", "b2"):
                gradients[name] = np.zeros_like(gradients[name])


class WarmUp(Uneven):
    """The learning rate rises from zero over 64 steps, and falls to zero and begins again at 96: after four merges of each fragment with
    the full rate, and four merges before the end."""

    def warmed_up(self) -> float:
        return min(1.0, self.step % 96 / 64)


type Pattern = Callable[[int, Rule], LockStep]
"""A job of that seed and rule."""


def _all_of(kind: type[Uneven]) -> Pattern:
    def job(seed: int, rule: Rule) -> LockStep:
        return a_healthy_job([kind(replica, seed) for replica in range(UNITS)], rule)

    return job


def _large_batch(seed: int, rule: Rule) -> LockStep:
    job = a_healthy_job([Uneven(replica, seed) for replica in range(1, UNITS)], rule)
    job.join("large", Trainee(Uneven(0, seed, samples=10 * BATCH), tokens=1000))
    return job


def _joins_late(seed: int, rule: Rule) -> LockStep:
    """Its optimizer is new, and the others have trained for long."""
    job = a_healthy_job([Uneven(replica, seed) for replica in range(1, UNITS)], rule).run(10 * INTERVAL)
    job.join("late", Trainee(Uneven(0, seed)))
    return job


def a_healthy_job(trainers: list[Uneven], rule: Rule) -> LockStep:
    return LockStep(a_training(rule), trainees(trainers))


def a_training(rule: Rule = RULES[0]) -> Training:
    method, compression = rule
    return a_job(
        steps=10**6,
        sync_interval=INTERVAL,
        fragments=FRAGMENTS,
        overlap_steps=1,
        compression=compression,
        merge={"method": method},
        outer_optimizer={"learning_rate": 0.7, "momentum": 0.9},
    )


def trainees(trainers: list[Uneven]) -> dict[str, Trainee]:
    """Return one unit for each trainer, by name."""
    return {f"u{number}": Trainee(trainer) for number, trainer in enumerate(trainers)}


PATTERNS: dict[str, Pattern] = {
    "loss of 1 % of the batches x 100": _all_of(Outliers),
    "losses lognormal, sigma 1.2": _all_of(Lognormal),
    "gradient of a part begins late": _all_of(LateGradient),
    "warm-up from zero, restart": _all_of(WarmUp),
    "one unit with ten times the batch": _large_batch,
    "a unit joins late": _joins_late,
}


def refusals(pattern: str, seed: int, cycles: int = CYCLES) -> int:
    """How many contributions the guards refuse in a healthy run. Its rule follows the seed, and begins at another one in each pattern."""
    rule = RULES[(seed + list(PATTERNS).index(pattern)) % len(RULES)]
    job = PATTERNS[pattern](seed, rule).run(cycles * INTERVAL)
    assert job.core.t > (cycles - 2) * INTERVAL
    return len(job.rejected) + len(job.refused)
