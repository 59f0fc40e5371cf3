"""Scavenged compute: Table 4 of Decoupled DiLoCo (arXiv 2604.21428).

Four learners have a number of tokens to train; more learners join when half of them are merged, and stay. Nothing is fitted:
`0.5 + 0.5 / (1 + x)` of the time is what the extra learners can give at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from numpy.random import default_rng

from diloco.contract import Checkpoint, Training
from diloco.simulation.failures import ReturnDelay
from diloco.simulation.job import Outcome, SimulatedJob
from diloco.simulation.unit import TOKENS, Hardware

UNITS: Final = 4
EXTRA: Final = (0.0, 0.25, 0.5, 1.0, 3.0)
"""Extra compute, in that of the four."""
PUBLISHED: Final[Mapping[float, float]] = {0.0: 1.0, 0.25: 0.90, 0.5: 0.83, 1.0: 0.75, 3.0: 0.62}
"""Time until all is trained, in the time of the four."""
LIMIT: Final = 0.03
"""Limit of the time, relative to `ideal`."""
STEP_SECONDS: Final = 1.0
VARIATION: Final = 0.1

_HARDWARE: Final = Hardware(
    slices=1,
    chips_per_slice=1,
    chip_seconds_between_failures=math.inf,
    step_seconds=STEP_SECONDS,
    down_seconds=0.0,
    up_seconds=0.0,
    returns=ReturnDelay(1.0, 1.0, 1.0),
    step_variation=VARIATION,
)


def ideal(extra: float) -> float:
    """Return the time if extra learners gave all of their work from the moment when they join."""
    return 0.5 + 0.5 / (1.0 + extra)


def simulate(extra: float, steps: int, seed: int) -> Outcome:
    """Return the outcome of a job whose four learners alone would merge the tokens of about so many steps each. H = P = 24, tau = 2, K =
    1."""
    tokens = float(UNITS * steps * TOKENS)
    training = Training(steps=10**9, checkpoint=Checkpoint(every_steps=10**9))
    job = SimulatedJob(training, [_HARDWARE] * UNITS, default_rng([seed, round(1000 * extra)]))
    job.run(tokens=tokens / 2)
    job.add([_HARDWARE] * round(extra * UNITS))
    return job.run(tokens=tokens)


@dataclass(frozen=True, slots=True)
class Row:
    """What a job with so much extra compute came to."""

    extra: float
    outcome: Outcome
    time: float
    """In that without extra learners."""

    @property
    def error(self) -> float:
        """Relative to what the extra learners can give at most."""
        return self.time / ideal(self.extra) - 1


def rows(steps: int, seed: int) -> list[Row]:
    """Return all rows of the table."""
    outcomes = {extra: simulate(extra, steps, seed) for extra in EXTRA}
    return [Row(extra, outcome, outcome.seconds / outcomes[0.0].seconds) for extra, outcome in outcomes.items()]


def worst(found: Sequence[Row]) -> float:
    """Return largest relative error."""
    return max(abs(row.error) for row in found)
