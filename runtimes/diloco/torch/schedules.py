"""A torch scheduler that follows the job.

See docs/decisions/0166-progress-pauses-and-ends.md.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from diloco.schedules import Clock, Decay, Schedule


class Shape(Protocol):
    """A learning rate as a share of the highest one, such as `Schedule`."""

    def next_share(self, clock: Clock) -> float:
        """Return the share for the next step."""
        ...


class ProgressLR(torch.optim.lr_scheduler.LRScheduler):
    """The learning rate of each parameter group is its first rate times the schedule's share.

    It follows the session, not its own calls: call `step` after each `session.step`; further calls do no harm. Its `state_dict` holds no
    position, because the job has it.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, session: Clock, schedule: Shape) -> None:
        """Sets the rate for the next step at once."""
        self._session = session
        self._schedule = schedule
        super().__init__(optimizer)

    def get_lr(self) -> list[float | torch.Tensor]:
        """Return the rate of each parameter group for the next step."""
        share = self._schedule.next_share(self._session)
        return [rate * share for rate in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        """Return the base class's state, without the session."""
        return {key: value for key, value in super().state_dict().items() if key not in ("_session", "_schedule")}


def schedule(
    optimizer: torch.optim.Optimizer, session: Clock, decay: Decay = "cosine", *, warmup: int = 0, final: float = 0.0, tail: float = 0.2
) -> ProgressLR:
    """Return a scheduler whose decay follows `session.progress`, so that fast, slow and late units anneal together.

    Raises ValueError for values that cannot be.

    Args:
        decay: "constant", "linear", "cosine" or "wsd".
        warmup: local steps over which the rate rises from 0. They count from an optimizer state of zeros, so a unit that came back with the
            state of a peer does not warm up again.
        final: the rate at the end of the job, as a share of the optimizer's rate.
        tail: for "wsd", the last share of the job, in which the rate falls.
    """
    return ProgressLR(optimizer, session, Schedule(decay, warmup, final, tail))
