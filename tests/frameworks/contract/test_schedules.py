"""The learning rate of a program over its job, in all frameworks alike."""

from __future__ import annotations

from typing import Any

import pytest
from builders.frameworks.adapter import Clock, MakeRate
from builders.frameworks.registry import FRAMEWORKS


@pytest.fixture(params=[name for name, each in FRAMEWORKS.items() if each.rate])
def make(request: pytest.FixtureRequest) -> MakeRate:
    rate = FRAMEWORKS[request.param].rate
    assert rate is not None
    return rate


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ("constant", [0.5, 0.5, 0.5, 0.5]),
        ("linear", [0.5, 0.25, 0.05, 0.0]),
        # 0.5 (1 + cos(pi p)) / 2: of p = 0.9 it is (1 - 0.951057) / 4.
        ("cosine", [0.5, 0.25, 0.01223585, 0.0]),
        # Until 0.8 none; at 0.9 half of the tail is over: 0.5 (1 - sqrt(0.5)).
        ("wsd", [0.5, 0.5, 0.1464466, 0.0]),
    ],
)
def test_the_rate_follows_the_job_and_not_the_steps(make: MakeRate, decay: Any, expected: list[float]) -> None:
    clock = Clock()
    rate = make(clock, 0.5, decay)
    found = []
    for step, clock.progress in zip((0, 1000, 1001, 5000), (0.0, 0.5, 0.9, 1.0), strict=True):
        clock.optimizer_steps = step
        found.append(rate())
    assert found == pytest.approx(expected, abs=1e-7)


def test_the_warm_up_counts_the_steps_of_the_optimizer_and_a_final_share_stays(make: MakeRate) -> None:
    clock = Clock(progress=1.0)
    rate = make(clock, 0.5, "linear", warmup=4, final=0.2)
    found = []
    for clock.optimizer_steps in (0, 1, 3, 400):
        found.append(rate())
    # 1/4, 2/4, 1, 1 of what is left at the end: 0.5 * 0.2.
    assert found == pytest.approx([0.025, 0.05, 0.1, 0.1])
