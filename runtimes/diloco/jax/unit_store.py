"""The parameters of a unit of several JAX processes. Each process stages and applies its own pieces; then the processes exchange pieces
that several of them hold.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from diloco.algorithm.frozen import MASK
from diloco.algorithm.layout import FrozenTensor, Layout, LayoutError
from diloco.algorithm.ownership import divide
from diloco.algorithm.pieces import Piece, PieceError, check_cover
from diloco.canonical import Canonical, Part
from diloco.jax.frozen import frozen_tensors
from diloco.jax.own_mesh import without_mesh
from diloco.jax.rectangles import RUNTIME_ZERO, Rectangle, StagedRectangles, bounds, copied, parted, rectangle, same
from diloco.jax.store import TreeStore
from diloco.learner.store import Float32Array, Ready


@dataclass(frozen=True, slots=True)
class Place:
    """A piece, and its place in this process's shards."""

    rectangle: Rectangle
    """Its place in the leaf."""
    start: tuple[int, ...]
    """Its start within each shard that has it, in the leaf's order of axes, with the axis of layers."""
    devices: tuple[jax.Device, ...]
    """The devices of this process whose shards have it."""

    @property
    def piece(self) -> Piece:
        return self.rectangle.piece

    @property
    def part(self) -> Part:
        return self.rectangle.part


class UnitStore[Tree](TreeStore[Tree]):
    """A `TreeStore` in a unit of several processes of `jax.distributed`, over arrays that are sharded over all of them, or over local
    arrays that are equal in all. Every process makes a store for the same tree, and all must call `frozen` and `fill` in the same order."""

    @without_mesh
    def __init__(
        self,
        params: Tree,
        *,
        canonical: Mapping[str, Canonical | str] | None = None,
        embeddings: Callable[[str], bool] | None = None,
        stacks: Callable[[str], int] | None = None,
        trained: Callable[[str], bool] | None = None,
    ) -> None:
        """As `TreeStore`. Also raises LayoutError if the processes together do not hold every element of the model."""
        super().__init__(params, canonical=canonical, embeddings=embeddings, stacks=stacks, trained=trained, spread=True)
        # A collective gives committed arrays, so all are from the beginning: else the program's step would be compiled anew once it adopts.
        self._leaves = {path: leaf if leaf.committed else jax.device_put(leaf, leaf.sharding) for path, leaf in self._leaves.items()}
        self._rank, ranks = jax.process_index(), jax.process_count()
        held: list[dict[Piece, list[jax.Device]]] = [{} for _ in range(ranks)]
        self._held: dict[str, list[Place]] = {name: [] for name in self._parts}
        for name, part in self._parts.items():
            for rank, piece, device, start in self._rectangles(part, ranks):
                held[rank].setdefault(piece, []).append(device)
                if rank == self._rank and len(held[rank][piece]) == 1:
                    self._held[name].append(Place(rectangle(part, piece), start, ()))
        for name, places in self._held.items():
            devices = held[self._rank]
            self._held[name] = [replace(place, devices=tuple(devices[place.piece])) for place in places]
        groups = divide(held)
        try:
            check_cover(Layout(self.specs()), [[piece for group in groups for piece in group.of(rank)] for rank in range(ranks)])
        except PieceError as error:
            raise LayoutError(f"the processes of this unit do not hold the model exactly once: {error}") from error
        self._shared = [[piece for group in groups if len(group.ranks) > 1 for piece in group.of(rank)] for rank in range(ranks)]
        """The pieces that each rank owns and other ranks hold too."""
        own = sorted(piece for group in groups for piece in group.of(self._rank))
        self._owned: dict[str, list[Place]] = {name: [] for name in self._parts}
        for piece in own:
            self._owned[piece.tensor].append(self._place(piece))
        # Reversed, so that each process's first device is the one that stays in the dict. All processes must make the same mesh.
        first = {device.process_index: device for device in reversed(jax.devices())}
        self._mesh = jax.sharding.Mesh(np.array([first[rank] for rank in range(ranks)]), ("rank",))

    @without_mesh
    def take_back(self, params: Tree) -> None:
        """As `TreeStore.take_back`. Also raises ValueError if the devices or the sharding of a leaf have changed."""
        every = dict(zip(self._paths, jax.tree_util.tree_leaves(params), strict=True))
        for path, (sharding, _) in self._placements.items():
            now = every[path].sharding
            if now is not sharding and not now.is_equivalent_to(sharding, len(self._shapes[path])):
                raise ValueError(
                    f"parameter {path!r} moved from {sharding} to {now}, but what each process exchanges was said in join: place the "
                    "parameters as train_step returns them before joining (jax.device_put, or one step's out_shardings)"
                )
        super().take_back(params)

    def owned(self) -> Sequence[Piece]:
        """What this process stages and applies."""
        return [place.piece for places in self._owned.values() for place in places]

    def is_sharded_alike(self, path: str, array: Any) -> bool:
        """Whether this process stores the same elements of `array` as of the leaf at `path`, which has the same shape."""
        leaf = self._leaves[path]
        return isinstance(array, jax.Array) and array.sharding.is_equivalent_to(leaf.sharding, leaf.ndim)

    def pieces(self) -> Sequence[Piece]:
        """What this process stores, even if others store it too."""
        return [place.piece for places in self._held.values() for place in places]

    def frozen(self) -> Sequence[FrozenTensor]:
        """As `TreeStore.frozen`, with the digests added up over the processes."""
        apart = {path for path, leaf in self._frozen.items() if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable}
        own = frozen_tensors(self._frozen_parts, self._frozen)
        if not own:
            return ()
        whole = {part.spec.name for part in self._frozen_parts if part.parameter not in apart}  # the same in every process
        sums = [0 if tensor.name in whole and self._rank else tensor.digest for tensor in own]
        bits = np.array(sums, np.uint64).view(np.uint32)  # JAX may know no integers of 64 bits
        every = np.asarray(multihost_utils.process_allgather(bits)).reshape(-1, len(bits)).astype(np.uint32)
        totals = [sum(int(x) for x in column) & MASK for column in every.view(np.uint64).T]
        return [FrozenTensor(tensor.name, tensor.shape, total) for tensor, total in zip(own, totals, strict=True)]

    @without_mesh
    def stage(self, names: Sequence[str]) -> StagedRectangles:  # type: ignore[override]
        """Keep the present values of this process's pieces of the named tensors, as copies on the devices. The host does not wait."""
        places = self._places(names)
        return StagedRectangles([(place.rectangle, [copied(self._shard(place), place.start, place.rectangle.size)]) for place in places])

    @without_mesh
    def prepare(self, names: Sequence[str], values: Float32Array) -> Ready:
        """Bring `values`, float32 [sum of sizes], to each device that has them, in the types of the leaves."""
        return Ready(tuple(names), tuple((place, self._on_devices(place, value)) for place, value in self._slices(names, values)))

    @without_mesh
    def fill(self, names: Sequence[str]) -> None:
        """Get the pieces of the named tensors that this process holds and others own, in one collective for each type of leaves. The host
        does not wait."""
        wanted = set(names)
        # In the order of the parts, which is the same in all processes: collectives in different orders would wait for each other for ever.
        for dtype in dict.fromkeys(self._types[part.parameter] for name, part in self._parts.items() if name in wanted):
            tensors = {name for name in wanted if self._types[self._parts[name].parameter] == dtype}
            pieces = [[x for x in of_rank if x.tensor in tensors] for of_rank in self._shared]
            sizes = [sum(piece.elements for piece in of_rank) for of_rank in pieces]
            # Every process knows the sizes of all, so either all leave an empty collective out, or none does.
            if sum(sizes):
                self._exchange(pieces, max(sizes), dtype)

    @without_mesh
    def read(self, names: Sequence[str]) -> dict[str, Float32Array]:
        """As `TreeStore.read`. Also raises ValueError for a tensor that is spread over processes."""
        if apart := [name for name in names if not self._leaves[self._parts[name].parameter].is_fully_addressable]:
            raise ValueError(f"tensor {apart[0]!r} is spread over processes: this one does not hold all of it")
        values = TreeStore.stage(self, names).wait()
        return {part.spec.name: value for part, value in self._cut(names, values)}

    @without_mesh
    def write(self, values: Mapping[str, Float32Array]) -> None:
        """As `TreeStore.write`. Every process must call this with the same values."""
        targets = []
        for name, value in values.items():
            part = self._parts[name]
            if value.shape != part.spec.shape:
                raise ValueError(f"tensor {name!r} has shape {part.spec.shape}, got {value.shape}")
            targets += [(place, self._on_devices(place, np.ascontiguousarray(place.piece.of(value)))) for place in self._held[name]]
        self._overwrite(Ready(tuple(values), tuple(targets)))

    def _exchange(self, pieces: Sequence[Sequence[Piece]], size: int, dtype: np.dtype[Any]) -> None:
        own = [self._place(piece) for piece in pieces[self._rank]]
        flat = [_flat(self._shard(place), place.start, size=place.rectangle.size, axes=_axes(place)) for place in own]
        device = self._mesh.devices[self._rank]
        # Padded to one size, even if this process owns nothing, because a collective has one shape.
        given = _padded([jax.device_put(x, device) for x in flat] or [jax.device_put(jnp.zeros(0, dtype), device)], size=size)
        rows = jax.sharding.NamedSharding(self._mesh, jax.sharding.PartitionSpec("rank"))  # type: ignore[no-untyped-call]
        everywhere = jax.sharding.NamedSharding(self._mesh, jax.sharding.PartitionSpec())  # type: ignore[no-untyped-call]
        whole = jax.make_array_from_single_device_arrays((len(pieces), size), rows, [given])
        received = _identity(everywhere)(whole).addressable_data(0)
        targets = []
        for rank, of_rank in enumerate(pieces):
            start = 0
            for piece in of_rank:
                if rank != self._rank and (place := self._holding(piece)) is not None:
                    value = _taken(received, rank, start, shape=piece.size, axes=place.part.axes, native=place.rectangle.size)
                    targets.append((place, {x: jax.device_put(value, x) for x in place.devices}))
                start += piece.elements
        self.apply(Ready(tuple(dict.fromkeys(place.piece.tensor for place, _ in targets)), tuple(targets)))

    def _updated(self, ready: Ready) -> dict[str, jax.Array]:
        of_leaf: dict[str, list[tuple[Place, dict[jax.Device, jax.Array]]]] = {}
        for place, value in ready.native:
            of_leaf.setdefault(place.part.parameter, []).append((place, value))
        return {path: _with_pieces(self._leaves[path], targets) for path, targets in of_leaf.items()}

    def _on_devices(self, place: Place, value: np.ndarray[Any, Any]) -> dict[jax.Device, jax.Array]:
        # np.array copies: on CPU the array could otherwise share the caller's memory.
        native = self._in_its_type(place.part, np.array(place.rectangle.native(value), order="C"))
        return {device: jax.device_put(native, device) for device in place.devices}

    def _rectangles(self, part: Part, ranks: int) -> Iterable[tuple[int, Piece, Any, tuple[int, ...]]]:
        """Yield (process, piece, device, start in the device's shard) for every device of the unit that has a part of the tensor. An array
        of this process alone counts as held by all processes, because it is equal in all."""
        leaf, shape = self._leaves[part.parameter], self._shapes[part.parameter]
        indices: Mapping[Any, Any] = leaf.sharding.devices_indices_map(shape)
        for device, index in indices.items():
            shard = bounds(index, shape)
            start: tuple[int, ...] = tuple(low for low, _ in shard)
            size = tuple(high - low for low, high in shard)
            inside = (0,) * len(shape)
            if part.layer is not None:
                if not start[0] <= part.layer < start[0] + size[0]:
                    continue
                inside, start, size = (part.layer - start[0], *inside[1:]), start[1:], size[1:]
            axes = part.axes or tuple(range(len(size)))
            piece = Piece(part.spec.name, tuple(start[axis] for axis in axes), tuple(size[axis] for axis in axes))
            holders = range(ranks) if leaf.is_fully_addressable else (int(device.process_index),)
            for rank in holders:
                yield rank, piece, device, inside

    def _holding(self, piece: Piece) -> Place | None:
        """Return the place of a piece; None if this process does not hold it."""
        wanted = rectangle(self._parts[piece.tensor], piece)
        for held in self._held[piece.tensor]:
            offset = [a - b for a, b in zip(wanted.start, held.rectangle.start, strict=True)]
            if all(low >= 0 and low + n <= length for low, n, length in zip(offset, wanted.size, held.rectangle.size, strict=True)):
                return Place(wanted, tuple(a + b for a, b in zip(held.start, offset, strict=True)), held.devices)
        return None

    def _place(self, piece: Piece) -> Place:
        place = self._holding(piece)
        assert place is not None  # a process owns only what it holds
        return place

    def _shard(self, place: Place) -> jax.Array:
        """The shard of the first device that has the place."""
        shards = self._leaves[place.part.parameter].addressable_shards
        data: jax.Array = next(shard.data for shard in shards if shard.device == place.devices[0])
        return data

    def _places(self, names: Sequence[str]) -> list[Place]:
        return [place for name in names for place in self._owned[name]]

    def _slices(self, names: Sequence[str], values: Float32Array) -> list[tuple[Place, Float32Array]]:
        places = self._places(names)
        return list(zip(places, parted(names, [place.piece.size for place in places], values), strict=True))

    def _applied_parts(self, names: Sequence[str], values: Float32Array) -> list[tuple[Part, Float32Array]]:
        return [(place.part, value) for place, value in self._slices(names, values)]


def _axes(place: Place) -> tuple[int, ...]:
    """The leaf's axes in canonical order, with the axis of layers first."""
    axes = place.part.axes or tuple(range(len(place.piece.size)))
    return axes if place.part.layer is None else (0, *(axis + 1 for axis in axes))


@partial(jax.jit, static_argnames=("size", "axes"))
def _flat(data: jax.Array, start: tuple[int, ...], *, size: tuple[int, ...], axes: tuple[int, ...]) -> jax.Array:
    return jax.lax.dynamic_slice(data, start, size).transpose(axes).reshape(-1)


@partial(jax.jit, static_argnames="size")
def _padded(parts: list[jax.Array], *, size: int) -> jax.Array:
    flat = jnp.concatenate(parts)
    return jnp.pad(flat, (0, size - flat.size)).reshape(1, size)


def _identity(sharding: jax.sharding.Sharding) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(_unchanged, out_shardings=sharding)


def _unchanged(value: jax.Array) -> jax.Array:
    return value


@partial(jax.jit, static_argnames=("shape", "axes", "native"))
def _taken(
    received: jax.Array, rank: int, start: int, *, shape: tuple[int, ...], axes: tuple[int, ...] | None, native: tuple[int, ...]
) -> jax.Array:
    flat = jax.lax.dynamic_slice(received, (rank, start), (1, math.prod(shape))).reshape(shape)
    return (flat if axes is None else flat.transpose([int(axis) for axis in np.argsort(axes)])).reshape(native)


@jax.jit
def _put(data: jax.Array, values: list[jax.Array], starts: list[tuple[int, ...]], nothing: jax.Array) -> jax.Array:
    for value, start in zip(values, starts, strict=True):
        data = jax.lax.dynamic_update_slice(data, same(value, nothing), start)
    return data


def _with_pieces(leaf: jax.Array, targets: list[tuple[Place, dict[jax.Device, jax.Array]]]) -> jax.Array:
    """Return `leaf` with some pieces replaced, and with its placement. Shard by shard, so that nothing moves between devices."""
    shards = []
    for shard in leaf.addressable_shards:
        of_shard = [(place.start, values[shard.device]) for place, values in targets if shard.device in values]
        shards.append(
            _put(shard.data, [value for _, value in of_shard], [start for start, _ in of_shard], RUNTIME_ZERO) if of_shard else shard.data
        )
    return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, shards)
