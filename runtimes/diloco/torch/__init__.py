"""Train a torch module as one learner of a DiLoCo job.

    import diloco.torch as diloco

    session = diloco.join(model, optimizer=optimizer)
    for batch in session.batches(source, batch_size):
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        session.step(tokens=batch.numel(), loss=loss.item())

`join` has put the job's current parameters into the model before it returns; `session.step` overwrites a fragment of them now and then,
in place, so that optimizers and compiled modules keep their references. That leaves the optimizer's state alone.
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
from diloco.session.session import Session
from diloco.torch.adoptions import Adoptions
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

    `optimizer`, one or several, must train the exchanged parameters of `model` that require gradients, no others, and each in one
    optimizer only. Create it before `join`, and move the model to its device before both. A process that begins while other units train
    gets the parameters and the optimizer's state of one of them; adoptions do not touch that state. `state`: what else then comes from
    there, anything with `state_dict` and `load_state_dict` (a learning-rate schedule over local steps, a gradient scaler), and generators
    of random numbers; a schedule that follows the job needs it not.
    `canonical` maps parameter names to the job's canonical form where the two differ (see `ModuleStore`), `embeddings` says by name
    which parameters are embeddings (default: those of `torch.nn.Embedding` and `EmbeddingBag`), `stacks` how many leading axes of a
    parameter count matrices that are merged each by itself, such as experts (default: none), `trained` which are exchanged (default:
    those that require a gradient); the others are frozen and must be the same in every unit. `on_adopt` is called with the names of
    the parameters that were overwritten just now, in `join` and in `step`: for a program that keeps copies of them (an average,
    float32 masters). Masters in the state of an optimizer are overwritten already.

    A unit of several processes joins after `torch.distributed.init_process_group`, on every rank, with the model as it trains:
    DistributedDataParallel, `fully_shard`, tensor parallel, or all replicas alike. `data_parallel` is (index, count): which part of the
    unit's batch this rank trains, of how many (default: its rank, of all ranks). Ranks of one tensor-parallel group have the same index.
    Buffers (running statistics) are each rank's own; with `buffers="leader"` all ranks get those of rank 0 whenever parameters are
    adopted, so also at the end of the job. Buffers are never exchanged between units.

    Raises SystemExit with a `contract.Exit`: outside of a job, for a model that cannot be exchanged, and when the syncer refuses it.
    Raises ValueError or TypeError for an optimizer that does not train the model, TypeError for state that cannot be handed over.
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
    store.adoptions = Adoptions(optimizers)
    inner = OptimizerState(store, optimizers, state)
    first = FirstUpdate(store.parameters, optimizers, rank=0 if world is None else world.rank)

    def adopted(tensors: Sequence[str]) -> None:
        names = store.parameter_names(tensors)
        first.adopted(names)
        if on_adopt is not None:
            on_adopt(names)

    return Session.join(
        store,
        framework="torch",
        environment=environment,
        on_adopt=adopted,
        updates=UpdateCounts(optimizers),
        stepped=store.adoptions.stepped,
        trained=TrainedParameters(model, store.parameters, optimizers).check,
        world=world,
        how_to_meet=_HOW_TO_MEET,
        inner=inner,
    )
