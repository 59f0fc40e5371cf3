"""[table-13] The bandwidth between sites that training needs, in closed form, beside Table 13 of Decoupled DiLoCo (arXiv 2604.21428).

The paper asks at which bandwidth accelerators compute for 50 to 99 % of the time. So its learners wait for the part of an exchange that no
step hides. A model of 5 billion parameters is exchanged around a ring of sites. Values that the paper does not print are fitted on its 45
cells: steps of 1 s, and steps of 5 s between 8 sites. The 15 cells with steps of 5 s between 2 sites are predictions.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from xml.etree.ElementTree import Element

from diloco_cli.plots import COLOURS, Axis, Line, Marks, Plot, Rule, Series, picture

from benchmarks.figure import Figure
from benchmarks.plots import plot

H: Final = 24
"""The interval with which the paper's models are trained. Its bandwidths fit another one, see `Calibration.sync_interval`."""
LIMIT: Final = 0.03
"""Limit of the root mean square of the relative errors."""
UTILISATIONS: Final = (0.5, 0.75, 0.9, 0.95, 0.99)


class Method(enum.StrEnum):
    """What the sites exchange."""

    DATA_PARALLEL = "data parallel"
    """All gradients in each step, in 16 bits."""
    BFLOAT16 = "decoupled bf16"
    INT4 = "decoupled int4"

    @property
    def bits(self) -> int:
        """Bits of each parameter."""
        return 4 if self is Method.INT4 else 16


@dataclass(frozen=True, slots=True)
class Calibration:
    """Values that the paper does not print, fitted on the published cells."""

    parameters: float
    hidden: float
    """The share of a data-parallel step that hides its sums of gradients: the backward pass."""
    layers: int
    """Equal layers. The gradients of the last one are always summed after the backward pass."""
    latency_seconds: float
    """Latency in each data-parallel step, at any bandwidth."""
    sync_interval: int
    """H of the decoupled cells."""
    decoupled_hidden: float
    """The share of a step that hides the exchange in the decoupled cells."""


CALIBRATION: Final = Calibration(5.1e9, 2 / 3, 63, 0.0038, 102, 0.36)


@dataclass(frozen=True, slots=True)
class Cell:
    """One bandwidth of the table."""

    method: Method
    step_seconds: float
    sites: int
    utilisation: float
    """The share of the time in which accelerators compute, between 0 and 1."""


def ring(sites: int) -> float:
    """Bytes that go over each site's link to sum a vector around a ring, in sizes of the vector: `2 (D - 1) / D`."""
    return 2 * (sites - 1) / sites


def required(cell: Cell, sync_interval: int | None = None, calibration: Calibration = CALIBRATION) -> float:
    """The bandwidth that a cell needs, Gbit/s. `sync_interval`: H of the decoupled methods; None means the fitted one.

    At the utilisation u a step of T seconds leaves `T (1 / u - 1)` seconds for the time that is not hidden. Data parallel moves V bits a
    step, and `max(V / B - T hidden, V / (layers B)) + latency` seconds are not hidden. Decoupled moves V / H bits, and
    `V / (H B) - T decoupled_hidden` seconds are not hidden.
    """
    exposed = cell.step_seconds * (1 / cell.utilisation - 1)
    gigabits = calibration.parameters * cell.method.bits * ring(cell.sites) / 1e9
    if cell.method is not Method.DATA_PARALLEL:
        interval = calibration.sync_interval if sync_interval is None else sync_interval
        return gigabits / interval / (exposed + calibration.decoupled_hidden * cell.step_seconds)
    left = exposed - calibration.latency_seconds
    if left <= 0:
        return math.inf
    return max(gigabits / (left + calibration.hidden * cell.step_seconds), gigabits / (calibration.layers * left))


def of_a_link(method: Method, step_seconds: float, calibration: Calibration = CALIBRATION) -> float:
    """What the link between one of our learners and the syncer carries in each direction, Gbit/s: one of P = H fragments in each step. Our
    learners do not wait for it."""
    return calibration.parameters * method.bits / 1e9 / H / step_seconds


def _cells(method: Method, step_seconds: float, sites: int) -> tuple[Cell, ...]:
    return tuple(Cell(method, step_seconds, sites, utilisation) for utilisation in UTILISATIONS)


_CONFIGURATIONS: Final = ((1.0, 2), (1.0, 8), (5.0, 2), (5.0, 8))
CELLS: Final = tuple(cell for method in Method for seconds, sites in _CONFIGURATIONS for cell in _cells(method, seconds, sites))

_PUBLISHED: Final[Mapping[Method, Mapping[tuple[float, int], tuple[float, ...]]]] = {
    Method.DATA_PARALLEL: {
        (1.0, 2): (49, 81, 104, 113, 195),
        (1.0, 8): (85, 140, 183, 198, 391),
        (5.0, 8): (17, 28, 37, 40, 49),
    },
    Method.BFLOAT16: {
        (1.0, 2): (0.58, 1.2, 1.7, 1.9, 2.2),
        (1.0, 8): (1.0, 2.0, 3.0, 3.3, 3.8),
        (5.0, 8): (0.21, 0.40, 0.59, 0.68, 0.75),
    },
    Method.INT4: {
        (1.0, 2): (0.15, 0.29, 0.43, 0.49, 0.53),
        (1.0, 8): (0.26, 0.51, 0.75, 0.84, 0.94),
        (5.0, 8): (0.05, 0.10, 0.15, 0.17, 0.19),
    },
}
PUBLISHED: Final[Mapping[Cell, float]] = {
    cell: value
    for method, rows in _PUBLISHED.items()
    for (seconds, sites), row in rows.items()
    for cell, value in zip(_cells(method, seconds, sites), row, strict=True)
}
"""Cell -> Gbit/s."""


def error(cell: Cell) -> float | None:
    """Error of the fit, relative to the published bandwidth. None if that is not published."""
    published = PUBLISHED.get(cell)
    return None if published is None else required(cell) / published - 1


def rms(cells: Iterable[Cell]) -> float:
    """Root mean square of the relative errors of the published cells. 0 if there is no such cell."""
    errors = [relative for cell in cells if (relative := error(cell)) is not None]
    return math.sqrt(sum(relative_error * relative_error for relative_error in errors) / len(errors)) if errors else 0.0


def like_for_like() -> float:
    """Data parallel's bandwidth over that of the decoupled method, both in bf16, with H = 24, at 8 sites, 1 s and 95 %."""
    cells = [Cell(method, 1.0, 8, 0.95) for method in (Method.DATA_PARALLEL, Method.BFLOAT16)]
    return required(cells[0]) / required(cells[1], H)


def measure(*, smoke: bool) -> Iterator[Figure]:
    plot("table-13", plot_table_13, smoke=smoke)
    details = {
        "predicted_cells": len(CELLS) - len(PUBLISHED),
        "like_for_like": round(like_for_like(), 1),
        "link_of_a_learner": {method.value: round(of_a_link(method, 1.0), 2) for method in (Method.BFLOAT16, Method.INT4)},
        "rows": [_line(cell) for cell in CELLS],
    }
    yield Figure("table-13", rms(CELLS), "relative error, rms", LIMIT, rms(CELLS) <= LIMIT, len(PUBLISHED), details)


def _line(cell: Cell) -> dict[str, Any]:
    """A row of the table, with bandwidths in Gbit/s. Rows with a published value are the fit, all others are predictions."""
    relative_error = error(cell)
    return {
        "method": cell.method.value,
        "step_seconds": cell.step_seconds,
        "sites": cell.sites,
        "utilisation": cell.utilisation,
        "gigabits": round(required(cell), 4),
        "published": PUBLISHED.get(cell),
        "error": round(relative_error, 4) if relative_error is not None else None,
        "gigabits_at_h_24": round(required(cell, H), 4) if cell.method is not Method.DATA_PARALLEL else None,
    }


def plot_table_13() -> Element:
    """Draw bandwidth over utilisation, for 8 sites and steps of 1 s."""
    step, sites = 1.0, 8
    series: list[Series] = []
    for method, colour in zip(Method, COLOURS, strict=False):
        cells = [Cell(method, step, sites, utilisation) for utilisation in UTILISATIONS]
        percent = [100 * utilisation for utilisation in UTILISATIONS]
        series.append(Line(method.value, [(x, required(cell)) for x, cell in zip(percent, cells, strict=True)], colour))
        series.append(Marks("", [(x, PUBLISHED[cell]) for x, cell in zip(percent, cells, strict=True)], colour))
        if method is not Method.DATA_PARALLEL:
            at_h = [(x, required(cell, H)) for x, cell in zip(percent, cells, strict=True)]
            series.append(Line(f"{method.value}, H = {H}", at_h, colour, dashes="6 4"))
            series.append(Rule(f"a learner's link of ours, {method.value[10:]}", of_a_link(method, step), colour))
    x, y = Axis("time that accelerators compute, %", 50, 100), Axis("Gbit/s", 0.2, 1000, logarithmic=True)
    return picture(Plot(f"{sites} sites, steps of {step:g} s, 5 billion parameters; dots: published", x, y, series))
