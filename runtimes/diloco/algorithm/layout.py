"""The canonical form of a model's parameters: named float32 tensors in the order of their names.

See docs/decisions/0062-merge-numerics.md.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from diloco.wording import plural

MOST_MATRICES = 1 << 18
"""The most matrices of all stacks of a model: each is merged by itself."""


class LayoutError(ValueError):
    """The tensors cannot be a model's layout, or do not fit the one they are used with. The message is human-readable."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One named parameter tensor; `shape` in elements, `()` for a scalar. `embedding` selects the merge method. `stack_axes`: so many
    leading axes count tensors that are merged each as one of its own, such as the experts of a mixture; 0: it is no stack."""

    name: str
    shape: tuple[int, ...]
    embedding: bool = False
    stack_axes: int = 0

    @property
    def size(self) -> int:
        """Number of float32 elements."""
        return math.prod(self.shape)

    @property
    def is_averaged(self) -> bool:
        """Whether what is merged as one has fewer than two dimensions, and no direction: biases, scales, a stack of them."""
        return len(self.shape) - self.stack_axes < 2

    @property
    def matrices(self) -> int:
        """How many parts of it are merged each by itself. What is averaged is one: each of its values is by itself anyway."""
        return 1 if self.is_averaged else math.prod(self.shape[: self.stack_axes])

    def __str__(self) -> str:
        return f"tensor {self.name}"


@dataclass(frozen=True, slots=True)
class FrozenTensor:
    """One named tensor that no unit trains. `shape` in elements; `digest`: 64 bits, see `diloco.algorithm.frozen`."""

    name: str
    shape: tuple[int, ...]
    digest: int


@dataclass(frozen=True)
class Layout:
    """All tensors of a model, sorted by name: those that units exchange, and those that are frozen. Two learners train the same model iff
    there is no `difference` between their layouts.

    Raises LayoutError for no tensors, an empty or doubled name, or a tensor without elements; frozen ones may have none.
    """

    tensors: tuple[TensorSpec, ...]
    frozen: tuple[FrozenTensor, ...]

    def __init__(self, tensors: Iterable[TensorSpec], frozen: Iterable[FrozenTensor] = ()) -> None:
        ordered = tuple(
            sorted(
                (TensorSpec(x.name, tuple(int(n) for n in x.shape), bool(x.embedding), int(x.stack_axes)) for x in tensors),
                key=lambda x: x.name,
            )
        )
        still = tuple(sorted((FrozenTensor(x.name, tuple(int(n) for n in x.shape), int(x.digest)) for x in frozen), key=lambda x: x.name))
        _check(ordered, still)
        object.__setattr__(self, "tensors", ordered)
        object.__setattr__(self, "frozen", still)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of names, shapes, embedding marks and axes of stacks of the exchanged tensors, in canonical order."""
        canonical = [[x.name, list(x.shape), x.embedding, x.stack_axes] for x in self.tensors]
        return hashlib.sha256(json.dumps(canonical, separators=(",", ":"), ensure_ascii=True).encode()).hexdigest()

    @cached_property
    def size(self) -> int:
        """Number of float32 elements that are exchanged."""
        return sum(x.size for x in self.tensors)

    def difference(self, other: Layout) -> list[str]:
        """Return what distinguishes this layout ("here") from `other` ("in the job"), one sentence a tensor; empty iff they are equal."""
        here = {x.name: x for x in self.tensors}
        there = {x.name: x for x in other.tensors}
        still, kept = {x.name: x for x in self.frozen}, {x.name: x for x in other.frozen}
        found = []
        for name in sorted(here.keys() | there.keys()):
            mine, theirs = here.get(name), there.get(name)
            if mine is None:
                found.append(f"tensor {name}: {'frozen' if name in still else 'missing'} here, {_shape(there[name])} in the job")
            elif theirs is None:
                found.append(f"tensor {name}: {_shape(mine)} here, {'frozen' if name in kept else 'not'} in the job")
            elif mine.shape != theirs.shape:
                found.append(f"tensor {name}: shape {_shape(mine)} here, {_shape(theirs)} in the job")
            elif mine.embedding != theirs.embedding:
                found.append(f"tensor {name}: {_mark(mine)} here, {_mark(theirs)} in the job")
            elif mine.stack_axes != theirs.stack_axes:
                found.append(f"tensor {name}: {_stack(mine)} here, {_stack(theirs)} in the job; say it in join(…, stacks=…)")
        for name in sorted((still.keys() | kept.keys()) - here.keys() - there.keys()):
            found += _frozen_difference(name, still.get(name), kept.get(name))
        return found


def _frozen_difference(name: str, mine: FrozenTensor | None, theirs: FrozenTensor | None) -> list[str]:
    if mine is None:
        return [f"frozen tensor {name}: missing here"]
    if theirs is None:
        return [f"frozen tensor {name}: not in the job"]
    if mine.shape != theirs.shape:
        return [f"frozen tensor {name}: shape {_shape(mine)} here, {_shape(theirs)} in the job"]
    if mine.digest != theirs.digest:
        return [f"frozen tensor {name}: other values than in the job; every unit must load the same ones"]
    return []


def _check(tensors: tuple[TensorSpec, ...], frozen: tuple[FrozenTensor, ...]) -> None:
    if not tensors:
        raise LayoutError("the model has no tensors")
    for x in tensors:
        if not x.name:
            raise LayoutError(f"a tensor of shape {_shape(x)} has no name")
        if any(n < 0 for n in x.shape):
            raise LayoutError(f"tensor {x.name}: shape {_shape(x)} has a negative dimension")
        if x.size == 0:
            raise LayoutError(f"tensor {x.name}: shape {_shape(x)} has no elements; leave it out of the model's parameters")
        if not 0 <= x.stack_axes <= len(x.shape):
            raise LayoutError(f"tensor {x.name}: shape {_shape(x)} cannot be a stack along {x.stack_axes} leading axes")
    if (matrices := sum(x.matrices for x in tensors if x.matrices > 1)) > MOST_MATRICES:
        raise LayoutError(f"the stacks of this model have {matrices} matrices, and {MOST_MATRICES} are the most: name fewer stacks")
    both: list[TensorSpec | FrozenTensor] = sorted([*tensors, *frozen], key=lambda x: x.name)
    for a, b in itertools.pairwise(both):
        if a.name == b.name:
            raise LayoutError(f"tensor {a.name}: the name is used twice, with shapes {_shape(a)} and {_shape(b)}")


def _shape(x: TensorSpec | FrozenTensor) -> str:
    return "(" + ",".join(map(str, x.shape)) + ")"


def _stack(x: TensorSpec) -> str:
    return f"a stack along {plural(x.stack_axes, 'leading axis', 'leading axes')}" if x.stack_axes else "no stack"


def _mark(x: TensorSpec) -> str:
    return "an embedding" if x.embedding else "not an embedding"
