"""Digests of frozen tensors."""

import itertools
import math
import struct
from typing import Any

import numpy as np
import pytest
from diloco.algorithm.frozen import BLOCK, MASK, blocks, digest
from hypothesis import given
from hypothesis import strategies as st

SHAPE = (3, 4, 5)
VALUES = np.random.default_rng(1).standard_normal(SHAPE, np.float32)


def whole(values: np.ndarray[Any, Any]) -> int:
    return digest(values.shape, (0,) * values.ndim, values)


def splitmix64(state: int) -> int:
    """The reference of https://prng.di.unimi.it/splitmix64.c, after its addition."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def test_a_digest_is_the_sum_of_the_mixed_elements() -> None:
    bits = [struct.unpack("<I", struct.pack("<f", value))[0] for value in VALUES.reshape(-1)]
    expected = sum(splitmix64((bit + (place + 1) * 0x9E3779B97F4A7C15) & MASK) for place, bit in enumerate(bits)) & MASK
    assert whole(VALUES) == expected


def test_pieces_add_up_to_the_whole_however_they_are_cut() -> None:
    for cut in itertools.product((0, 1, 2), (0, 3), (0, 2, 4)):
        total = 0
        for halves in itertools.product((0, 1), repeat=3):
            where = tuple(slice(c, None) if half else slice(0, c) for half, c in zip(halves, cut, strict=True))
            start = tuple(c * half for half, c in zip(halves, cut, strict=True))
            total += digest(SHAPE, start, VALUES[where])
        assert total & MASK == whole(VALUES)


@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "uint8", "int64", "bool"])
def test_a_changed_value_and_two_that_change_places_are_seen(kind: str) -> None:
    values = np.arange(60).reshape(SHAPE).astype(kind)
    changed, swapped = values.copy(), values.copy()
    changed[0, 0, 0] = 1
    swapped[0, 0, 0], swapped[2, 3, 4] = values[2, 3, 4], values[0, 0, 0]
    assert len({whole(values), whole(changed), whole(swapped), whole(values.transpose(1, 0, 2))}) == (4 if kind != "bool" else 3)


def test_the_type_of_equal_values_does_not_count() -> None:
    values = np.arange(-30, 30).reshape(SHAPE)
    assert whole(values.astype(np.float16)) == whole(values.astype(np.float32)) == whole(values.astype(np.float64))
    assert whole(values.astype(np.int8)) == whole(values) != whole(values.astype(np.float32))


@given(st.sampled_from([(), (5,), (BLOCK + 1,), (2, BLOCK), (3, 5, BLOCK // 4), (2, 1, 2 * BLOCK + 3), (7, 300, 1000)]), st.integers(0, 9))
def test_blocks_cover_a_rectangle_and_none_is_too_large(shape: tuple[int, ...], offset: int) -> None:
    start = (offset,) * len(shape)
    found = list(blocks(start, shape))
    assert sum(math.prod(each) for _, each in found) == math.prod(shape)
    assert all(math.prod(each) <= BLOCK for _, each in found)
    assert len({first for first, _ in found}) == len(found)
    assert all(low >= a and low + n <= a + b for f, s in found for low, n, a, b in zip(f, s, start, shape, strict=True))
