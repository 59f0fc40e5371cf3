"""Merging the learners' outer gradients of one fragment into one, matrix by matrix.

An outer gradient is `anchor - theta[m]` with the syncer's own value as the anchor. With weights w and phi(x) = x/||x||:

- weighted average: `sum w d / sum w`;
- RDA (radial-directional averaging, the paper): `(sum w ||d|| / sum w) * phi(sum w phi(d) / sum w)`, with phi(0) = 0. The norm of
  the result does not shrink when more, nearly orthogonal gradients are merged. Tensors of fewer than two dimensions are averaged: RDA of
  scalars is a vote of signs. Of a tensor that says so (`TensorSpec.stack_axes`: the experts of a mixture) each matrix has a radius and a
  direction of its own, as if the experts were tensors of their own.

The norms are an argument: they are computed once, where a contribution arrives, and not while an outer step waits for the merge.

Sums run in the order of the arguments, in float32; squares are added in float64. Equal arguments give equal bytes, on every processor and
with any number of threads.

See docs/decisions/0062-merge-numerics.md. See docs/decisions/0192-stacks.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from diloco import kernels
from diloco.algorithm.fragments import Fragment
from diloco.algorithm.layout import TensorSpec
from diloco.contract import MergeMethod
from diloco.wording import plural

Array = NDArray[np.float32]

CANCELLATION: Final = 1e-3
"""Directions cancel if their weighted mean is shorter than this; the weighted average is taken instead, because what is left of the
direction is rounding noise. The mean of n orthogonal directions has length 1/sqrt(n): a thousandth is a million learners."""
_LARGEST_COEFFICIENT: Final = 1e30
"""Far below float32's largest number, 3e38."""


def matrices(fragment: Fragment) -> Iterator[tuple[TensorSpec, slice]]:
    """What is merged as one: each tensor, and where it lies in the flat vector; of a stack each matrix."""
    for tensor, where in fragment.slices():
        size = tensor.size // tensor.matrices
        for start in range(where.start, where.stop, size):
            yield tensor, slice(start, start + size)


def norms(fragment: Fragment, delta: Array) -> tuple[float, ...]:
    """The Euclidean norm of each of the fragment's `matrices`, in their order. `delta`: float32 [size], finite."""
    return tuple(norm(delta[where]) for _, where in matrices(fragment))


def merge(
    fragment: Fragment,
    deltas: Sequence[Array],
    norms: Sequence[Sequence[float]],
    weights: Sequence[float],
    method: MergeMethod,
    embeddings: MergeMethod,
    out: Array | None = None,
) -> Array:
    """The merged outer gradient of a fragment, float32 [size], in `out` or a new array; one contribution alone is returned as it is.

    `deltas`: per contribution, float32 [size]. `norms`: per contribution, what `norms()` says of its delta. `weights`: per contribution,
    positive. `embeddings` is the method for embedding tensors, `method` that for others of at least two dimensions; the rest is averaged.
    Raises ValueError without contributions, without the norms of one, or for a weight that is not positive and finite.
    """
    if not deltas or not len(deltas) == len(weights) == len(norms):
        raise ValueError(f"{len(deltas)} contributions with {len(norms)} lists of norms and {len(weights)} weights cannot be merged")
    parts_of = list(matrices(fragment))
    if any(len(x) != len(parts_of) for x in norms):
        raise ValueError(f"{[len(x) for x in norms]} norms, fragment {fragment.index} has {plural(len(parts_of), 'part')}")
    if not all(math.isfinite(w) and w > 0 for w in weights):
        raise ValueError(f"weights must be positive and finite: {list(weights)}")
    if len(deltas) == 1:
        return deltas[0]
    merged = np.empty(fragment.size, np.float32) if out is None else out
    for i, (tensor, where) in enumerate(parts_of):
        parts, into = [d[where] for d in deltas], merged[where]
        rule = average if tensor.is_averaged else RULES[embeddings if tensor.embedding else method]
        rule(parts, [x[i] for x in norms], weights, into)
    return merged


def average(deltas: Sequence[Array], norms: Sequence[float], weights: Sequence[float], out: Array) -> None:
    """As `weighted_average`."""
    weighted_average(deltas, weights, out)


def weighted_average(deltas: Sequence[Array], weights: Sequence[float], out: Array) -> None:
    """`out = sum w d / sum w`. Relative to the largest weight: equal weights give exactly `sum d / M`."""
    largest = max(weights)
    relative = [w / largest for w in weights]
    kernels.combine(deltas, relative, sum(relative), out)


def rda(deltas: Sequence[Array], norms: Sequence[float], weights: Sequence[float], out: Array) -> None:
    """`out = (sum w ||d|| / sum w) * phi(sum w phi(d) / sum w)`; the weighted average where directions cancel; 0 if all are 0.
    `norms`: of each delta."""
    total = math.fsum(weights)
    moving = [(d, w / total, n) for d, w, n in zip(deltas, weights, norms, strict=True) if n > 0]
    if not moving:
        out[:] = 0
        return
    radius = math.fsum(w * n for _, w, n in moving)
    if len(moving) == 1:
        only, _, n = moving[0]
        np.multiply(only, np.float32(radius / n), out=out)
        return
    # Scaled by the radius, the coefficients stay of order one however small the gradients are, as long as all are alike.
    scaled = [_within_float32(d, w * radius / n) for d, w, n in moving]
    length = math.sqrt(kernels.combine([d for d, _ in scaled], [c for _, c in scaled], 1.0, out)) / radius
    if length < CANCELLATION:
        weighted_average(deltas, weights, out)
    else:
        out *= np.float32(1 / length)


class Rule(Protocol):
    """Merges one matrix of at least two contributions into `out`, [n] like each of `deltas`. `norms`: of each delta. `weights`: positive.
    Equal arguments give equal bytes."""

    def __call__(self, deltas: Sequence[Array], norms: Sequence[float], weights: Sequence[float], out: Array) -> None: ...


RULES: Final[Mapping[MergeMethod, Rule]] = {"RDA": rda, "Average": average}


def _within_float32(d: Array, coefficient: float) -> tuple[Array, float]:
    """`d` and the factor for it. Beside a gradient that is smaller by more than float32's range, the factor exceeds float32; the product
    does not."""
    if coefficient < _LARGEST_COEFFICIENT:
        return d, coefficient
    return (d.astype(np.float64) * coefficient).astype(np.float32), 1.0


def norm(x: Array) -> float:
    """Euclidean norm, accumulated in float64, in which squares of float32 neither overflow nor vanish."""
    return math.sqrt(kernels.squares(x))
