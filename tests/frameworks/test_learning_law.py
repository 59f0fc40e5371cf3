"""Trials of the law of learning, trained for a few steps."""

import pytest

from benchmarks.law.train import trained
from benchmarks.law.trials import Arm, Rates, Trial


def test_one_unit_that_exchanges_each_step_at_the_rate_1_trains_as_data_parallel_does() -> None:
    alone = trained(Trial("smoke", Arm(0), Rates(), seed=3))
    of_job = trained(Trial("smoke", Arm(1, interval=1, compression="None"), Rates(tenths=10, momentum_tenths=0), seed=3))
    assert of_job == pytest.approx(alone, rel=1e-5)


def test_equal_trials_have_equal_losses_and_another_seed_has_another() -> None:
    losses = [trained(Trial("smoke", Arm(2, interval=5), Rates(), seed)) for seed in (3, 3, 4)]
    assert losses[0] == losses[1] != losses[2]
