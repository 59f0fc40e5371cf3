"""A JAX pytree's arrays in canonical form.

See docs/decisions/0151-step-boundary.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from diloco.algorithm.layout import FrozenTensor, LayoutError, TensorSpec
from diloco.algorithm.pieces import Piece, whole
from diloco.canonical import Canonical, Part, lay_out
from diloco.jax.adoption_check import AdoptionCheck
from diloco.jax.frozen import frozen_tensors
from diloco.jax.own_mesh import without_mesh
from diloco.jax.rectangles import RUNTIME_ZERO, StagedRectangles, cast, cut, parted, rectangle, same
from diloco.jax.shards import with_shards
from diloco.learner.leave import LoopError
from diloco.learner.store import Float32Array, Ready


class TreeStore[Tree]:
    """A `ParameterStore` over the trained leaves of a pytree, on any devices of this process.

    The store holds the current leaves: `hand_out` gives the tree to the program, `take_back` takes the program's next tree. A write makes
    new arrays for the leaves that it changes, with their type and placement, and leaves every other leaf the same object. A leaf's name is
    its path, joined with "/": `{"blocks": {"query": …}}` has "blocks/query".

    A leaf that stacks the layers of a `lax.scan` is mapped with `Canonical("block.{layer}.query", stacked=True)`: each layer's slice is
    then exchanged by itself, and the layout equals that of a framework that keeps layers apart.
    """

    @without_mesh
    def __init__(
        self,
        params: Tree,
        *,
        canonical: Mapping[str, Canonical | str] | None = None,
        embeddings: Callable[[str], bool] | None = None,
        stacks: Callable[[str], int] | None = None,
        trained: Callable[[str], bool] | None = None,
        spread: bool = False,
    ) -> None:
        """Raises LayoutError for a trained leaf that cannot be exchanged (not a floating JAX or numpy array, or spread over processes), and
        for a mapping that does not fit.

        Args:
            canonical: the canonical form of leaves where it differs, by path.
            embeddings: which leaves are embeddings, by path; default: those with "embed" in the path.
            stacks: how many leading axes of the canonical tensor count separate matrices (experts), by path; default: none. Each matrix is
                merged by itself.
            trained: which leaves are exchanged, by path; default: all. The others are frozen, and may be of any type.
            spread: leaves may be spread over processes (`UnitStore`).
        """
        named, self._structure = jax.tree_util.tree_flatten_with_path(params)
        self._paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in named]
        every = {path: leaf for path, (_, leaf) in zip(self._paths, named, strict=True)}
        self._spread = spread
        chosen = [path for path in every if trained is None or trained(path)]
        self._leaves: dict[str, jax.Array] = {path: _array(path, every[path], spread) for path in chosen}
        if not self._leaves:
            raise LayoutError(f"the tree has no leaf to exchange: `trained` selects none of {len(every)}")
        self._frozen: dict[str, Any] = {path: leaf for path, leaf in every.items() if path not in self._leaves}
        shapes = {path: tuple(getattr(leaf, "shape", ())) for path, leaf in every.items()}
        self._shapes = {path: leaf.shape for path, leaf in self._leaves.items()}
        self._types: dict[str, np.dtype[Any]] = {path: leaf.dtype for path, leaf in self._leaves.items()}
        parts = lay_out(shapes, canonical or {}, embeddings or _named_embedding, stacks)
        self._parts = {name: part for name, part in parts.items() if part.parameter in self._leaves}
        self._frozen_parts = [part for part in parts.values() if part.parameter in self._frozen]
        self._wholes = {name: rectangle(part, whole(part.spec)) for name, part in self._parts.items()}
        self._placements: dict[str, _Placement] = {path: (leaf.sharding, leaf.committed) for path, leaf in self._leaves.items()}
        """For other threads. They must not look at leaves, which the program may donate at any moment."""
        self._applied: list[Ready] = []
        """What was applied since the tree was handed out last."""
        self.adoption_check: AdoptionCheck | None = None
        """Checks that the program keeps what is applied; None if that is not checked."""
        self._handed_out = False
        """The program holds the tree."""
        self.updates = 0
        """How often the program has given back other arrays than it was handed out."""
        self._to_host = ThreadPoolExecutor(1, "diloco-to-host")

    @property
    def handed_out(self) -> bool:
        """The program holds the tree, and computes the next one from it."""
        return self._handed_out

    @property
    def lent(self) -> bool:
        """The program has donated leaves to a step and not given the result back."""
        return self._handed_out and any(leaf.is_deleted() for leaf in self._leaves.values())

    def reclaim(self) -> None:
        """Take the tree from the program, which will not give it back. Leaves that it has donated are replaced by zeros, and the caller
        must overwrite all of them."""
        if not self._handed_out:
            return
        self._handed_out = False
        self._leaves = {path: _anew(leaf) if leaf.is_deleted() else leaf for path, leaf in self._leaves.items()}
        for ready in self._applied:
            self._put(ready)

    @without_mesh
    def hand_out(self) -> Tree:
        """Give the program the current tree, to compute the next one from."""
        if self._handed_out:
            for ready in self._applied:
                self._put(ready)
        self._applied.clear()
        self._handed_out = True
        return self.held()

    def held(self) -> Tree:
        """The tree that the program was handed out last, without what was applied since."""
        leaves = [self._leaves[path] if path in self._leaves else self._frozen[path] for path in self._paths]
        tree: Tree = jax.tree_util.tree_unflatten(self._structure, leaves)
        return tree

    @without_mesh
    def take_back(self, params: Tree) -> None:
        """Take the program's tree after a step on the one that it was handed out, and overwrite it with what was applied meanwhile.

        Raises ValueError if its structure, a shape or a type has changed, and LoopError if it was donated, or if the program undoes what
        was applied (`AdoptionCheck`).
        """
        leaves, structure = jax.tree_util.tree_flatten(params)
        if structure != self._structure:  # type: ignore[operator]  # its stub says that it may be None
            raise ValueError(f"the parameters changed their structure from {self._structure} to {structure}")
        # Everything is checked before anything is taken, so that a refused tree leaves the store as it was.
        every = dict(zip(self._paths, leaves, strict=True))
        for path in self._leaves:
            leaf, shape, kind = every[path], self._shapes[path], self._types[path]
            if leaf.shape != shape or leaf.dtype != kind:
                raise ValueError(f"parameter {path!r} was {kind}{list(shape)} and became {leaf.dtype}{list(leaf.shape)}")
            if isinstance(leaf, jax.Array) and leaf.is_deleted():
                raise LoopError(f"parameter {path!r} was donated to a step. Give session.step what that step returned")
        self.updates += any(every[path] is not leaf for path, leaf in self._leaves.items())
        self._leaves = {path: _array(path, every[path], self._spread) for path in self._leaves}
        self._frozen = {path: every[path] for path in self._frozen}
        self._placements = {path: (leaf.sharding, leaf.committed) for path, leaf in self._leaves.items()}
        self._handed_out = False
        # Before the tree is overwritten: the program's own values show whether it undoes an adoption.
        if self.adoption_check is not None:
            self.adoption_check.stepped(self._leaves)
        for ready in self._applied:
            self._put(ready)

    def specs(self) -> Sequence[TensorSpec]:
        """Every exchanged tensor, sorted by canonical name."""
        return [part.spec for part in self._parts.values()]

    def frozen(self) -> Sequence[FrozenTensor]:
        """Every canonical tensor of the frozen leaves that are arrays or numbers, sorted by canonical name."""
        return frozen_tensors(self._frozen_parts, self._frozen)

    @property
    def frozen_leaves(self) -> Mapping[str, Any]:
        """The frozen leaves that the program gave last, by path. It may have donated them."""
        return self._frozen

    def dtypes(self) -> Mapping[str, str]:
        """The types of the leaves, by canonical name."""
        return {name: self._types[part.parameter].name for name, part in self._parts.items()}

    def owned(self) -> Sequence[Piece]:
        """All of every tensor."""
        return [whole(part.spec) for part in self._parts.values()]

    def pieces(self) -> Sequence[Piece]:
        """What this process stores."""
        return self.owned()

    @property
    def paths(self) -> Collection[str]:
        """The paths of the leaves that are exchanged."""
        return self._leaves.keys()

    def placed(self, tensor: str) -> tuple[Part, jax.Array]:
        """Return a tensor's part, and the leaf that has it. Raises KeyError for a tensor that is not exchanged."""
        part = self._parts[tensor]
        return part, self._leaves[part.parameter]

    def is_sharded_alike(self, path: str, array: Any) -> bool:
        """Whether this process stores the same elements of `array` as of the leaf at `path`, which has the same shape. A unit of one
        process stores all."""
        return True

    def newest(self, tensor: str) -> Ready | None:
        """What was applied last to a tensor since the tree was handed out; None if nothing was."""
        return next((ready for ready in reversed(self._applied) if tensor in ready.names), None)

    def replace(self, leaves: Mapping[str, jax.Array]) -> None:
        """Replace leaves, by path. Only before the tree is handed out."""
        self._leaves |= leaves

    @without_mesh
    def warm_up(self, groups: Sequence[Sequence[str]]) -> None:
        """Compile what `stage` and `apply` run for these groups."""
        for names in groups:
            self._updated(self.prepare(names, self.stage(names).wait()))

    @without_mesh
    def stage(self, names: Sequence[str]) -> StagedLeaves:
        """Keep the present values of the named tensors, as copies on the device, so that the program may donate the leaves. The host waits
        neither for the copies nor for a step that still computes the values."""
        places = [self._wholes[name] for name in names]
        # All transfers begin before a thread waits for the first.
        staged = [(place, cut(self._leaves[place.part.parameter], place)) for place in places]
        return StagedLeaves(self._to_host.submit(StagedRectangles(staged).wait))

    @without_mesh
    def prepare(self, names: Sequence[str], values: Float32Array) -> Ready:
        """Bring `values`, float32 [sum of sizes], to the devices with the types and placement of the leaves."""
        return Ready(tuple(names), tuple(self._native(part, value) for part, value in self._cut(names, values)))

    @without_mesh
    def apply(self, ready: Ready) -> None:
        """Put the new values into the tree that is handed out next. While the program holds the tree, the values wait: the program may have
        donated the leaves, and the tree that it gives back is computed from the older values."""
        if not self._handed_out:
            self._put(ready)
            # `_applied` now only tells which tensors have changed, so the newest entry of a fragment is enough. A process that waits for
            # its state adopts many before its tree is handed out.
            self._applied = [x for x in self._applied if x.names != ready.names]
        self._applied.append(ready)

    @without_mesh
    def fill(self, names: Sequence[str]) -> None:
        """Does nothing: `apply` has reached all devices of this process."""

    @without_mesh
    def rounded(self, names: Sequence[str], values: Float32Array) -> Float32Array:
        """Return `values` rounded to the leaves' types; `values` itself if all leaves are float32."""
        parts = self._applied_parts(names, values)
        if all(self._types[part.parameter].itemsize >= values.itemsize for part, _ in parts):
            return values
        return np.concatenate([cast(self._in_its_type(part, value), np.dtype(np.float32)).reshape(-1) for part, value in parts])

    @without_mesh
    def read(self, names: Sequence[str]) -> dict[str, Float32Array]:
        """Copy the named tensors to host memory, float32 in canonical shape, for use outside of a job. Waits for the devices. Raises
        KeyError for an unknown name."""
        values = self.stage(names).wait()
        return {part.spec.name: value for part, value in self._cut(names, values)}

    @without_mesh
    def write(self, values: Mapping[str, Float32Array]) -> None:
        """Overwrite the named tensors with values in canonical shape, for use outside of a job. Raises KeyError for an unknown name,
        ValueError for another shape."""
        self._overwrite(Ready(tuple(values), tuple(self._native(self._parts[name], value) for name, value in values.items())))

    def watch(self) -> None:
        """From now on check that the program does not undo what is applied."""
        self.adoption_check = AdoptionCheck(self._leaves.values())

    def applied_paths(self) -> list[str]:
        """The paths of the leaves that were overwritten since the tree was handed out, each once."""
        return list(dict.fromkeys(self._parts[name].parameter for ready in self._applied for name in ready.names))

    def _overwrite(self, ready: Ready) -> None:
        """Put the values in at once, even while the program holds the tree, and again over the tree that it gives back."""
        self._put(ready)
        self._applied.append(ready)

    def _put(self, ready: Ready) -> None:
        updated = self._updated(ready)
        # Not while the program holds the tree: `take_back` calls this again, over the tree that the program gives back.
        if self.adoption_check is not None and not self._handed_out:
            self.adoption_check.adopted(self._leaves, updated)
        self._leaves |= updated

    def _native(self, part: Part, value: Float32Array) -> _Native:
        # np.array copies: on CPU the array could otherwise share the caller's memory.
        return self._placed(part, self._in_its_type(part, np.array(part.to_native(value), order="C")))

    def _placed(self, part: Part, native: np.ndarray[Any, Any]) -> _Native:
        """Bring a value to the devices as its leaf lies now."""
        placement = sharding, committed = self._placements[part.parameter]
        if part.layer is not None and len(sharding.device_set) > 1:
            indices = sharding.addressable_devices_indices_map(self._shapes[part.parameter]).items()
            holding = {device: index[1:] for device, index in indices if index and _has(index[0], part.layer)}
            return _Native({device: jax.device_put(native[index], device) for device, index in holding.items()}, placement)
        device = next(iter(sharding.device_set))
        # Committed only if the leaf was: otherwise the program's step would be compiled anew.
        if committed:
            return _Native(jax.device_put(native, sharding if part.layer is None else device), placement)
        with jax.default_device(device):
            return _Native(jnp.asarray(native), placement)

    def _on_host(self, part: Part, native: _Native) -> np.ndarray[Any, Any]:
        """Copy a value back from the devices. Waits for them."""
        if isinstance(native.value, jax.Array):
            return np.array(native.value)
        shape, (sharding, _) = self._shapes[part.parameter], native.placement
        indices = sharding.addressable_devices_indices_map(shape)
        whole = np.empty(shape[1:], self._types[part.parameter])
        for device, piece in native.value.items():
            whole[(indices[device] or ())[1:]] = piece
        return whole

    def _updated(self, ready: Ready) -> dict[str, jax.Array]:
        leaves: dict[str, jax.Array] = {}
        layers: dict[str, list[tuple[int, _Value]]] = {}
        native: _Native
        for name, native in zip(ready.names, ready.native, strict=True):
            part = self._parts[name]
            # The program may place a leaf otherwise after the value was prepared, as a first step with out_shardings does.
            if native.placement != self._placements[part.parameter]:
                native = self._placed(part, self._on_host(part, native))
            if part.layer is None:
                assert isinstance(native.value, jax.Array)  # only layers are in pieces
                leaves[part.parameter] = native.value
            else:
                layers.setdefault(part.parameter, []).append((part.layer, native.value))
        return leaves | {path: _with_layers(self._leaves[path], values) for path, values in layers.items()}

    def _in_its_type(self, part: Part, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return cast(value, self._types[part.parameter])

    def _applied_parts(self, names: Sequence[str], values: Float32Array) -> list[tuple[Part, Float32Array]]:
        """The part and the values of each tensor that this process applies."""
        return self._cut(names, values)

    def _cut(self, names: Sequence[str], values: Float32Array) -> list[tuple[Part, Float32Array]]:
        parts = [self._parts[name] for name in names]
        return list(zip(parts, parted(names, [part.spec.shape for part in parts], values), strict=True))


type _Placement = tuple[jax.sharding.Sharding, bool]
"""Sharding of a leaf, and whether it is committed."""
type _Value = jax.Array | dict[jax.Device, jax.Array]
"""On the devices; for a layer of a leaf on several devices, one piece for each device that has it."""


@dataclass(frozen=True, slots=True)
class _Native:
    value: _Value
    placement: _Placement
    """That of its leaf when the value was prepared."""


class StagedLeaves:
    """A `Staged` of copies on the device. A thread of the store brings them to the host, so that the device's memory is soon free again,
    even if the values are sent much later."""

    def __init__(self, values: Future[Float32Array]) -> None:
        self._values: Future[Float32Array] | None = values

    def wait(self) -> Float32Array:
        if self._values is None:
            raise RuntimeError("wait() after release()")
        return self._values.result()

    def release(self) -> None:
        values, self._values = self._values, None
        if values is not None:
            values.cancel()


@jax.jit
def _set_layers(leaf: jax.Array, values: list[jax.Array], layers: list[int], nothing: jax.Array) -> jax.Array:
    for value, layer in zip(values, layers, strict=True):
        leaf = jax.lax.dynamic_update_index_in_dim(leaf, same(value, nothing), layer, axis=0)
    return leaf


def _with_layers(leaf: jax.Array, values: list[tuple[int, _Value]]) -> jax.Array:
    """Return `leaf` with some slices along its first axis replaced, and with its placement.

    Compiled once for each shape, type and number of slices, as the layers are arguments, not constants. The leaf is not donated, because
    the program may hold it elsewhere (an average, a test).
    """
    if len(leaf.sharding.device_set) == 1:
        updated: jax.Array = _set_layers(leaf, [value for _, value in values], [layer for layer, _ in values], RUNTIME_ZERO)
        return updated
    # Shard by shard, which works for any sharding and any axis types of the mesh, and copies nothing between devices.
    shards = []
    for shard in leaf.addressable_shards:
        of_shard = [(local, value) for layer, value in values if (local := _local_layer(shard, layer)) is not None]
        pieces = [value[shard.device] for _, value in of_shard if isinstance(value, dict)]
        shards.append(_set_layers(shard.data, pieces, [local for local, _ in of_shard], RUNTIME_ZERO) if of_shard else shard.data)
    return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, shards)


def _anew(leaf: jax.Array) -> jax.Array:
    """Return zeros with the shape, type and placement of a leaf that was donated."""
    if not leaf.committed:
        return jnp.zeros(leaf.shape, leaf.dtype)
    shape = leaf.sharding.shard_shape(leaf.shape)
    shards = [jax.device_put(np.zeros(shape, leaf.dtype), device) for device in leaf.sharding.addressable_devices]
    return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, shards)


def _local_layer(shard: Any, layer: int) -> int | None:
    """Return the layer's index within a shard of a stacked leaf; None if the shard does not have it."""
    return layer - (shard.index[0].start or 0) if _has(shard.index[0], layer) else None


def _has(layers: slice, layer: int) -> bool:
    return (layers.start or 0) <= layer and (layers.stop is None or layer < layers.stop)


def _array(path: str, leaf: object, spread: bool) -> jax.Array:
    array = jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf
    if not isinstance(array, jax.Array) or not jnp.issubdtype(array.dtype, jnp.floating):
        kind = getattr(leaf, "dtype", type(leaf).__name__)
        raise LayoutError(
            f"parameter {path!r} is {kind}: only real floating-point arrays can be merged. Keep other state out of the parameters, or "
            "leave it out of the exchange with trained=…"
        )
    if not (spread or array.is_fully_addressable):
        raise LayoutError(f"parameter {path!r} is spread over several processes: join with arrays that this process holds whole")
    return with_shards(array)


def _named_embedding(path: str) -> bool:
    return "embed" in path.lower()
