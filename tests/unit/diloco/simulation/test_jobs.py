"""Jobs on virtual time, with the coordinator of real ones."""

import pytest
from diloco.contract import Checkpoint, Training
from diloco.goodput import Use
from diloco.simulation.failures import YEAR, ReturnDelay
from diloco.simulation.job import Outcome, SimulatedJob
from diloco.simulation.unit import Hardware
from numpy.random import default_rng


def hardware(*, slices: int = 8, years: float = float("inf"), step_seconds: float = 2.0) -> Hardware:
    return Hardware(slices, 256, years * YEAR, step_seconds, 12.0, 8.0, ReturnDelay.with_mean(300.0))


def simulated(*units: Hardware, seconds: float = 1000.0, seed: int = 1, **training: object) -> Outcome:
    usual = {"steps": 10**9, "checkpoint": Checkpoint(every_steps=10**9)}
    return SimulatedJob(Training(**(usual | training)), units, default_rng(seed)).run(seconds)


def test_without_failures_every_merge_has_all_units_and_nearly_all_tokens() -> None:
    outcome = simulated(*[hardware()] * 4)
    assert outcome.goodput == 1.0
    assert outcome.uptime == pytest.approx(1.0, abs=0.01)
    assert outcome.contributions == pytest.approx(4.0, abs=0.05)
    assert outcome.skipped == 0
    # 1,000 s are 500 mean steps; H = 24 of them are under way at the end, and those of the overlap of tau + 1 steps are overwritten.
    assert outcome.outer_steps == pytest.approx(500, abs=3)
    assert 1 - (24 / 500 + 4 / 24) < outcome.merged_tokens < 1


@pytest.mark.slow
def test_a_unit_with_failures_stops_no_other() -> None:
    frail = hardware(slices=400, years=0.2)
    alone = simulated(frail, seconds=4000.0)
    beside = simulated(frail, hardware(), hardware(), seconds=4000.0)
    assert alone.goodput < 0.9
    assert beside.uptime == pytest.approx(1.0, abs=0.01)
    sound = simulated(hardware(), hardware(), seconds=4000.0)
    assert beside.outer_steps == pytest.approx(sound.outer_steps, rel=0.12), "the clock counts the mean of those that train"
    assert beside.accounts.share(Use.WAITING) == 0


def test_units_rest_while_the_quorum_is_missing_and_that_is_badput() -> None:
    frail = hardware(slices=4000, years=0.5)
    outcome = simulated(hardware(), frail, seconds=4000.0, quorum=2)
    assert outcome.accounts.share(Use.WAITING) > 0


def test_the_same_seed_gives_the_same_outcome_and_another_one_another() -> None:
    frail = [hardware(slices=100, years=0.3)] * 3
    assert simulated(*frail, seed=5) == simulated(*frail, seed=5)
    assert simulated(*frail, seed=5) != simulated(*frail, seed=6)
