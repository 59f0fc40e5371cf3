"""Parameters that are plain numpy arrays, for programs without a framework, tests and benchmarks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from diloco.algorithm.layout import FrozenTensor, TensorSpec
from diloco.algorithm.pieces import Piece, whole
from diloco.learner.host_buffers import HostBuffers
from diloco.learner.store import Float32Array, Ready, check_size


class ArrayStore:
    """A `ParameterStore` over a dict of float32 arrays, which belong to the caller. A training step may change them in place, as `apply`
    does."""

    def __init__(
        self, arrays: Mapping[str, Float32Array], *, embeddings: Collection[str] = (), stacks: Mapping[str, int] | None = None
    ) -> None:
        """
        Args:
            embeddings: tensors that the merge treats as embeddings
            stacks: how many leading axes of a tensor count separate matrices, each merged by itself; default: none

        Raises ValueError for an unknown name in `embeddings` or `stacks`, and TypeError for an array that is not float32.
        """
        for name, array in arrays.items():
            if array.dtype != np.float32:
                raise TypeError(f"tensor {name!r} is {array.dtype}: canonical parameters are float32")
        self._stacks = dict(stacks or {})
        for what, names in ("embeddings", set(embeddings)), ("stacks", set(self._stacks)):
            if unknown := sorted(names - set(arrays)):
                raise ValueError(f"{what} names tensors that do not exist: {', '.join(unknown)}")
        self.arrays = dict(arrays)
        self._embeddings = frozenset(embeddings)
        self._buffers: HostBuffers[Float32Array] = HostBuffers(_touched)

    def specs(self) -> Sequence[TensorSpec]:
        return [
            TensorSpec(name, self.arrays[name].shape, name in self._embeddings, self._stacks.get(name, 0)) for name in sorted(self.arrays)
        ]

    def dtypes(self) -> Mapping[str, str]:
        return {spec.name: "float32" for spec in self.specs()}

    def frozen(self) -> Sequence[FrozenTensor]:
        return ()

    def owned(self) -> Sequence[Piece]:
        return [whole(spec) for spec in self.specs()]

    @property
    def lent(self) -> bool:
        """Always False, because steps change the parameters in place."""
        return False

    def reclaim(self) -> None:
        """Do nothing, because steps change the parameters in place."""

    def warm_up(self, groups: Sequence[Sequence[str]]) -> None:
        for staged in [self.stage(max(groups, key=self._size)) for _ in range(2)]:
            staged.release()

    def stage(self, names: Sequence[str]) -> StagedCopy:
        size, buffer = self._buffers.take(4 * self._size(names))
        values = buffer[: self._size(names)]
        for name, part in self._slices(names, values):
            part[...] = self.arrays[name]
        return StagedCopy(values, size, buffer, self._buffers)

    def prepare(self, names: Sequence[str], values: Float32Array) -> Ready:
        check_size(names, self._size(names), values)
        return Ready(tuple(names), tuple(part for _, part in self._slices(names, values)))

    def apply(self, ready: Ready) -> None:
        for name, value in zip(ready.names, ready.native, strict=True):
            self.arrays[name][...] = value

    def fill(self, names: Sequence[str]) -> None:
        pass

    def rounded(self, names: Sequence[str], values: Float32Array) -> Float32Array:
        check_size(names, self._size(names), values)
        return values

    def _size(self, names: Sequence[str]) -> int:
        return sum(self.arrays[name].size for name in names)

    def _slices(self, names: Sequence[str], values: Float32Array) -> Iterator[tuple[str, Float32Array]]:
        start = 0
        for name in names:
            array = self.arrays[name]
            yield name, values[start : start + array.size].reshape(array.shape)
            start += array.size


class StagedCopy:
    """A `Staged` that is complete at once."""

    def __init__(self, values: Float32Array, size: int, buffer: Float32Array, buffers: HostBuffers[Float32Array]) -> None:
        self._values = values
        self._held: tuple[int, Float32Array] | None = (size, buffer)
        self._buffers = buffers

    def wait(self) -> Float32Array:
        return self._values

    def release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._buffers.give(*held)


def _touched(size: int) -> Float32Array:
    # Filled, because np.empty would get its pages only during the first copy.
    return np.full(-(-size // 4), 0, np.float32)
