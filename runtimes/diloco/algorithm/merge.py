"""Merging the learners' outer gradients of one fragment into one, matrix by matrix.

An outer gradient is `anchor - theta[m]` with the syncer's own value as the anchor. With weights w and phi(x) = x/||x||:

- weighted average: `sum w d / sum w`;
- RDA (radial-directional averaging, the paper): `(sum w ||d|| / sum w) * phi(sum w phi(d) / sum w)`, with phi(0) = 0. The norm of
  the result does not shrink when more, nearly orthogonal gradients are merged. Tensors of fewer than two dimensions are averaged: RDA of
  scalars is a vote of signs. In a stack (`TensorSpec.stack_axes`: the experts of a mixture) each matrix has its own radius and direction,
  as if the experts were separate tensors.

The mean cosine between the contributions comes with the sums, see `MergedGradient`.

The norms are an argument: they are computed once, when a contribution arrives, and not while an outer step waits for the merge.

Sums run in the order of the arguments, in float32; squares are added in float64. Equal arguments give equal bytes, on every
processor and with any number of threads.

See docs/decisions/0062-merge-numerics.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from diloco import kernels
from diloco.algorithm.fragments import Fragment
from diloco.algorithm.layout import TensorSpec
from diloco.contract import MergeMethod
from diloco.kernels import Vector
from diloco.wording import plural

Array = NDArray[np.float32]

CANCELLATION: Final = 1e-3
"""Directions cancel if their weighted mean is shorter than this: what is left is rounding noise, and the weighted average is taken instead.
The mean of n orthogonal directions has length 1/sqrt(n), so a million learners reach a thousandth."""
_LARGEST_COEFFICIENT: Final = 1e30
"""Far below float32's largest number, 3e38."""


@dataclass(frozen=True, slots=True)
class MergedGradient:
    """The merged outer gradient of a fragment."""

    delta: Array = field(repr=False)
    """float32 [size]."""
    cosine: float = math.nan
    """The mean cosine between two contributions, over all pairs by their weights and over the matrices by their sizes. Independent
    contributions have 0, equal ones 1. NaN if no two contributions are nonzero."""


def matrices(fragment: Fragment) -> Iterator[tuple[TensorSpec, slice]]:
    """Yield each part that is merged by itself, with its place in the flat vector: each tensor, or each matrix of a stack."""
    for tensor, where in fragment.slices():
        size = tensor.size // tensor.matrices
        for start in range(where.start, where.stop, size):
            yield tensor, slice(start, start + size)


def norms(fragment: Fragment, delta: Array) -> tuple[float, ...]:
    """The Euclidean norm of each of the fragment's `matrices`, in their order. `delta`: float32 [size], finite."""
    return tuple(norm(delta[where]) for _, where in matrices(fragment))


def merge(
    fragment: Fragment,
    gradients: Sequence[Vector],
    norms: Sequence[Sequence[float]],
    weights: Sequence[float],
    method: MergeMethod,
    embeddings: MergeMethod,
    out: Array | None = None,
) -> MergedGradient:
    """Return the merged outer gradient of a fragment, in `out` or a new array; a single contribution unchanged.

    Raises ValueError if there are no contributions, norms are missing, or a weight is not positive and finite.

    Args:
        gradients: of each contribution, with the fragment's size.
        norms: of each contribution, the `norms()` of its gradient.
        weights: of each contribution, positive.
        method: for tensors of at least two dimensions that are no embeddings. Tensors of fewer dimensions are averaged.
        embeddings: for embedding tensors of at least two dimensions.
    """
    if not gradients or not len(gradients) == len(weights) == len(norms):
        raise ValueError(f"{len(gradients)} contributions with {len(norms)} lists of norms and {len(weights)} weights cannot be merged")
    parts = list(matrices(fragment))
    if any(len(x) != len(parts) for x in norms):
        raise ValueError(f"{[len(x) for x in norms]} norms, fragment {fragment.index} has {plural(len(parts), 'part')}")
    if not all(math.isfinite(w) and w > 0 for w in weights):
        raise ValueError(f"weights must be positive and finite: {list(weights)}")
    merged = np.empty(fragment.size, np.float32) if out is None else out
    if len(gradients) == 1:
        kernels.combine(gradients, [1.0], 1.0, merged)
        return MergedGradient(merged)
    cosines: list[tuple[int, float]] = []
    for i, (tensor, where) in enumerate(parts):
        rule = average if tensor.is_averaged else RULES[embeddings if tensor.embedding else method]
        cosine = rule(gradients, [x[i] for x in norms], weights, merged[where], where.start)
        if math.isfinite(cosine):
            cosines.append((where.stop - where.start, cosine))
    return MergedGradient(merged, mean_cosine(cosines))


def mean_cosine(of_parts: Iterable[tuple[int, float]]) -> float:
    """The mean of cosines, weighted by size; NaN if there are none. `of_parts`: (size, cosine)."""
    known = list(of_parts)
    return math.fsum(n * cosine for n, cosine in known) / sum(n for n, _ in known) if known else math.nan


def average(gradients: Sequence[Vector], norms: Sequence[float], weights: Sequence[float], out: Array, begin: int) -> float:
    """Write `out = sum w d / sum w`."""
    # Relative to the largest weight, so that equal weights give exactly `sum d / M`.
    largest = max(weights)
    relative = [w / largest for w in weights]
    squares = kernels.combine(gradients, relative, sum(relative), out, begin)
    total = sum(relative)
    return _mean_of_pairs([w / total * n for w, n in zip(relative, norms, strict=True)], squares)


def _mean_of_pairs(lengths: Sequence[float], squares: float) -> float:
    """The mean cosine over all pairs of vectors, each pair weighted by the product of its lengths; NaN if no two have a length.

    `lengths`: of the vectors. `squares`: the squared norm of their sum, which is the sum of their squares and twice their pairs' products.
    """
    own = math.fsum(n * n for n in lengths)
    total = math.fsum(lengths)
    pairs = total * total - own
    return min(1.0, max(-1.0, (squares - own) / pairs)) if pairs > 0 and math.isfinite(pairs) else math.nan


def rda(gradients: Sequence[Vector], norms: Sequence[float], weights: Sequence[float], out: Array, begin: int) -> float:
    """Write `out = (sum w ||d|| / sum w) * phi(sum w phi(d) / sum w)`; the weighted average if the directions cancel; 0 if all are 0."""
    total = math.fsum(weights)
    moving = [(d, w / total, n) for d, w, n in zip(gradients, weights, norms, strict=True) if n > 0]
    if not moving:
        out[:] = 0
        return math.nan
    radius = math.fsum(w * n for _, w, n in moving)
    # The radius is in the factors so that they are of order one, however small the gradients are, if their norms are alike.
    factors = [w * radius / n for _, w, n in moving] if len(moving) > 1 else [radius / moving[0][2]]
    squares = _combine([d for d, _, _ in moving], factors, out, begin)
    if len(moving) == 1:
        return math.nan
    length = math.sqrt(squares) / radius
    if length < CANCELLATION:
        average(gradients, norms, weights, out, begin)
    else:
        out *= np.float32(1 / length)
    return _mean_of_pairs([w for _, w, _ in moving], length * length)


class Rule(Protocol):
    """Merges one matrix of at least two contributions into `out`, float32 [size of the matrix]. The matrix begins at `begin` in each of
    `gradients`, and `norms` are its norms there. `weights` are positive. Equal arguments give equal bytes. Returns the mean cosine between
    two contributions, see `MergedGradient`."""

    def __call__(self, gradients: Sequence[Vector], norms: Sequence[float], weights: Sequence[float], out: Array, begin: int) -> float: ...


RULES: Final[Mapping[MergeMethod, Rule]] = {"RDA": rda, "Average": average}


def _combine(vectors: Sequence[Vector], factors: Sequence[float], out: Array, begin: int) -> float:
    """Combine as `kernels.combine`, with factors that may exceed float32. They do if one gradient is smaller than the others by more than
    float32's range. Factor times gradient does not exceed it."""
    scaled, coefficients = list(vectors), list(factors)
    for i, factor in enumerate(factors):
        if factor >= _LARGEST_COEFFICIENT:
            values = np.empty_like(out)
            kernels.combine([vectors[i]], [1.0], 1.0, values, begin)
            whole = np.zeros(begin + out.size, np.float32)  # `combine` reads all vectors from `begin` on
            whole[begin:] = values.astype(np.float64) * factor
            scaled[i], coefficients[i] = Vector.of_values(whole), 1.0
    return kernels.combine(scaled, coefficients, 1.0, out, begin)


def norm(x: Array) -> float:
    """The Euclidean norm, accumulated in float64, where squares of float32 neither overflow nor vanish."""
    return math.sqrt(kernels.squares(x))
