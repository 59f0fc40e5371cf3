"""The jobs of [simulator-truth], for both real and simulated runs, and the failures of their units. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from diloco.simulation.failures import ReturnDelay
from numpy.random import default_rng

from benchmarks.wan.regions import Links

SETTLED: Final = 24
"""A window begins when each unit has taken this number of steps. No unit fails earlier."""
ONE_PLACE: Final = Links((1e9,), (0.0,))
"""A network with a single region, whose processes talk over loopback."""
_MOST_FAILURES: Final = 100
"""Failures that are drawn for a unit. No window is long enough for all of them."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The end of one attempt of a unit, by SIGKILL in the middle of a step."""

    step: int
    """Number of the step in this attempt, from 1."""
    out_seconds: float
    """Time until the unit's process is started again."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One job, and the window in which it is measured."""

    name: str
    step_seconds: tuple[float, ...]
    """The mean step of each unit."""
    seconds: float
    """Length of the window."""
    variation: float = 0.0
    """Standard deviation of a step, in mean steps."""
    steps_between_failures: float = 0.0
    """Mean number of steps of a unit from its start to its failure. 0 means that no unit fails."""
    out_seconds: float = 0.0
    """Mean time until a failed unit starts again."""
    quorum: int = 1
    compression: str = "BFloat16"
    mebibytes: int = 1
    """Size of the model, float32."""
    links: Links = ONE_PLACE
    """With several regions, the syncer is alone in the first, and each unit is in one of the others."""

    @property
    def units(self) -> tuple[str, ...]:
        return tuple(f"u{index}" for index in range(len(self.step_seconds)))

    @property
    def parameters(self) -> int:
        """The number of parameters of the model."""
        return self.mebibytes * (1 << 20) // 4

    @property
    def training(self) -> dict[str, Any]:
        """Fields that differ from the usual ones, which are H = P = 24, tau = 2."""
        return {"quorum": self.quorum, "compression": self.compression}

    def region(self, index: int) -> int:
        """The region of a unit."""
        return index + 1 if len(self.links.rates) > 1 else 0


def tape(setting: Setting, seed: int) -> Mapping[str, Sequence[Failure]]:
    """The failures of each unit, in order. Steps between failures are geometric. A unit is out for an exponentiated Weibull time, as slices
    are."""
    if not setting.steps_between_failures:
        return dict.fromkeys(setting.units, ())
    failures: dict[str, Sequence[Failure]] = {}
    for index, unit in enumerate(setting.units):
        random = default_rng([seed, index])
        delay = ReturnDelay.with_mean(setting.out_seconds)
        steps = random.geometric(1.0 / setting.steps_between_failures, _MOST_FAILURES)
        failures[unit] = [Failure(int(step) + (0 if number else SETTLED), delay.draw(random)) for number, step in enumerate(steps)]
    return failures


def _narrow(needs: Sequence[float], away: Sequence[float], mebibytes: int, step_seconds: float) -> Links:
    """A wide link for the syncer, and for each unit a link that carries `needs` times a fragment in BFloat16 in each step."""
    need = 16.0 * (mebibytes * (1 << 20) / 4) / 24 / step_seconds
    return Links((1e9, *(share * need for share in needs)), (0.0, *away))


CALIBRATION: Final = Setting("calibration", (0.25, 0.25, 0.4, 0.4), 45.0, steps_between_failures=60, out_seconds=3.0)
"""The job from which the simulator's times are measured."""
SETTINGS: Final = (
    Setting("failures", (0.25,) * 8, 60.0, steps_between_failures=150, out_seconds=6.0),
    Setting(
        "speeds", (0.2, 0.2, 0.25, 0.25, 0.3, 0.3, 0.4, 0.4), 60.0, variation=0.2, steps_between_failures=120, out_seconds=4.0, quorum=7
    ),
    Setting(
        "links",
        (0.25,) * 4,
        60.0,
        steps_between_failures=250,
        out_seconds=4.0,
        mebibytes=8,
        links=_narrow((2.0, 1.5, 1.0, 0.8), (0.005, 0.015, 0.025, 0.04), 8, 0.25),
    ),
)
"""The predicted jobs. None of them was used to calibrate."""
SEED: Final = 41
"""Seed of the failures."""
