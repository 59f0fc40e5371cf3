"""Float32 copies (masters) of shorter parameters in an optimizer's state, and what an adoption does to them.

An optimizer that keeps such copies computes the next parameters from them: an adoption that leaves them alone is undone by the next step.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from diloco.jax.own_mesh import beside_the_mesh

type _Path = tuple[Any, ...]

LOOKED_AT = 4
"""Steps after which what is a copy is known: an average of the parameters over steps begins as one, and is none after an update."""


class Masters:
    """The masters in one optimizer's state. They are found by what they are, not by name: below one place of the state all float32 arrays
    that lie as parameters of a shorter type do, have their shapes, and equal them when rounded."""

    @beside_the_mesh
    def __init__(self, params: object, opt_state: object) -> None:
        """Find the masters in `params` and `opt_state` as the program made them. Waits for the device, once."""
        self._places = _places(params, opt_state)
        self._looks = 0
        self._keep(params, opt_state)

    @beside_the_mesh
    def look_again(self, params: object, opt_state: object) -> None:
        """Look again at what a step of the program returned. Waits for the device in the first steps, if there is something that may be a
        copy."""
        if self._places and self._looks < LOOKED_AT:
            self._looks += 1
            self._keep(params, opt_state)

    @beside_the_mesh
    def follow[State](self, paths: Collection[str], params: object, opt_state: State) -> State:
        """Return the state with masters of what was adopted: `paths` are those of parameters that were overwritten just now."""
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
        held, of_params = jax.tree_util.tree_leaves(opt_state), _by_path(params)
        pairs = [[(held[index], of_params[path]) for path, index in place.items()] for place in self._places]
        self._places = [place for place, its in zip(self._places, pairs, strict=True) if _are_masters(its)]


def _places(params: object, opt_state: object) -> list[dict[_Path, int]]:
    """Find the places of the state below which float32 arrays lie like shorter parameters; for each, by path of the parameter, which of its
    leaves."""
    of_params = _by_path(params)
    short = {_names(path): path for path, leaf in of_params.items() if _is_short(leaf)}
    found: dict[_Path, dict[_Path, int]] = {}
    for index, (whole, leaf) in enumerate(jax.tree_util.tree_flatten_with_path(opt_state)[0]):
        named = _names(whole)
        for above in range(len(whole) + 1):
            path = short.get(named[above:])
            if path is not None and _like(leaf, of_params[path]):
                found.setdefault(whole[:above], {})[path] = index
    return list(found.values())


def _names(path: _Path) -> tuple[str, ...]:
    return tuple(map(str, path))


def _by_path(tree: object) -> dict[_Path, Any]:
    return dict(jax.tree_util.tree_flatten_with_path(tree)[0])


def _is_short(leaf: object) -> bool:
    return getattr(leaf, "dtype", None) in (jnp.bfloat16, jnp.float16)


def _like(leaf: object, parameter: Any) -> bool:
    return getattr(leaf, "dtype", None) == jnp.float32 and getattr(leaf, "shape", None) == parameter.shape


def _are_masters(pairs: Sequence[tuple[Any, Any]]) -> bool:
    """Return whether all equal their parameters, and not because both are zero."""
    equal = jnp.stack([jnp.array_equal(master.astype(parameter.dtype), parameter) for master, parameter in pairs]).all()
    return bool(equal) and bool(jnp.stack([jnp.any(parameter) for _, parameter in pairs]).any())


@jax.jit
def _follow(master: jax.Array, parameter: jax.Array) -> jax.Array:
    # What was not adopted, such as the other layers of a stacked leaf, keeps the bits that rounding takes away.
    return jnp.where(master.astype(parameter.dtype) == parameter, master, parameter.astype(jnp.float32))


def _followed(master: Any, parameter: Any) -> Any:
    followed = _follow(master, parameter)
    return jax.device_put(followed, master.sharding) if isinstance(master, jax.Array) else followed
