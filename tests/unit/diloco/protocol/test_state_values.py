"""The small rest of a state as bytes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from diloco.protocol.state_parts import StateError
from diloco.protocol.state_values import Leaf, decode, encode

ARRAY = Leaf("bfloat16", (2, 3), bytes(range(12)))
SCALAR = Leaf("float32", (), b"\0\0\x80\x3f", on_host=False)


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"a": [1, 2.5, None, True, "x"], 3: (1, [2]), None: {"deep": {"er": ()}}},
        {"exp": ARRAY, "list": [SCALAR, ARRAY], "after": 1},
        [math.inf, -math.inf],
        Leaf("uint8", (0,), b""),
    ],
)
def test_what_goes_in_comes_out(tree: Any) -> None:
    assert decode(encode(tree)) == tree


@pytest.mark.parametrize(
    ("tree", "where"),
    [
        ({"a": [object()]}, r"state\['a'\]\[0\] is object"),
        ({"f": len}, r"state\['f'\] is builtin_function_or_method"),
        ({(1, 2): 3}, "a key of type tuple"),
    ],
)
def test_what_cannot_travel_is_named_with_its_place(tree: Any, where: str) -> None:
    with pytest.raises(StateError, match=where):
        encode(tree)


def test_bytes_that_are_cut_or_too_long_are_refused() -> None:
    whole = encode({"a": ARRAY})
    for damaged in (whole[:-1], whole + b"x", whole[:20], b"", whole.replace(b'"array"', b'"other"')):
        with pytest.raises(StateError, match="the peer's state"):
            decode(damaged)


def test_a_state_that_is_no_small_rest_is_refused() -> None:
    with pytest.raises(StateError, match="64 MiB can be handed over"):
        encode(Leaf("uint8", (65 << 20,), bytes(65 << 20)))
