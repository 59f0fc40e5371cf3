"""The learning rate that the arguments of transformers' Trainer describe, over a job.

See docs/decisions/0166-progress-pauses-and-ends.md.
"""

from __future__ import annotations

import torch
from transformers import TrainingArguments, get_scheduler

from diloco.schedules import Clock


class TrainerShape:
    """The share of the highest rate. Warm-up follows the optimizer's steps, and the decay the job's progress, as in `diloco.schedules`.

    transformers' shapes are functions of a number of steps: those of the warm-up first, and then those of the decay, which are here the
    outer steps of the job.
    """

    def __init__(self, args: TrainingArguments, optimizer: torch.optim.Optimizer, steps: int) -> None:
        """Follow the Trainer's schedule; `steps`: outer steps of the job, of which a `warmup_steps` below 1 is a share. Raises ValueError
        for a schedule that follows something else than steps."""
        self._warmup = args.get_warmup_steps(steps)
        self._steps = steps
        made = get_scheduler(
            args.lr_scheduler_type,
            # One of its own: a scheduler writes rates as soon as it is made. Some shapes read the highest rate.
            optimizer=torch.optim.SGD([torch.zeros(1)], lr=optimizer.param_groups[0]["lr"]),
            num_warmup_steps=self._warmup,
            num_training_steps=self._warmup + steps,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,
        )
        if not isinstance(made, torch.optim.lr_scheduler.LambdaLR):
            raise ValueError(
                f"lr_scheduler_type={str(args.lr_scheduler_type.value)!r} follows what this unit alone has measured, so that units would "
                "train at different rates. Pass a schedule that follows the job:\n"
                '    rate = diloco.torch.schedule(optimizer, session, "cosine", warmup=200)\n'
                "    trainer = Trainer(…, optimizers=(optimizer, rate))"
            )
        self._share = made.lr_lambdas[0]

    def next_share(self, clock: Clock) -> float:
        """Return the share of the step that comes next."""
        warm = self._share(min(clock.optimizer_steps, self._warmup))
        return float(warm * self._share(self._warmup + clock.progress * self._steps))
