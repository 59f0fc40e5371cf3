"""Checks that leaves that joined as frozen keep their values.

If the program trained one, it would never be exchanged. The job would complete, and units would end with different models.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from diloco.jax.inner_state import is_deleted
from diloco.jax.own_mesh import without_mesh
from diloco.jax.shards import with_shards
from diloco.learner.leave import LoopError
from diloco.wording import some


class FrozenLeaves:
    """The frozen leaves of one tree, as they joined. A leaf that is the same array as at the last check costs nothing. For a new array the
    values are summed, on its device."""

    @without_mesh
    def __init__(self, leaves: Callable[[], Mapping[str, Any]]) -> None:
        """`leaves` returns the program's present frozen leaves, by path."""
        self._leaves = leaves
        self._sums: dict[str, _Sum] = {}
        self._seen: dict[str, weakref.ref[Any]] = {}
        for path, leaf in leaves().items():
            if _has_numbers(leaf) and not is_deleted(leaf):
                self._remember(path, leaf, _sum(leaf))

    @without_mesh
    def check(self) -> None:
        """Raise LoopError, with the paths, if leaves have other values than in `join`."""
        changed = []
        for path, leaf in self._leaves().items():
            if path not in self._sums or (path in self._seen and self._seen[path]() is leaf) or is_deleted(leaf):
                continue
            before, now = self._sums[path], _sum(leaf) if _has_numbers(leaf) else None
            # Each process sums its own part only, so sums of different shardings cannot be compared: such a leaf passes.
            if now is None or (now != before and now[0] == before[0]):
                changed.append(path)
            else:
                self._remember(path, leaf, now)
        if changed:
            raise LoopError(
                f"the program changes leaves of the parameters that joined as frozen: {some(changed)}. They are exchanged with no unit, so "
                "units would end with different models. Let `trained` select them in join; keep what changes and is no parameter, such as "
                "statistics and keys of random numbers, in the optimizer's state"
            )

    def _remember(self, path: str, leaf: Any, of_values: _Sum) -> None:
        self._sums[path] = of_values
        if isinstance(leaf, jax.Array):  # a numpy array may be written to in place, so the same object proves nothing
            self._seen[path] = weakref.ref(leaf)
        else:
            self._seen.pop(path, None)


type _Sum = tuple[Any, int]
"""The sharding of a leaf that is spread over processes, else None; and the sum of the values that this process has."""


def _has_numbers(leaf: Any) -> bool:
    return isinstance(leaf, (bool, int, float, complex, jax.Array, np.ndarray, np.generic))


def _sum(leaf: Any) -> _Sum:
    # A number or a numpy array is converted as a compiled step would convert it.
    array = with_shards(leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf))
    alone = array.is_fully_addressable
    # A list, so that all sums begin before int() waits for the first.
    sums = [_mixed(shard.data) for shard in array.addressable_shards if shard.replica_id == 0 or not alone]
    return None if alone else array.sharding, sum(int(x) for x in sums) % (1 << 32)


@jax.jit
def _mixed(data: jax.Array) -> jax.Array:
    """The sum, modulo 2^32, of the elements' mixed bits. It does not depend on order and sharding."""
    bits = _bits(data)
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    return jnp.sum(bits ^ (bits >> 16), dtype=jnp.uint32)


def _bits(data: jax.Array) -> jax.Array:
    """The elements' bits as uint32. 64 bits are folded to 32."""
    if jnp.issubdtype(data.dtype, jax.dtypes.prng_key):
        data = jax.random.key_data(data)
    if jnp.issubdtype(data.dtype, jnp.complexfloating):
        data = jnp.stack([data.real, data.imag])
    if jnp.issubdtype(data.dtype, jnp.floating):
        bits = jnp.finfo(data.dtype).bits  # type: ignore[no-untyped-call]
        data = jax.lax.bitcast_convert_type(data, jnp.dtype(f"uint{bits}"))
    if data.dtype.itemsize == 8:
        data = data ^ (data >> 32)
    return data.astype(jnp.uint32)
