"""A JAX pytree's arrays in canonical form.

See docs/decisions/0081-jax-session.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from diloco.algorithm.layout import TensorSpec
from diloco.canonical import Canonical, Part, lay_out
from diloco.learner.store import Float32Array


class TreeStore[Tree]:
    """A `ParameterStore` over a pytree of floating arrays, on any devices of this process.

    The store holds the current leaves: `hand_out` gives the tree, `take_back` takes the next one. A write makes new arrays for
    the leaves that it touches, with the type and placement of the old ones, and leaves every other leaf the same object. Leaves
    are named by their path, joined with "/": `{"blocks": {"query": …}}` has "blocks/query".

    A leaf that stacks the layers of a `lax.scan` is mapped with `Canonical("block.{layer}.query", stacked=True)`: each layer's slice is
    then exchanged by itself, and the layout equals that of a framework that keeps layers apart.
    """

    def __init__(
        self,
        params: Tree,
        *,
        canonical: Mapping[str, Canonical | str] | None = None,
        embeddings: Callable[[str], bool] | None = None,
    ) -> None:
        """`canonical`: for leaves whose canonical form differs, by path. `embeddings`: by path; default: "embed" in the path.

        Raises TypeError for a leaf that cannot be exchanged (not a floating JAX or numpy array, or spread over processes), ValueError
        for a mapping that does not fit.
        """
        named, self._structure = jax.tree_util.tree_flatten_with_path(params)
        self._paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in named]
        self._leaves: dict[str, jax.Array] = {path: _array(path, leaf) for path, (_, leaf) in zip(self._paths, named, strict=True)}
        shapes = {path: leaf.shape for path, leaf in self._leaves.items()}
        self._parts = lay_out(shapes, canonical or {}, embeddings or _named_embedding)
        self._written: set[str] = set()
        """Tensors written since the tree was handed out."""

    def hand_out(self) -> Tree:
        """The tree as it is now, for the program to compute with."""
        self._written.clear()
        tree: Tree = jax.tree_util.tree_unflatten(self._structure, [self._leaves[path] for path in self._paths])
        return tree

    def take_back(self, params: Tree) -> None:
        """The tree after a step on what was handed out last. What was written in between, while the program held the older values, is
        written again over them. Raises ValueError when its structure, a shape or a type is another than before."""
        leaves, structure = jax.tree_util.tree_flatten(params)
        if structure != self._structure:  # type: ignore[operator]  # its stub says that it may be None
            raise ValueError(f"the parameters changed their structure from {self._structure} to {structure}")
        for path, leaf in zip(self._paths, leaves, strict=True):
            old = self._leaves[path]
            if leaf.shape != old.shape or leaf.dtype != old.dtype:
                raise ValueError(f"parameter {path!r} was {old.dtype}{list(old.shape)} and became {leaf.dtype}{list(leaf.shape)}")
        written = self.read(sorted(self._written))
        self._leaves = {path: _array(path, leaf) for path, leaf in zip(self._paths, leaves, strict=True)}
        self.write(written)
        self._written.clear()

    def specs(self) -> Sequence[TensorSpec]:
        """Every canonical tensor of the model, sorted by canonical name."""
        return [part.spec for part in self._parts.values()]

    def read(self, names: Sequence[str]) -> dict[str, Float32Array]:
        """Copies in host memory of the named tensors, float32 in canonical shape. Raises KeyError for an unknown name."""
        parts = {name: self._parts[name] for name in names}
        pieces = {name: self._pieces(part) for name, part in parts.items()}
        for _, array in itertools.chain.from_iterable(pieces.values()):
            array.copy_to_host_async()  # all transfers under way before the first is waited for
        return {name: part.to_canonical(_assemble(pieces[name])) for name, part in parts.items()}

    def write(self, values: Mapping[str, Float32Array]) -> None:
        """Overwrite the named tensors with values in canonical shape. Raises KeyError for an unknown name, ValueError for another shape."""
        for name, value in values.items():
            part = self._parts[name]
            leaf = self._leaves[part.parameter]
            # A copy of its own: on CPU the array may otherwise share the caller's memory.
            native = np.array(part.to_native(value), dtype=leaf.dtype, order="C")
            if part.layer is None:
                self._leaves[part.parameter] = jax.device_put(native, leaf.sharding) if leaf.committed else jnp.asarray(native)
            else:
                self._leaves[part.parameter] = _with_layer(leaf, native, part.layer)
            self._written.add(name)

    def _pieces(self, part: Part) -> list[tuple[_Index, jax.Array]]:
        """What the tensor is put together from, without its canonical axes: each piece and where it lies."""
        leaf = self._leaves[part.parameter]
        if part.layer is None:
            return [((), leaf)]
        if len(leaf.sharding.device_set) == 1:
            return [((), _get_layer(leaf, part.layer))]
        local = [(shard, _local_layer(shard, part.layer)) for shard in leaf.addressable_shards if shard.replica_id == 0]
        return [(shard.index[1:], _get_layer(shard.data, layer)) for shard, layer in local if layer is not None]


type _Index = tuple[slice, ...]


def _assemble(pieces: list[tuple[_Index, jax.Array]]) -> np.ndarray[Any, Any]:
    if len(pieces) == 1:
        return np.asarray(pieces[0][1])
    shape = tuple(max(index[axis].stop for index, _ in pieces) for axis in range(len(pieces[0][0])))
    whole = np.empty(shape, pieces[0][1].dtype)
    for index, piece in pieces:
        whole[index] = np.asarray(piece)
    return whole


@jax.jit
def _get_layer(leaf: jax.Array, layer: int) -> jax.Array:
    piece: jax.Array = jax.lax.dynamic_index_in_dim(leaf, layer, axis=0, keepdims=False)
    return piece


@jax.jit
def _set_layer(leaf: jax.Array, value: np.ndarray[Any, Any], layer: int) -> jax.Array:
    updated: jax.Array = jax.lax.dynamic_update_index_in_dim(leaf, value, layer, axis=0)
    return updated


def _with_layer(leaf: jax.Array, value: np.ndarray[Any, Any], layer: int) -> jax.Array:
    """`leaf` with one slice along its first axis replaced and its placement kept. Compiled once per shape and type: the layer is an
    argument, not a constant. The leaf is not donated, as a program may hold it elsewhere (an average, a test)."""
    updated: jax.Array
    if len(leaf.sharding.device_set) == 1:
        updated = _set_layer(leaf, value, layer)
        return updated
    # Shard by shard: this works for any sharding and any axis types of the mesh, and copies nothing between devices.
    shards = []
    for shard in leaf.addressable_shards:
        local = _local_layer(shard, layer)
        shards.append(shard.data if local is None else _set_layer(shard.data, value[shard.index[1:]], local))
    updated = jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, shards)
    return updated


def _local_layer(shard: Any, layer: int) -> int | None:
    """The layer's index within a shard of a stacked leaf; None when the shard does not have it."""
    layers: slice = shard.index[0]
    start = layers.start or 0
    return layer - start if start <= layer < start + shard.data.shape[0] else None


def _array(path: str, leaf: object) -> jax.Array:
    array = jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf
    if not isinstance(array, jax.Array) or not jnp.issubdtype(array.dtype, jnp.floating):
        kind = getattr(leaf, "dtype", type(leaf).__name__)
        raise TypeError(f"parameter {path!r} is {kind}: only floating-point arrays can be merged; keep other state out of the parameters")
    if not array.is_fully_addressable:
        raise TypeError(f"parameter {path!r} is spread over several processes: join with arrays that this process holds whole")
    return array


def _named_embedding(path: str) -> bool:
    return "embed" in path.lower()
