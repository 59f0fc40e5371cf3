"""The scalars of one outer step for TensorBoard, by tag. Pure."""

from __future__ import annotations

from diloco.algorithm.core import Core
from diloco.data.ledger import Ledger
from diloco.syncer.reporting.unit_stats import Phase, UnitStatsTable

MOST_UNITS = 32
"""Units with scalars of their own; a file of more of them would be mostly theirs."""
HELD_OUT_LOSS = "held_out_loss"


def step_scalars(core: Core, ledger: Ledger, unit_stats: UnitStatsTable, loss: float | None, now: float) -> dict[str, float]:
    """Return the scalars of a step; `loss`: the training loss now, if there is one. `now`: seconds on the clock of the statistics."""
    contributing = [one for one in unit_stats.all() if one.phase is Phase.CONTRIBUTING]
    rates = {one.unit: one.rate.value(now) for one in contributing}
    found: dict[str, float] = {
        "tokens": ledger.tokens,
        "tokens_per_second": sum(rates.values()),
        "contributing_learners": len(contributing),
    }
    if loss is not None:
        found["loss"] = loss
    for one in contributing[:MOST_UNITS]:
        found[f"unit_weight/{one.unit}"] = core.contributions_of(one.unit).share
        found[f"unit_tokens_per_second/{one.unit}"] = rates[one.unit]
    return found
