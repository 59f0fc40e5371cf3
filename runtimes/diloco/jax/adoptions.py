"""Whether the values that a JAX program adopts last.

The program gets a tree with adopted values, and gives the next one back. Where it computes that from copies of its own, a sample of what
was adopted tells.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from diloco.jax.own_mesh import beside_the_mesh
from diloco.learner.overwrite_detector import OverwriteDetector

SAMPLE = 4096
"""Elements of an adopted leaf that are looked at. One that stacks layers may have adopted one of them."""


@dataclass(slots=True)
class _Sample:
    """Elements of one leaf, around an adoption: before, adopted, and after the next steps of the program."""

    path: str
    values: list[jax.Array] = field(default_factory=list)

    def take(self, leaf: jax.Array) -> None:
        values = _some(leaf.addressable_shards[0].data, np.uint8(0))
        values.copy_to_host_async()
        self.values.append(values)


class Adoptions:
    """Watches the leaves of one tree. Nothing waits for the devices."""

    @beside_the_mesh
    def __init__(self, leaves: Collection[jax.Array]) -> None:
        """Compile what it runs for leaves of these shapes and types."""
        for leaf in {(one.shape, str(one.dtype), one.sharding): one for one in leaves}.values():
            _some(leaf.addressable_shards[0].data, np.uint8(0))
        self._overwrites = OverwriteDetector()
        self._open: list[_Sample] = []
        self._done: deque[_Sample] = deque()

    @beside_the_mesh
    def adopted(self, before: Mapping[str, jax.Array], adopted: Mapping[str, jax.Array]) -> None:
        """Note that leaves are overwritten: by path what they were, and what they are. The largest of them is looked at."""
        if self._overwrites.looks and adopted:
            path = max(adopted, key=lambda path: adopted[path].size)
            sample = _Sample(path)
            sample.take(before[path])
            sample.take(adopted[path])
            self._open.append(sample)
        self._overwrites.adopted()

    @beside_the_mesh
    def stepped(self, leaves: Mapping[str, jax.Array]) -> None:
        """Check what a step of the program gives back. Raises LoopError when its leaves are as if nothing had been adopted, several times
        running."""
        for sample in self._open:
            sample.take(leaves[sample.path])
        self._done += [sample for sample in self._open if len(sample.values) == 4]
        self._open = [sample for sample in self._open if len(sample.values) < 4]
        while self._done and self._done[0].values[-1].is_ready():  # type: ignore[attr-defined]  # its stub lacks it
            sample = self._done.popleft()
            self._overwrites.judge(sample.path, *(np.asarray(values) for values in sample.values))


@jax.jit
def _some(data: jax.Array, nothing: jax.Array) -> jax.Array:
    """Return SAMPLE elements of an array, float32, evenly over it. `nothing` is 0: with arithmetic on a value that the compiler does not
    know, XLA's CPU client computes it on a thread of its own."""
    count = min(SAMPLE, data.size)
    flat = np.arange(count, dtype=np.int64) * data.size // max(1, count)
    return data[np.unravel_index(flat, data.shape)].astype(jnp.float32) + nothing
