"""The session's own computations run outside of the mesh that a program has set.

Under `with jax.set_mesh(mesh)` every jitted function needs arguments on all devices of the mesh. The session computes on the shards of
single devices; where it computes on more, their shardings say so.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import numpy as np

_NO_MESH = jax.sharding.Mesh(np.empty((), object), ())


def without_mesh[**P, R](call: Callable[P, R]) -> Callable[P, R]:
    """Wrap `call` so that it runs without a mesh in its context, on any thread."""

    @functools.wraps(call)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.set_mesh(_NO_MESH):
            return call(*args, **kwargs)

    return run
