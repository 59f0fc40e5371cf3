"""Train with the Trainer of Lightning in a job:

    session = diloco.torch.join(module, optimizer=optimizer)     # configure_optimizers returns this very optimizer
    loader = DataLoader(data, batch_sampler=session.numbers(8, samples=len(data)), num_workers=4)
    steps = diloco.torch.lightning.Steps(session, tokens=lambda batch: batch.numel())
    lightning.Trainer(max_epochs=-1, use_distributed_sampler=False, callbacks=[steps]).fit(module, loader)
    session.close()

Wants the package of the extra `lightning`.

See docs/decisions/0167-batches-ahead.md. See docs/decisions/0166-pauses-and-ends.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from diloco.learner.session import Session


class Steps(Callback):  # type: ignore[misc]  # Lightning is not typed for mypy
    """Tells the session of each update of the optimizer, with the batches that it was made from, and ends the training with the job."""

    def __init__(self, session: Session, *, tokens: Callable[[Any], int]) -> None:
        """`tokens`: the real tokens of a batch, without padding."""
        self._session = session
        self._count = tokens
        self._updates = 0
        self._tokens = 0
        self._batches = 0
        self._loss: torch.Tensor | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raises ValueError for bounds that would end this unit before the job."""
        for name, bound in (("max_epochs", trainer.max_epochs), ("max_steps", trainer.max_steps)):
            if bound is not None and bound != -1:
                raise ValueError(f"{name}={bound} would end this unit, not the job: give Trainer max_epochs=-1 and leave out max_steps")
        self._updates = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        """The last batch of an update: `global_step` counts the optimizer's."""
        self._tokens += self._count(batch)
        self._batches += 1
        if trainer.global_step != self._updates:
            # That of the update before: the device has computed it, so that nothing waits.
            loss = None if self._loss is None else self._loss.item()
            self._session.step(tokens=self._tokens, batches=self._batches, loss=loss)
            self._updates, self._tokens, self._batches = trainer.global_step, 0, 0
            self._loss = outputs.get("loss") if isinstance(outputs, dict) else None
        trainer.should_stop = trainer.should_stop or self._session.over

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The loader ends with the job, also in the middle of an update."""
        trainer.should_stop = trainer.should_stop or self._session.over
