"""Train a torch module as one learner of a DiLoCo job.

    import diloco.torch as diloco

    session = diloco.join(model, optimizer=optimizer)
    for batch in session.batches(source, batch_size):
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        session.step(tokens=batch.numel(), loss=loss.item())

When `join` returns, the model has the job's current parameters. Now and then `session.step` overwrites a fragment of them in place, so that
optimizers and compiled modules keep their references. This does not change the optimizer's state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch

from diloco.algorithm.layout import LayoutError
from diloco.canonical import Canonical
from diloco.last_words import report_exceptions
from diloco.learner.leave import LoopError, refused_layout
from diloco.schedules import Schedule
from diloco.session.data_feed import Shard
from diloco.session.session import AdapterHooks, Session
from diloco.torch.adoption_check import AdoptionCheck
from diloco.torch.first_update import FirstUpdate
from diloco.torch.inner_state import HandedOver, OptimizerState
from diloco.torch.optimizers import UpdateCounts, check_optimizers
from diloco.torch.processes import world_of
from diloco.torch.schedules import ProgressLR, schedule
from diloco.torch.store import ModuleStore
from diloco.torch.trained import TrainedParameters

__all__ = ["Canonical", "LoopError", "ModuleStore", "ProgressLR", "Schedule", "Session", "Shard", "join", "schedule"]

report_exceptions()

_HOW_TO_MEET = "call torch.distributed.init_process_group() before diloco.torch.join, on every rank"


def join(
    model: torch.nn.Module,
    *,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    canonical: Mapping[str, Canonical | str] | None = None,
    embeddings: Callable[[str], bool] | None = None,
    stacks: Callable[[str], int] | None = None,
    trained: Callable[[str], bool] | None = None,
    on_adopt: Callable[[Sequence[str]], None] | None = None,
    state: Sequence[HandedOver] = (),
    data_parallel: tuple[int, int] | None = None,
    buffers: Literal["own", "leader"] = "own",
    environment: Mapping[str, str] | None = None,
) -> Session:
    """Join the job that this process was started for, and block until `model` holds the job's current parameters.

    A process that begins while other units train gets the parameters and the optimizer's state of one of them. Later adoptions overwrite
    parameters, and leave the optimizer's state as it is, except for float32 masters in it.

    A unit of several processes calls `join` on every rank, after `torch.distributed.init_process_group`, with the model as it trains:
    DistributedDataParallel, `fully_shard`, tensor parallel, or all replicas alike.

    Raises SystemExit with a `contract.Exit`: outside of a job, for a model that cannot be exchanged, and when the syncer refuses it.
    Raises ValueError or TypeError for an optimizer that does not train the model, TypeError for state that cannot be handed over.

    Args:
        model: move it to its device before you create the optimizer and call `join`.
        optimizer: one or several. Together they must train exactly the exchanged parameters of `model` that require gradients, each in one
            optimizer only.
        canonical: the job's canonical form of parameters where it differs, by name (see `ModuleStore`).
        embeddings: which parameters are embeddings, by name; default: those of `torch.nn.Embedding` and `EmbeddingBag`.
        stacks: how many leading axes of a parameter count separate matrices, such as experts, each merged by itself; default: none.
        trained: which parameters are exchanged, by name; default: those that require a gradient. The others are frozen and must be the same
            in every unit.
        on_adopt: called in `join` and in `step` with the names of parameters that have just been overwritten, for a program that keeps
            copies of them (an average, float32 masters). Masters in an optimizer's state are overwritten already.
        state: what else a beginning process gets from a peer: objects with `state_dict` and `load_state_dict` (a learning-rate schedule
            over local steps, a gradient scaler) and generators of random numbers. A schedule that follows the job does not need it.
        data_parallel: (index, count), the part of the unit's batch that this rank trains, and the number of parts; default: its rank, and
            the number of ranks. Ranks of one tensor-parallel group have the same index.
        buffers: "own": each rank keeps its own buffers (running statistics). "leader": all ranks get the buffers of rank 0 whenever
            parameters are adopted, so also at the end of the job. Buffers are never exchanged between units.
        environment: the contract's variables; default: the process's own environment.
    """
    if buffers not in ("own", "leader"):
        raise ValueError(f"buffers must be 'own' or 'leader', not {buffers!r}")
    try:
        store = ModuleStore(model, canonical=canonical, embeddings=embeddings, stacks=stacks, trained=trained)
        if (world := world_of(store.device, data_parallel)) is not None:
            store.divide(leaders_buffers=buffers == "leader")
        elif (name := store.sharded) is not None:
            raise LayoutError(f"parameter {name!r} is sharded over processes, and torch.distributed knows of this one only: {_HOW_TO_MEET}")
    except LayoutError as error:
        raise refused_layout(error) from error
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    check_optimizers(store.parameters, optimizers)
    store.adoption_check = AdoptionCheck(optimizers)
    inner = OptimizerState(store, optimizers, state)
    first = FirstUpdate(store.parameters, optimizers, rank=0 if world is None else world.rank)

    def adopted(tensors: Sequence[str]) -> None:
        names = store.parameter_names(tensors)
        first.adopted(names)
        if on_adopt is not None:
            on_adopt(names)

    hooks = AdapterHooks(
        on_adopt=adopted,
        updates=UpdateCounts(optimizers),
        stepped=store.adoption_check.stepped,
        trained=TrainedParameters(model, store.parameters, optimizers).check,
    )
    return Session.join(
        store,
        framework="torch",
        environment=environment,
        hooks=hooks,
        world=world,
        how_to_meet=_HOW_TO_MEET,
        inner=inner,
    )
