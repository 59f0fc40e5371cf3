"""A remark for jobs that train a large model with the default outer optimizer, which was chosen with small models. Pure.

See docs/decisions/0273-default-outer-optimizer.md.
"""

from __future__ import annotations

from diloco.contract import OuterOptimizer
from diloco.wording import parameters_text

LARGE = 50_000_000
"""Parameters. The default was tried with smaller models, and the publications have larger ones."""


def outer_remark(optimizer: OuterOptimizer, parameters: int) -> str:
    """Say what was measured and what was published, in words that follow "the syncer". Empty if the model is small or the job has other
    values."""
    if parameters <= LARGE or optimizer != OuterOptimizer():
        return ""
    return (
        f"merges {parameters_text(parameters)} parameters with the default training.outerOptimizer, learning rate "
        f"{optimizer.learning_rate}, momentum {optimizer.momentum}, which was measured with models of 0.1 to 0.5 M; publications of large "
        "models have a learning rate of 0.4 to 1 and a momentum of 0.9"
    )
