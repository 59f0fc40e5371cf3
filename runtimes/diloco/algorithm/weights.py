"""The weight of a contribution in a merge (the paper)."""

from __future__ import annotations

from collections.abc import Mapping


def weight(tokens: float, steps: int) -> float:
    """`tokens * (tokens / steps)`, quantity times quality (the paper), of the work since the learner last adopted the fragment; 0 without
    steps. Twice as many steps with the same batch size give twice the weight; half the batch size with equal steps gives a quarter.

    Raises ValueError for a negative counter.
    """
    if tokens < 0 or steps < 0:
        raise ValueError(f"counters cannot be negative: {tokens} tokens in {steps} steps")
    return tokens * (tokens / steps) if steps else 0.0


def shares(weights: Mapping[str, float]) -> dict[str, float]:
    """Each weight over their sum; all 0 if that is 0."""
    total = sum(weights.values())
    return {unit: w / total if total else 0.0 for unit, w in weights.items()}
