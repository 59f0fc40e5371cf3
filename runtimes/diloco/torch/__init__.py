"""Train a torch module as one learner of a DiLoCo job.

    import diloco.torch as diloco

    session = diloco.join(model)
    for batch in session.batches(source, batch_size):
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        session.step(tokens=batch.numel(), loss=loss.item())

`join` has put the job's current parameters into the model before it returns; `session.step` overwrites a fragment of them now and then,
in place, so that optimizers and compiled modules keep their references. The optimizer's state is never touched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import torch

from diloco.canonical import Canonical
from diloco.learner.session import Session
from diloco.torch.store import ModuleStore

__all__ = ["Canonical", "ModuleStore", "Session", "join"]


def join(
    model: torch.nn.Module,
    *,
    canonical: Mapping[str, Canonical | str] | None = None,
    embeddings: Callable[[str], bool] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Session:
    """Join the job that this process was started for, and block until `model` holds the job's current parameters.

    `canonical` maps parameter names to the job's canonical form where the two differ (see `ModuleStore`), `embeddings` says by name
    which parameters are embeddings (default: those of `torch.nn.Embedding` and `EmbeddingBag`). Create the optimizer before or after;
    move the model to its device before. Raises SystemExit with a `contract.Exit` outside of a job or when the syncer refuses the model;
    ValueError or TypeError for a model that cannot be exchanged.
    """
    return Session.join(ModuleStore(model, canonical=canonical, embeddings=embeddings), framework="torch", environment=environment)
