"""How much a contribution counts."""

from __future__ import annotations

from collections.abc import Mapping


def weight(tokens: int, steps: int) -> float:
    """Quantity times quality, `tokens * (tokens / steps)` = steps x (tokens/step)^2, of the work since the learner last received
    the fragment (the paper's weight). 0 if there was none. Twice as many steps at the same batch: twice the weight; half the
    batch at equal steps: a quarter."""
    if tokens < 0 or steps < 0:
        raise ValueError(f"counters cannot be negative: {tokens} tokens in {steps} steps")
    return tokens * (tokens / steps) if steps else 0.0


def shares(weights: Mapping[str, float]) -> dict[str, float]:
    """Each weight over their sum; all 0 if that is 0."""
    total = sum(weights.values())
    return {unit: w / total if total else 0.0 for unit, w in weights.items()}
