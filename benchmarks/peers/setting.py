"""Settings that all compared systems share: model, batch, H, outer optimizer, and names of learners."""

from __future__ import annotations

from diloco.trainers.byte_lm import ModelConfig

MODEL = ModelConfig(layers=6, width=128, heads=4, context=64)
"""1.26 M parameters."""
BATCH = 4
TOKENS = BATCH * MODEL.context
"""Tokens in a step of one learner."""
SYNC_INTERVAL = 24
OUTER_RATE, OUTER_MOMENTUM = 0.6, 0.3
"""The outer optimizer of each system is SGD with Nesterov momentum, with our defaults."""


def contribution(unit: str, attempt: int) -> str:
    """The name of a unit's attempt in the notes of contributions."""
    return f"{unit}-{attempt}"
