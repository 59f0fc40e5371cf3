"""Lightning's own Trainer as the program of a unit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import diloco.torch
import pytest
import torch
from builders.exchange import LocalSyncer, Place, job_file, training, until
from builders.scripted_connection import ScriptedSession
from diloco.learner.leave import LoopError
from diloco.torch.lightning import Steps
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    EMAWeightAveraging,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.slow

SAMPLES = 20
WIDTH = 3
BATCH = 2
ACCUMULATION = 3
DATA = TensorDataset(torch.arange(float(SAMPLES * WIDTH)).reshape(SAMPLES, WIDTH) / SAMPLES)


class Squares(LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(WIDTH, 4), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.01)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.optimizer

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss: torch.Tensor = self.net(batch[0]).square().mean()
        return loss


class Validated(Squares):
    """Sees what the session says during its validations."""

    def __init__(self, seen: Callable[[], object]) -> None:
        super().__init__()
        self.seen = seen
        self.validations: list[object] = []

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.validations.append(self.seen())


def trainer(folder: Path, steps: Steps, **more: Any) -> Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    usual = {"max_epochs": -1, "accelerator": "cpu", "accumulate_grad_batches": ACCUMULATION, "callbacks": [], **quiet}
    given = {**usual, **more}
    return Trainer(default_root_dir=folder, **{**given, "callbacks": [steps, *given["callbacks"]]})


def elements(batch: list[torch.Tensor]) -> int:
    return batch[0].numel()


def test_a_trainer_trains_on_leased_samples_until_the_job_is_done(tmp_path: Path) -> None:
    place = Place(tmp_path, job_file(training(40)))
    module = Squares()
    with (
        LocalSyncer(place) as syncer,
        diloco.torch.join(module, optimizer=module.optimizer, environment=place.of_learner(syncer.address, "a")) as session,
    ):
        loader = DataLoader(DATA, batch_sampler=session.numbers(BATCH, samples=SAMPLES))
        trainer(tmp_path, Steps(session, tokens=elements)).fit(module, loader)
        unit = syncer.unit("a")
    assert session.done
    assert unit is not None
    assert unit.HasField("loss")
    assert unit.tokens == unit.steps * ACCUMULATION * BATCH * WIDTH > 0


class Constant(Squares):
    """Its loss is 1, 2, 3, and so on for the batches of an update, which has `ACCUMULATION` of them."""

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return super().training_step(batch, index) * 0 + index % ACCUMULATION + 1


class Manual(Constant):
    """It divides its own losses."""

    automatic_optimization = False

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = super().training_step(batch, index)
        self.manual_backward(loss / ACCUMULATION)
        if (index + 1) % ACCUMULATION == 0:
            self.optimizers().step()
        return loss


@pytest.mark.parametrize(("module", "accumulation", "loss"), [(Constant, ACCUMULATION, 2.0), (Manual, 1, 3.0)])
def test_the_loss_of_an_update_is_the_mean_of_its_batches_and_of_a_manual_one_that_of_its_last(
    tmp_path: Path, module: type[Squares], accumulation: int, loss: float
) -> None:
    learner = ScriptedSession().join()

    def tokens(batch: list[torch.Tensor]) -> int:
        if learner.session.step_count == 3:
            learner.member.drain()
        return elements(batch)

    loader = DataLoader(DATA, batch_sampler=learner.session.numbers(BATCH, samples=SAMPLES))
    trainer(tmp_path, Steps(learner.session, tokens=tokens), accumulate_grad_batches=accumulation).fit(module(), loader)
    assert learner.progress.loss == loss


def test_a_drain_in_the_middle_of_an_update_ends_the_training(tmp_path: Path) -> None:
    learner = ScriptedSession().join()
    counted: list[int] = []

    def tokens(batch: list[torch.Tensor]) -> int:
        counted.append(elements(batch))
        if len(counted) == 3 * ACCUMULATION + 1:
            learner.member.drain()
        return counted[-1]

    loader = DataLoader(DATA, batch_sampler=learner.session.numbers(BATCH, samples=SAMPLES))
    trainer(tmp_path, Steps(learner.session, tokens=tokens)).fit(Squares(), loader)
    assert learner.progress.tokens_done <= sum(counted)
    assert learner.session.step_count in (3, 4), "Lightning may end an update early at the end of its loader"
    assert learner.progress.samples_done == learner.progress.tokens_done // WIDTH


def test_bounds_that_would_end_the_unit_alone_are_refused(tmp_path: Path) -> None:
    session = ScriptedSession().join().session
    loader = DataLoader(DATA, batch_sampler=session.numbers(BATCH, samples=SAMPLES))
    with pytest.raises(ValueError, match=r"max_steps=7 would end this unit, not the job"):
        trainer(tmp_path, Steps(session, tokens=elements), max_steps=7).fit(Squares(), loader)


def test_a_strategy_that_would_cut_the_joined_model_is_refused(tmp_path: Path) -> None:
    steps = Steps(ScriptedSession().join().session, tokens=elements)
    with pytest.raises(ValueError, match=r"ModelParallelStrategy would cut the model after it has joined: give Trainer strategy='ddp'"):
        steps.on_fit_start(trainer(tmp_path, steps, strategy=ModelParallelStrategy()), Squares())


@pytest.mark.parametrize("averaging", [EMAWeightAveraging(), WeightAveraging(), StochasticWeightAveraging(swa_lrs=1e-2)])
def test_callbacks_that_would_replace_the_final_parameters_are_refused(tmp_path: Path, averaging: Callback) -> None:
    session = ScriptedSession().join().session
    loader = DataLoader(DATA, batch_sampler=session.numbers(BATCH, samples=SAMPLES))
    averaged = trainer(tmp_path, Steps(session, tokens=elements), callbacks=[averaging], accumulate_grad_batches=1)
    with pytest.raises(ValueError, match=rf"{type(averaging).__name__} would put an average of this unit's weights in the place"):
        averaged.fit(Squares(), loader)


@pytest.mark.parametrize("finder", [LearningRateFinder(), BatchSizeFinder()])
def test_callbacks_that_look_for_a_value_before_the_first_step_are_refused(tmp_path: Path, finder: Callback) -> None:
    session = ScriptedSession().join().session

    class Sized(Squares):
        """BatchSizeFinder wants a module with a loader of its own."""

        batch_size = BATCH

        def train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(DATA, batch_sampler=session.numbers(self.batch_size, samples=SAMPLES))

    with pytest.raises(ValueError, match=rf"{type(finder).__name__} would train on the job's samples .*find the value without a job"):
        trainer(tmp_path, Steps(session, tokens=elements), callbacks=[finder]).fit(Sized())


def test_a_checkpoint_loaded_after_the_last_step_ends_the_program(tmp_path: Path) -> None:
    class LoadsItsBest(Callback):  # type: ignore[misc]
        def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            self.best = {name: value.clone() for name, value in pl_module.state_dict().items()}

        def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            pl_module.load_state_dict(self.best)

    place = Place(tmp_path, job_file(training(40)))
    module = Squares()
    with LocalSyncer(place) as syncer:
        session = diloco.torch.join(module, optimizer=module.optimizer, environment=place.of_learner(syncer.address, "a"))
        loader = DataLoader(DATA, batch_sampler=session.numbers(BATCH, samples=SAMPLES))
        trainer(tmp_path, Steps(session, tokens=elements), callbacks=[LoadsItsBest()]).fit(module, loader)
        with pytest.raises(LoopError, match=r"no longer holds its final parameters: .*net\.0\.bias"):
            session.close()


def test_a_fit_that_resumes_from_its_own_checkpoint_in_a_job_ends(tmp_path: Path) -> None:
    before = Trainer(default_root_dir=tmp_path, max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False)
    before.fit(Squares(), DataLoader(DATA, batch_size=BATCH))
    before.save_checkpoint(tmp_path / "own.ckpt")
    place = Place(tmp_path, job_file(training(1000)))
    module = Squares()
    with (
        LocalSyncer(place) as syncer,
        diloco.torch.join(module, optimizer=module.optimizer, environment=place.of_learner(syncer.address, "a")) as session,
    ):
        loader = DataLoader(DATA, batch_sampler=session.numbers(BATCH, samples=SAMPLES))
        resumes = trainer(tmp_path, Steps(session, tokens=elements))
        # SGD without momentum has no state that could be another one.
        with pytest.raises(LoopError, match=r"4 of 4 parameters changed between join and the first update: .*fit\(ckpt_path=…\)"):
            resumes.fit(module, loader, ckpt_path=tmp_path / "own.ckpt")


def test_a_schedule_that_waits_for_the_end_of_an_epoch_is_refused(tmp_path: Path) -> None:
    class Scheduled(Squares):
        def configure_optimizers(self) -> Any:
            return [self.optimizer], [torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1)]

    session = ScriptedSession().join().session
    loader = DataLoader(DATA, batch_sampler=session.numbers(BATCH, samples=SAMPLES))
    with pytest.raises(ValueError, match=r'(?s)stay at its first value.*diloco.torch.schedule\(.*"interval": "step"'):
        trainer(tmp_path, Steps(session, tokens=elements)).fit(Scheduled(), loader)


def test_a_schedule_by_steps_has_followed_the_job_to_its_end(tmp_path: Path) -> None:
    place = Place(tmp_path, job_file(training(40)))

    class Scheduled(Squares):
        def configure_optimizers(self) -> Any:
            rate = diloco.torch.schedule(self.optimizer, session, "linear")
            return {"optimizer": self.optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}

    module = Scheduled()
    with (
        LocalSyncer(place) as syncer,
        diloco.torch.join(module, optimizer=module.optimizer, environment=place.of_learner(syncer.address, "a")) as session,
    ):
        loader = DataLoader(DATA, batch_sampler=session.numbers(BATCH, samples=SAMPLES))
        trainer(tmp_path, Steps(session, tokens=elements)).fit(module, loader)
    assert session.done
    assert module.optimizer.param_groups[0]["lr"] == 0.0


def test_a_validation_that_waits_for_the_end_of_an_epoch_is_refused(tmp_path: Path) -> None:
    session = ScriptedSession().join().session
    loader = DataLoader(DATA, batch_sampler=session.numbers(BATCH, samples=SAMPLES))
    with pytest.raises(ValueError, match=r"validation would wait for the end of the job.*val_check_interval=N"):
        trainer(tmp_path, Steps(session, tokens=elements)).fit(Validated(lambda: None), loader, DataLoader(DATA))


def test_the_syncer_knows_of_validations_while_they_last(tmp_path: Path) -> None:
    place = Place(tmp_path, job_file(training(40)))
    with LocalSyncer(place) as syncer:

        def pause() -> object:
            return until(lambda: (unit := syncer.unit("a")) and unit.pause, "the report of a pause")

        module = Validated(pause)
        with diloco.torch.join(module, optimizer=module.optimizer, environment=place.of_learner(syncer.address, "a")) as session:
            loader = DataLoader(DATA, batch_sampler=session.numbers(BATCH, samples=SAMPLES))
            more = {"val_check_interval": 6 * ACCUMULATION, "check_val_every_n_epoch": None, "limit_val_batches": 1}
            trainer(tmp_path, Steps(session, tokens=elements), **more).fit(module, loader, DataLoader(DATA))
            until(lambda: (unit := syncer.unit("a")) and not unit.pause, "the end of the last pause")
    assert set(module.validations) == {"validation"}
    assert len(module.validations) > 2, "one of them is the check before the first step, and one is at the end"


def test_checkpoints_are_pauses_as_long_as_the_program_says(tmp_path: Path) -> None:
    learner = ScriptedSession().join()
    loader = DataLoader(DATA, batch_sampler=learner.session.numbers(BATCH, samples=SAMPLES))

    def tokens(batch: list[torch.Tensor]) -> int:
        if learner.session.step_count == 2:
            learner.member.drain()
        return elements(batch)

    kept = {"enable_checkpointing": True, "callbacks": [ModelCheckpoint(tmp_path, every_n_train_steps=1)]}
    trainer(tmp_path, Steps(learner.session, tokens=tokens, longest_pause=600), **kept).fit(Squares(), loader)
    assert ("checkpoint", 600) in learner.connection.pauses
    assert learner.connection.pauses[-1][0] == "", "it is over"
    with pytest.raises(ValueError, match="at_most must be a number of seconds"):
        Steps(learner.session, tokens=tokens, longest_pause=0)
