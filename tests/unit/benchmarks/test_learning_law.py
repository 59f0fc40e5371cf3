"""The law of learning without hours of training: trials, the search for rates, the file of runs, what was registered."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import astuple
from pathlib import Path

import pytest

from benchmarks.law.losses import Losses
from benchmarks.law.registered import REGISTERED, Found, Gap, outcome
from benchmarks.law.trials import SIZES, Arm, Rates, Trial
from benchmarks.law.tuning import best, is_inside, next_rates

TRIAL = Trial("smoke", Arm(4, interval=5), Rates(), seed=3)


# --- trials -----------------------------------------------------------------------------------------------------------


def test_tokens_are_equal_for_all_arms_of_a_size_and_half_of_them_at_half_of_the_steps() -> None:
    for size in ("98k", "332k"):
        tokens = {
            trial.steps * trial.rows * SIZES[size].context
            for trial in (Trial(size, arm, Rates(), 0) for arm in (Arm(0), Arm(1), Arm(8), Arm(4, interval=10), Arm(0, batches=2)))
        }
        assert tokens == {SIZES[size].tokens}
        assert Trial(size, Arm(8), Rates(), 0, halves=1).steps * 2 == SIZES[size].steps


# --- the search for rates ---------------------------------------------------------------------------------------------
def searched(loss: Callable[[Rates], float], *, outer: bool, trials: int = 100) -> dict[Rates, float]:
    """Return what is tried until the best is inside, and `trials` at most."""
    tried: dict[Rates, float] = {}
    while len(tried) < trials and not is_inside(tried, outer=outer):
        rates = next_rates(tried, outer=outer)
        tried[rates] = loss(rates)
    return tried


@pytest.mark.parametrize("optimum", [Rates(0, 6, 6), Rates(8, 10, 9), Rates(-12, 2, 0), Rates(4, 4, 3)])
def test_the_search_ends_inside_of_what_it_tried_at_the_optimum(optimum: Rates) -> None:
    def distance(rates: Rates) -> float:
        return float(sum(abs(one - other) for one, other in zip(astuple(rates), astuple(optimum), strict=True)))

    tried = searched(distance, outer=True)
    assert best(tried) == optimum
    assert {rates.momentum_tenths for rates in tried} <= {0, 3, 6, 9}


def test_data_parallel_is_searched_along_its_only_rate() -> None:
    tried = searched(lambda rates: abs(rates.quarters - 8), outer=False)
    assert best(tried) == Rates(8)
    assert {rates.tenths for rates in tried} == {6}


def test_an_arm_that_is_inside_goes_on_in_finer_steps() -> None:
    tried = searched(lambda rates: abs(rates.quarters), outer=False)
    assert sorted(rates.quarters for rates in tried) == [-4, 0, 4]
    assert next_rates(tried, outer=False) == Rates(-2)


# --- losses -----------------------------------------------------------------------------------------------------------
class Counting(Executor):
    """Trains nothing: each trial has the next loss of 1.0, 2.0 …"""

    def __init__(self) -> None:
        self.count = 0

    def submit(self, *_: object, **__: object) -> Future[float]:  # type: ignore[override]
        self.count += 1
        done: Future[float] = Future()
        done.set_result(float(self.count))
        return done


def nothing(trial: Trial) -> float:
    raise AssertionError(trial)


def test_a_trial_that_the_file_has_is_not_trained_again(tmp_path: Path) -> None:
    file, pool = tmp_path / "law" / "runs.jsonl", Counting()
    assert Losses(file, pool, nothing).loss(TRIAL) == 1.0
    again = Losses(file, pool, nothing)
    assert [again.loss(TRIAL), again.loss(Trial("smoke", Arm(0), Rates(), seed=3))] == [1.0, 2.0]
    assert pool.count == 2


def test_a_last_line_that_was_cut_short_is_trained_again(tmp_path: Path) -> None:
    file, pool = tmp_path / "runs.jsonl", Counting()
    Losses(file, pool, nothing).loss(TRIAL)
    whole = file.read_text()
    file.write_text(whole + whole[:40])
    assert Losses(file, pool, nothing).known == {TRIAL: 1.0}
    assert file.read_text() == whole


def test_a_line_that_is_no_run_is_named(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text('{"trial": {"size": "98k"}}\n')
    with pytest.raises(ValueError, match=r"runs\.jsonl, line 1, is no run .* delete the line"):
        Losses(file, Counting(), nothing)


# --- what was registered ----------------------------------------------------------------------------------------------
def found(**changes: object) -> Found:
    """What a small model is predicted to show: a factor of 1.5 on Table 4 of arXiv 2503.09799."""
    values: dict[str, object] = {
        "gaps": {1: Gap([-0.002, 0.003]), 2: Gap([0.01, 0.012]), 4: Gap([0.03, 0.031]), 8: Gap([0.06, 0.062])},
        "outer": {1: 0.6, 2: 0.6, 4: 0.8, 8: 1.0},
        "larger": {2: 0.008, 4: 0.02, 8: 0.05},
        "same_seed": {1: -0.002, 2: 0.01, 4: 0.03, 8: 0.06},
    }
    return Found(**values | changes)  # type: ignore[arg-type]


def test_every_prediction_holds_where_the_published_order_does() -> None:
    assert all(outcome(found()).values())


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({"outer": {1: 0.8, 2: 0.6, 4: 0.8, 8: 1.0}}, {"the best outer rate does not fall with M"}),
        ({"larger": {2: 0.0, 4: 0.0, 8: 0.07}}, {"the gap of M = 8 is smaller at the larger size"}),
        ({"gaps": dict(found().gaps) | {1: Gap([0.02, 0.021])}}, {"M = 1 is within two standard errors of data parallel"}),
        ({"gaps": dict(found().gaps) | {2: Gap([-0.01, -0.012])}}, {"M = 2 is not better than data parallel"}),
        (
            {"gaps": dict(found().gaps) | {4: Gap([-0.03, 0.11])}},  # 0.04 +- 0.07
            {"the gap of M = 4 is beyond two standard errors"},
        ),
        (
            {"gaps": dict(found().gaps) | {8: Gap([-0.1, 0.12])}},  # 0.01 +- 0.11
            {
                "the gap grows from M = 2 over 4 to 8",
                "the gap of M = 8 is beyond two standard errors",
                "the gap of M = 8 is 2 to 15 %",
            },
        ),
    ],
)
def test_a_prediction_fails_by_itself(changes: dict[str, object], failed: set[str]) -> None:
    assert {name for name, true in outcome(found(**changes)).items() if not true} == failed
    assert failed <= set(REGISTERED)
