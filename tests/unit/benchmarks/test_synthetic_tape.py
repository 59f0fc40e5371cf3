from __future__ import annotations

import itertools

import pytest

from benchmarks.law.synthetic_tape import Fail, Fate, Slow, SyntheticTape, generate

UNSTEADY = Fate(slow_every=60.0, fail_every=90.0, away_seconds=20.0)


def of(tape: SyntheticTape, unit: str) -> list[Slow | Fail]:
    return [one for one in tape.happenings if one.unit == unit]


def test_same_seed_gives_the_same_tape_and_another_one_another() -> None:
    tape = generate(4, 600.0, UNSTEADY, seed=7)
    assert {type(one) for one in tape.happenings} == {Slow, Fail}
    assert generate(4, 600.0, UNSTEADY, seed=7) == tape
    assert generate(4, 600.0, UNSTEADY, seed=8).units != tape.units


def test_what_happens_to_a_unit_does_not_depend_on_the_others() -> None:
    few, many = generate(2, 600.0, UNSTEADY, seed=7), generate(8, 600.0, UNSTEADY, seed=7)
    for unit in few.units:
        assert few.units[unit] == many.units[unit]
        assert of(few, unit) == of(many, unit)


def test_unit_that_is_away_does_not_fail_and_slowdowns_do_not_overlap() -> None:
    tape = generate(4, 3600.0, UNSTEADY, seed=7)
    for unit in tape.units:
        for kind in (Slow, Fail):
            times = [(one.at, one.at + one.seconds) for one in of(tape, unit) if isinstance(one, kind)]
            assert len(times) > 10
            assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(times))


def test_mean_times_are_those_that_were_asked_for() -> None:
    """64 units in 100,000 s: a failure every 90 + 20 s each, 58,000 in all. The mean of so many has a standard deviation of 0.4 %."""
    tape = generate(64, 100_000.0, Fate(fail_every=90.0, away_seconds=20.0), seed=1)
    failures = [one for one in tape.happenings if isinstance(one, Fail)]
    assert len(failures) == pytest.approx(64 * 100_000 / 110, rel=0.02)
    assert sum(one.seconds for one in failures) / len(failures) == pytest.approx(20.0, rel=0.02)


def test_nothing_happens_to_units_that_neither_fail_nor_are_slow() -> None:
    tape = generate(3, 600.0, Fate(step_seconds=2.0, spread=0.0), seed=7)
    assert (dict(tape.units), tape.happenings) == ({"unit-0": 2.0, "unit-1": 2.0, "unit-2": 2.0}, [])
