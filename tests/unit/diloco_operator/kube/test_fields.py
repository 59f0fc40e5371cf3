from __future__ import annotations

from typing import Any

import pytest
from diloco_operator.kube.fields import (
    TEXT_LIMIT,
    MalformedField,
    clip,
    controller_uid,
    fields,
    moment,
    needed_string,
    objects,
    string,
    strings,
    text,
    whole_number,
)
from hypothesis import given
from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(st.text(st.characters(exclude_categories=[])), st.integers(1, 50), st.booleans())
def test_a_clipped_text_is_bounded_and_printable(words: str, limit: int, lines: bool) -> None:
    clipped = clip(words, limit, lines=lines)
    assert len(clipped) <= limit
    assert clipped.replace("\n", "").isprintable()
    assert lines or "\n" not in clipped
    clipped.encode()  # also of half a surrogate pair
    if len(words) <= limit and words.isprintable():
        assert clipped == words


def test_a_clipped_text_ends_with_an_ellipsis_and_says_the_rest_in_order() -> None:
    assert clip("pulled\tfrom\nregistry \x1b[31mred", 100) == "pulled from registry \ufffd[31mred"
    assert clip("a\nb", 100, lines=True) == "a\nb"
    assert clip("x" * 5000) == "x" * (TEXT_LIMIT - 1) + "…"


@pytest.mark.slow
@given(JSON)
def test_what_a_field_is_read_as_is_what_comes_out_or_the_field_is_named(value: Any) -> None:
    holder = {"field": value}
    readers: list[tuple[Any, type | tuple[type, ...]]] = [
        (fields, dict),
        (objects, tuple),
        (string, str),
        (strings, dict),
        (text, str),
        (whole_number, int),
        (moment, (float, type(None))),
    ]
    for read, kind in readers:
        try:
            assert isinstance(read(holder, "field", "spec"), kind)
        except MalformedField as error:
            assert str(error).startswith("spec.field")  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        (fields, [], "spec.field must be an object, not a list"),
        (objects, {}, "spec.field must be a list, not an object"),
        (objects, [{}, 5], "spec.field[1] must be an object, not a number"),
        (string, 5, "spec.field must be a string, not a number"),
        (string, "a\nb", "spec.field must not contain control characters"),
        (string, "a" * 2000, "spec.field must have 1024 characters at most, not 2000"),
        (needed_string, None, "spec.field is missing"),
        (strings, {"a": 1}, "spec.field must be a string, not a number"),
        (text, [], "spec.field must be a string, not a list"),
        (whole_number, True, "spec.field must be a whole number, not a truth value"),
        (whole_number, 2**31, "spec.field must be a number from -2147483647 to 2147483647"),
        (moment, "today", "spec.field must be a time such as 2026-11-20T21:00:00Z"),
    ],
)
def test_the_message_names_the_field_and_never_its_value(read: Any, value: Any, message: str) -> None:
    with pytest.raises(MalformedField) as error:
        read({"field": value}, "field", "spec")
    assert str(error.value) == message


@pytest.mark.parametrize("read", [fields, objects, string, strings, text, whole_number])
def test_null_and_nothing_are_empty(read: Any) -> None:
    assert not read({}, "field")
    assert not read({"field": None}, "field")


def test_the_controller_is_the_owner_that_says_so() -> None:
    assert controller_uid({"ownerReferences": [{"uid": "a"}, {"uid": "b", "controller": True}]}) == "b"
    assert controller_uid({"ownerReferences": [{"uid": "a"}]}) == ""


@pytest.mark.parametrize(
    ("time", "seconds"), [("0001-01-01T00:00:00Z", 0.0), ("9999-12-31T23:59:59.999999Z", 253_370_764_800.0), ("", None)]
)
def test_a_time_outside_the_usual_is_the_nearest_usual_time(time: str, seconds: float | None) -> None:
    assert moment({"field": time}, "field") == seconds
