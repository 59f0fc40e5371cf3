"""Which pulls come before a unit's next boundary, from the outer steps that it has heard of."""

from __future__ import annotations

import pytest
from diloco.algorithm.fragments import offsets
from diloco.learner.timetable import Pace, timetable
from hypothesis import given
from hypothesis import strategies as st

PAPER = timetable([1] * 24, interval=24, overlap=2)


def at_pace(per_step: int, t: int = 100) -> Pace:
    """Two steps, in each of which `per_step` outer steps came; `t` at the end."""
    return Pace(t - 2 * per_step, 0).heard(1, t - per_step).heard(2, t)


@given(st.integers(1, 40), st.integers(0, 200), st.data())
def test_the_next_exchange_is_the_first_later_outer_step_of_the_fragments_offset(interval: int, t: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, interval))
    table = timetable([1] * count, interval, overlap=0)
    for fragment, offset in enumerate(offsets(count, interval)):
        later = table.next_exchange(fragment, t)
        assert t < later <= t + interval
        assert later % interval == offset


def test_a_unit_counts_the_outer_steps_of_its_steps() -> None:
    pace = Pace().heard(1, 7).heard(2, 13)
    assert pace.counts == (7.0, 6.0)
    # Nothing was heard for two steps, then eight outer steps at once, as with few fragments.
    assert pace.heard(3, 13).heard(4, 13).heard(5, 21).counts[-1] == 8 / 3


def test_one_count_is_not_believed_nor_one_long_step_among_several() -> None:
    # The first step often takes long, as programs compile.
    assert Pace().heard(1, 90).per_step == 0
    assert Pace().heard(1, 90).heard(2, 91).per_step == 1
    pace = Pace()
    for step, t in enumerate([1, 2, 3, 80, 81], 1):
        pace = pace.heard(step, t)
    assert pace.per_step == 1
    # two of five are
    assert pace.heard(6, 90).per_step == 9


def test_counts_of_long_ago_are_forgotten() -> None:
    pace = at_pace(20)
    for step in range(3, 8):
        pace = pace.heard(step, 100 + step)
    assert pace.per_step <= 3


def test_outer_steps_that_came_without_a_step_are_not_counted() -> None:
    pace = at_pace(2).heard(2, 150).heard(3, 152)
    assert (pace.t, pace.per_step) == (152, 2)


def test_a_syncer_that_goes_back_keeps_the_pace() -> None:
    pace = at_pace(6).restart(2, 40)
    assert (pace.t, pace.step, pace.per_step) == (40, 2, 6)
    assert pace.heard(3, 46).per_step == 6


def test_pulls_that_come_early_in_a_long_step_are_too_late_at_its_end() -> None:
    # Six outer steps come during the step: 101 to 106. At its end the answer to 105 is one outer step late, which is in time.
    late = at_pace(6).late(PAPER, 2)
    assert list(late.values()) == [101, 102, 103, 104]
    assert list(late) == [t % 24 for t in late.values()], "with P = H fragment p is exchanged at t mod 24 == p"


@pytest.mark.parametrize("overlap", [0, 1, 2, 5])
def test_a_unit_of_usual_speed_is_late_for_nothing(overlap: int) -> None:
    table = timetable([1] * 24, 24, overlap)
    assert not at_pace(1).late(table, 2)
    assert not at_pace(2).late(table, 2)
    assert at_pace(7).late(table, 2)


def test_more_overlap_leaves_more_to_the_boundaries() -> None:
    # An exchange is open for tau + 1 outer steps. One is kept for the way to the syncer, one for what the clock moved on unheard.
    assert list(at_pace(6).late(timetable([1] * 24, 24, 4), 2).values()) == [101, 102]


def test_with_few_fragments_the_clock_goes_on_unheard_of() -> None:
    """P = 1: pulls at 96 and 120, and nothing between them. After step 8 the clock is at 126 at most, so the pull of 144 comes after step
    11, and during step 12."""
    table = timetable([1], 24, 2)
    pace = Pace(72, 0).heard(4, 96).heard(8, 120)
    assert pace.per_step == 6
    assert [bool(pace.late(table, step)) for step in (8, 9, 10, 11)] == [False, False, False, True]


def test_a_pace_that_is_not_known_makes_nothing_late() -> None:
    assert not Pace(100, 5).late(PAPER, 5)
