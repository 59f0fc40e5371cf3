from __future__ import annotations

import itertools
import json

import pytest
from diloco.simulation.synthetic_tape import Fail, Fate, Slow, SyntheticTape, SyntheticTapeError, from_lines, generate, to_lines

HEAD = '{"type": "synthetic", "format": 1, "seed": 7, "units": {"a": 1.0, "b": 0.5}}'
UNSTEADY = Fate(slow_every=60.0, fail_every=90.0, away_seconds=20.0)


def of(tape: SyntheticTape, unit: str) -> list[Slow | Fail]:
    return [one for one in tape.happenings if one.unit == unit]


def test_file_holds_what_was_drawn() -> None:
    tape = generate(4, 600.0, UNSTEADY, seed=7)
    assert {type(one) for one in tape.happenings} == {Slow, Fail}
    assert from_lines(list(to_lines(tape))) == tape


def test_same_seed_gives_the_same_tape_and_another_one_another() -> None:
    tape = generate(4, 600.0, UNSTEADY, seed=7)
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


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([], "it is empty"),
        (["{}"], "line 1: 'type' is missing"),
        (["nothing"], "line 1: Expecting value"),
        (["[]"], "line 1: "),
        (['{"type": "segment", "format": 1}'], "line 1: a synthetic tape begins with"),
        (['{"type": "synthetic", "format": 1, "seed": 1, "units": {}}'], "line 1: it has 0 units"),
        (['{"type": "synthetic", "format": 1, "seed": 1, "units": {"a": 0}}'], "line 1: the step of unit a must be above 0"),
        ([HEAD, '{"type": "fail", "at": 1, "unit": "c", "seconds": 1}'], "line 2: unit 'c' is none of the first line"),
        ([HEAD, "", '{"type": "fail", "at": 1, "unit": "a"}'], "line 3: 'seconds' is missing"),
        ([HEAD, '{"type": "fail", "at": -1, "unit": "a", "seconds": 1}'], "line 2: at must be 0 or more"),
        ([HEAD, '{"type": "slow", "at": 1, "unit": "a", "seconds": 1, "factor": NaN}'], "line 2: factor must be above 0"),
        ([HEAD, '{"type": "stop", "at": 1, "unit": "a", "seconds": 1}'], "line 2: the type 'stop' is none of slow and fail"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(lines: list[str], what: str) -> None:
    with pytest.raises(SyntheticTapeError, match=what):
        from_lines(lines)


def test_lines_by_hand_may_stand_in_any_order() -> None:
    late, early = ({"type": "fail", "at": at, "unit": "a", "seconds": 1} for at in (9, 2))
    assert [one.at for one in from_lines([HEAD, json.dumps(late), json.dumps(early)]).happenings] == [2.0, 9.0]


def test_more_than_a_tape_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="a tape holds 1000000"):
        generate(4096, 1e6, UNSTEADY, seed=1)
    with pytest.raises(ValueError, match="seconds must be above 0"):
        generate(1, 0.0, UNSTEADY, seed=1)
