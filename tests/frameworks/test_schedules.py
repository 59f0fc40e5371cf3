"""Learning rates over a job: the numbers of each decay, and that they go with the job's clock and not with local steps."""

from __future__ import annotations

import math
from typing import Any

import pytest
from builders.frameworks.adapter import Clock
from diloco.schedules import Schedule
from diloco.trainers.alone import AloneSession


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ("constant", [1.0, 1.0, 1.0, 1.0]),
        ("linear", [1.0, 0.5, 0.1, 0.0]),
        # (1 + cos(pi p)) / 2: of p = 0.9 it is (1 - 0.951057) / 2.
        ("cosine", [1.0, 0.5, 0.0244717, 0.0]),
        # Until 0.8 none; at 0.9 half of the tail is over: 1 - sqrt(0.5).
        ("wsd", [1.0, 1.0, 0.2928932, 0.0]),
    ],
)
def test_each_decay_has_its_share(decay: Any, expected: list[float]) -> None:
    schedule = Schedule(decay)
    assert [schedule.share(1, progress) for progress in (0.0, 0.5, 0.9, 1.0)] == pytest.approx(expected, abs=1e-6)


def test_the_decay_ends_at_the_final_share() -> None:
    for decay in ("linear", "cosine", "wsd"):
        assert Schedule(decay, final=0.1).share(1, 1.0) == pytest.approx(0.1)
    assert Schedule("linear", final=0.1).share(1, 0.5) == pytest.approx(0.55)


def test_the_warm_up_counts_the_steps_of_the_optimizer() -> None:
    schedule = Schedule("constant", warmup=4)
    assert [schedule.share(step, 0.7) for step in (1, 2, 4, 400)] == [0.25, 0.5, 1.0, 1.0]
    assert schedule.next_share(Clock(progress=0.7, optimizer_steps=0)) == 0.25


def test_a_fast_unit_sees_no_rate_rise_again() -> None:
    """With three local steps for each outer step, a cosine over the local steps would be past its end after a third of the job."""
    schedule, clock, steps = Schedule("cosine"), Clock(), 90
    rates = []
    for step in range(3 * steps):
        clock.optimizer_steps, clock.progress = step, step / (3 * steps)
        rates.append(schedule.next_share(clock))
    assert rates == sorted(rates, reverse=True)
    assert math.isclose(rates[len(rates) // 2], 0.5, abs_tol=0.01)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"decay": "cosin"}, "there is no decay 'cosin'; choose constant, linear, cosine, wsd"),
        ({"warmup": -1}, "warmup is a number of local steps, not -1"),
        ({"final": 1.5}, "final must be in 0..1"),
        ({"tail": 0.0}, "tail must be above 0"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_with_its_field(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("'", ".")):
        Schedule(**wrong)


def test_a_program_without_a_job_has_progress_and_may_end_itself_too() -> None:
    alone = AloneSession(4)
    seen = []
    for _ in alone.batches(lambda numbers: numbers, 2):
        seen.append(alone.progress)
        with alone.paused("evaluation", at_most=60):
            alone.step(tokens=8)
        if alone.step_count == 3:
            alone.finish("enough")
    assert seen == [0.0, 0.25, 0.5]
    assert (alone.done, alone.progress) == (True, 1.0)
    alone = AloneSession(4)
    alone.finish("before it began")
    assert alone.progress == 1.0
