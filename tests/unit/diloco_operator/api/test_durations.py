from __future__ import annotations

import re

import pytest
from diloco_operator.api.durations import DURATION_MAX_LENGTH, DURATION_PATTERN, Duration, format_duration, parse_duration
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

MILLISECONDS = st.integers(min_value=0, max_value=999_999 * 3_600_000)


@given(MILLISECONDS)
def test_every_duration_to_the_millisecond_survives(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds / 1000


@given(st.text(alphabet="0123456789.hms -+µ", max_size=24))
def test_any_text_is_refused_unless_the_crd_accepts_it(text: str) -> None:
    if re.fullmatch(DURATION_PATTERN, text) and len(text) <= DURATION_MAX_LENGTH:
        assert parse_duration(format_duration(parse_duration(text))) == pytest.approx(parse_duration(text), abs=0.0005)
    else:
        with pytest.raises(ValueError, match="30s, 10m or 1h30m"):
            parse_duration(text)


NUMBERS = st.integers(0, 999_999).map(str) | st.decimals(0, 999_999, places=3).map(str)
ACCEPTED = st.lists(st.tuples(NUMBERS, st.sampled_from(["ms", "s", "m", "h"])).map("".join), min_size=1, max_size=4).map("".join)


@given(ACCEPTED.filter(lambda text: len(text) <= DURATION_MAX_LENGTH))
def test_whatever_the_crd_accepts_fits_go_durations(text: str) -> None:
    assert parse_duration(text) * 1e9 < 2**63


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5s", 5), ("10m", 600), ("1h", 3600), ("1h30m", 5400), ("250ms", 0.25), ("1.5s", 1.5), ("0s", 0), ("90m1s", 5401)],
)
def test_go_style_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (5400, "1h30m"), (0.25, "250ms"), (3661.001, "1h1m1s1ms"), (120, "2m")])
def test_shortest_form_is_written(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize("text", ["", "5", "-5s", "5 s", "1d", "s", "1h-5m", "1234567s", "1e3s", "5s\n", "1.2345s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_what_no_field_can_hold_is_not_written(seconds: float) -> None:
    with pytest.raises(ValueError, match="a duration cannot be"):
        format_duration(seconds)


def test_an_integer_too_large_for_a_float_is_an_error_of_its_field() -> None:
    with pytest.raises(ValidationError, match="no duration"):
        TypeAdapter(Duration).validate_python(10**400)
