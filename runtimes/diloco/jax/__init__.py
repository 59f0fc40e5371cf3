"""Train a JAX pytree of parameters as one learner of a DiLoCo job.

    import diloco.jax as diloco

    session = diloco.join(params, opt_state)
    params, opt_state = session.params, session.opt_state
    for batch in session.batches(source, batch_size):
        params, opt_state, loss = train_step(params, opt_state, batch)
        params, opt_state = session.step(params, opt_state, tokens=batch.size, loss=loss)
    params = session.params

After `join`, `session.params` are the job's current parameters. `session.step` returns the parameters and the optimizer's state to go on
with; now and then it has replaced a fragment. Structure, types and placement stay the same, so nothing is compiled again.
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
from diloco.session.session import AdapterHooks

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

    A process that begins while other units train gets the parameters and the optimizer's state of one of them: go on from
    `session.opt_state`.

    A unit of several processes calls `join` in every process, after `initialize`, with arrays that are sharded over all of them or the same
    in each.

    Raises SystemExit with a `contract.Exit`: outside of a job, for parameters that cannot be exchanged, and when the syncer refuses them.

    Args:
        params: any pytree of floating arrays. Leaves that are not exchanged may have any type.
        opt_state: the inner optimizer's state, any pytree, with what belongs to it, such as keys of random numbers. The session does not
            change it.
        canonical: the job's canonical form of parameters where it differs, by path ("blocks/query"), above all for stacked layers (see
            `TreeStore`).
        embeddings: which parameters are embeddings, by path; default: those with "embed" in the path.
        stacks: how many leading axes of a parameter count separate matrices, such as experts, each merged by itself; default: none.
        trained: which leaves are exchanged, by path; default: all. The others are frozen and must be the same in every unit.
        on_adopt: called as `on_adopt(paths, params, opt_state)` in `join` and in `step` when parameters at these paths were replaced. It
            returns the optimizer's state to go on with, for a state that holds copies of parameters (an average). Float32 masters of
            shorter parameters are overwritten already, if `opt_state` has them in the structure of `params`.
        data_parallel: (index, count), the part of the unit's batch that this process feeds, and the number of parts; default: its index,
            and the number of processes. Processes that hold the same part of the batch have the same index.
        environment: the contract's variables; default: the process's own environment.
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
        hooks=AdapterHooks(updates=lambda: (store.updates,), trained=FrozenLeaves(lambda: store.frozen_leaves).check),
        world=world_of(data_parallel),
        how_to_meet=_HOW_TO_MEET,
        inner=inner,
        make=lambda parts: Session(parts, store, inner, masters, on_adopt),
    )
