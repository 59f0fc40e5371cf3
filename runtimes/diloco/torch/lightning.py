"""Train with the Trainer of Lightning in a job:

    session = diloco.torch.join(module, optimizer=optimizer)     # configure_optimizers returns this very optimizer
    loader = DataLoader(data, batch_sampler=session.numbers(8, samples=len(data)), num_workers=4)
    steps = diloco.torch.lightning.Steps(session, tokens=lambda batch: batch.numel())
    lightning.Trainer(max_epochs=-1, use_distributed_sampler=False, callbacks=[steps]).fit(module, loader)
    session.close()

Needs the package of the extra `lightning`.

See docs/decisions/0167-batches.md. See docs/decisions/0166-progress-pauses-and-ends.md.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from diloco.extras import packages_of
from diloco.learner.heartbeat_state import check_pause
from diloco.session.session import Session
from diloco.torch.announced import LONGEST_PAUSE, announced
from diloco.torch.schedules import ProgressLR

with packages_of("lightning", __name__):
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder, StochasticWeightAveraging, WeightAveraging
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy


class Steps(Callback):  # type: ignore[misc]  # Lightning is not typed for mypy
    """Reports each update of the optimizer to the session, with the batches that it used, and ends the training with the job."""

    def __init__(self, session: Session, *, tokens: Callable[[Any], int], longest_pause: float = LONGEST_PAUSE) -> None:
        """Raises ValueError if `longest_pause` is not allowed.

        Args:
            tokens: counts the real tokens of a batch, without padding.
            longest_pause: seconds that a validation, a test, a prediction or a checkpoint may take. They are announced as pauses.
        """
        check_pause("validation", longest_pause)
        self._session = session
        self._count = tokens
        self._longest_pause = longest_pause
        self._pause = ExitStack()
        self._updates = 0
        self._tokens = 0
        self._batches = 0
        self._losses: list[torch.Tensor] = []
        """Losses of the batches since the last update. With manual optimization the last batch alone."""
        self._loss: torch.Tensor | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Raise ValueError for callbacks that would train before the first step, to find a learning rate or a batch size."""
        finders = [callback for callback in trainer.callbacks if isinstance(callback, BatchSizeFinder | LearningRateFinder)]
        if stage == "fit" and finders:
            raise ValueError(
                f"{type(finders[0]).__name__} would train on the job's samples and put the model back, which no step counts: find the "
                "value without a job, leave it out here, and give it to the optimizer or the loader"
            )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise ValueError for settings that would end this unit before the job, do nothing until the job ends, or replace the job's final
        parameters."""
        for name, bound in (("max_epochs", trainer.max_epochs), ("max_steps", trainer.max_steps)):
            if bound is not None and bound != -1:
                raise ValueError(f"{name}={bound} would end this unit, not the job: give Trainer max_epochs=-1 and leave out max_steps")
        if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
            raise ValueError(
                f"{type(trainer.strategy).__name__} would cut the model after it has joined: give Trainer strategy='ddp', or write the "
                "loop yourself, with fully_shard before join"
            )
        if averaging := [x for x in trainer.callbacks if isinstance(x, StochasticWeightAveraging | WeightAveraging)]:
            raise ValueError(
                f"{type(averaging[0]).__name__} would put an average of this unit's weights in the place of the job's final parameters, "
                "another one in each unit: leave it out. The outer steps of the job average already"
            )
        if pl_module.automatic_optimization and any(config.interval != "step" for config in trainer.lr_scheduler_configs):
            raise ValueError(
                "the learning rate would stay at its first value, as a unit's epoch ends with the job. In configure_optimizers:\n"
                '    rate = diloco.torch.schedule(optimizer, session, "cosine", warmup=200)\n'
                '    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}'
            )
        if trainer.enable_validation and trainer.val_check_interval == 1.0:
            raise ValueError(
                "validation would wait for the end of the job, as a unit's epoch ends with it: give Trainer val_check_interval=N, in "
                "batches, and check_val_every_n_epoch=None, or limit_val_batches=0"
            )
        if "save_checkpoint" not in vars(trainer):
            trainer.save_checkpoint = announced(trainer.save_checkpoint, self._session, "checkpoint", self._longest_pause)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count updates from here on."""
        self._updates = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count a batch. After the last batch of an update, when `global_step` has grown, report the step."""
        self._tokens += self._count(batch)
        self._batches += 1
        given = outputs.get("loss") if isinstance(outputs, dict) else None
        losses = [] if given is None else [given]
        if pl_module.automatic_optimization:
            # Lightning has divided each by this number, so that the gradients of the update add up to their mean.
            losses = [*self._losses, *(loss * trainer.accumulate_grad_batches for loss in losses)]
        self._losses = losses
        if trainer.global_step != self._updates:
            # The loss of the update before: the device has computed it, so the host does not wait.
            loss = None if self._loss is None else self._loss.item()
            self._session.step(tokens=self._tokens, batches=self._batches, loss=loss)
            self._updates, self._tokens, self._batches = trainer.global_step, 0, 0
            self._loss, self._losses = torch.stack(self._losses).mean() if self._losses else None, []
            for config in trainer.lr_scheduler_configs:
                if isinstance(config.scheduler, ProgressLR):
                    config.scheduler.step()  # again: Lightning has called it before the session knew of the step
        trainer.should_stop = trainer.should_stop or self._session.over

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the loader with the job, also in the middle of an update."""
        trainer.should_stop = trainer.should_stop or self._session.over

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a pause, also for the validation that Lightning runs before the first step."""
        self._begin_pause("validation")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._pause.close()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin_pause("test")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._pause.close()

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin_pause("prediction")

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._pause.close()

    def _begin_pause(self, reason: str) -> None:
        self._pause.enter_context(self._session.paused(reason, self._longest_pause))
