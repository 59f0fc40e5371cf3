"""The state of optimizers in JAX, for a peer and for the syncer's volume: any pytree, such as one of optax.

Below one place of the state (`0.mu`) what lies as the parameters do, in their shapes, goes by pieces, as they do; all other leaves (counts,
rates, keys of random numbers) are the small rest.

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
from diloco.jax.own_mesh import beside_the_mesh
from diloco.jax.rectangles import RUNTIME_ZERO, Rectangle, StagedRectangles, cut, rectangle
from diloco.jax.shards import with_shards
from diloco.jax.store import TreeStore
from diloco.learner.inner_state import STEPS, steps_behind
from diloco.learner.store import Float32Array, Ready
from diloco.protocol.state_parts import PieceArray, StateError
from diloco.protocol.state_values import MOST_BYTES, Leaf

_AS_FLOAT32 = ("float32", "bfloat16", "float16")
"""Types whose values float32 holds exactly."""
_MOST_NAME = 56
"""Characters of an array's name before what tells it from another one."""

type _Array = np.ndarray[Any, Any]


class _OfParameter(NamedTuple):
    """A parameter of a copy: it is written when the copy is whole, unless a newer one was adopted meanwhile."""

    place: Rectangle
    values: Float32Array
    after: Ready | None
    """What was applied last to its tensor when it came."""


class TreeState[State]:
    """A `CountedState` of the optimizer of a `TreeStore`'s leaves."""

    def __init__(self, store: TreeStore[Any], opt_state: State) -> None:
        """Begin with the state as the program made it. Its structure, shapes and types stay."""
        self.steps = 0
        """See `CountedState`."""
        self._store = store
        self.opt_state = opt_state
        params = store.held()
        named, self._structure = jax.tree_util.tree_flatten_with_path(opt_state)
        self.kind = f"jax {', '.join(_classes(opt_state, params)) or 'pytree'}"
        """What it is, such as "jax ScaleByAdamState". Only states of one kind go from process to process."""
        self._shaped: dict[str, dict[str, int]] = {}
        """By path of the parameter, by name of the array: which leaf it is."""
        self._rest: dict[str, int] = {}
        """By path: the other leaves."""
        names = _Names()
        of_params = {
            _keys(path): (_joined(path), leaf)
            for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]
            # Not frozen ones: they are not exchanged, and what lies as they do is of the small rest.
            if _joined(path) in store.paths
        }
        for index, (path, leaf) in enumerate(named):
            if (found := _parameter_of(path, leaf, of_params)) is not None:
                above, parameter = found
                self._shaped.setdefault(parameter, {})[names.of(above)] = index
            else:
                self._rest[_joined(path)] = index
        self._expected: Counter[str] = Counter()
        """By path of the parameter how many of its elements this process stores."""
        for piece in store.pieces():
            self._expected[store.placed(piece.tensor)[0].parameter] += piece.elements
        self._new: dict[int, _Array] = {}
        """By leaf what was put of a copy."""
        self._elements: Counter[int] = Counter()
        """By leaf how many elements that was."""
        self._of_parameters: list[_OfParameter] = []

    @property
    def opt_state(self) -> State:
        """The newest one: the session's and the program's."""
        return self._opt_state

    @opt_state.setter
    def opt_state(self, opt_state: State) -> None:
        self._opt_state = opt_state
        self._flat: list[Any] | None = None

    @property
    def lent(self) -> bool:
        """The program has donated the state to a step whose result it has not given yet."""
        return any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in self._leaves())

    def held(self) -> Sequence[Piece]:
        return self._store.pieces()

    @beside_the_mesh
    def warm_up(self, parts: Sequence[Sequence[Piece]]) -> None:
        """Compile what `stage` and `stage_rest` run for these parts. State that cannot be given is said when it is wanted."""
        # Not at the first copy: compiling would hold up a step of this unit, while a peer waits.
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
        found = []
        for piece in pieces:
            part, parameter = self._store.placed(piece.tensor)
            found.append(PieceArray(piece, "", parameter.dtype.name))
            for name, index in sorted(self._shaped.get(part.parameter, {}).items()):
                found.append(PieceArray(piece, name, self._leaf(index).dtype.name))
        return found

    @beside_the_mesh
    def stage(self, arrays: Sequence[PieceArray]) -> StagedRectangles:
        staged = []
        for one in arrays:
            part, parameter = self._store.placed(one.piece.tensor)
            place = rectangle(part, one.piece)
            staged.append((place, cut(self._leaf(self._shaped[part.parameter][one.name]) if one.name else parameter, place)))
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
            leaf = self._leaf(index)
            self._new[index] = np.zeros(leaf.shape, leaf.dtype)
        self._new[index][place.where] = place.native(values)
        self._elements[index] += array.piece.elements

    @beside_the_mesh
    def check(self, rest: Any) -> None:
        self._checked(rest)

    @beside_the_mesh
    def finish(self, rest: Any) -> None:
        leaves = self._checked(rest)
        for of_parameter in self._shaped.values():
            for index in of_parameter.values():
                leaves[index] = _placed(self._new[index], leaves[index])
        # Only now, when nothing can be refused any more: a copy that does not fit must change nothing.
        self._put_parameters()
        self.opt_state = jax.tree_util.tree_unflatten(self._structure, leaves)
        self.steps = steps_behind(rest)
        self.begin()

    def _checked(self, rest: Any) -> list[Any]:
        """Return the leaves of a copy that is whole; what goes by pieces is not in its place yet. Raises StateError."""
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
        """Write the parameters of a copy, but for tensors that were adopted since they came."""
        values: dict[str, tuple[jax.Array, _Array]] = {}
        for place, value, after in self._of_parameters:
            part, leaf = self._store.placed(place.piece.tensor)
            if self._store.newest(place.piece.tensor) is after:
                if part.parameter not in values:
                    values[part.parameter] = leaf, np.array(leaf)
                values[part.parameter][1][place.where] = place.native(value)
        self._store.replace({path: _placed(value, leaf) for path, (leaf, value) in values.items()})

    @beside_the_mesh
    def _keep_rest(self) -> dict[str, Any]:
        """Copy the small rest, as it may change or be donated with the next step."""
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


@dataclass(frozen=True, slots=True)
class _Rest:
    """A `StagedRest` of copies on the devices, which are on their way to the host."""

    kept: Mapping[str, Any]
    steps: int

    def wait(self) -> Any:
        return {"leaves": {path: _written(value) for path, value in self.kept.items()}, STEPS: self.steps}


@jax.jit
def _copy(leaf: jax.Array, nothing: jax.Array) -> jax.Array:
    # Of any type; with arithmetic, see `same`.
    return jnp.where(nothing == 0, leaf, jnp.zeros_like(leaf))


def _kept(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        # The next step may write to it while this copy is on its way.
        return leaf.copy()
    if not isinstance(leaf, jax.Array):
        return leaf
    numbers = jax.random.key_data(leaf) if _is_key(leaf) else leaf
    if not (numbers.is_fully_replicated or numbers.is_fully_addressable):
        raise StateError(f"the optimizer keeps an array of shape {list(leaf.shape)} sharded over processes that has no parameter's shape")
    # Of one device where each has all of it: no other has to take part.
    copy: jax.Array = _copy(with_shards(numbers).addressable_shards[0].data if numbers.is_fully_replicated else numbers, RUNTIME_ZERO)
    copy.copy_to_host_async()
    return copy


def _written(value: Any) -> Any:
    """Return what was kept for `state_values.encode`. Waits for the transfer."""
    if isinstance(value, jax.Array | np.ndarray):
        array = np.asarray(value)
        return Leaf(array.dtype.name, array.shape, array.tobytes())
    return value.item() if isinstance(value, np.generic) else value


def _read(path: str, saved: Any, leaf: Any) -> Any:
    """Return what was written as `leaf` is. Raises ValueError where that was something else."""
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
    """Return a value where `leaf` is. A committed one in place of an uncommitted one would compile the program's step anew."""
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
    """Return the place of the state below which a leaf lies as a parameter does, and that parameter's path; None: it goes otherwise."""
    if getattr(getattr(leaf, "dtype", None), "name", "") not in _AS_FLOAT32:
        return None
    keys = _keys(path)
    # The longest end of the path first: a shorter one may be that of another parameter.
    for above in range(len(path) + 1):
        parameter, of_parameter = of_params.get(keys[above:], ("", None))
        if of_parameter is not None and leaf.shape == of_parameter.shape:
            return path[:above], parameter
    return None


class _Names:
    """Names of arrays, from places in the state: the same in every process whose state has the same structure."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, ...], str] = {}

    def of(self, place: _Path) -> str:
        """Return the name of a place: letters, digits, "_", "." and "-"."""
        if (found := self._of.get(_keys(place))) is None:
            words = re.sub(r"[^A-Za-z0-9_.-]", "_", _joined(place, "."))[:_MOST_NAME]
            found = words if words[:1].isalnum() else f"_{words}"
            # Two places may be alike once they are cut: with one name the values of one would be written to the other.
            if found in self._of.values():
                found = f"{found}-{len(self._of)}"
            self._of[_keys(place)] = found
        return found


def _classes(opt_state: object, params: object) -> list[str]:
    """Return the names of the state's classes that hold something, each once, above what lies as the parameters do."""
    of_params = jax.tree_util.tree_structure(params)

    def walk(structure: Any) -> Iterator[str]:
        if structure == of_params or (data := structure.node_data()) is None:
            return
        if data[0] not in (tuple, list, dict, type(None)) and structure.num_leaves:
            yield data[0].__name__
        for child in structure.children():
            yield from walk(child)

    return list(dict.fromkeys(walk(jax.tree_util.tree_structure(opt_state))))
