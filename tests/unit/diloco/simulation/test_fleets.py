"""Jobs on fleets with spare slices."""

from functools import partial

import pytest
from diloco.contract import Training
from diloco.goodput import BADPUT, Use
from diloco.simulation.failures import YEAR
from diloco.simulation.fleet import Conditions, PlacedUnit, simulate
from diloco.simulation.job import Outcome
from diloco.simulation.spares import Spares


def outcome(*, units: int, spares: int, failures_per_hour: float = 0.0, quorum: int = 1, seconds: float = 7200.0) -> Outcome:
    """Of units of one accelerator, with steps of 2 s; a slice is back after half an hour."""
    per_year = failures_per_hour * YEAR / 3600.0
    conditions = Conditions(
        per_year, step_seconds=2.0, start_seconds=30.0, compile_seconds=20.0, detect_seconds=10.0, repair_seconds=1800.0
    )
    training = Training(steps=100, quorum=quorum)
    return simulate(training, [PlacedUnit("kind", 1)] * units, {"kind": spares}, conditions, seconds, seed=1)


def test_a_spare_slice_goes_to_the_unit_that_has_waited_longest() -> None:
    spares, got = Spares(1), list[str]()
    for name in ("first", "second", "third"):
        spares.take(partial(got.append, name))
    assert got == ["first"]
    spares.give()
    spares.give()
    spares.give()
    assert got == ["first", "second", "third"]
    assert spares.free == 1


def test_without_failures_only_start_and_compilation_are_badput() -> None:
    found = outcome(units=2, spares=0)
    assert found.failures == 0
    # 50 s of 7,200 s before the first step; what is under way at the end is booked to its end.
    assert found.accounts.share(Use.START) == pytest.approx(30 / 7200, rel=0.01)
    assert found.accounts.share(Use.COMPILE) == pytest.approx(20 / 7200, rel=0.01)
    assert found.goodput == pytest.approx(1 - 50 / 7200, abs=0.001)


def test_a_job_does_not_end_however_few_steps_its_file_has() -> None:
    assert outcome(units=1, spares=0).outer_steps > 3000


@pytest.mark.slow
def test_a_spare_slice_takes_the_place_of_one_that_is_out() -> None:
    none, some = (outcome(units=4, spares=spares, failures_per_hour=1.0) for spares in (0, 8))
    assert some.failures > 0
    assert some.accounts.by_use[Use.MISSING] == 0, "there is always a spare"
    assert none.accounts.share(Use.MISSING) > 0.1, "a unit is out for half an hour in one and a half"
    assert some.goodput > none.goodput + 0.1
    # Each failure costs 60 s of its unit, and half a step.
    assert some.accounts.by_use[Use.RECOVERY] == pytest.approx(60.0 * some.failures)


@pytest.mark.slow
def test_all_time_of_all_units_has_a_use() -> None:
    found = outcome(units=3, spares=1, failures_per_hour=2.0, quorum=2)
    assert found.accounts.total == pytest.approx(3 * 7200.0, rel=0.01)
    assert found.goodput + sum(found.accounts.share(use) for use in BADPUT) == pytest.approx(1.0)
    assert found.accounts.by_use[Use.WAITING] > 0, "two of three must be there"
