"""The byte-level model, trained by all units of a synthetic tape in one process: `python -m diloco.trainers.tape_torch TAPE`.

`diloco tape train` starts it. See docs/decisions/0281-synthetic-tapes.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors.numpy import save_file

from diloco.algorithm.fragments import Fragment, make_fragments, unpack
from diloco.algorithm.layout import Layout, LayoutError
from diloco.contract import Training
from diloco.learner.store import Float32Array
from diloco.simulation.synthetic_tape import SyntheticTape, SyntheticTapeError, from_lines
from diloco.simulation.training import TrainedJob, TrainedModel
from diloco.torch import ModuleStore
from diloco.trainers import options
from diloco.trainers.byte_lm import ModelConfig
from diloco.trainers.byte_lm_torch import canonical_names, held_out_loss, initial_model, make_optimizer, train_step
from diloco.trainers.inner_optimizer import InnerConfig
from diloco.trainers.text import ByteCorpus

PROGRAM = "diloco.trainers.tape_torch"


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
        windows = torch.from_numpy(self._corpus.batch(numbers).astype(np.int64))
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


def main(argv: Sequence[str]) -> int:
    """Train as `argv` says, and print one JSON line; the exit status is 0, or 2 for what cannot be."""
    parser = _parser()
    given = parser.parse_args(argv)
    options.pin_threads(1)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        tape = from_lines(given.tape.read_text().splitlines())
        training = Training.model_validate_json(given.training)
        config = ModelConfig(layers=given.layers, width=given.width, heads=given.heads, context=given.context, tied=given.tied)
        corpus = ByteCorpus.read(
            context=config.context, seed=given.seed, root=given.corpus, most=given.corpus_bytes, most_held_out=given.held_out_bytes
        )
        line = train(tape, training, config, options.chosen_inner(given), given.batch, given.seed, corpus, given.save)
    except ValidationError as error:
        parser.error(f"--training: {error.errors(include_url=False)}")
    except SyntheticTapeError as error:
        parser.error(f"{given.tape}: {error}")
    except (OSError, ValueError, LayoutError) as error:
        parser.error(str(error))
    sys.stdout.write(json.dumps(line) + "\n")
    return 0


def train(
    tape: SyntheticTape, training: Training, config: ModelConfig, inner: InnerConfig, batch: int, seed: int, corpus: ByteCorpus,
    save: Path | None,
) -> Mapping[str, object]:  # fmt: skip
    """Return what came of the training. Raises ValueError for a job that these units can never train, LayoutError for a model that cannot
    be cut as it says, OSError for a file that cannot be written."""
    if batch < 1:
        raise ValueError(f"--batch must be at least 1, got {batch}")
    if len(tape.units) < training.quorum:
        raise ValueError(f"the quorum of the job is {training.quorum} (spec.training.quorum), and the tape has {len(tape.units)} units")
    layout = Layout(ModuleStore(initial_model(config, seed), canonical=canonical_names(config)).specs())
    fragments = make_fragments(layout, training.fragments)
    models = {name: TorchModel(config, inner, seed, corpus, fragments) for name in tape.units}
    job = TrainedJob(training, tape, layout, models, batch, batch * config.context)
    outcome = job.train()
    final = models[min(models)]
    values: dict[str, NDArray[np.float32]] = {}
    for fragment in fragments:
        final.adopt(fragment.index, job.core.value(fragment.index))
        values |= unpack(fragment, job.core.value(fragment.index))
    if save is not None:
        save_file({name: np.ascontiguousarray(values[name]) for name in sorted(values)}, save)
    return {
        "outerSteps": outcome.outer_steps,
        "seconds": round(outcome.seconds, 3),
        "merges": outcome.merges,
        "skipped": outcome.skipped,
        "contributions": round(outcome.contributions, 3),
        "staleness": round(outcome.staleness, 3),
        "failures": outcome.failures,
        "localSteps": dict(job.local_steps),
        "mergedTokens": round(outcome.merged),
        "heldOutLoss": held_out_loss(final.model, corpus),
        "sha256": job.digest(),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}",
        description="Train the byte-level model with all units of a synthetic tape, on virtual time and in one process.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("tape", type=Path, help="a file of `diloco tape generate`")
    parser.add_argument("--training", required=True, help="spec.training of a job, as JSON")
    parser.add_argument("--save", type=Path, default=None, help="write the global parameters to this file, as safetensors")
    options.add_model_flags(parser)
    options.add_inner_flags(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
