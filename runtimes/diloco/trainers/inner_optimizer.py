"""The inner optimizer of all reference trainers in both frameworks: AdamW, its constants and its learning rate.

See docs/decisions/0166-progress-pauses-and-ends.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from diloco.schedules import Decay, Schedule

ADAM_BETAS = (0.9, 0.95)
ADAM_EPSILON = 1e-8
CLIP_NORM = 1.0
"""The largest norm of a gradient; a larger one is scaled down."""


@dataclass(frozen=True)
class InnerConfig:
    """The inner optimizer, AdamW, and its learning-rate schedule."""

    learning_rate: float = 4e-3
    warmup: int = 40
    """Steps over which the rate rises from 0."""
    final_share: float = 0.1
    """The rate at the end of training, as a share of the highest."""
    decay: Decay = "cosine"
    """How the rate falls, see `diloco.schedules`."""
    weight_decay: float = 0.1
    """Weight decay of matrices; embeddings and norms have none (`is_decayed`)."""

    def rate(self, step: int, progress: float) -> float:
        """Return the learning rate of the optimizer's step number `step` (from 1) when `progress` (0..1) of the whole training is done.

        The warm-up counts the steps in the optimizer's state, also those of a peer. The decay follows the job's clock, so that units of any
        speed and age anneal together. Adoptions reset neither.
        """
        return self.learning_rate * Schedule(self.decay, self.warmup, self.final_share).share(step, progress)
