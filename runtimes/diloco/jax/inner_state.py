"""The state of optimizers in JAX, for a peer and for the syncer's volume: any pytree, such as one of optax.

Where a part of the state (`0.mu`) has the structure and shapes of the parameters, its leaves travel in pieces, as the parameters do. All
other leaves (counts, rates, keys of random numbers) are the small rest, which travels as one.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from diloco.algorithm.pieces import Piece
from diloco.jax.own_mesh import without_mesh
from diloco.jax.rectangles import RUNTIME_ZERO, Rectangle, StagedRectangles, bounds, cut, overlap, rectangle
from diloco.jax.shards import with_shards
from diloco.jax.store import TreeStore
from diloco.learner.inner_state import STEPS, steps_behind
from diloco.learner.store import Float32Array, Ready
from diloco.protocol.state_parts import AS_FLOAT32, PieceArray, StateError
from diloco.protocol.state_values import MOST_BYTES, Leaf

_MOST_NAME = 56
"""The most characters of an array's name, without the number that distinguishes equal names."""

type _Array = np.ndarray[Any, Any]


class _OfParameter(NamedTuple):
    """A piece of a parameter in a copy. It is written when the copy is whole, unless the tensor adopted newer values meanwhile."""

    place: Rectangle
    values: Float32Array
    after: Ready | None
    """What was applied last to its tensor when the piece came."""


class TreeState[State]:
    """A `CountedState` of the optimizer of a `TreeStore`'s leaves."""

    def __init__(self, store: TreeStore[Any], opt_state: State) -> None:
        """`opt_state`: the state as the program made it. Structure, shapes and types must stay the same."""
        self.steps = 0
        """See `CountedState`."""
        self._store = store
        self.opt_state = opt_state
        params = store.held()
        named, self._structure = jax.tree_util.tree_flatten_with_path(opt_state)
        self.kind = f"jax {', '.join(_classes(opt_state, params)) or 'pytree'}"
        """The kind of state, such as "jax ScaleByAdamState". Only states of the same kind are copied between processes."""
        self._shaped: dict[str, dict[str, int]] = {}
        """Index of the leaf, by path of the parameter and name of the array."""
        self._rest: dict[str, int] = {}
        """Index of each other leaf, by its path."""
        names = _Names()
        of_params = {
            _keys(path): (_joined(path), leaf)
            for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]
            # Without frozen leaves: they are not exchanged, so what the state has in their shapes belongs to the small rest.
            if _joined(path) in store.paths
        }
        for index, (path, leaf) in enumerate(named):
            if (shaped := _parameter_of(path, leaf, of_params)) is not None:
                above, parameter = shaped
                self._shaped.setdefault(parameter, {})[names.of(above)] = index
            else:
                self._rest[_joined(path)] = index
        self._expected: Counter[str] = Counter()
        """How many elements of each parameter this process stores, by path."""
        for piece in store.pieces():
            self._expected[store.placed(piece.tensor)[0].parameter] += piece.elements
        self._new: dict[int, _Incoming] = {}
        """Values of a copy that have come, by index of the leaf."""
        self._elements: Counter[int] = Counter()
        """How many elements have come, by index of the leaf."""
        self._of_parameters: list[_OfParameter] = []

    @property
    def opt_state(self) -> State:
        """The newest state, which session and program share."""
        return self._opt_state

    @opt_state.setter
    def opt_state(self, opt_state: State) -> None:
        self._opt_state = opt_state
        self._flat: list[Any] | None = None

    @property
    def lent(self) -> bool:
        """The program has donated the state to a step and not given the result back yet."""
        return is_deleted(self._leaves())

    def held(self) -> Sequence[Piece]:
        return self._store.pieces()

    @without_mesh
    def warm_up(self, parts: Sequence[Sequence[Piece]]) -> None:
        """Compile what `stage` and `stage_rest` run for these parts. A state that cannot be copied raises only when a peer asks for it."""
        # Now, not at the first copy: compiling would hold up a step of this unit while a peer waits.
        with contextlib.suppress(StateError):
            self._compile(parts)

    def _compile(self, parts: Sequence[Sequence[Piece]]) -> None:
        compiled = set()
        for piece in (piece for part in parts for piece in part):
            part, parameter = self._store.placed(piece.tensor)
            place = rectangle(part, piece)
            for leaf in (parameter, *(self._leaf(index) for index in self._shaped.get(part.parameter, {}).values())):
                key = (leaf.shape, str(leaf.dtype), leaf.sharding, place.size)
                if key not in compiled:
                    compiled.add(key)
                    cut(leaf, place)
        self._keep_rest()

    def arrays(self, pieces: Sequence[Piece]) -> list[PieceArray]:
        arrays = []
        for piece in pieces:
            part, parameter = self._store.placed(piece.tensor)
            arrays.append(PieceArray(piece, "", parameter.dtype.name))
            for name, index in sorted(self._shaped.get(part.parameter, {}).items()):
                arrays.append(PieceArray(piece, name, self._leaf(index).dtype.name))
        return arrays

    @without_mesh
    def stage(self, arrays: Sequence[PieceArray]) -> StagedRectangles:
        staged = []
        for array in arrays:
            part, parameter = self._store.placed(array.piece.tensor)
            place = rectangle(part, array.piece)
            staged.append((place, cut(self._leaf(self._shaped[part.parameter][array.name]) if array.name else parameter, place)))
        return StagedRectangles(staged)

    def stage_rest(self) -> _Rest:
        return _Rest(self._keep_rest(), self.steps)

    def begin(self) -> None:
        self._new.clear()
        self._elements.clear()
        self._of_parameters.clear()

    def put(self, array: PieceArray, values: Float32Array) -> None:
        try:
            part, _ = self._store.placed(array.piece.tensor)
            index = self._shaped[part.parameter][array.name] if array.name else -1
        except KeyError as error:
            raise StateError(f"the donor's {array.name or 'tensor'} of {array.piece.tensor} is not of this program") from error
        place = rectangle(part, array.piece)
        if index < 0:
            self._of_parameters.append(_OfParameter(place, values.copy(), self._store.newest(array.piece.tensor)))
            return
        if index not in self._new:
            self._new[index] = _Incoming(self._leaf(index))
        self._new[index].put(place, values)
        self._elements[index] += array.piece.elements

    @without_mesh
    def check(self, rest: Any) -> None:
        self._checked(rest)

    @without_mesh
    def finish(self, rest: Any) -> None:
        leaves = self._checked(rest)
        for of_parameter in self._shaped.values():
            for index in of_parameter.values():
                leaves[index] = self._new[index].placed(leaves[index])
        # Only here, after the last check: a copy that does not fit must change nothing.
        self._put_parameters()
        self.opt_state = jax.tree_util.tree_unflatten(self._structure, leaves)
        self.steps = steps_behind(rest)
        self.begin()

    def _checked(self, rest: Any) -> list[Any]:
        """Check that the copy is whole and fits, and return the state's leaves with those of the small rest replaced. Raises StateError."""
        leaves = list(self._leaves())
        try:
            steps_behind(rest)
            saved = rest["leaves"]
            if differing := sorted(saved.keys() ^ self._rest.keys()):
                raise ValueError(f"{differing[0]} is in one of the two states only")
            for path, index in self._rest.items():
                leaves[index] = _read(path, saved[path], leaves[index])
            for path, of_parameter in self._shaped.items():
                for name, index in of_parameter.items():
                    if self._elements[index] != self._expected[path]:
                        raise ValueError(f"{self._elements[index]} of {self._expected[path]} elements of {name} came")
                    if not self._store.is_sharded_alike(path, leaves[index]):
                        raise ValueError(f"{name} of {path} is otherwise sharded than the parameter itself")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"the donor's state does not fit this program: {type(error).__name__}: {error}") from error
        return leaves

    def _put_parameters(self) -> None:
        """Write the parameters of a copy, except for tensors that have adopted newer values since."""
        values: dict[str, tuple[jax.Array, _Array]] = {}
        for place, value, after in self._of_parameters:
            part, leaf = self._store.placed(place.piece.tensor)
            if self._store.newest(place.piece.tensor) is after:
                if part.parameter not in values:
                    values[part.parameter] = leaf, np.array(leaf)
                values[part.parameter][1][place.where] = place.native(value)
        self._store.replace({path: _placed(value, leaf) for path, (leaf, value) in values.items()})

    @without_mesh
    def _keep_rest(self) -> dict[str, Any]:
        """Copy the small rest, because the next step may change or donate it."""
        leaves = self._leaves()
        if (size := sum(getattr(leaves[index], "nbytes", 0) for index in self._rest.values())) > MOST_BYTES:
            largest = max(self._rest, key=lambda path: getattr(leaves[self._rest[path]], "nbytes", 0))
            raise StateError(
                f"the optimizer keeps {size >> 20} MiB that have not the shapes of its parameters, {largest} most of them: "
                f"{MOST_BYTES >> 20} MiB can be handed over"
            )
        return {path: _kept(leaves[index]) for path, index in sorted(self._rest.items())}

    def _leaves(self) -> list[Any]:
        if self._flat is None:
            self._flat = jax.tree_util.tree_leaves(self.opt_state)
        return self._flat

    def _leaf(self, index: int) -> jax.Array:
        leaf: jax.Array = jnp.asarray(self._leaves()[index])
        return leaf


class _Incoming:
    """What has come of one leaf, as far as this process stores it."""

    def __init__(self, leaf: jax.Array) -> None:
        spread = not leaf.is_fully_addressable
        indices = leaf.sharding.addressable_devices_indices_map(leaf.shape).values() if spread else [(slice(None),) * leaf.ndim]
        self._shards = {
            shard: np.zeros([high - low for low, high in shard], leaf.dtype)
            for shard in dict.fromkeys(bounds(index, leaf.shape) for index in indices)
        }

    def put(self, place: Rectangle, values: Float32Array) -> None:
        for shard, part in self._shards.items():
            if (common := overlap(shard, place)) is not None:
                inside, where = common
                part[inside] = place.native(values)[where]

    def placed(self, leaf: Any) -> Any:
        """Return the values as `leaf` is placed."""
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: self._shards[bounds(index, leaf.shape)])
        [whole] = self._shards.values()
        return _placed(whole, leaf)


def is_deleted(tree: object) -> bool:
    """Whether the program has donated an array of a tree, or deleted one."""
    return any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in jax.tree_util.tree_leaves(tree))


@dataclass(frozen=True, slots=True)
class _Rest:
    """A `StagedRest`: copies on the devices that are on their way to the host."""

    kept: Mapping[str, Any]
    steps: int

    def wait(self) -> Any:
        return {"leaves": {path: _written(value) for path, value in self.kept.items()}, STEPS: self.steps}


@jax.jit
def _copy(leaf: jax.Array, nothing: jax.Array) -> jax.Array:
    # `where` copies any type. For why it depends on `nothing`, see `rectangles.same`.
    return jnp.where(nothing == 0, leaf, jnp.zeros_like(leaf))


def _kept(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        # The next step may write to the array while it is on its way.
        return leaf.copy()
    if not isinstance(leaf, jax.Array):
        return leaf
    numbers = jax.random.key_data(leaf) if _is_key(leaf) else leaf
    if not (numbers.is_fully_replicated or numbers.is_fully_addressable):
        raise StateError(f"the optimizer keeps an array of shape {list(leaf.shape)} sharded over processes that has no parameter's shape")
    # If every device has all of it, copy from one device: no other process has to take part then.
    copy: jax.Array = _copy(with_shards(numbers).addressable_shards[0].data if numbers.is_fully_replicated else numbers, RUNTIME_ZERO)
    copy.copy_to_host_async()
    return copy


def _written(value: Any) -> Any:
    """Turn a result of `_kept` into a value for `state_values.encode`. Waits for the transfer."""
    if isinstance(value, jax.Array | np.ndarray):
        array = np.asarray(value)
        return Leaf(array.dtype.name, array.shape, array.tobytes())
    return value.item() if isinstance(value, np.generic) else value


def _read(path: str, saved: Any, leaf: Any) -> Any:
    """Turn a result of `_written` into a value like `leaf`. Raises ValueError if type or shape differ from `leaf`."""
    if not isinstance(leaf, jax.Array | np.ndarray):
        if type(saved) is not type(leaf.item() if isinstance(leaf, np.generic) else leaf):
            raise ValueError(f"{path} is {type(leaf).__name__} here and {type(saved).__name__} there")
        return leaf.dtype.type(saved) if isinstance(leaf, np.generic) else saved
    is_key = _is_key(leaf)
    numbers = jax.random.key_data(leaf) if is_key else leaf
    if not isinstance(saved, Leaf) or (saved.dtype, saved.shape) != (numbers.dtype.name, numbers.shape):
        raise ValueError(f"{path} is {numbers.dtype}{list(numbers.shape)} here and {saved} there")
    value = np.array(np.frombuffer(saved.data, numbers.dtype).reshape(saved.shape))
    placed = _placed(value, numbers)
    return jax.random.wrap_key_data(placed, impl=jax.random.key_impl(leaf)) if is_key else placed


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _placed(value: Any, leaf: Any) -> Any:
    """Place a value as `leaf` is placed. Committed only if `leaf` is: otherwise the program's step would be compiled anew."""
    if not isinstance(leaf, jax.Array):
        return np.array(value)
    if not leaf.is_fully_addressable:
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: value[index])
    if leaf.committed:
        return jax.device_put(value, leaf.sharding)
    with jax.default_device(next(iter(leaf.sharding.device_set))):
        return jnp.asarray(value)


type _Path = tuple[Any, ...]


def _keys(path: _Path) -> tuple[str, ...]:
    return tuple(map(str, path))


def _joined(path: _Path, separator: str = "/") -> str:
    return jax.tree_util.keystr(path, simple=True, separator=separator)


def _parameter_of(path: _Path, leaf: Any, of_params: Mapping[tuple[str, ...], tuple[str, Any]]) -> tuple[_Path, str] | None:
    """Split a leaf's path into the path of a tree with the parameters' structure, and the parameter's path in it. None if the leaf is not
    shaped like a parameter, and so belongs to the small rest."""
    if getattr(getattr(leaf, "dtype", None), "name", "") not in AS_FLOAT32:
        return None
    keys = _keys(path)
    # The longest end of the path first: a shorter end may be the path of another parameter.
    for above in range(len(path) + 1):
        parameter, of_parameter = of_params.get(keys[above:], ("", None))
        if of_parameter is not None and leaf.shape == of_parameter.shape:
            return path[:above], parameter
    return None


class _Names:
    """Names of arrays by their place in the state. They are equal in all processes whose states have the same structure."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, ...], str] = {}

    def of(self, place: _Path) -> str:
        """Return the name of a place: letters, digits, "_", "." and "-"."""
        if (name := self._of.get(_keys(place))) is None:
            words = re.sub(r"[^A-Za-z0-9_.-]", "_", _joined(place, "."))[:_MOST_NAME]
            name = words if words[:1].isalnum() else f"_{words}"
            # Names of two places may be equal after the cut. With one name, the values of one would be written to the other.
            if name in self._of.values():
                name = f"{name}-{len(self._of)}"
            self._of[_keys(place)] = name
        return name


def _classes(opt_state: object, params: object) -> list[str]:
    """Return the names of the state's classes, each once, except for empty ones and those inside of trees like the parameters."""
    of_params = jax.tree_util.tree_structure(params)

    def walk(structure: Any) -> Iterator[str]:
        if structure == of_params or (data := structure.node_data()) is None:
            return
        if data[0] not in (tuple, list, dict, type(None)) and structure.num_leaves:
            yield data[0].__name__
        for child in structure.children():
            yield from walk(child)

    return list(dict.fromkeys(walk(jax.tree_util.tree_structure(opt_state))))
