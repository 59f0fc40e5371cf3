"""Float32 copies (masters) of shorter parameters in an optimizer's state. An adoption overwrites them, too.

An optimizer that keeps masters computes the next parameters from them. If an adoption did not overwrite them, the next step would undo it.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from diloco.jax.own_mesh import without_mesh

type _Path = tuple[Any, ...]

LOOKED_AT = 4
"""Steps over which copies are told from averages. An average of the parameters begins as a copy, and is none after an update."""


class Masters:
    """The masters in one optimizer's state. Their names differ between optimizers, so they are found by structure and values: a part of the
    state has float32 arrays at the paths of parameters of a shorter type, with their shapes, and all equal them when rounded."""

    @without_mesh
    def __init__(self, params: object, opt_state: object) -> None:
        """Find the masters in the state that the program made. Waits for the device, once."""
        self._places = _places(params, opt_state)
        self._looks = 0
        self._keep(params, opt_state)

    @without_mesh
    def look_again(self, params: object, opt_state: object) -> None:
        """Check the candidates again after a step of the program. In the first steps this waits for the device, if there are candidates."""
        if self._places and self._looks < LOOKED_AT:
            self._looks += 1
            self._keep(params, opt_state)

    @without_mesh
    def follow[State](self, paths: Collection[str], params: object, opt_state: State) -> State:
        """Return the state with its masters overwritten, for the parameters at `paths`, which were just overwritten."""
        if not self._places:
            return opt_state
        leaves, structure = jax.tree_util.tree_flatten(opt_state)
        of_params = _by_path(params)
        for place in self._places:
            for path, index in place.items():
                if jax.tree_util.keystr(path, simple=True, separator="/") in paths:
                    leaves[index] = _followed(leaves[index], of_params[path])
        followed: State = jax.tree_util.tree_unflatten(structure, leaves)
        return followed

    def _keep(self, params: object, opt_state: object) -> None:
        leaves, of_params = jax.tree_util.tree_leaves(opt_state), _by_path(params)
        pairs = [[(leaves[index], of_params[path]) for path, index in place.items()] for place in self._places]
        self._places = [place for place, of_place in zip(self._places, pairs, strict=True) if _are_masters(of_place)]


def _places(params: object, opt_state: object) -> list[dict[_Path, int]]:
    """Find the parts of the state that have float32 arrays at the paths of shorter parameters, with their shapes. Returns for each part the
    index of the state's leaf, by path of the parameter."""
    of_params = _by_path(params)
    short = {_names(path): path for path, leaf in of_params.items() if _is_short(leaf)}
    places: dict[_Path, dict[_Path, int]] = {}
    for index, (whole, leaf) in enumerate(jax.tree_util.tree_flatten_with_path(opt_state)[0]):
        named = _names(whole)
        for above in range(len(whole) + 1):
            path = short.get(named[above:])
            if path is not None and _like(leaf, of_params[path]):
                places.setdefault(whole[:above], {})[path] = index
    return list(places.values())


def _names(path: _Path) -> tuple[str, ...]:
    return tuple(map(str, path))


def _by_path(tree: object) -> dict[_Path, Any]:
    return dict(jax.tree_util.tree_flatten_with_path(tree)[0])


def _is_short(leaf: object) -> bool:
    return getattr(leaf, "dtype", None) in (jnp.bfloat16, jnp.float16)


def _like(leaf: object, parameter: Any) -> bool:
    return getattr(leaf, "dtype", None) == jnp.float32 and getattr(leaf, "shape", None) == parameter.shape


def _are_masters(pairs: Sequence[tuple[Any, Any]]) -> bool:
    """Whether all candidates equal their parameters, which are not all zero: any new moment equals a parameter of zeros."""
    equal = jnp.stack([jnp.array_equal(master.astype(parameter.dtype), parameter) for master, parameter in pairs]).all()
    return bool(equal) and bool(jnp.stack([jnp.any(parameter) for _, parameter in pairs]).any())


@jax.jit
def _follow(master: jax.Array, parameter: jax.Array) -> jax.Array:
    # Elements that were not adopted, such as other layers of a stacked leaf, keep the bits that rounding would take away.
    return jnp.where(master.astype(parameter.dtype) == parameter, master, parameter.astype(jnp.float32))


def _followed(master: Any, parameter: Any) -> Any:
    followed = _follow(master, parameter)
    return jax.device_put(followed, master.sharding) if isinstance(master, jax.Array) else followed
