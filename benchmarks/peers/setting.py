"""What is the same in all systems that are compared: model, batch, H, the outer optimizer, and how learners are named."""

from __future__ import annotations

from diloco.trainers.byte_lm import ModelConfig

MODEL = ModelConfig(layers=6, width=128, heads=4, context=64)
"""1.26 M parameters."""
BATCH = 4
TOKENS = BATCH * MODEL.context
"""Tokens of a step of one learner."""
SYNC_INTERVAL = 24
OUTER_RATE, OUTER_MOMENTUM = 0.6, 0.3
"""SGD with Nesterov momentum, our defaults, in each system."""


def contribution(unit: str, attempt: int) -> str:
    """Return how an attempt of a unit is named where contributions are noted."""
    return f"{unit}-{attempt}"
