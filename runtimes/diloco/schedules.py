"""Learning rates that follow a job: the warm-up counts the steps in the optimizer's state, the decay follows the job's clock. Pure.

`diloco.torch.schedule` and `diloco.jax.schedule` put them into an optimizer.

See docs/decisions/0166-progress-pauses-and-ends.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol

Decay = Literal["constant", "linear", "cosine", "wsd"]


class Clock(Protocol):
    """What a schedule reads of a session."""

    @property
    def progress(self) -> float: ...
    @property
    def optimizer_steps(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Schedule:
    """A learning rate as a share of the highest one."""

    decay: Decay = "cosine"
    """`constant`: none. `linear` and `cosine`: from the beginning of the job to its end. `wsd` (warm-up, stable, decay): none until the
    last `tail` of the job, and then along 1 - sqrt (arXiv 2405.18392)."""
    warmup: int = 0
    """Local steps over which the rate rises from 0. They count from an optimizer state of zeros, because that is what a warm-up protects: a
    unit that came back with the state of a peer does not warm up again, one that found no state does."""
    final: float = 0.0
    """The share at the end of the job."""
    tail: float = 0.2
    """The tail of `wsd`: the share of the job in which the rate falls."""

    def __post_init__(self) -> None:
        if self.decay not in _DECAYS:
            raise ValueError(f"there is no decay {self.decay!r}; choose {', '.join(_DECAYS)}")
        if self.warmup < 0:
            raise ValueError(f"warmup is a number of local steps, not {self.warmup}")
        if not 0 <= self.final <= 1:
            raise ValueError(f"final must be in 0..1, a share of the highest rate, not {self.final}")
        if not 0 < self.tail <= 1:
            raise ValueError(f"tail must be above 0 and at most 1, a share of the job, not {self.tail}")

    def share(self, step: int, progress: float) -> float:
        """Return the share, 0..1, for the optimizer's step number `step` (from 1), when `progress` (0..1) of the job is done."""
        warm = min(1.0, step / self.warmup) if self.warmup else 1.0
        done = min(1.0, max(0.0, progress))
        return warm * (self.final + (1.0 - self.final) * _DECAYS[self.decay](done, self.tail))

    def next_share(self, clock: Clock) -> float:
        """Return the share for the next step of the session's program."""
        return self.share(clock.optimizer_steps + 1, clock.progress)


def _wsd(done: float, tail: float) -> float:
    return 1.0 - math.sqrt(max(0.0, done - (1.0 - tail)) / tail)


_DECAYS: Final[Mapping[str, Callable[[float, float], float]]] = {
    "constant": lambda done, tail: 1.0,
    "linear": lambda done, tail: 1.0 - done,
    "cosine": lambda done, tail: 0.5 * (1.0 + math.cos(math.pi * done)),
    "wsd": _wsd,
}
