"""Merging the learners' outer gradients of one fragment into one, matrix by matrix.

An outer gradient is `anchor - theta[m]` with the syncer's own value as the anchor. With weights w and phi(x) = x/||x||:

- weighted average: `sum w d / sum w`;
- RDA (radial-directional averaging, the paper): `(sum w ||d|| / sum w) * phi(sum w phi(d) / sum w)`, with phi(0) = 0. The norm of
  the result does not shrink when more, nearly orthogonal gradients are merged. Tensors of fewer than two dimensions are averaged: RDA of
  scalars is a vote of signs. Of a tensor that says so (`TensorSpec.stack_axes`: the experts of a mixture) each matrix has a radius and a
  direction of its own, as if the experts were tensors of their own.

What contributions say of each other comes with the sums: the mean cosine between them, see `Merged`.

The norms are an argument: they are computed once, where a contribution arrives, and not while an outer step waits for the merge.

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
"""Directions cancel if their weighted mean is shorter than this; the weighted average is taken instead, because what is left of the
direction is rounding noise. The mean of n orthogonal directions has length 1/sqrt(n): a thousandth is a million learners."""
_LARGEST_COEFFICIENT: Final = 1e30
"""Far below float32's largest number, 3e38."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The merged outer gradient of a fragment."""

    delta: Array = field(repr=False)
    """float32 [size]."""
    cosine: float = math.nan
    """The mean cosine between two contributions: over all pairs, by their weights, and over the matrices, by their sizes. NaN: there are
    no two that move. Independent ones have 0, equal ones 1."""


def matrices(fragment: Fragment) -> Iterator[tuple[TensorSpec, slice]]:
    """Yield what is merged as one: each tensor, and where it lies in the flat vector; of a stack each matrix."""
    for tensor, where in fragment.slices():
        size = tensor.size // tensor.matrices
        for start in range(where.start, where.stop, size):
            yield tensor, slice(start, start + size)


def norms(fragment: Fragment, delta: Array) -> tuple[float, ...]:
    """Return the Euclidean norm of each of the fragment's `matrices`, in their order. `delta`: float32 [size], finite."""
    return tuple(norm(delta[where]) for _, where in matrices(fragment))


def merge(
    fragment: Fragment,
    gradients: Sequence[Vector],
    norms: Sequence[Sequence[float]],
    weights: Sequence[float],
    method: MergeMethod,
    embeddings: MergeMethod,
    out: Array | None = None,
) -> Merged:
    """Return the merged outer gradient of a fragment, in `out` or a new array; one contribution alone is returned as it is.

    `gradients`: per contribution, of the fragment's size. `norms`: per contribution, what `norms()` says of its gradient. `weights`: per
    contribution, positive. `embeddings` is the method for embedding tensors, `method` that for others of at least two dimensions; the rest
    is averaged. Raises ValueError without contributions, without the norms of one, or for a weight that is not positive and finite.
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
        return Merged(merged)
    cosines: list[tuple[int, float]] = []
    for i, (tensor, where) in enumerate(parts):
        rule = average if tensor.is_averaged else RULES[embeddings if tensor.embedding else method]
        cosine = rule(gradients, [x[i] for x in norms], weights, merged[where], where.start)
        if math.isfinite(cosine):
            cosines.append((where.stop - where.start, cosine))
    return Merged(merged, mean_cosine(cosines))


def mean_cosine(of_parts: Iterable[tuple[int, float]]) -> float:
    """Return the mean of cosines, each by its size. NaN of none. `of_parts`: (size, cosine)."""
    known = list(of_parts)
    return math.fsum(n * cosine for n, cosine in known) / sum(n for n, _ in known) if known else math.nan


def average(gradients: Sequence[Vector], norms: Sequence[float], weights: Sequence[float], out: Array, begin: int) -> float:
    """`out = sum w d / sum w`. Relative to the largest weight: equal weights give exactly `sum d / M`."""
    largest = max(weights)
    relative = [w / largest for w in weights]
    squares = kernels.combine(gradients, relative, sum(relative), out, begin)
    total = sum(relative)
    return _mean_of_pairs([w / total * n for w, n in zip(relative, norms, strict=True)], squares)


def _mean_of_pairs(lengths: Sequence[float], squares: float) -> float:
    """Return the mean cosine of the pairs among vectors of these lengths whose sum has these squares, each pair by the product of its
    lengths: the squares of a sum are those of its terms and twice the products of the pairs. NaN if no two have a length."""
    own = math.fsum(n * n for n in lengths)
    total = math.fsum(lengths)
    pairs = total * total - own
    return min(1.0, max(-1.0, (squares - own) / pairs)) if pairs > 0 and math.isfinite(pairs) else math.nan


def rda(gradients: Sequence[Vector], norms: Sequence[float], weights: Sequence[float], out: Array, begin: int) -> float:
    """Write `out = (sum w ||d|| / sum w) * phi(sum w phi(d) / sum w)`; the weighted average where directions cancel; 0 if all are 0."""
    total = math.fsum(weights)
    moving = [(d, w / total, n) for d, w, n in zip(gradients, weights, norms, strict=True) if n > 0]
    if not moving:
        out[:] = 0
        return math.nan
    radius = math.fsum(w * n for _, w, n in moving)
    # Scaled by the radius, the factors stay of order one however small the gradients are, as long as all are alike.
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
    """Merges one matrix of at least two contributions into `out`, which is that of each of `gradients` from `begin` on. `norms`: of the
    matrix in each. `weights`: positive. Equal arguments give equal bytes. Returns the mean cosine between two contributions, see
    `Merged`."""

    def __call__(self, gradients: Sequence[Vector], norms: Sequence[float], weights: Sequence[float], out: Array, begin: int) -> float: ...


RULES: Final[Mapping[MergeMethod, Rule]] = {"RDA": rda, "Average": average}


def _combine(vectors: Sequence[Vector], factors: Sequence[float], out: Array, begin: int) -> float:
    """Combine as `kernels.combine`, with factors that may exceed float32: beside a gradient that is smaller by more than its range. The
    products do not."""
    terms = []
    for vector, factor in zip(vectors, factors, strict=True):
        if factor >= _LARGEST_COEFFICIENT:
            kernels.combine([vector], [1.0], 1.0, alone := np.empty_like(out), begin)
            whole = np.zeros(begin + out.size, np.float32)  # the others are read from `begin`, too
            whole[begin:] = alone.astype(np.float64) * factor
            vector, factor = Vector.of_values(whole), 1.0
        terms.append((vector, factor))
    return kernels.combine([vector for vector, _ in terms], [factor for _, factor in terms], 1.0, out, begin)


def norm(x: Array) -> float:
    """Return Euclidean norm, accumulated in float64, in which squares of float32 neither overflow nor vanish."""
    return math.sqrt(kernels.squares(x))
