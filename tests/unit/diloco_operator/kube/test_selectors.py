"""Selectors."""

from __future__ import annotations

import pytest
from diloco_operator.kube.client import BadRequest
from diloco_operator.kube.selectors import parse_fields, parse_labels


@pytest.mark.parametrize(
    ("selector", "labels", "matches"),
    [
        ("", {}, True),
        ("a=b,c!=d", {"a": "b"}, True),
        ("a=b,c!=d", {"a": "b", "c": "d"}, False),
        ("a in (b, c),!x", {"a": "c"}, True),
        ("a notin (b)", {}, True),
        ("example.com/a", {"example.com/a": ""}, True),
        ("a=", {"a": ""}, True),
        ("a=", {}, False),
    ],
)
def test_labels(selector: str, labels: dict[str, str], matches: bool) -> None:
    assert parse_labels(selector).matches(labels) is matches


def test_fields() -> None:
    found = [(each.path, each.value, each.negated) for each in parse_fields("metadata.name=a,spec.nodeName!=,status.phase==Failed")]
    assert found == [("metadata.name", "a", False), ("spec.nodeName", "", True), ("status.phase", "Failed", False)]


@pytest.mark.parametrize("selector", ["a in b", "a (b)", "/a=b", "a==b==c"])
def test_label_selector_that_cannot_be_read_is_quoted(selector: str) -> None:
    with pytest.raises(BadRequest) as error:
        parse_labels(selector)
    assert repr(selector) in error.value.message


def test_field_selector_needs_a_value() -> None:
    with pytest.raises(BadRequest):
        parse_fields("metadata.name")
