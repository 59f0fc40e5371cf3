"""All devices of a JAX trainer's process: each trains a part of the batch. On a TPU host they are its chips.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


@dataclass(frozen=True, slots=True)
class LocalDevices:
    """The devices of this process, on one axis."""

    mesh: Mesh | None
    """None with a single device, which needs none."""

    @classmethod
    def all(cls) -> LocalDevices:
        """Return those that JAX finds."""
        devices = jax.local_devices()
        return cls(Mesh(np.array(devices), ("data",)) if len(devices) > 1 else None)

    @property
    def count(self) -> int:
        return 1 if self.mesh is None else self.mesh.size

    def check_batch(self, samples: int, flags: str) -> None:
        """Raise SystemExit if the devices do not share the samples evenly. `flags`: which say how many these are."""
        if samples % self.count:
            raise SystemExit(f"{self.count} devices do not share {samples} samples evenly: change {flags}")

    def place(self, windows: np.ndarray[Any, Any]) -> Any:
        """Return a batch, cut along its first axis."""
        return windows if self.mesh is None else jax.device_put(windows, _cut(self.mesh, "data"))

    def replicate(self, tree: Any) -> Any:
        """Return the tree with each array whole on every device, unless it is spread over them already."""
        if self.mesh is None:
            return tree
        everywhere = _cut(self.mesh)
        return jax.tree.map(lambda leaf: leaf if isinstance(leaf.sharding, NamedSharding) else jax.device_put(leaf, everywhere), tree)

    def shard(self, value: np.ndarray[Any, Any], *, stacked: bool) -> jax.Array:
        """Return a parameter, cut along its first axis that the devices divide. `stacked`: the first counts layers, which stay whole."""
        if self.mesh is None:
            return jax.numpy.array(value)
        axis = next((axis for axis in range(int(stacked), value.ndim) if value.shape[axis] % self.mesh.size == 0), None)
        placed: jax.Array = jax.device_put(value, _cut(self.mesh, *("data" if each == axis else None for each in range(value.ndim))))
        return placed


ONE_DEVICE = LocalDevices(None)
"""JAX's default device alone."""


def shardings_of(*trees: Any) -> tuple[Any, ...]:
    """Return where the arrays of each tree are, for what computes their successors."""
    return tuple(jax.tree.map(lambda leaf: leaf.sharding, tree) for tree in trees)


def _cut(mesh: Mesh, *axes: str | None) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*axes))  # type: ignore[no-untyped-call]
