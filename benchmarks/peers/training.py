"""The training of every learner in a comparison: the same model, text, order of samples, inner optimizer and H in each system.

A peer's environment imports this module too, with this repository's model and text, but nothing of our session.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from diloco.trainers import byte_lm_torch, steps_torch
from diloco.trainers.inner_optimizer import InnerConfig
from diloco.trainers.text import ByteCorpus
from numpy.typing import NDArray

from benchmarks.peers.setting import BATCH, MODEL, contribution

_INNER = InnerConfig(learning_rate=2e-3, warmup=20, final_share=1.0)


class Learner:
    """One learner: its model and optimizer, and its notes in FOLDER/UNIT.times, .notes and .loss."""

    def __init__(self) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("folder", type=Path)
        parser.add_argument("unit")
        parser.add_argument("--rank", type=int, default=0)
        parser.add_argument("--learners", type=int, default=1)
        parser.add_argument("--attempt", type=int, default=1)
        parser.add_argument("--steps", type=int, required=True, help="then the held-out loss is noted")
        given = parser.parse_args()
        self._folder: Path = given.folder
        self.unit: str = given.unit
        self.name = contribution(given.unit, given.attempt)
        self.rank: int = given.rank
        self.learners: int = given.learners
        self.steps: int = given.steps
        torch.set_num_threads(1)
        self.corpus = ByteCorpus.read(context=MODEL.context, seed=1, most_held_out=262_144)
        self.model = byte_lm_torch.initial_model(MODEL, 1)
        self.optimizer = byte_lm_torch.make_optimizer(self.model, MODEL, _INNER)
        self._taken = 0
        self._times = (self._folder / f"{self.unit}.times").open("w", encoding="ascii", buffering=1)
        self._notes = (self._folder / f"{self.unit}.notes").open("a", encoding="ascii", buffering=1)

    def batches(self) -> Iterator[NDArray[np.uint8]]:
        """Yield this learner's share of the samples. Ranks take turns."""
        for step in range(self.steps):
            start = (step * self.learners + self.rank) * BATCH
            yield self.corpus.batch(np.arange(start, start + BATCH, dtype=np.int64))

    def train(self, windows: NDArray[np.uint8]) -> float:
        """Take a step, and return its loss."""
        self._taken += 1
        batch = steps_torch.as_tensor(windows)
        return float(steps_torch.train_step(self.model, self.optimizer, batch, _INNER.rate(self._taken, 0.0)))

    def note_step(self) -> None:
        self._times.write(f"{time.monotonic():.6f}\n")

    def note_merged(self, name: str) -> None:
        """Note that a contribution of the attempt `name` was merged."""
        self._notes.write(f"{time.monotonic():.6f} merged {name}\n")

    def note_closed(self) -> None:
        """Note that this learner merged what others sent."""
        self._notes.write(f"{time.monotonic():.6f} closed {self.name}\n")

    def note_loss(self) -> None:
        """Note the held-out loss of the model as it is now."""
        loss = steps_torch.held_out_loss(self.model, self.corpus)
        (self._folder / f"{self.unit}.loss.new").write_text(f"{loss:.6f}\n", encoding="ascii")
        (self._folder / f"{self.unit}.loss.new").rename(self._folder / f"{self.unit}.loss")
