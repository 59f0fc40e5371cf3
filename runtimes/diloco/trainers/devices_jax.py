"""All devices of a JAX trainer's process, such as the chips of a TPU host. Each trains a part of the batch.

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
    """None if there is only one device."""

    @classmethod
    def all(cls) -> LocalDevices:
        """All local devices that JAX finds."""
        devices = jax.local_devices()
        return cls(Mesh(np.array(devices), ("data",)) if len(devices) > 1 else None)

    @property
    def count(self) -> int:
        return 1 if self.mesh is None else self.mesh.size

    def check_batch(self, samples: int, flags: str) -> None:
        """Raise SystemExit if the devices do not share the samples evenly. `flags`: the flags that set the number of samples."""
        if samples % self.count:
            raise SystemExit(f"{self.count} devices do not share {samples} samples evenly: change {flags}")

    def place(self, windows: np.ndarray[Any, Any]) -> Any:
        """Place a batch on the devices, cut along its first axis."""
        return windows if self.mesh is None else jax.device_put(windows, _cut(self.mesh, "data"))

    def replicate(self, tree: Any) -> Any:
        """Place each array as a whole on every device, unless it is on all of them already."""
        if self.mesh is None:
            return tree
        everywhere = _cut(self.mesh)
        return jax.tree.map(lambda leaf: leaf if isinstance(leaf.sharding, NamedSharding) else jax.device_put(leaf, everywhere), tree)

    def shard(self, value: np.ndarray[Any, Any], *, stacked: bool) -> jax.Array:
        """Place a parameter on the devices, cut along the first axis that they divide evenly. `stacked`: the first axis counts layers, and
        is not cut."""
        if self.mesh is None:
            return jax.numpy.array(value)
        axis = next((axis for axis in range(int(stacked), value.ndim) if value.shape[axis] % self.mesh.size == 0), None)
        placed: jax.Array = jax.device_put(value, _cut(self.mesh, *("data" if d == axis else None for d in range(value.ndim))))
        return placed


ONE_DEVICE = LocalDevices(None)
"""Only JAX's default device."""


def shardings_of(*trees: Any) -> tuple[Any, ...]:
    """The sharding of each array of each tree, for a function whose results should be placed in the same way."""
    return tuple(jax.tree.map(lambda leaf: leaf.sharding, tree) for tree in trees)


def _cut(mesh: Mesh, *axes: str | None) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*axes))  # type: ignore[no-untyped-call]
