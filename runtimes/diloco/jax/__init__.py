"""Train a JAX pytree of parameters as one learner of a DiLoCo job.

    import diloco.jax as diloco

    session = diloco.join(params, opt_state)
    params, opt_state = session.params, session.opt_state
    for batch in session.batches(source, batch_size):
        params, opt_state, loss = train_step(params, opt_state, batch)
        params, opt_state = session.step(params, opt_state, tokens=batch.size, loss=loss)
    params = session.params

`session.params` after `join` are the job's current parameters; `session.step` returns the parameters to go on with, of which now and
then a fragment was replaced, and the optimizer's state. Structure, types and placement stay the same, so nothing is compiled again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import jax

from diloco.algorithm.layout import LayoutError
from diloco.canonical import Canonical
from diloco.jax.inner_state import TreeState
from diloco.jax.masters import Masters
from diloco.jax.processes import initialize, world_of
from diloco.jax.schedules import ProgressRate, schedule
from diloco.jax.session import Session
from diloco.jax.store import TreeStore
from diloco.jax.trained import FrozenLeaves
from diloco.jax.unit_store import UnitStore
from diloco.last_words import report_exceptions
from diloco.learner.leave import LoopError, refused_layout
from diloco.schedules import Schedule
from diloco.session.data_feed import Shard

__all__ = ["Canonical", "LoopError", "ProgressRate", "Schedule", "Session", "Shard", "TreeStore", "initialize", "join", "schedule"]

report_exceptions()

_HOW_TO_MEET = "call diloco.jax.initialize() before anything else of JAX, in every process"


def join[Tree, State](
    params: Tree,
    opt_state: State,
    *,
    canonical: Mapping[str, Canonical | str] | None = None,
    embeddings: Callable[[str], bool] | None = None,
    stacks: Callable[[str], int] | None = None,
    trained: Callable[[str], bool] | None = None,
    on_adopt: Callable[[Sequence[str], Tree, State], State] | None = None,
    data_parallel: tuple[int, int] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Session[Tree, State]:
    """Join the job that this process was started for, and block until the session holds the job's current parameters.

    `params`: any pytree of floating arrays; leaves that `trained`, by path, leaves out of the exchange may be of any type, are frozen and
    must be the same in every unit. `opt_state`: the inner optimizer's state, any pytree, with what else belongs to it, such as keys of
    random numbers; the session hands it on as it is. A process that begins while other units train gets the parameters and the state of
    one of them, in a unit of one process: go on from `session.opt_state`.
    `canonical` maps paths of parameters ("blocks/query") to the job's canonical form where the two differ, above all for stacked layers
    (see `TreeStore`); `embeddings` says by path which are embeddings (default: "embed" in the path); `stacks` by path how many
    leading axes count matrices that are merged each by itself, such as experts (default: none). `on_adopt(paths, params, opt_state)`
    is called when parameters were replaced, with the paths of those, in `join` and in `step`, and returns the optimizer's state to go
    on with: for a state that holds copies of parameters (an average). Float32 masters of shorter parameters that lie in `opt_state` as the
    parameters do in theirs are overwritten already.

    A unit of several processes joins after `initialize`, in every process, with arrays that are sharded over all of them or the same in
    each. `data_parallel` is (index, count): which part of the unit's batch this process feeds, of how many (default: its index, of all
    processes); processes that hold the same part of the batch have the same index.

    Raises SystemExit with a `contract.Exit`: outside of a job, for parameters that cannot be exchanged, and when the syncer refuses them.
    """
    try:
        kind = TreeStore if jax.process_count() == 1 else UnitStore
        store = kind(params, canonical=canonical, embeddings=embeddings, stacks=stacks, trained=trained)
    except LayoutError as error:
        raise refused_layout(error) from error
    masters = Masters(params, opt_state)
    inner = TreeState(store, opt_state)
    store.watch()
    return Session.join(
        store,
        framework="jax",
        environment=environment,
        updates=lambda: (store.updates,),
        trained=FrozenLeaves(lambda: store.frozen_leaves).check,
        world=world_of(data_parallel),
        how_to_meet=_HOW_TO_MEET,
        inner=inner,
        make=lambda parts: Session(parts, store, inner, masters, on_adopt),
    )
