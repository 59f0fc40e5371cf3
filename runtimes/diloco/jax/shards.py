"""Shards of arrays that every process holds as a whole.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

import jax


def with_shards(array: jax.Array) -> jax.Array:
    """Return `array`, or an array with the same values and memory whose `addressable_shards` do not raise.

    If every process has one device, `jax.device_put` of a local array to all processes makes an array that JAX 0.12 takes for its own only
    shard: `addressable_shards` raises ValueError, while `addressable_data` returns this process's data.
    """
    if array.is_fully_addressable or not array.is_fully_replicated or array.is_deleted():
        return array
    try:
        array.addressable_shards  # noqa: B018 - whether it raises
    except ValueError:
        return jax.make_array_from_single_device_arrays(array.shape, array.sharding, [array.addressable_data(0)])
    return array
