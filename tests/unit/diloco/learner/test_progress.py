"""A unit's view of the job's progress."""

from __future__ import annotations

import pytest
from diloco.learner.progress import JobProgress
from diloco.learner.timetable import timetable


def of_fragments(count: int, interval: int) -> JobProgress:
    return JobProgress(timetable([1] * count, interval, overlap=1))


def test_it_goes_on_between_two_adoptions_at_their_speed() -> None:
    # H = 8, two fragments: exchanges at t = 4, 8, 12 … Three local steps for each outer step.
    progress = of_fragments(2, 8)
    progress.adopted(12, 4)
    assert progress.share(12, 100) == pytest.approx(0.04)
    for t in (6, 8, 4):  # several at once, in any order
        progress.adopted(24, t)
    assert [progress.share(24 + step, 100) for step in (0, 3, 6)] == pytest.approx([0.08, 0.09, 0.10])


def test_it_waits_at_the_outer_step_at_which_the_next_adoption_is_due() -> None:
    progress = of_fragments(2, 8)
    progress.adopted(12, 4)
    progress.adopted(24, 8)
    assert progress.share(1000, 100) == pytest.approx(0.12)


def test_with_an_exchange_at_each_outer_step_it_never_passes_the_next_one() -> None:
    progress = of_fragments(4, 4)
    for t in range(1, 5):
        progress.adopted(10 * t, t)
    assert progress.share(45, 10) == pytest.approx(0.45)
    assert progress.share(99, 10) == pytest.approx(0.5)


def test_it_never_falls_also_not_when_the_syncer_has_gone_back_or_the_job_was_made_longer() -> None:
    progress = of_fragments(1, 1)
    progress.adopted(5, 50)
    assert progress.share(5, 100) == 0.5
    progress.adopted(6, 40)
    assert progress.share(6, 100) == 0.5
    assert progress.share(7, 1000) == 0.5
    progress.adopted(8, 60)
    assert progress.share(8, 100) == pytest.approx(0.6)


def test_a_unit_that_joins_late_begins_where_the_job_is() -> None:
    progress = of_fragments(3, 3)
    for t in (61, 59, 60):  # whole fragments, in any order
        progress.adopted(0, t)
    assert progress.share(0, 100) == pytest.approx(0.61)


def test_it_ends_at_one() -> None:
    progress = of_fragments(1, 2)
    progress.adopted(1, 8)
    progress.adopted(2, 10)
    assert progress.share(50, 10) == 1.0


def test_a_token_budget_counts_where_it_is_further_than_the_steps() -> None:
    progress = JobProgress(timetable([1, 1], 8, overlap=1), budget=1000)
    progress.adopted(12, 4, tokens=400)
    assert progress.share(12, 10) == pytest.approx(0.4), "as far in steps as in tokens"
    progress.adopted(24, 8, tokens=810)
    assert progress.share(24, 100) == pytest.approx(0.81)
    # 3 local steps are one outer step, of which each has brought 810 / 8 tokens.
    assert progress.share(27, 100) == pytest.approx(0.81 * 9 / 8)
    assert progress.share(1000, 100) == 1.0


def test_a_syncer_that_does_not_tell_tokens_leaves_the_steps() -> None:
    progress = JobProgress(timetable([1, 1], 8, overlap=1), budget=1000)
    progress.adopted(12, 4)
    assert progress.share(12, 10) == pytest.approx(0.4)
