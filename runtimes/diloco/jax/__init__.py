"""Train a JAX pytree of parameters as one learner of a DiLoCo job.

    import diloco.jax as diloco

    session = diloco.join(params)
    params = session.params
    for batch in session.batches(source, batch_size):
        params, state, loss = train_step(params, state, batch)
        params = session.step(params, tokens=batch.size, loss=loss)
    params = session.params

`session.params` after `join` are the job's current parameters; `session.step` returns the parameters to go on with, of which now and
then a fragment was replaced. Structure, types and placement stay the same, so nothing is compiled again. The optimizer's state is
never touched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from diloco.canonical import Canonical
from diloco.jax.session import Session
from diloco.jax.store import TreeStore
from diloco.learner.session import Session as Driver

__all__ = ["Canonical", "Session", "TreeStore", "join"]


def join[Tree](
    params: Tree,
    *,
    canonical: Mapping[str, Canonical | str] | None = None,
    embeddings: Callable[[str], bool] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Session[Tree]:
    """Join the job that this process was started for, and block until the session holds the job's current parameters.

    `params`: any pytree of floating arrays. `canonical` maps their paths ("blocks/query") to the job's canonical form where the two
    differ, above all for stacked layers (see `TreeStore`); `embeddings` says by path which are embeddings (default: "embed" in the
    path). Raises SystemExit with a `contract.Exit` outside of a job or when the syncer refuses the model; ValueError or TypeError
    for parameters that cannot be exchanged.
    """
    store = TreeStore(params, canonical=canonical, embeddings=embeddings)
    return Session(Driver.join(store, framework="jax", environment=environment), store)
