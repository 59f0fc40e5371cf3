"""The canonical form of a model's parameters: named float32 tensors in the order of their names."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property


class LayoutError(ValueError):
    """The tensors cannot be a model's layout, or do not fit the one they are used with. The message is human-readable."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One named parameter tensor; `shape` in elements, `()` for a scalar. `embedding` selects the merge method."""

    name: str
    shape: tuple[int, ...]
    embedding: bool = False

    @property
    def size(self) -> int:
        """Number of float32 elements."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"tensor {self.name}"


@dataclass(frozen=True)
class Layout:
    """All tensors of a model, sorted by name. Two learners train the same model iff their layouts have one fingerprint.

    Raises LayoutError for no tensors, an empty or doubled name, or a tensor without elements.
    """

    tensors: tuple[TensorSpec, ...]

    def __init__(self, tensors: Iterable[TensorSpec]) -> None:
        ordered = tuple(
            sorted((TensorSpec(x.name, tuple(int(n) for n in x.shape), bool(x.embedding)) for x in tensors), key=lambda x: x.name)
        )
        _check(ordered)
        object.__setattr__(self, "tensors", ordered)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of names, shapes and embedding marks in canonical order."""
        canonical = [[x.name, list(x.shape), x.embedding] for x in self.tensors]
        return hashlib.sha256(json.dumps(canonical, separators=(",", ":"), ensure_ascii=True).encode()).hexdigest()

    @cached_property
    def size(self) -> int:
        """Number of float32 elements of the whole model."""
        return sum(x.size for x in self.tensors)

    def difference(self, other: Layout) -> list[str]:
        """What distinguishes this layout ("here") from `other` ("in the job"), one sentence a tensor; empty iff they are equal."""
        here = {x.name: x for x in self.tensors}
        there = {x.name: x for x in other.tensors}
        found = []
        for name in sorted(here.keys() | there.keys()):
            mine, theirs = here.get(name), there.get(name)
            if mine is None:
                found.append(f"tensor {name}: missing here, {_shape(there[name])} in the job")
            elif theirs is None:
                found.append(f"tensor {name}: {_shape(mine)} here, not in the job")
            elif mine.shape != theirs.shape:
                found.append(f"tensor {name}: shape {_shape(mine)} here, {_shape(theirs)} in the job")
            elif mine.embedding != theirs.embedding:
                found.append(f"tensor {name}: {_mark(mine)} here, {_mark(theirs)} in the job")
        return found


def _check(tensors: tuple[TensorSpec, ...]) -> None:
    if not tensors:
        raise LayoutError("the model has no tensors")
    for x in tensors:
        if not x.name:
            raise LayoutError(f"a tensor of shape {_shape(x)} has no name")
        if any(n < 0 for n in x.shape):
            raise LayoutError(f"tensor {x.name}: shape {_shape(x)} has a negative dimension")
        if x.size == 0:
            raise LayoutError(f"tensor {x.name}: shape {_shape(x)} has no elements; leave it out of the model's parameters")
    for a, b in itertools.pairwise(tensors):
        if a.name == b.name:
            raise LayoutError(f"tensor {a.name}: the name is used twice, with shapes {_shape(a)} and {_shape(b)}")


def _shape(x: TensorSpec) -> str:
    return "(" + ",".join(map(str, x.shape)) + ")"


def _mark(x: TensorSpec) -> str:
    return "an embedding" if x.embedding else "not an embedding"
