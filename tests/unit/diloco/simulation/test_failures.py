import math
from statistics import mean, variance

import pytest
from diloco.simulation.failures import ReturnDelay
from numpy.random import default_rng


def test_a_return_delay_has_its_mean() -> None:
    delay, random, count = ReturnDelay.with_mean(600.0), default_rng(2), 4000
    drawn = [delay.draw(random) for _ in range(count)]
    # The mean of n values of variance v has the standard deviation sqrt(v / n); five of them.
    assert mean(drawn) == pytest.approx(600.0, abs=5 * math.sqrt(variance(drawn) / count))


def test_a_power_of_one_is_a_weibull_distribution() -> None:
    # Its quantile q is scale * (-ln(1 - q))^(1 / shape); the median of shape 1 is scale * ln 2.
    assert ReturnDelay(shape=1.0, power=1.0, scale=10.0).quantile(0.5) == pytest.approx(10.0 * math.log(2))
    # Of power 2 the cumulative function is the square: its quantile q is the one of sqrt(q).
    assert ReturnDelay(1.0, 2.0, 10.0).quantile(0.25) == pytest.approx(10.0 * math.log(2))
