"""The driver's interface to a framework's parameters: their canonical form, and how they leave and enter the model at a step boundary.

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

        Waits for the transfer and does the conversion, so it belongs on a background thread. The array is the caller's, who may write
        to it, until `release`.
        """
        ...

    def release(self) -> None:
        """Release the array of `wait`, which is not used any more: a later `stage` may take its memory. From any thread, also without
        `wait` before.

        Without this call the garbage collector frees the memory, and a later `stage` allocates its own.
        """
        ...


@dataclass(frozen=True, slots=True)
class Ready:
    """New values of some tensors, with the type and order of elements that the framework keeps: for one `apply`, after which the program
    may use up their memory."""

    names: tuple[str, ...]
    native: tuple[Any, ...] = field(repr=False)
    """One value for each name; in a unit of several ranks, for each piece that this one owns. Its type is the store's own."""


class ParameterStore(Protocol):
    """A model's parameters in canonical form: (name, shape, float32 values). An adapter of a framework implements it.

    `stage` and `apply` are called on the training thread between two steps, never while a step runs, and keep it for no more than a
    copy on the device: transfers, changes of type and of the order of elements happen elsewhere. `prepare` and `rounded` are called on
    any thread, also while a step runs. Nothing touches the state of the inner optimizer.

    A group of tensors is given by their names; its values are one float32 array with the tensors one after the other, in the order of
    the names. In a unit of several ranks these are the values of what this rank owns: of each tensor its pieces, in the order of their
    starts, as `pieces.Portion` has them. Every method raises KeyError for a name that `specs` does not have.
    """

    def specs(self) -> Sequence[TensorSpec]:
        """Return every tensor that is exchanged, in canonical form: name, shape, whether it is an embedding, and what it is a stack of. Any
        order, always the same answer."""
        ...

    def dtypes(self) -> Mapping[str, str]:
        """Return the type in which this process keeps each tensor of `specs`, such as "bfloat16". In a unit of several ranks all must have
        the same: `fill` exchanges values in it."""
        ...

    def frozen(self) -> Sequence[FrozenTensor]:
        """Return every tensor of the model that is not exchanged, with the digest of its values. Reads them all: for joining only."""
        ...

    def owned(self) -> Sequence[Piece]:
        """Return what of the tensors this process stages and applies. Of one process: all, each tensor as one piece."""
        ...

    @property
    def lent(self) -> bool:
        """The program uses the values up in a step whose result it has not given yet, so that `stage` cannot be called. Never where steps
        change the parameters in place."""
        ...

    def reclaim(self) -> None:
        """Reclaim the parameters of a job that is over: a step that the program is in counts for nothing. What is applied from now on is
        the model. Where steps change the parameters in place, there is nothing to do."""
        ...

    def warm_up(self, groups: Sequence[Sequence[str]]) -> None:
        """Do now what would make the first `stage` and `apply` of these groups slow: allocate, compile. The values stay the same."""
        ...

    def stage(self, names: Sequence[str]) -> Staged:
        """Keep the values that the tensors have now, and begin to bring them to the host. Later steps do not change them."""
        ...

    def prepare(self, names: Sequence[str], values: Float32Array) -> Ready:
        """Lay `values` out for `apply`. They must not change until they were applied. Raises ValueError for another size."""
        ...

    def apply(self, ready: Ready) -> None:
        """Overwrite the tensors, in place for the next step."""
        ...

    def fill(self, names: Sequence[str]) -> None:
        """Bring what other ranks of the unit own of the tensors, and this one holds too, from them, after `apply` and before the next step.
        Every rank calls it at the same step for the same names; of one process it does nothing."""
        ...

    def rounded(self, names: Sequence[str], values: Float32Array) -> Float32Array:
        """Return what the model holds, as float32, once `values` are applied: rounded to the parameters' types. `values` itself, not a
        copy, if they are all kept in float32."""
        ...


def check_size(names: Sequence[str], size: int, values: Float32Array) -> None:
    """Raise ValueError unless `values` is one float32 array of `size` elements, those of the named tensors."""
    if values.shape != (size,) or values.dtype != np.float32:
        raise ValueError(f"{', '.join(names)}: expected float32 [{size}], got {values.dtype} {list(values.shape)}")
