"""Jobs whose units are all well, and whose gradients and batches are as uneven as those of real training."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from builders.core import a_job
from builders.regression import BATCH, LockStep, Parameters, Regression, Trainee
from numpy.typing import NDArray

FRAGMENTS, INTERVAL, UNITS = 4, 8, 8


class Uneven(Regression):
    """A `Regression` of which single batches or the learning rate are out of the ordinary."""

    def __init__(self, replica: int, seed: int, samples: int = BATCH) -> None:
        super().__init__(replica, samples=samples)
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
    """The second layer has no gradient at first, up to a step of its own in each unit."""

    def __init__(self, replica: int, seed: int, samples: int = BATCH) -> None:
        super().__init__(replica, seed, samples)
        self._begins = int(self._random.integers(20, 80))

    def silence(self, gradients: Parameters) -> None:
        if self.step < self._begins:
            for name in ("w2", "b2"):
                gradients[name] = np.zeros_like(gradients[name])


class WarmUp(Uneven):
    """The learning rate rises from zero over 64 steps, and falls to zero and begins again at 96."""

    def warmed_up(self) -> float:
        return min(1.0, self.step % 96 / 64)


def _all_of(kind: type[Uneven]) -> Callable[[int], LockStep]:
    def job(seed: int) -> LockStep:
        return _job([kind(replica, seed) for replica in range(UNITS)])

    return job


def _large_batch(seed: int) -> LockStep:
    job = _job([Uneven(replica, seed) for replica in range(1, UNITS)])
    job.join("large", Trainee(Uneven(0, seed, samples=10 * BATCH), tokens=1000))
    return job


def _joins_late(seed: int) -> LockStep:
    """Its optimizer is new, and the others have trained for long."""
    job = _job([Uneven(replica, seed) for replica in range(1, UNITS)]).run(10 * INTERVAL)
    job.join("late", Trainee(Uneven(0, seed)))
    return job


def _job(trainers: list[Uneven]) -> LockStep:
    training = a_job(
        steps=10**6,
        sync_interval=INTERVAL,
        fragments=FRAGMENTS,
        overlap_steps=1,
        compression="BFloat16",
        merge={"method": "RDA"},
        outer_optimizer={"learning_rate": 0.7, "momentum": 0.9},
    )
    return LockStep(training, {f"u{number}": Trainee(trainer) for number, trainer in enumerate(trainers)})


PATTERNS: dict[str, Callable[[int], LockStep]] = {
    "loss of 1 % of the batches x 100": _all_of(Outliers),
    "losses lognormal, sigma 1.2": _all_of(Lognormal),
    "gradient of a part begins late": _all_of(LateGradient),
    "warm-up from zero, restart": _all_of(WarmUp),
    "one unit with ten times the batch": _large_batch,
    "a unit joins late": _joins_late,
}


def refusals(pattern: str, seed: int, cycles: int = 16) -> int:
    """How many contributions the guards refuse in a healthy run."""
    job = PATTERNS[pattern](seed).run(cycles * INTERVAL)
    assert job.core.t > (cycles - 2) * INTERVAL
    return len(job.distrusted) + len(job.refused)
