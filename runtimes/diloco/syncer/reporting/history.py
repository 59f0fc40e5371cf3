"""What is recorded about a running job: losses over outer steps, evaluations, and the scalars for TensorBoard."""

from __future__ import annotations

import logging

from diloco.algorithm.core import Core
from diloco.data.ledger import Ledger
from diloco.protocol.diloco_pb2 import Evaluation
from diloco.syncer.reporting.event_writer import EventWriter
from diloco.syncer.reporting.loss_history import LossHistory
from diloco.syncer.reporting.reports import held_out_loss
from diloco.syncer.reporting.unit_stats import Phase, UnitStatsTable, usable_loss

_log = logging.getLogger(__name__)

MOST_TOKENS = 1 << 50
"""Upper bound of the tokens of one evaluation. A larger number cannot be true, and would drown the other units in the mean."""
MOST_UNITS = 32
"""Units with scalars of their own. More of them would make up most of a file."""
HELD_OUT_LOSS = "held_out_loss"


class History:
    """One job's record. `now` is in seconds on the clock of the unit statistics."""

    def __init__(
        self,
        losses: LossHistory,
        evaluations: dict[str, tuple[float, int]],
        ledger: Ledger,
        unit_stats: UnitStatsTable,
        writer: EventWriter,
    ) -> None:
        """`evaluations`: for each unit (held-out loss of the final parameters, tokens of that evaluation)."""
        self.losses = losses
        self.evaluations = evaluations
        self.evaluated_anew = False
        """An evaluation has come since the process began."""
        self._ledger = ledger
        self._unit_stats = unit_stats
        self._writer = writer

    @property
    def error(self) -> str:
        """Why the newest scalars could not be written. Empty if they were."""
        return self._writer.error

    def step(self, core: Core, now: float) -> None:
        loss = self._unit_stats.loss()
        if loss is not None:
            self.losses.training.add(core.t, loss)
        if self._writer.due(core.t):
            self._writer.offer(core.t, step_scalars(core, self._ledger, self._unit_stats, loss, now))

    def evaluated(self, core: Core, unit: str, evaluation: Evaluation) -> bool:
        """Note that a unit reports the held-out loss of the final parameters. False if it cannot be used."""
        loss, tokens, t = evaluation.held_out_loss, evaluation.tokens, evaluation.t
        if not core.done or t != core.t or not usable_loss(loss) or not 0 < tokens <= MOST_TOKENS:
            _log.warning("unit %s reports a held-out loss of %s over %d tokens at outer step %d: not used", unit, loss, tokens, t)
            return False
        self.evaluations[unit] = (loss, tokens)
        if (mean := held_out_loss(self.evaluations)) is not None:
            self.losses.held_out.add(core.t, mean)
        self.evaluated_anew = True
        return True

    def end(self, core: Core, now: float, *, began_finished: bool) -> None:
        """Write the held-out loss, once, after all evaluations: a reader would show each value of the step.

        `began_finished`: the process found a finished job.
        """
        held_out = self.losses.held_out.points
        if not self.evaluated_anew or not held_out:
            return
        scalars = {HELD_OUT_LOSS: held_out[-1].loss}
        if began_finished:  # the event file of this process replaces the last step of the one before
            last = self.losses.training.points[-1:]
            scalars |= step_scalars(core, self._ledger, self._unit_stats, last[0].loss if last else None, now)
        self._writer.offer(core.t, scalars)


def step_scalars(core: Core, ledger: Ledger, unit_stats: UnitStatsTable, loss: float | None, now: float) -> dict[str, float]:
    """Return the scalars of an outer step for TensorBoard, by tag. `loss` is the present training loss, or None."""
    contributing = [stats for stats in unit_stats.all() if stats.phase is Phase.CONTRIBUTING]
    rates = {stats.unit: stats.rate.value(now) for stats in contributing}
    scalars: dict[str, float] = {
        "tokens": ledger.tokens,
        "tokens_per_second": sum(rates.values()),
        "contributing_learners": len(contributing),
    }
    if loss is not None:
        scalars["loss"] = loss
    for stats in contributing[:MOST_UNITS]:
        scalars[f"unit_weight/{stats.unit}"] = core.contributions_of(stats.unit).share
        scalars[f"unit_tokens_per_second/{stats.unit}"] = rates[stats.unit]
    return scalars
