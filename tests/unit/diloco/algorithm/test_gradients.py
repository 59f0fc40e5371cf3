"""Outer gradients that wait for their merge in the coding in which they came."""

from __future__ import annotations

import numpy as np
import pytest
from diloco.algorithm import codec
from diloco.algorithm.codec import Coding
from diloco.algorithm.fragments import Fragment, make_fragments
from diloco.algorithm.gradients import Coded, InPortions
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.algorithm.merge import merge, norms
from diloco.algorithm.pieces import deal, portion
from diloco.kernels import Vector, combine

SIDES = (300, 200, 1, 7)
"""Of square matrices: 90,000 and 40,000 values are of many of the parts in which a merge works, of 2,048 each."""


def a_fragment() -> Fragment:
    (fragment,) = make_fragments(Layout(TensorSpec(f"w{i}", (side, side)) for i, side in enumerate(SIDES)), 1)
    return fragment


def coded(coding: Coding, size: int, seed: int) -> tuple[Coded, np.ndarray]:
    """A gradient as it came, and as it is."""
    rng = np.random.default_rng(seed)
    anchor = rng.standard_normal(size, dtype=np.float32)
    delta = rng.standard_normal(size, dtype=np.float32)
    payload = codec.encode(coding, delta if coding.delta else anchor + delta)
    gradient = Coded(coding, codec.payload_of(coding, payload, size), anchor)
    return gradient, codec.outer_gradient(coding, payload, anchor)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("coding", list(Coding))
@pytest.mark.parametrize("size", [1, 255, 256, 5001])
def test_each_part_is_as_that_of_the_whole(coding: Coding, size: int) -> None:
    gradient, whole = coded(coding, size, 0)
    vector = gradient.vector(np.empty)
    for begin in {0, 1, 255, 256, 257, 2047, 2048, 4500}:
        for end in {begin + 1, begin + 300, size}:
            if begin < end <= size:
                out = np.empty(end - begin, np.float32)
                squares = combine([vector], [1.0], 1.0, out, begin)
                assert out.tobytes() == whole[begin:end].tobytes()
                assert squares == combine([Vector.of_values(out)], [1.0], 1.0, np.empty_like(out))


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("coding", list(Coding))
def test_the_squares_are_those_of_the_values(coding: Coding) -> None:
    fragment = a_fragment()
    gradient, whole = coded(coding, fragment.size, 0)
    sizes = [tensor.size for tensor in fragment.tensors]
    squares = codec.gradient_squares(coding, gradient.payload, gradient.anchor, sizes)
    assert tuple(np.sqrt(squares)) == norms(fragment, whole)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("coding", list(Coding))
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_merge_of_coded_gradients_is_that_of_their_values(coding: Coding, count: int) -> None:
    fragment = a_fragment()
    made = [coded(coding, fragment.size, seed) for seed in range(count)]
    lengths = [norms(fragment, values) for _, values in made]
    weights = [float(i + 1) for i in range(count)]
    merged = merge(fragment, [gradient.vector(np.empty) for gradient, _ in made], lengths, weights, "RDA", "RDA")
    plain = merge(fragment, [Vector.of_values(values) for _, values in made], lengths, weights, "RDA", "RDA")
    assert merged.delta.tobytes() == plain.delta.tobytes()
    assert merged.cosine == plain.cosine or count == 1


def test_matrices_of_many_parts_are_merged_as_wholes() -> None:
    """By the formula in float64: the norm of each is the mean norm, which a part of it alone would not give."""
    fragment = a_fragment()
    values = [coded(Coding.BFLOAT16_DELTA, fragment.size, seed)[1] for seed in range(3)]
    merged = merge(
        fragment, [Vector.of_values(v) for v in values], [norms(fragment, v) for v in values], [1.0, 1.0, 2.0], "RDA", "RDA"
    ).delta
    for _, where in fragment.slices():
        wide = [v[where].astype(float) for v in values]
        direction = sum(w * v / np.linalg.norm(v) for w, v in zip((1, 1, 2), wide, strict=True))
        radius = sum(w * np.linalg.norm(v) for w, v in zip((1, 1, 2), wide, strict=True)) / 4
        assert np.allclose(merged[where], radius * direction / np.linalg.norm(direction), rtol=1e-4, atol=1e-6)


def test_matrices_of_many_parts_that_cancel_are_averaged() -> None:
    fragment = a_fragment()
    one = coded(Coding.BFLOAT16_DELTA, fragment.size, 0)[1]
    values = [3 * one, -one]
    merged = merge(fragment, [Vector.of_values(v) for v in values], [norms(fragment, v) for v in values], [1.0, 1.0], "RDA", "RDA").delta
    assert np.allclose(merged, one, rtol=1e-5)


@pytest.mark.parametrize("coding", list(Coding))
def test_the_portions_of_ranks_are_one_gradient(coding: Coding) -> None:
    """Each rank codes its portion as a vector of its own."""
    fragment = a_fragment()
    rng = np.random.default_rng(0)
    anchor, delta = (rng.standard_normal(fragment.size, dtype=np.float32) for _ in range(2))
    parts = []
    expected = np.empty(fragment.size, np.float32)
    for pieces in deal(fragment.tensors, 3):
        own = portion(fragment, pieces)
        payload = codec.encode(coding, own.cut(delta if coding.delta else anchor + delta))
        parts.append((own, codec.payload_of(coding, payload, own.size)))
        own.place(codec.outer_gradient(coding, payload, own.cut(anchor)), expected)
    assert InPortions(coding, parts, anchor).values(np.empty(fragment.size, np.float32)).tobytes() == expected.tobytes()
