"""Checks that adopted values stay in a JAX program.

The program gets a tree with adopted values, and gives the next tree back. If it computes that from its own copies, it undoes every
adoption. A sample of the adopted values shows it.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from diloco.jax.own_mesh import without_mesh
from diloco.learner.overwrite_detector import OverwriteDetector

SAMPLE = 4096
"""Elements of an adopted leaf that are compared: many, because a leaf that stacks layers may have adopted one of them only."""


@dataclass(slots=True)
class _Sample:
    """Some elements of one leaf: before an adoption, after it, and after each of the program's next steps."""

    path: str
    sharding: jax.sharding.Sharding
    values: list[jax.Array] = field(default_factory=list)

    def take(self, leaf: jax.Array) -> None:
        values = _some(leaf.addressable_shards[0].data, np.uint8(0))
        values.copy_to_host_async()
        self.values.append(values)


class AdoptionCheck:
    """Watches the leaves of one tree. It never waits for the devices."""

    @without_mesh
    def __init__(self, leaves: Collection[jax.Array]) -> None:
        """Compiles `_some` for leaves of these shapes and types, so that no step has to wait for it."""
        for leaf in {(x.shape, str(x.dtype), x.sharding): x for x in leaves}.values():
            _some(leaf.addressable_shards[0].data, np.uint8(0))
        self._overwrites = OverwriteDetector()
        self._open: list[_Sample] = []
        self._done: deque[_Sample] = deque()

    @without_mesh
    def adopted(self, before: Mapping[str, jax.Array], adopted: Mapping[str, jax.Array]) -> None:
        """Leaves were overwritten. Watch the largest of them. `before` and `adopted`: old and new leaves, by path."""
        if self._overwrites.looks and adopted:
            path = max(adopted, key=lambda path: adopted[path].size)
            sample = _Sample(path, adopted[path].sharding)
            sample.take(before[path])
            sample.take(adopted[path])
            self._open.append(sample)
        self._overwrites.adopted()

    @without_mesh
    def stepped(self, leaves: Mapping[str, jax.Array]) -> None:
        """Check the leaves that a step of the program gave back. Raises LoopError if several adoptions in a row had no effect on them."""
        # A leaf that the program has placed otherwise has other elements in its first shard.
        self._open = [x for x in self._open if leaves[x.path].sharding.is_equivalent_to(x.sharding, leaves[x.path].ndim)]
        for sample in self._open:
            sample.take(leaves[sample.path])
        self._done += [sample for sample in self._open if len(sample.values) == 4]
        self._open = [sample for sample in self._open if len(sample.values) < 4]
        while self._done and self._done[0].values[-1].is_ready():  # type: ignore[attr-defined]  # its stub lacks it
            sample = self._done.popleft()
            self._overwrites.judge(sample.path, *(np.asarray(values) for values in sample.values))


@jax.jit
def _some(data: jax.Array, nothing: jax.Array) -> jax.Array:
    """Return at most SAMPLE elements of an array, float32, evenly over it. `nothing` is 0, see `rectangles.same`."""
    count = min(SAMPLE, data.size)
    flat = np.arange(count, dtype=np.int64) * data.size // max(1, count)
    # numpy has no indices for a single number.
    return data[np.unravel_index(flat, data.shape) if data.ndim else ()].astype(jnp.float32) + nothing
