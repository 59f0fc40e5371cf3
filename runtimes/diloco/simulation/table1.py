"""Goodput and uptime by number of units and chips: Table 1 of Decoupled DiLoCo (arXiv 2604.21428) with the coordinator of real jobs.

The paper models hardware that fails once in a year and chip, of constant speed. A unit of the simulation trains on with the slices that it
has; a unit that is not elastic waits for replacements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from numpy.random import default_rng

from diloco.contract import Checkpoint, Training
from diloco.simulation.failures import YEAR, ReturnDelay
from diloco.simulation.job import Outcome, SimulatedJob
from diloco.simulation.unit import Hardware

CHIPS_PER_SLICE: Final = 256
CHIPS: Final = (150_000, 300_000, 600_000, 1_200_000, 2_400_000)
LIMIT: Final = 1.5
"""Of the root mean square error, points."""
LEAST_SECONDS: Final = 6_000.0
"""Of a cell: slices that are out come back after some hundreds of seconds."""
UNITS: Final = (1, 2, 4, 8, 16, 32)
LLAMA_YEARS: Final = 5.8
"""Mean time between failures of an accelerator, years: 419 unexpected interruptions of 16,384 in 54 days (arXiv 2407.21783, Table 5)."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the paper does not print: fitted on M = 1 (elastic), 2 and 8; the restart on the row that is not elastic."""

    step_seconds: float
    down_seconds: float
    up_seconds: float
    return_seconds: float
    """Mean time until a slice comes back."""
    restart_seconds: float
    """Of a job that is not elastic, until all of it runs again: a closed form of the table has 80 s with the lost step."""


CALIBRATION: Final = Calibration(step_seconds=4.0, down_seconds=10.5, up_seconds=8.5, return_seconds=1200.0, restart_seconds=76.0)


@dataclass(frozen=True, slots=True)
class Cell:
    """One job of the table."""

    units: int
    chips: int
    elastic: bool = True


@dataclass(frozen=True, slots=True)
class Published:
    """Percent."""

    goodput: int
    uptime: int


def _row(units: int, goodput: Sequence[int], uptime: Sequence[int], *, elastic: bool = True) -> dict[Cell, Published]:
    chips = (150_000, 600_000, 1_200_000)
    return {Cell(units, n, elastic): Published(g, u) for n, g, u in zip(chips, goodput, uptime, strict=True)}


PUBLISHED: Final[Mapping[Cell, Published]] = {
    **_row(1, (72, 38, 27), (72, 38, 27), elastic=False),
    **_row(1, (88, 69, 58), (88, 69, 59)),
    **_row(2, (94, 80, 70), (100, 96, 90)),
    **_row(4, (96, 89, 82), (100, 99, 99)),
    **_row(8, (98, 94, 88), (100, 100, 100)),
    **_row(16, (99, 96, 93), (100, 100, 100)),
}
FITTED: Final = frozenset(cell for cell in PUBLISHED if not cell.elastic or cell.units in (1, 2, 8))
"""Those with which the calibration was chosen."""
CELLS: Final = (*(Cell(1, chips, elastic=False) for chips in CHIPS), *(Cell(units, chips) for units in UNITS for chips in CHIPS))


@dataclass(frozen=True, slots=True)
class Row:
    """A cell and what the simulation says of it."""

    cell: Cell
    outcome: Outcome

    @property
    def published(self) -> Published | None:
        return PUBLISHED.get(self.cell)

    @property
    def fitted(self) -> bool:
        """It took part in the fit: no prediction."""
        return self.cell in FITTED

    @property
    def errors(self) -> tuple[float, float] | None:
        """Of goodput and uptime, in points; None: not published."""
        if self.published is None:
            return None
        return 100 * self.outcome.goodput - self.published.goodput, 100 * self.outcome.uptime - self.published.uptime


def simulate(cell: Cell, seconds: float, seed: int, years: float = 1.0, calibration: Calibration = CALIBRATION) -> Outcome:
    """The outcome of one cell over so many virtual seconds. `years`: mean time between failures of a chip. H = P = 24, tau = 2, K = 1."""
    hardware = Hardware(
        slices=max(1, round(cell.chips / cell.units / CHIPS_PER_SLICE)),
        chips_per_slice=CHIPS_PER_SLICE,
        chip_seconds_between_failures=years * YEAR,
        step_seconds=calibration.step_seconds,
        down_seconds=calibration.down_seconds if cell.elastic else calibration.restart_seconds,
        up_seconds=calibration.up_seconds,
        returns=ReturnDelay.with_mean(calibration.return_seconds),
        elastic=cell.elastic,
    )
    training = Training(steps=10**9, checkpoint=Checkpoint(every_steps=10**9))
    random = default_rng([seed, cell.units, cell.chips, cell.elastic, round(1000 * years)])
    return SimulatedJob(training, [hardware] * cell.units, random).run(seconds)


def simulate_cell(unit_seconds: float, seed: int, cell: Cell, years: float = 1.0, *, least: float | None = None) -> Outcome:
    """The outcome of a cell whose units together have so many virtual seconds; `least` seconds at least, `LEAST_SECONDS` without it."""
    return simulate(cell, max(unit_seconds / cell.units, LEAST_SECONDS if least is None else least), seed, years)


def rms(rows: Iterable[Row]) -> float:
    """Root mean square error of goodput and uptime over the published cells, in points; 0 without one."""
    errors = [error for row in rows if row.errors is not None for error in row.errors]
    return math.sqrt(sum(error * error for error in errors) / len(errors)) if errors else 0.0
