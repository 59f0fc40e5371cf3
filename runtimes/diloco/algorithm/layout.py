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
"""The most matrices in all stacks of a model. Each costs time, because it is merged by itself."""


class LayoutError(ValueError):
    """The tensors cannot be a model's layout, or do not fit the layout that they are used with. The message is for people."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    name: str
    shape: tuple[int, ...]
    """In elements; `()` for a scalar."""
    embedding: bool = False
    """Selects the merge method."""
    stack_axes: int = 0
    """Number of leading axes that count separate matrices, such as the experts of a mixture, each merged by itself; 0 if it is no stack."""

    @property
    def size(self) -> int:
        """Number of float32 elements."""
        return math.prod(self.shape)

    @property
    def is_averaged(self) -> bool:
        """Whether the tensor, or each tensor of its stack, has fewer than two dimensions and so no direction: biases, scales."""
        return len(self.shape) - self.stack_axes < 2

    @property
    def matrices(self) -> int:
        """The number of parts that are merged separately. An average is taken value by value anyway, so an averaged tensor is one part."""
        return 1 if self.is_averaged else math.prod(self.shape[: self.stack_axes])

    def __str__(self) -> str:
        return f"tensor {self.name}"


@dataclass(frozen=True, slots=True)
class FrozenTensor:
    """One named tensor that no unit trains. `digest` has 64 bits, see `diloco.algorithm.frozen`."""

    name: str
    shape: tuple[int, ...]
    digest: int


@dataclass(frozen=True)
class Layout:
    """All tensors of a model, sorted by name: `tensors`, which units exchange, and `frozen` ones. Two learners train the same model if and
    only if there is no `difference` between their layouts.

    Raises LayoutError for no tensors, an empty or doubled name, or a tensor without elements. Frozen tensors may have no elements.
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
        fixed = tuple(sorted((FrozenTensor(x.name, tuple(int(n) for n in x.shape), int(x.digest)) for x in frozen), key=lambda x: x.name))
        _check(ordered, fixed)
        object.__setattr__(self, "tensors", ordered)
        object.__setattr__(self, "frozen", fixed)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the exchanged tensors' names, shapes, embedding marks and stack axes, in canonical order."""
        canonical = [[x.name, list(x.shape), x.embedding, x.stack_axes] for x in self.tensors]
        return hashlib.sha256(json.dumps(canonical, separators=(",", ":"), ensure_ascii=True).encode()).hexdigest()

    @cached_property
    def size(self) -> int:
        """Number of float32 elements that are exchanged."""
        return sum(x.size for x in self.tensors)

    def difference(self, other: Layout) -> list[str]:
        """Return one sentence for each tensor that distinguishes this layout ("here") from `other` ("in the job")."""
        own_tensors = {x.name: x for x in self.tensors}
        job_tensors = {x.name: x for x in other.tensors}
        own_frozen, job_frozen = {x.name: x for x in self.frozen}, {x.name: x for x in other.frozen}
        differences = []
        for name in sorted(own_tensors.keys() | job_tensors.keys()):
            own, in_job = own_tensors.get(name), job_tensors.get(name)
            if own is None:
                differences.append(
                    f"tensor {name}: {'frozen' if name in own_frozen else 'missing'} here, {_shape(job_tensors[name])} in the job"
                )
            elif in_job is None:
                differences.append(f"tensor {name}: {_shape(own)} here, {'frozen' if name in job_frozen else 'not'} in the job")
            elif own.shape != in_job.shape:
                differences.append(f"tensor {name}: shape {_shape(own)} here, {_shape(in_job)} in the job")
            elif own.embedding != in_job.embedding:
                differences.append(f"tensor {name}: {_mark(own)} here, {_mark(in_job)} in the job")
            elif own.stack_axes != in_job.stack_axes:
                differences.append(f"tensor {name}: {_stack(own)} here, {_stack(in_job)} in the job; say it in join(…, stacks=…)")
        for name in sorted((own_frozen.keys() | job_frozen.keys()) - own_tensors.keys() - job_tensors.keys()):
            differences += _frozen_difference(name, own_frozen.get(name), job_frozen.get(name))
        return differences


def _frozen_difference(name: str, own: FrozenTensor | None, of_job: FrozenTensor | None) -> list[str]:
    if own is None:
        return [f"frozen tensor {name}: missing here"]
    if of_job is None:
        return [f"frozen tensor {name}: not in the job"]
    if own.shape != of_job.shape:
        return [f"frozen tensor {name}: shape {_shape(own)} here, {_shape(of_job)} in the job"]
    if own.digest != of_job.digest:
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
    every: list[TensorSpec | FrozenTensor] = sorted([*tensors, *frozen], key=lambda x: x.name)
    for a, b in itertools.pairwise(every):
        if a.name == b.name:
            raise LayoutError(f"tensor {a.name}: the name is used twice, with shapes {_shape(a)} and {_shape(b)}")


def _shape(x: TensorSpec | FrozenTensor) -> str:
    return "(" + ",".join(map(str, x.shape)) + ")"


def _stack(x: TensorSpec) -> str:
    return f"a stack along {plural(x.stack_axes, 'leading axis', 'leading axes')}" if x.stack_axes else "no stack"


def _mark(x: TensorSpec) -> str:
    return "an embedding" if x.embedding else "not an embedding"
