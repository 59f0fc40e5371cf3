"""Train one trial to its end, all replicas in this process.

A job's replicas take turns; its merges, codec, guards and outer optimizer are those of the syncer, on virtual time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from builders.regression import LockStep, Parameters, Trainee
from diloco.algorithm.fragments import unpack
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.schedules import Schedule
from diloco.trainers.byte_lm import EMBEDDINGS
from diloco.trainers.byte_lm_torch import ByteLM, initial_model, make_optimizer
from diloco.trainers.inner_optimizer import InnerConfig
from diloco.trainers.steps_torch import as_tensor, held_out_loss, train_step
from diloco.trainers.text import ByteCorpus
from numpy.typing import NDArray

from benchmarks.law.corpus import read_corpus
from benchmarks.law.pushes import changed
from benchmarks.law.trials import SIZES, Trial

_WARMUP = 0.09
FINAL = 0.05
"""Shares of arXiv 2503.09799: of the steps, and of the highest rate at the end of the cosine."""


def warmup_steps(steps: int) -> int:
    """Return how many of a training's steps are warm-up."""
    return math.ceil(_WARMUP * steps)


def trained(trial: Trial, device: str = "cpu") -> float:
    """Return the held-out loss of the final global parameters, nats per byte. `device`: of all replicas; on a GPU products are in bfloat16.
    Raises RuntimeError when a contribution is refused."""
    torch.set_num_threads(1)
    size = SIZES[trial.size]
    corpus = read_corpus(context=size.context, seed=trial.seed, tokens=size.tokens, held_out=size.held_out)
    model = _job(trial, corpus, device) if trial.arm.units else _alone(trial, corpus, device)
    return held_out_loss(model, corpus)


class OnDevice(dict[str, NDArray[np.float32]]):
    """The parameters of a model on a device. Each comes to the host when it is asked for. What the dict itself holds replaces them."""

    def __init__(self, values: Mapping[str, torch.Tensor], instead: Mapping[str, NDArray[np.float32]] | None = None) -> None:
        super().__init__(instead or {})
        self._values = values

    def __missing__(self, name: str) -> NDArray[np.float32]:
        value: NDArray[np.float32] = self._values[name].detach().cpu().numpy()
        return value

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self._values else default

    def __or__(self, other: Mapping[str, NDArray[np.float32]]) -> OnDevice:  # type: ignore[override]
        return OnDevice(self._values, {**self, **other})


class Replica:
    """A model with its inner optimizer, and the share of each global batch that is its own. A `Trainer` of `builders.regression`."""

    def __init__(self, trial: Trial, corpus: ByteCorpus, unit: int, units: int, device: str = "cpu") -> None:
        self.step = 0
        self.rate = np.float32(trial.rates.inner)
        self.model = initial_model(SIZES[trial.size].model, trial.seed).to(device)
        self._config = InnerConfig(learning_rate=trial.rates.inner, weight_decay=1 / trial.steps)
        self._optimizer = make_optimizer(self.model, SIZES[trial.size].model, self._config)
        self._schedule = Schedule("cosine", warmup=warmup_steps(trial.steps), final=FINAL)
        self._trial, self._corpus, self._unit, self._units = trial, corpus, unit, units
        self._device = device
        self._values = dict(self.model.named_parameters())
        on_cpu = device == "cpu"
        self._views: Parameters = (
            {name: value.detach().numpy() for name, value in self._values.items()} if on_cpu else OnDevice(self._values)
        )
        """The model's own memory."""

    def train(self, theta: Parameters) -> Parameters:
        """Take one step from theta: views of the model's own memory. After the last step nothing is trained."""
        with torch.no_grad():
            for name, value in theta.items():
                if self._device != "cpu":
                    self._values[name].copy_(torch.tensor(value))  # a copy: what was merged may be read-only
                elif value is not self._views[name]:
                    np.copyto(self._views[name], value)
        self.step += 1
        if self.step <= self._trial.steps:
            self.train_once()
        if self._trial.arm.parameters == "bfloat16":
            with torch.no_grad():
                for parameter in self._values.values():
                    parameter.copy_(parameter.bfloat16())
        return self._views

    def train_once(self) -> None:
        """Take the step of the number `step`, from 1."""
        rate = self._config.learning_rate * self._schedule.share(self.step, (self.step - 1) / self._trial.steps)
        windows = self._corpus.batch(self._rows(self.step - 1))
        train_step(self.model, self._optimizer, as_tensor(windows, self._device), rate, half=self._device == "cuda")

    def _rows(self, step: int) -> NDArray[np.int64]:
        """Return the sequence numbers of a step, from 0."""
        rows = self._trial.rows
        return np.arange(step * rows + self._unit, (step + 1) * rows, self._units, dtype=np.int64)


def _alone(trial: Trial, corpus: ByteCorpus, device: str) -> ByteLM:
    replica = Replica(trial, corpus, 0, 1, device)
    for step in range(1, trial.steps + 1):
        replica.step = step
        replica.train_once()
    return replica.model


def _job(trial: Trial, corpus: ByteCorpus, device: str) -> ByteLM:
    units = trial.arm.units
    replicas = [Replica(trial, corpus, unit, units, device) for unit in range(units)]
    first: Parameters = {name: value.detach().cpu().numpy().copy() for name, value in replicas[0].model.named_parameters()}
    embeddings = {f"{name}.weight" for name in EMBEDDINGS}
    layout = Layout(TensorSpec(name, value.shape, name in embeddings) for name, value in first.items())
    initial: Callable[[], Parameters] = lambda: first  # noqa: E731
    tokens = trial.rows // units * SIZES[trial.size].context
    trainees = {f"u{unit}": Trainee(replica, tokens=tokens, theta=dict(first)) for unit, replica in enumerate(replicas)}
    change = changed(trial.arm.pushes, lambda unit, fragment: trainees[unit].held[fragment])
    job = LockStep(trial.training, trainees, change, layout, initial)
    while not job.core.done:
        job.tick()
    if job.refused or job.rejected:
        raise RuntimeError(f"{trial}: contributions were refused: {[*job.refused, *job.rejected][:3]}")
    if replicas[0].step < trial.steps:
        raise RuntimeError(f"{trial}: the job ended after {replicas[0].step} steps")
    model = replicas[0].model
    final = {name: value for f in job.core.fragments for name, value in unpack(f, job.core.value(f.index)).items()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(final[name].copy()))
    return model
