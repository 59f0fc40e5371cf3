"""The guards let every healthy run pass, with room to spare: real training in small."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from builders.exploration import ALL
from builders.healthy_runs import PATTERNS, refusals
from builders.regression import LockStep, Regression, Trainee
from diloco.algorithm import guards
from diloco.contract import Training

TICKS = 300
MARGIN = 4.0
"""A healthy run stays below the limits divided by this."""
MARGIN_OF_FAR = 2.0
"""For most of a cycle: a unit at 20 times the learning rate goes 2.5 to 4 times as far as the others."""


def a_training(**changes: Any) -> Training:
    values: dict[str, Any] = {"steps": 10**6, "sync_interval": 12, "fragments": 4, "overlap_steps": 2, "compression": "BFloat16"}
    return Training(**(values | changes))


def units(count: int) -> dict[str, Trainee]:
    return {f"u{m}": Trainee(Regression(m)) for m in range(count)}


def with_rate(job: LockStep, rate: Callable[[int], float]) -> None:
    """TICKS ticks with the learning rate of each learner's own step."""
    for _ in range(TICKS):
        for trainee in job.trainees.values():
            trainee.trainer.rate = np.float32(rate(trainee.trainer.step + 1))
        job.tick()


def plain() -> LockStep:
    return LockStep(a_training(), units(4)).run(TICKS)


def alone() -> LockStep:
    return LockStep(a_training(), units(1)).run(TICKS)


def int4() -> LockStep:
    return LockStep(a_training(compression="Int4"), units(2)).run(TICKS)


def warm_up_from_zero() -> LockStep:
    job = LockStep(a_training(), units(2))
    with_rate(job, lambda step: 0.02 * (step - 1) / TICKS)
    return job


def decay_to_zero_and_a_new_start() -> LockStep:
    job = LockStep(a_training(), units(1))
    with_rate(job, lambda step: 0.02 * max(0.0, 1 - step / 150) if step < 200 else 0.02)
    return job


def a_unit_ten_times_slower() -> LockStep:
    return LockStep(a_training(), units(2) | {"slow": Trainee(Regression(9), every=10)}).run(TICKS)


def a_unit_with_ten_times_the_batch() -> LockStep:
    return LockStep(a_training(), units(2) | {"large": Trainee(Regression(9, samples=160), tokens=1000)}).run(TICKS)


def a_unit_that_joins_late() -> LockStep:
    job = LockStep(a_training(), units(2)).run(TICKS // 2)
    job.join("late", Trainee(Regression(9)))
    return job.run(TICKS // 2)


def a_rate_twenty_times_too_high_for_a_while() -> LockStep:
    job = LockStep(a_training(), units(3))
    with_rate(job, lambda step: 0.02)
    for tick in range(TICKS):
        job.trainees["u0"].trainer.rate = np.float32(0.4 if tick < 6 else 0.02)
        job.tick()
    return job


def every_rate_ten_times_higher() -> LockStep:
    job = LockStep(a_training(), units(3))
    with_rate(job, lambda step: 0.02 if step < TICKS // 2 else 0.2)
    return job


RUNS = (
    plain,
    alone,
    int4,
    warm_up_from_zero,
    decay_to_zero_and_a_new_start,
    a_unit_ten_times_slower,
    a_unit_with_ten_times_the_batch,
    a_unit_that_joins_late,
    a_rate_twenty_times_too_high_for_a_while,
    every_rate_ten_times_higher,
)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_a_healthy_run_stays_far_below_the_limits(run: Callable[[], LockStep], monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("NORM", "FIRST_NORM", "TOKENS_OF_UNIT", "TOKENS"):
        monkeypatch.setattr(guards, limit, getattr(guards, limit) / MARGIN)
    monkeypatch.setattr(guards, "FAR", guards.FAR / MARGIN_OF_FAR)
    job = run()
    assert not job.rejected
    assert not job.refused
    # Four fragments in an interval of 12 steps: a merge every third tick; the learners of a unit alone make the fewest contributions.
    contributions = sum(stats.contributions for stats in job.core.coordinator.contributions.values())
    assert contributions >= TICKS // 3 - len(job.core.fragments)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_uneven_losses_gradients_and_batches_are_no_fault(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lighter: list[dict[str, float]] = []
    counts_less = guards.Guard.lighter

    def noted(*arguments: Any) -> dict[str, float]:
        lighter.append(counts_less(*arguments))
        return lighter[-1]

    monkeypatch.setattr(guards.Guard, "lighter", noted)
    seeds = 3 if ALL else 1
    assert sum(refusals(pattern, seed) for seed in range(seeds)) == 0
    assert len(lighter) > 50 * seeds, "of each merge: some 64 in a run"
    assert not any(lighter), "nothing counts less"
