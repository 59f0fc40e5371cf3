from __future__ import annotations

import json

import pytest
from diloco_operator.kube.rest.nesting import DEPTH, loads


def nested(depth: int) -> str:
    return '{"a":[' * (depth // 2) + '"[{"' + "]}" * (depth // 2)


def test_what_python_can_parse_stays_as_it_is() -> None:
    assert loads(nested(900).encode()) == json.loads(nested(900))


def test_one_object_that_is_nested_too_deep_does_not_hide_the_others_of_its_list() -> None:
    page = '{"items":[{"n":1},' + nested(10_000) + ',{"n":"\\"]}"}],"metadata":{"resourceVersion":"5"}}'
    with pytest.raises(RecursionError):
        json.loads(page)
    found = loads(page.encode())
    assert (found["items"][0], found["items"][2], found["metadata"]) == ({"n": 1}, {"n": '"]}'}, {"resourceVersion": "5"})
    depth, value = 2, found["items"][1]
    while value:
        value, depth = value["a"][0] if isinstance(value, dict) and value["a"] else None, depth + 2
    assert depth in (DEPTH, DEPTH + 1, DEPTH + 2)


def test_what_is_no_json_is_an_error() -> None:
    with pytest.raises(ValueError, match="Expecting"):
        loads(b"{]")
