"""Losses over outer steps as one string."""

from __future__ import annotations

import math
import sys

import pytest
from diloco_operator.api.losses import POINT_LENGTH, LossPoint, format_losses, parse_losses
from diloco_operator.api.status import Progress
from diloco_operator.kube.fields import MOST_COUNT
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

POINT = st.tuples(st.integers(0, MOST_COUNT), st.floats(-1e300, 1e300))


def test_a_history_is_one_line_with_five_digits_of_each_loss() -> None:
    assert format_losses([(1, 5.545177444479562), (8, 3.25)]) == "1:5.5452 8:3.25"
    assert parse_losses("1:5.5452 8:3.25") == (LossPoint(1, 5.5452), LossPoint(8, 3.25))
    assert parse_losses(format_losses([])) == ()


@given(st.lists(POINT, max_size=4))
def test_every_history_fits_into_its_field_and_comes_back(points: list[tuple[int, float]]) -> None:
    text = format_losses(points)
    assert len(text) <= POINT_LENGTH * len(points)
    found = Progress.model_validate({"losses": text}).losses or ()
    assert [point.step for point in found] == [step for step, _ in points]
    # Five digits: off by at most half of the fifth.
    assert all(math.isclose(a.loss, b[1], rel_tol=1e-4, abs_tol=sys.float_info.min) for a, b in zip(found, points, strict=True))


def test_a_loss_that_is_absurd_is_still_a_number() -> None:
    assert parse_losses(format_losses([(1, sys.float_info.max), (2, -sys.float_info.max)])) == ((1, 1e300), (2, -1e300))


@pytest.mark.parametrize("text", ["8", "8:", ":3", "a:3", "8:b", "8:nan", "8:inf", "-1:3", f"{MOST_COUNT + 1}:3", "1:2  2:3", "1:2,2:3"])
def test_what_is_no_history_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="is not a loss at an outer step"):
        parse_losses(text)


@pytest.mark.parametrize("value", [3, ["1:2"], {"step": 1}, "1:2 " * 1000])
def test_what_is_no_short_string_is_an_error(value: object) -> None:
    with pytest.raises(ValidationError, match="must be a string of at most"):
        Progress.model_validate({"losses": value})
