"""Training a pytree as a plain single program: `diloco.jax.Session` without a job."""

from __future__ import annotations

from diloco.jax.inner_state import TreeState
from diloco.jax.session import TreeSession
from diloco.jax.store import TreeStore
from diloco.trainers.alone import AloneLoop


class AloneTreeSession[Tree, State](AloneLoop, TreeSession[Tree, State]):
    """A `TreeSession` that counts steps as `AloneLoop`."""

    def __init__(self, steps: int, store: TreeStore[Tree], opt_state: State) -> None:
        AloneLoop.__init__(self, steps)
        TreeSession.__init__(self, store, TreeState(store, opt_state), None, None)
