"""Train with the Trainer of transformers in a job:

    session = diloco.torch.join(model, optimizer=optimizer)
    trainer = Trainer(model=model, args=args, train_dataset=data, optimizers=(optimizer, None))
    diloco.torch.hf.attach(trainer, session)
    trainer.train()
    session.close()

Needs the packages of the extra `hf`.

See docs/decisions/0167-batches.md. See docs/decisions/0166-progress-pauses-and-ends.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from diloco.extras import packages_of
from diloco.schedules import Clock
from diloco.session.loop_check import MOST_AHEAD
from diloco.session.session import Session
from diloco.torch.announced import LONGEST_PAUSE, announced
from diloco.torch.schedules import ProgressLR

with packages_of("hf", __name__):
    import accelerate  # noqa: F401 - so that it fails here if it is missing, not only once a Trainer is made
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments, get_scheduler

_NO_LABEL = -100
"""transformers' label of a token that has none."""
_ENDLESS = 1 << 40
"""Number of updates for the Trainer, which needs one. The training ends with its job, long before."""

_PAUSES = {"evaluation": ("evaluate",), "prediction": ("predict",), "checkpoint": ("save_model", "_save_checkpoint")}
"""Slow methods of the Trainer, by the reason of the pause that they are announced with. `_save_checkpoint` saves the optimizer, too."""


def labelled_tokens(batch: Mapping[str, Any]) -> int:
    """Count the tokens of a batch that have a label. Without labels count those that are no padding, without a mask count all. Raises
    ValueError for a batch without tokens."""
    if isinstance(labels := batch.get("labels"), torch.Tensor):
        return int((labels != _NO_LABEL).sum())
    if isinstance(mask := batch.get("attention_mask"), torch.Tensor):
        return int(mask.sum())
    if isinstance(tokens := batch.get("input_ids"), torch.Tensor):
        return tokens.numel()
    raise ValueError(f"a batch with {', '.join(map(repr, batch)) or 'nothing'} has no tokens to count: pass attach(…, tokens=…)")


def attach(
    trainer: Trainer,
    session: Session,
    *,
    seed: int = 0,
    tokens: Callable[[Mapping[str, Any]], int] = labelled_tokens,
    longest_pause: float = LONGEST_PAUSE,
) -> None:
    """Let `trainer` train on the samples that the syncer leases to this unit, until the job is done or the unit drains, and report each
    update to the session. Call it once, before `trainer.train`.

    The trainer's data set is read by index, see `Session.numbers`. Data set and `seed` must be the same in every unit. The trainer's
    collator and its dataloader_… arguments are used, its sampler is not. If the program has no schedule, the one in the trainer's arguments
    follows the job. An epoch in the trainer's logs is an epoch of the job. Evaluations, predictions and saves are announced as pauses.
    Raises ValueError for arguments that would do something else in a job than they say, TypeError for a stream.

    Args:
        tokens: counts the tokens of a batch.
        longest_pause: seconds that an evaluation, a prediction or a save may take.
    """
    if isinstance(trainer.train_dataset, IterableDataset) or not hasattr(trainer.train_dataset, "__len__"):
        raise TypeError(
            "the Trainer's data set has no length: a stream cannot be leased by index, also with max_steps. Read it in a loop of your own "
            "with session.shards, or give the Trainer a data set with __len__ and __getitem__"
        )
    if trainer.args.max_steps > 0:
        raise ValueError(
            f"max_steps={trainer.args.max_steps} would end this unit, not the job: leave it out; spec.training.steps ends the job"
        )
    _check_arguments(trainer.args)
    if trainer.optimizer is None:
        raise ValueError(
            "the Trainer would make an optimizer that has not joined: give it the session's, Trainer(…, optimizers=(optimizer, None))"
        )
    if trainer.lr_scheduler is None:
        if type(trainer).create_scheduler is not Trainer.create_scheduler:
            raise ValueError(
                "create_scheduler would count the steps of this unit: pass its schedule, Trainer(…, optimizers=(optimizer, rate))"
            )
        trainer.lr_scheduler = ProgressLR(trainer.optimizer, session, TrainerShape(trainer.args, trainer.optimizer, session.steps))
    for reason, calls in _PAUSES.items():
        for name in calls:
            setattr(trainer, name, announced(getattr(trainer, name), session, reason, longest_pause))
    trainer.args.max_steps = _ENDLESS
    # The Trainer's own loader has its data set, its collator and its arguments; only the sampler is replaced.
    usual = trainer.get_train_dataloader()
    loader = _LeasedLoader(trainer, session, usual, seed, tokens)
    trainer.get_train_dataloader = lambda: loader
    trainer.add_callback(_Steps(session, loader))


def _check_arguments(args: TrainingArguments) -> None:
    """Raise ValueError for arguments that would mean something else in a job."""
    if args.fsdp or args.deepspeed:
        raise ValueError(
            f"{'fsdp' if args.fsdp else 'deepspeed'} would shard the model after it has joined: leave it out, and ranks train with "
            "DistributedDataParallel; or write the loop yourself, with fully_shard before join"
        )
    if args.auto_find_batch_size:
        raise ValueError(
            "auto_find_batch_size would train the same batches again with a smaller size, which the session has handed out: find the size "
            "without a job, and give it as per_device_train_batch_size"
        )
    if args.load_best_model_at_end:
        raise ValueError(
            "load_best_model_at_end would put a checkpoint of this unit in the place of the job's final parameters, another one in each "
            "unit: leave it out. The syncer's snapshots are the job's checkpoints; spec.training.checkpoint.keep says how many stay"
        )
    for what in ("logging", "eval", "save"):
        strategy, every = getattr(args, f"{what}_strategy"), getattr(args, f"{what}_steps")
        remedy = f"say {what}_strategy='steps' and {what}_steps=N, in updates of this unit"
        if strategy == "epoch":
            raise ValueError(f"{what}_strategy='epoch' would wait for the end of the job, as units have no epochs of their own: {remedy}")
        if strategy == "steps" and every is not None and 0 < every < 1:
            raise ValueError(f"{what}_steps={every} is a share of this unit's updates, of which there is no fixed number: {remedy}")


class _LeasedLoader(DataLoader[Any]):
    """A loader of the session's batches. `taken` has the tokens of each batch that the Trainer has taken since its last update."""

    def __init__(
        self, trainer: Trainer, session: Session, usual: DataLoader[Any], seed: int, tokens: Callable[[Mapping[str, Any]], int]
    ) -> None:
        ahead = trainer.args.gradient_accumulation_steps + usual.num_workers * (usual.prefetch_factor or 0) + MOST_AHEAD
        samples = len(usual.dataset)  # type: ignore[arg-type]  # `attach` has looked
        self.leased = session.numbers(trainer.args.train_batch_size, samples=samples, seed=seed, ahead=ahead)
        super().__init__(
            usual.dataset,
            batch_sampler=self.leased,
            collate_fn=usual.collate_fn,
            num_workers=usual.num_workers,
            prefetch_factor=usual.prefetch_factor,
            persistent_workers=usual.persistent_workers,
            pin_memory=usual.pin_memory,
        )
        self._trainer = trainer
        self._tokens = tokens
        self.taken: list[int] = []

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self.taken.clear()
        for batch in super().__iter__():
            self.taken.append(self._tokens(batch))
            yield batch
        # The loader may end in the middle of an update. The Trainer would go on with the next epoch, which has no batches.
        self._trainer.control.should_training_stop = True


class _Steps(TrainerCallback):  # type: ignore[misc]  # transformers is not typed for mypy
    def __init__(self, session: Session, loader: _LeasedLoader) -> None:
        self._session = session
        self._loader = loader
        self._loss: float | None = None

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Mapping[str, Any] | None = None, **_: Any
    ) -> None:
        """Keep the loss that the Trainer has read from the device. `on_step_end` never waits for the device itself."""
        loss = (logs or {}).get("loss")
        if loss is not None and math.isfinite(float(loss)):  # an evaluation at the same step logs after it, without one
            self._loss = float(loss)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, lr_scheduler: object = None, **_: Any
    ) -> None:
        """Report an update, which used all batches taken since the last one."""
        self._session.step(tokens=sum(self._loader.taken), batches=len(self._loader.taken), loss=self._loss)
        self._loader.taken.clear()
        self._loss = None
        state.epoch = self._loader.leased.epoch
        if isinstance(lr_scheduler, ProgressLR):
            lr_scheduler.step()  # again: the Trainer has called it before the session knew of the step
        control.should_training_stop = control.should_training_stop or self._session.over


# --- The learning rate that the arguments of transformers' Trainer describe, over a job -------------------------------
class TrainerShape:
    """A schedule of transformers, as a share of the highest rate. Its warm-up follows the optimizer's steps, and its decay the job's
    progress, as in `diloco.schedules`.

    transformers' schedules are functions of a number of steps: first those of the warm-up, then those of the decay. Here the outer steps of
    the job stand for the latter.
    """

    def __init__(self, args: TrainingArguments, optimizer: torch.optim.Optimizer, steps: int) -> None:
        """`steps`: outer steps of the job. A `warmup_steps` below 1 is a share of them. Raises ValueError for a schedule that follows
        something else than steps."""
        self._warmup = args.get_warmup_steps(steps)
        self._steps = steps
        group = optimizer.param_groups[0]
        scheduler = get_scheduler(
            args.lr_scheduler_type,
            # Not the Trainer's optimizer: a scheduler writes rates as soon as it is made. But with its highest rate, which some schedules
            # read. In a unit that has taken the state of a peer, "lr" is the peer's present rate.
            optimizer=torch.optim.SGD([torch.zeros(1)], lr=group.get("initial_lr", group["lr"])),
            num_warmup_steps=self._warmup,
            num_training_steps=self._warmup + steps,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,
        )
        if not isinstance(scheduler, torch.optim.lr_scheduler.LambdaLR):
            raise ValueError(
                f"lr_scheduler_type={str(args.lr_scheduler_type.value)!r} follows what this unit alone has measured, so that units would "
                "train at different rates. Pass a schedule that follows the job:\n"
                '    rate = diloco.torch.schedule(optimizer, session, "cosine", warmup=200)\n'
                "    trainer = Trainer(…, optimizers=(optimizer, rate))"
            )
        self._share = scheduler.lr_lambdas[0]

    def next_share(self, clock: Clock) -> float:
        """Return the share for the next step."""
        warm = self._share(min(clock.optimizer_steps, self._warmup))
        return float(warm * self._share(self._warmup + clock.progress * self._steps))
