"""Lightning's own Trainer as the program of a unit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diloco.torch
import pytest
import torch
from builders.exchange import LocalSyncer, Place, job_file, training
from builders.scripted_connection import ScriptedSession
from diloco.torch.lightning import Steps
from lightning.pytorch import LightningModule, Trainer
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


def trainer(folder: Path, steps: Steps, **more: Any) -> Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    given = {"max_epochs": -1, "accelerator": "cpu", "accumulate_grad_batches": ACCUMULATION, **quiet, **more}
    return Trainer(default_root_dir=folder, callbacks=[steps], **given)


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
