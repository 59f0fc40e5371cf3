"""Units of a synthetic tape train a real model in torch, as benchmarks/law has them."""

from __future__ import annotations

import pytest
from diloco.contract import Training
from diloco.trainers.byte_lm import ModelConfig
from diloco.trainers.inner_optimizer import InnerConfig
from diloco.trainers.text import ByteCorpus

from benchmarks.law.runs import Outcome
from benchmarks.law.synthetic_tape import Fate, generate
from benchmarks.law.tape_torch import train

CONFIG = ModelConfig(layers=1, width=16, heads=2, context=16)
STORM = Fate(slow_every=20.0, fail_every=15.0, away_seconds=5.0)
TRAINING = Training.model_validate({"steps": 36, "syncInterval": 6, "fragments": 6, "overlapSteps": 1, "compression": "Int4"})


def trained(seed: int) -> Outcome:
    """Train under the tape of that seed; model and data are the same."""
    corpus = ByteCorpus.read(context=CONFIG.context, seed=1, most=65_536)
    return train(generate(3, 60.0, STORM, seed), TRAINING, CONFIG, InnerConfig(), 2, 1, corpus)


def test_same_tape_trains_the_same_model() -> None:
    first, again = trained(3), trained(3)
    assert first == again
    assert first["outerSteps"] == 36
    assert first["failures"] > 0
    assert first["heldOutLoss"] < 5.5, "an untrained model has ln 256 = 5.545 nats per byte"


@pytest.mark.full
def test_other_tape_trains_otherwise() -> None:
    assert trained(3)["heldOutLoss"] != trained(4)["heldOutLoss"]
