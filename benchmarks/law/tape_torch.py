"""The byte-level model, trained by all units of a synthetic tape in one process, with torch."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import numpy as np
from diloco.algorithm.fragments import Fragment, make_fragments
from diloco.algorithm.layout import Layout
from diloco.contract import Training
from diloco.learner.store import Float32Array
from diloco.torch import ModuleStore
from diloco.trainers.byte_lm import ModelConfig
from diloco.trainers.byte_lm_torch import canonical_names, initial_model, make_optimizer
from diloco.trainers.inner_optimizer import InnerConfig
from diloco.trainers.steps_torch import as_tensor, held_out_loss, train_step
from diloco.trainers.text import ByteCorpus
from numpy.typing import NDArray

from benchmarks.law.runs import Outcome
from benchmarks.law.synthetic_tape import SyntheticTape
from benchmarks.law.tape_training import TrainedJob, TrainedModel


class TorchModel:
    """Implements `TrainedModel`."""

    def __init__(self, config: ModelConfig, inner: InnerConfig, seed: int, corpus: ByteCorpus, fragments: Sequence[Fragment]) -> None:
        self.model = initial_model(config, seed)
        self._config, self._inner, self._corpus = config, inner, corpus
        self._store = ModuleStore(self.model, canonical=canonical_names(config))
        self._names = [[tensor.name for tensor in fragment.tensors] for fragment in fragments]
        self.optimizer = make_optimizer(self.model, config, inner)
        self.optimizer_steps = 0
        """Steps behind the optimizer's state, as a session counts them."""

    def step(self, numbers: NDArray[np.int64], progress: float) -> None:
        windows = as_tensor(self._corpus.batch(numbers))
        self.optimizer_steps += 1
        train_step(self.model, self.optimizer, windows, self._inner.rate(self.optimizer_steps, progress))

    def read(self, fragment: int) -> Float32Array:
        staged = self._store.stage(self._names[fragment])
        values = staged.wait().copy()
        staged.release()
        return values

    def adopt(self, fragment: int, values: Float32Array) -> None:
        self._store.apply(self._store.prepare(self._names[fragment], values))

    def restart(self, donor: TrainedModel | None) -> None:
        self.optimizer = make_optimizer(self.model, self._config, self._inner)
        self.optimizer_steps = 0
        if isinstance(donor, TorchModel):
            self.optimizer_steps = donor.optimizer_steps
            self.optimizer.load_state_dict(deepcopy(donor.optimizer.state_dict()))


def train(
    tape: SyntheticTape, training: Training, config: ModelConfig, inner: InnerConfig, batch: int, seed: int, corpus: ByteCorpus
) -> Outcome:
    """Return what came of the training, with `heldOutLoss` in nats per byte."""
    layout = Layout(ModuleStore(initial_model(config, seed), canonical=canonical_names(config)).specs())
    fragments = make_fragments(layout, training.fragments)
    models = {name: TorchModel(config, inner, seed, corpus, fragments) for name in tape.units}
    job = TrainedJob(training, tape, layout, models, batch, batch * config.context)
    outcome = job.run()
    final = models[min(models)]
    for fragment in fragments:
        final.adopt(fragment.index, job.core.value(fragment.index))
    return {
        "outerSteps": outcome.outer_steps,
        "seconds": round(outcome.seconds, 3),
        "merges": outcome.merges,
        "contributions": round(outcome.contributions, 3),
        "staleness": round(outcome.staleness, 3),
        "failures": outcome.failures,
        "mergedTokens": round(outcome.merged),
        "heldOutLoss": held_out_loss(final.model, corpus),
    }
