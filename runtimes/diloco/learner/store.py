"""The interface to a framework's parameters: their canonical form, and how they leave and enter the model at a step boundary.

See docs/decisions/0151-step-boundary.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.layout import FrozenTensor, TensorSpec
from diloco.algorithm.pieces import Piece

type Float32Array = NDArray[np.float32]


class Staged(Protocol):
    """The values that some tensors had at a step boundary, on their way to the host."""

    def wait(self) -> Float32Array:
        """Return the values, float32 [sum of the tensors' sizes], in canonical form, one tensor after the other.

        Waits for the transfer and does the conversion, so it belongs on a background thread. Until `release` the caller owns the array and
        may write to it.
        """
        ...

    def release(self) -> None:
        """Let a later `stage` use the memory of `wait`'s array again. May be called from any thread, also without `wait`.

        Without this call the garbage collector frees the memory, and a later `stage` allocates its own.
        """
        ...


@dataclass(frozen=True, slots=True)
class Ready:
    """New values of some tensors, in the framework's type and order of elements. For one `apply`, after which the program may use up their
    memory."""

    names: tuple[str, ...]
    native: tuple[Any, ...] = field(repr=False)
    """One value for each name, or in a unit of several ranks for each piece that this rank owns. The type is the store's own."""


class ParameterStore(Protocol):
    """A model's parameters in canonical form: (name, shape, float32 values). An adapter of a framework implements it.

    `stage` and `apply` are called on the training thread between two steps, never while a step runs, and take no longer than a copy on
    the device: transfers and changes of type or order happen elsewhere. `prepare` and `rounded` are called on any thread, also while a
    step runs. Nothing touches the state of the inner optimizer.

    Methods take a group of tensors by name. The group's values are one float32 array with one tensor after the other, in the order of the
    names. In a unit of several ranks it has only what this rank owns: the pieces of each tensor, in the order of their starts, as in
    `pieces.Portion`. Every method raises KeyError for a name that `specs` does not have.
    """

    def specs(self) -> Sequence[TensorSpec]:
        """Return every tensor that is exchanged, in canonical form: name, shape, whether it is an embedding, and its stack axes. Any order,
        but always the same answer."""
        ...

    def dtypes(self) -> Mapping[str, str]:
        """Return the type in which this process keeps each tensor of `specs`, such as "bfloat16". It must be the same in all ranks of a
        unit, because `fill` exchanges values in it."""
        ...

    def frozen(self) -> Sequence[FrozenTensor]:
        """Return every tensor of the model that is not exchanged, with the digest of its values. Slow, because it reads them all: only for
        joining."""
        ...

    def owned(self) -> Sequence[Piece]:
        """Return the pieces that this process stages and applies. The process of a unit without further ranks owns each tensor whole."""
        ...

    @property
    def lent(self) -> bool:
        """The program uses the values up in a step whose result it has not given yet, so `stage` cannot be called. Never true where steps
        change the parameters in place."""
        ...

    def reclaim(self) -> None:
        """Take the parameters back from a step that has not ended, because the job is over. From now on the model is what `apply` has put.
        Nothing to do where steps change the parameters in place."""
        ...

    def warm_up(self, groups: Sequence[Sequence[str]]) -> None:
        """Do now what would make the first `stage` and `apply` of these groups slow: allocate, compile. The values stay the same."""
        ...

    def stage(self, names: Sequence[str]) -> Staged:
        """Keep the values that the tensors have now, and begin to bring them to the host. Later steps do not change them."""
        ...

    def prepare(self, names: Sequence[str], values: Float32Array) -> Ready:
        """Lay `values` out for `apply`. They must not change before that. Raises ValueError for a wrong size."""
        ...

    def apply(self, ready: Ready) -> None:
        """Overwrite the tensors, in place for the next step."""
        ...

    def fill(self, names: Sequence[str]) -> None:
        """Fetch from the other ranks the values that they own and this rank holds, too, after `apply` and before the next step. Every rank
        calls it at the same step for the same names. Does nothing in a unit of one process."""
        ...

    def rounded(self, names: Sequence[str], values: Float32Array) -> Float32Array:
        """Return what the model would hold after `apply(values)`, as float32: `values` rounded to the parameters' types. This is `values`
        itself, not a copy, if all are kept in float32."""
        ...


def check_size(names: Sequence[str], size: int, values: Float32Array) -> None:
    """Raise ValueError unless `values` is float32 [size]. The message has the names of the tensors."""
    if values.shape != (size,) or values.dtype != np.float32:
        raise ValueError(f"{', '.join(names)}: expected float32 [{size}], got {values.dtype} {list(values.shape)}")
