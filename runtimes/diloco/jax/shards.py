"""Shards of arrays that every process holds whole.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

import jax


def with_shards(array: jax.Array) -> jax.Array:
    """Return `array`, or one of the same values and memory whose shards can be asked for.

    `jax.device_put` of an array of this process to all processes, each of which has one device, makes one that JAX 0.12 takes for
    its own only shard: `addressable_shards` raises ValueError, while `addressable_data` knows what this process has.
    """
    if array.is_fully_addressable or not array.is_fully_replicated or array.is_deleted():
        return array
    try:
        array.addressable_shards  # noqa: B018 - whether it raises
    except ValueError:
        return jax.make_array_from_single_device_arrays(array.shape, array.sharding, [array.addressable_data(0)])
    return array
