from __future__ import annotations

import pytest
from diloco_operator.kube.timestamps import Timestamp, format_timestamp, parse_timestamp
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError


@given(st.integers(min_value=0, max_value=4_000_000_000_000))
def test_every_time_to_the_millisecond_survives(milliseconds: int) -> None:
    assert parse_timestamp(format_timestamp(milliseconds / 1000)) == milliseconds / 1000


def test_whole_seconds_are_written_as_kubernetes_does() -> None:
    assert format_timestamp(0) == "1970-01-01T00:00:00Z"
    assert format_timestamp(0.5) == "1970-01-01T00:00:00.500Z"


def test_other_zones_are_the_same_moment() -> None:
    assert parse_timestamp("1970-01-01T02:00:00+02:00") == 0


@pytest.mark.parametrize("text", ["", "yesterday", "2026-11-20", "2026-11-20T21:00:00", "2026-13-01T00:00:00Z"])
def test_a_text_that_is_no_time_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="2026-11-20T21:00:00Z"):
        parse_timestamp(text)


def test_an_integer_too_large_for_a_float_is_an_error_of_its_field() -> None:
    with pytest.raises(ValidationError, match="no time"):
        TypeAdapter(Timestamp).validate_python(10**400)
