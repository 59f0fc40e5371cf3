"""Whether the leaves of a JAX program that joined as frozen keep their values.

What it trains among them is exchanged with no unit: the job would be complete, and units would end with different models.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from diloco.jax.own_mesh import beside_the_mesh
from diloco.jax.shards import with_shards
from diloco.learner.leave import LoopError

_NAMED = 5


class FrozenLeaves:
    """The frozen leaves of one tree, as they joined. A leaf that is the same array as at the last check costs nothing; of another the
    values are summed, on the device where they are."""

    @beside_the_mesh
    def __init__(self, leaves: Callable[[], Mapping[str, Any]]) -> None:
        """`leaves` returns those that the program has now, by path."""
        self._leaves = leaves
        self._sums: dict[str, _Sum] = {}
        self._seen: dict[str, weakref.ref[Any]] = {}
        for path, leaf in leaves().items():
            if _has_numbers(leaf) and not _is_deleted(leaf):
                self._remember(path, leaf, _sum(leaf))

    @beside_the_mesh
    def check(self) -> None:
        """Raise LoopError, with the paths, when leaves have other values than in `join`."""
        changed = []
        for path, leaf in self._leaves().items():
            if path not in self._sums or (path in self._seen and self._seen[path]() is leaf) or _is_deleted(leaf):
                continue
            before, now = self._sums[path], _sum(leaf) if _has_numbers(leaf) else None
            # Over processes no more than each one's own part is summed: parts of another sharding cannot be compared.
            if now is None or (now != before and now[0] == before[0]):
                changed.append(path)
            else:
                self._remember(path, leaf, now)
        if changed:
            names = ", ".join(changed[:_NAMED]) + (f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else "")
            raise LoopError(
                f"the program changes leaves of the parameters that joined as frozen: {names}. They are exchanged with no unit, so units "
                "would end with different models. Let `trained` select them in join; keep what changes and is no parameter, such as "
                "statistics and keys of random numbers, in the optimizer's state"
            )

    def _remember(self, path: str, leaf: Any, of_values: _Sum) -> None:
        self._sums[path] = of_values
        if isinstance(leaf, jax.Array):  # what else there is may be written to in place
            self._seen[path] = weakref.ref(leaf)
        else:
            self._seen.pop(path, None)


type _Sum = tuple[Any, int]
"""The sharding of a leaf that is spread over processes, otherwise None, and the sum of its values that this process has."""


def _has_numbers(leaf: Any) -> bool:
    return isinstance(leaf, (bool, int, float, complex, jax.Array, np.ndarray, np.generic))


def _is_deleted(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and leaf.is_deleted()


def _sum(leaf: Any) -> _Sum:
    # A number or an array of numpy becomes what a compiled step makes of it.
    array = with_shards(leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf))
    alone = array.is_fully_addressable
    # All are under way before the first is waited for.
    sums = [_mixed(shard.data) for shard in array.addressable_shards if shard.replica_id == 0 or not alone]
    return None if alone else array.sharding, sum(int(one) for one in sums) % (1 << 32)


@jax.jit
def _mixed(data: jax.Array) -> jax.Array:
    """Return the sum modulo 2^32 of the elements' bits, each mixed by itself: the same for every order and sharding."""
    bits = _bits(data)
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    return jnp.sum(bits ^ (bits >> 16), dtype=jnp.uint32)


def _bits(data: jax.Array) -> jax.Array:
    """Return the elements' bits, at most 32 of each: those of 64 are folded."""
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
