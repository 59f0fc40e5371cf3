"""Computations of the session's own, apart from the mesh that a program has set.

Under `with jax.set_mesh(mesh)` every jitted function wants arguments on all devices of the mesh. The session computes on the shards of
single devices, and where it wants more it says so by their shardings.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import numpy as np

_NO_MESH = jax.sharding.Mesh(np.empty((), object), ())


def beside_the_mesh[**P, R](call: Callable[P, R]) -> Callable[P, R]:
    """Return `call` with no mesh in its context, on whatever thread it runs."""

    @functools.wraps(call)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.set_mesh(_NO_MESH):
            return call(*args, **kwargs)

    return run
