"""The loss over outer steps in a bounded number of points."""

from __future__ import annotations

import json
import math

import pytest
from diloco.contract import MOST_HELD_OUT_POINTS, MOST_LOSS_POINTS
from diloco.syncer.reporting.loss_history import LossCurve, LossHistory, LossPoint
from hypothesis import given
from hypothesis import strategies as st

LIMITS = st.integers(3, 12)
STEPS = st.lists(st.integers(1, 30), max_size=200)
"""Distances between outer steps."""


def after(limit: int, distances: list[int]) -> tuple[LossCurve, list[LossPoint]]:
    """A curve, and everything that it was told."""
    curve, told, t = LossCurve(limit), [], 0
    for distance in distances:
        t += distance
        told.append(LossPoint(t, 1 / t))
        curve.add(t, 1 / t)
    return curve, told


@given(LIMITS, STEPS)
def test_a_curve_is_bounded_ascending_and_true_and_ends_with_the_newest_point(limit: int, distances: list[int]) -> None:
    curve, told = after(limit, distances)
    points = curve.points
    assert len(points) <= limit
    assert list(points) == sorted(set(points))
    assert set(points) <= set(told)
    assert points[-1:] == tuple(told[-1:])
    assert points[:1] == tuple(told[:1])


@given(LIMITS, st.integers(1, 500))
def test_points_are_spread_evenly_over_the_whole_training(limit: int, steps: int) -> None:
    curve, _ = after(limit, [1] * steps)
    gaps = [b.t - a.t for a, b in zip(curve.points, curve.points[1:], strict=False)]
    assert len(set(gaps[:-1])) <= 1, "all but the newest are equally far from each other"
    assert not gaps or gaps[-1] <= gaps[0]
    assert len(curve.points) >= min(steps, limit // 2)


@given(LIMITS, STEPS, STEPS, st.integers(0, 1000))
def test_a_training_that_goes_back_replaces_what_it_trains_again(limit: int, first: list[int], second: list[int], back: int) -> None:
    curve, told = after(limit, first)
    t = back
    for distance in second:
        t += distance
        curve.add(t, 9.0)
    newer = [point for point in curve.points if point.loss == 9.0]
    older = [point for point in curve.points if point.loss != 9.0]
    assert list(curve.points) == [*older, *newer]
    assert set(older) <= set(told)
    assert not second or max((point.t for point in older), default=0) <= back + second[0]
    assert len({point.t for point in curve.points}) == len(curve.points) <= limit


@given(LIMITS, STEPS, STEPS)
def test_a_stored_curve_goes_on_as_if_it_had_never_been_stored(limit: int, first: list[int], second: list[int]) -> None:
    curve, told = after(limit, first)
    again = LossCurve.from_json(json.loads(json.dumps(curve.to_json())), limit)
    t = told[-1].t if told else 0
    for distance in second:
        t += distance
        curve.add(t, 2.0)
        again.add(t, 2.0)
    assert again.points == curve.points


def test_a_loss_that_is_not_finite_is_left_out() -> None:
    curve = LossCurve(3)
    for t, loss in enumerate((1.0, math.nan, math.inf, 2.0)):
        curve.add(t, loss)
    assert curve.points == ((0, 1.0), (3, 2.0))


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"spacing": 0, "points": []},
        {"spacing": 1, "points": [[2, 1.0], [1, 1.0]]},
        {"spacing": 1, "points": [[1, math.nan]]},
        {"spacing": 1, "points": [[1]]},
    ],
)
def test_what_is_no_curve_is_not_restored(stored: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        LossCurve.from_json(stored, 3)


def test_a_history_holds_both_losses_within_the_contracts_bounds() -> None:
    history = LossHistory()
    for t in range(1, 1000):
        history.training.add(t, 5.0)
        history.held_out.add(t, 6.0)
    again = LossHistory(json.loads(json.dumps(history.to_json())))
    assert again.training.points == history.training.points
    assert again.held_out.points == history.held_out.points
    assert len(again.training.points) <= MOST_LOSS_POINTS
    assert len(again.held_out.points) <= MOST_HELD_OUT_POINTS
