"""What a unit is worth in each pool of its job."""

from __future__ import annotations

import random

import pytest
from diloco_operator.allotment.values import (
    AVERAGE_MARGIN,
    RAW_MARGIN,
    STEP,
    PoolThroughput,
    exact_values,
    leaving_cost,
    settled_value,
)
from hypothesis import given
from hypothesis import strategies as st


def a_tpu(measured: float | None = None, *, peak: float = 400.0, accepted: bool = True) -> PoolThroughput:
    return PoolThroughput("tpu", peak, measured, accepted)


def a_gpu(measured: float | None = None, *, peak: float = 800.0) -> PoolThroughput:
    return PoolThroughput("gpu", peak, measured)


def test_a_value_is_the_measured_throughput_relative_to_the_mean() -> None:
    # The mean of 300 and 900 is 600.
    assert exact_values({"a": a_tpu(300.0), "b": a_gpu(900.0)}) == {"a": 500, "b": 1500}


def test_the_peak_stands_in_where_nothing_is_measured() -> None:
    # The mean of 400 and 800 TFLOP/s is 600.
    assert exact_values({"a": a_tpu(), "b": a_gpu()}) == {"a": 667, "b": 1333}


def test_a_kind_that_is_not_measured_counts_with_what_the_job_gets_out_of_the_others_and_more_so_that_it_is_tried() -> None:
    # 0.5 tokens/s for each TFLOP/s of the TPUs; so 400 tokens/s of the GPU are expected, and 1.5 times as many hoped for: the mean is 400.
    assert exact_values({"a": a_tpu(200.0), "b": a_gpu()}) == {"a": 500, "b": 1500}
    # With kinds that use 0.5 and 1.0, a third with a peak of 400 counts 1.5 * 0.75 * 400 = 450; their mean is 483.3.
    found = exact_values({"a": a_tpu(200.0), "b": a_gpu(800.0), "c": PoolThroughput("other", 400.0)})
    assert found == {"a": 414, "b": 1655, "c": 931}


def test_what_the_job_gets_out_of_the_same_kind_counts_before_that_of_others() -> None:
    # 0.5 tokens/s for each TFLOP/s of a TPU: 400 of a slice twice as large, whatever the GPU does. The mean of 200, 1600 and 400 is 733.3.
    found = exact_values({"small": a_tpu(200.0), "b": a_gpu(1600.0), "large": a_tpu(peak=800.0)})
    assert found == {"small": 273, "b": 2182, "large": 545}


def test_pools_of_one_kind_count_once_in_the_mean() -> None:
    # The kinds do 300 and 900; the spot pool of the second kind changes no mean.
    assert exact_values({"a": a_tpu(300.0), "b": a_gpu(900.0), "spot": a_gpu()}) == {"a": 500, "b": 1500, "spot": 1500}


def test_a_pool_that_is_switched_off_counts_in_no_mean_but_says_how_well_the_job_uses_its_kind() -> None:
    found = exact_values({"off": a_tpu(200.0, accepted=False), "b": a_gpu()})
    assert found["b"] == 1000
    # 0.25 tokens/s for each TFLOP/s make 100 of the small slice; 900 are measured on the GPU. Their mean is 500.
    found = exact_values({"off": a_tpu(200.0, peak=800.0, accepted=False), "small": a_tpu(), "b": a_gpu(900.0)})
    assert (found["small"], found["b"]) == (200, 1800)


@pytest.mark.parametrize(
    "pools",
    [
        {"a": PoolThroughput("cpu", 0.0), "b": PoolThroughput("cpu", 0.0)},
        {"a": PoolThroughput("cpu", 0.0), "b": a_gpu()},
        {"a": PoolThroughput("cpu", 0.0, 50.0), "b": a_gpu()},
        {"a": a_tpu(accepted=False)},
        {},
    ],
)
def test_what_cannot_be_compared_is_worth_the_mean(pools: dict[str, PoolThroughput]) -> None:
    assert exact_values(pools) == dict.fromkeys(pools, 1000)


@given(
    rates=st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=16),
    scale=st.sampled_from([1e-3, 7.0, 1e3]),
)
def test_a_larger_model_is_worth_as_much_as_a_small_one(rates: list[float], scale: float) -> None:
    """Only the relations between the kinds of one job count. No pool can be worth more than all of them together."""
    pools = {f"p{index}": PoolThroughput(f"k{index}", 100.0, rate) for index, rate in enumerate(rates)}
    scaled = {name: pool._replace(measured=pool.measured * scale) for name, pool in pools.items() if pool.measured is not None}
    found, again = exact_values(pools), exact_values(scaled)
    assert all(abs(found[name] - again[name]) <= 1 for name in found)  # one thousandth by rounding
    assert all(STEP <= value <= 1000 * len(rates) for value in found.values())


def test_a_value_stays_until_the_exact_one_has_clearly_left_it() -> None:
    assert settled_value(1050, 1000) == 1000
    assert settled_value(1051, 1000) == 1050
    assert settled_value(949, 1000) == 950
    # A twentieth of 4000 is 200: noise of a value grows with it.
    assert settled_value(4200, 4000) == 4000
    assert settled_value(4201, 4000) == 4200
    assert settled_value(3, 1000) == STEP


def test_a_value_does_not_go_up_and_down_with_what_lies_between_two_steps() -> None:
    rng = random.Random(5)
    value, seen = 1000, set()
    for _ in range(1000):
        value = settled_value(1125 + rng.randint(-20, 20), value)
        seen.add(value)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("recovery", "averaged", "share"),
    [
        (None, False, RAW_MARGIN),
        (None, True, AVERAGE_MARGIN),
        (60.0, True, AVERAGE_MARGIN),  # a thirtieth of the horizon: noise is larger
        (300.0, True, 0.2),  # a sixth, rounded up to twentieths
        (300.0, False, 0.2),
        (900.0, True, 0.5),
        (7200.0, True, 1.0),  # it waited for a slice for hours: nothing costs more than all
    ],
)
def test_leaving_costs_the_time_without_training_but_no_less_than_the_noise(recovery: float | None, averaged: bool, share: float) -> None:
    assert leaving_cost(1200, recovery, 1800.0, averaged=averaged) == round(1200 * share)
